"""What a user's function may report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ablate.base.errors import TrialError
from ablate.base.plain_text import metric_name_fault, one_printable_line
from ablate.core.objectives import SIZE_METRICS

if TYPE_CHECKING:
    from ablate.functions.run import Run


LARGEST_COUNT = 2**63  # what a ledger stores


def check_sizes(metrics: Mapping[str, float], who: str) -> None:
    """Raise TrialError if a reported size is no whole number from 0 that a ledger stores; `who` begins the message."""
    for name in SIZE_METRICS:
        value = metrics.get(name, 0.0)
        if not (0 <= value < LARGEST_COUNT and value == int(value)):
            raise TrialError(f"{who} {name}={value:g}: it is a whole number, from 0")


def checked_metrics(value: object, run: Run) -> dict[str, float]:
    """Return what a function reported as metrics, with `params` if a network was built; raise TrialError otherwise."""
    if not isinstance(value, Mapping) or not value:
        raise TrialError(f"the function gave {shown(value)}: a report is a dictionary of metrics, {{name: number}}")
    found: dict[str, float] = {}
    for name, number in value.items():
        if fault := metric_name_fault(name) if isinstance(name, str) else "a metric's name is text":
            raise TrialError(f"the function gave a metric the name {shown(name)}: {fault}")
        try:
            found[str.__str__(name)] = float(number)  # no type of the user's crosses the border
        except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: of a tensor of two values
            raise TrialError(f"the function gave {name}={shown(number)}: a metric is a number") from None
    if run.params is not None:
        found.setdefault("params", float(run.params))
    check_sizes(found, "the function gave")
    return found


@dataclass(frozen=True, kw_only=True)
class Tested:
    """What `test` returned for one seed: metrics, and of those that were given by sample the values [samples]."""

    metrics: dict[str, float]
    samples: dict[str, NDArray[np.float32]]


def checked_test(value: object, run: Run) -> Tested:
    """Return what `test` returned; raise TrialError unless it is metrics with names that start with `test_`.

    A metric is a number, or one number per sample in a list or an array, whose mean it is.
    """
    given = dict(value) if isinstance(value, Mapping) else value
    samples: dict[str, NDArray[np.float32]] = {}
    if isinstance(given, dict):
        for name, number in given.items():
            if (numbers := _by_sample(name, number)) is not None:
                samples[str.__str__(name)] = numbers.astype(np.float32)
                given[name] = float(numbers.mean())
    found = checked_metrics(given, run)
    found.pop("params", None)
    if wrong := [name for name in found if not name.startswith("test_")]:
        raise TrialError(f"`test` returned {', '.join(wrong)}: the names of its metrics start with test_")
    return Tested(metrics=found, samples=samples)


def _by_sample(name: object, value: Any) -> NDArray[np.float64] | None:
    """Return one number per sample, or None for a value that is a single number, or none at all."""
    if not hasattr(value, "__len__") or isinstance(value, str | bytes | Mapping):
        return None
    try:
        numbers = np.asarray(value.detach().cpu().double() if hasattr(value, "detach") else value)
        shape, real = numbers.shape, numbers.dtype.kind in "biuf" and not isinstance(value, np.ma.MaskedArray)
    except (TypeError, ValueError, RuntimeError):  # rows of unequal lengths; a tensor that cannot be read
        shape, real = (), False
    if shape == () and real:
        return None
    if not real or len(shape) != 1 or not shape[0]:
        raise TrialError(
            f"`test` gave {name}={shown(value)}: a metric is a number, or a list or array with one number per sample"
        )
    return numbers.astype(np.float64)


def shown(value: object) -> str:
    """Return a value and its type in one line of at most about 80 characters."""
    text = one_printable_line(repr(value))
    return f"{text[:60]}{'…' if len(text) > 60 else ''} ({type(value).__name__})"
