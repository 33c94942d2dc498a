"""The page of a comparison: each variant beside the baseline."""
