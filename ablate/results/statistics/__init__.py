"""Intervals, tests and corrections, as functions of numbers."""
