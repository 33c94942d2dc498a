"""Tasks on sets of feature vectors."""
