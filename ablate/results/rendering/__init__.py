"""Numbers as text, figures and LaTeX, for every subject."""
