"""The results of a study by subject: numbers, sentences, tables and figures of each; `report` has the pages."""
