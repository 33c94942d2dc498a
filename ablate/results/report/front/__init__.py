"""The page of a search: its front, curves and confirmed networks."""
