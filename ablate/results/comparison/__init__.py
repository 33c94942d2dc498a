"""Comparisons of networks: numbers, verdicts, sentences, tables and figures."""
