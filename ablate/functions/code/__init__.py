"""The user's code: its files and versions, where they run, and whether they have changed."""
