"""Fixtures of the tests of the engine."""

from support.small_training import one_thread

__all__ = ["one_thread"]
