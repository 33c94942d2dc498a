"""The trials of a study as tables, and `Results`, which is built from them once."""
