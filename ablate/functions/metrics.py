"""What a user's function may report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ablate.base.errors import TrialError
from ablate.base.plain_text import one_printable_line

if TYPE_CHECKING:
    from ablate.functions.run import Run

LONGEST_NAME = 200  # bytes
LARGEST_COUNT = 2**63  # what a ledger stores


def checked_metrics(value: object, run: Run) -> dict[str, float]:
    """Return what a function reported as metrics, with `params` if a network was built; raise TrialError otherwise."""
    if not isinstance(value, Mapping) or not value:
        raise TrialError(f"the function gave {_shown(value)}: a report is a dictionary of metrics, {{name: number}}")
    found: dict[str, float] = {}
    for name, number in value.items():
        _check_name(name)
        try:
            found[name] = float(number)
        except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: of a tensor of two values
            raise TrialError(f"the function gave {name}={_shown(number)}: a metric is a number") from None
    if run.params is not None:
        found.setdefault("params", float(run.params))
    count = found.get("params", 0.0)
    if not (0 <= count < LARGEST_COUNT and count == int(count)):
        raise TrialError(f"the function gave params={count:g}: it is a whole number of parameters, from 0")
    return found


def checked_test(value: object, run: Run) -> dict[str, float]:
    """Return what `test` returned as metrics; raise TrialError unless they are, with names that start with `test_`."""
    found = checked_metrics(value, run)
    found.pop("params", None)
    if wrong := [name for name in found if not name.startswith("test_")]:
        raise TrialError(f"`test` returned {', '.join(wrong)}: the names of its metrics start with test_")
    return found


def _check_name(name: object) -> None:
    printable = isinstance(name, str) and name.strip() != "" and one_printable_line(name) == name
    if not printable or len(str(name).encode(errors="replace")) > LONGEST_NAME:
        raise TrialError(
            f"the function gave a metric the name {_shown(name)}: a name is printable text of at most"
            f" {LONGEST_NAME} bytes"
        )


def _shown(value: object) -> str:
    text = one_printable_line(repr(value))
    return f"{text[:60]}{'…' if len(text) > 60 else ''} ({type(value).__name__})"
