"""Tasks on text and on lists of symbols."""
