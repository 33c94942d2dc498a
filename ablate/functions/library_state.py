"""What libraries that own a training loop hold once for a whole process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from ablate.functions.process_items import Item

ACCELERATE, KERAS = MODULES = ("accelerate.state", "keras.src.backend.common.global_state")


def of_turn(imported: frozenset[str]) -> Iterator[Item]:
    """Yield what two calls that take turns may each have in their own way."""
    if ACCELERATE in imported:
        shared: dict[str, Any] = sys.modules[ACCELERATE].GradientState._shared_state
        yield Item(words="accelerate's GradientState", read=lambda: _copied(shared), write=lambda v: _set(shared, v))
    if KERAS in imported:
        tracked = sys.modules[KERAS].GLOBAL_STATE_TRACKER.__dict__
        yield Item(words="the global state of Keras", read=lambda: _copied(tracked), write=lambda v: _set(tracked, v))


def set_once(imported: frozenset[str]) -> Iterator[Item]:
    """Yield what belongs to the whole process."""
    if ACCELERATE in imported:
        for name in ("AcceleratorState", "PartialState"):
            shared: dict[str, Any] = getattr(sys.modules[ACCELERATE], name)._shared_state
            yield Item(
                words=f"accelerate's {name}",
                read=lambda found=shared: _copied(found),  # type: ignore[misc]
                write=lambda value, found=shared: _set(found, value),  # type: ignore[misc]
            )


def _copied(shared: dict[str, Any]) -> dict[str, Any]:
    """Return a copy; lists are changed in place."""
    return {name: list(value) if isinstance(value, list) else value for name, value in shared.items()}


def _set(shared: dict[str, Any], value: dict[str, Any]) -> None:
    """Set a dictionary that other objects have as their `__dict__`."""
    shared.clear()
    shared.update(_copied(value))
