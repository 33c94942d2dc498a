"""Which trials go on, and when a search no longer pays."""
