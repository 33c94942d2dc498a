"""Fronts of a search: numbers, sentences, tables and figures."""
