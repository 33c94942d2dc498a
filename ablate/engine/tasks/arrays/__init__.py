"""Tasks made from a user's arrays, torch Datasets or tables of columns (`ablate.Task`)."""
