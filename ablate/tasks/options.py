"""Which fields and options of a data set's entry a built-in task takes, and what is said of the others."""

from __future__ import annotations

from collections.abc import Collection

from ablate.config import TaskConfig
from ablate.errors import RequestError, did_you_mean

FIELDS = ("image_size", "length", "path")  # fields that only some tasks use


def refuse_others(config: TaskConfig, *, fields: Collection[str], options: Collection[str] = ()) -> None:
    """Raise RequestError where `config` sets one of `FIELDS` or an option that the task would ignore."""
    unused = [name for name in FIELDS if name not in fields and getattr(config, name) is not None]
    if unused:
        raise RequestError(f"task {config.task} does not use {' and '.join(unused)}; leave {_it(unused)} out")
    unknown = [name for name in config.options if name not in options]
    if unknown and not options:
        raise RequestError(f"task {config.task} takes no options, got {', '.join(map(repr, unknown))}")
    if unknown:
        raise RequestError(f"task {config.task}: unknown option {unknown[0]!r}. {did_you_mean(unknown[0], options)}")


def switch(config: TaskConfig, name: str, *, default: bool) -> bool:
    """Return option `name`, true or false; raise RequestError for anything else."""
    value = config.options.get(name, default)
    if not isinstance(value, bool):
        raise RequestError(f"task {config.task}: option {name} = {value!r}: must be true or false")
    return value


def count(config: TaskConfig, name: str, *, default: int) -> int:
    """Return option `name`, a whole number from 0; raise RequestError for anything else."""
    value = config.options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise RequestError(f"task {config.task}: option {name} = {value!r}: must be a whole number, 0 or more")
    return value


def _it(names: Collection[str]) -> str:
    return "it" if len(names) == 1 else "them"
