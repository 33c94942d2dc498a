"""The results of a study: numbers (`analysis`), and words, tables and figures of them (`report`)."""
