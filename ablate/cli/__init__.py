"""The command line: what is typed and what is printed; no decisions."""
