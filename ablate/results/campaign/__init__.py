"""Campaigns of changes: figures."""
