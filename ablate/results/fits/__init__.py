"""Curves of accuracy against the number of parameters."""
