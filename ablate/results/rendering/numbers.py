"""The text of numbers and names in reports."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ablate.base.plain_text import one_printable_line
from ablate.core.objectives import SIZE_METRICS, ObjectiveLike, is_higher_better, is_share
from ablate.results.statistics.intervals import natural_bounds

DASH = "–"
NO_WIDTH = 1e-9  # an interval below this has no width: its seeds agree to the last sample


def count(value: float | int | None) -> str:
    """Return a whole number with thin separators, or a dash if it is missing."""
    return DASH if value is None or not math.isfinite(value) else f"{round(value):,}"


def compact(value: float | int | None) -> str:
    """Return a count in three digits with k, M, G or T."""
    if value is None or not math.isfinite(value):
        return DASH
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit * 0.9995:
            return f"{float(f'{value / limit:.3g}'):g}{unit}"
    return f"{float(f'{value:.3g}'):g}"


def ratio(value: float | None) -> str:
    """Return a quotient such as Q or `6.3` in three digits, without exponents below a million."""
    if value is None or not math.isfinite(value):
        return DASH
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def quantity(metric: str, value: float | None) -> str:
    """Return a metric's value in its usual writing: percent, thousands, or four digits."""
    if value is None or not math.isfinite(value):
        return DASH
    if is_share(metric):
        return f"{100 * value:.2f}%"
    return count(value) if metric in SIZE_METRICS else f"{value:.4g}"


def equal_seeds(low: float | None, high: float | None) -> bool:
    """Return whether an interval has no width: equal values of all seeds say little about the next seed."""
    return low is not None and high is not None and high - low < NO_WIDTH


def says_little(metric: str, low: float, high: float) -> bool:
    """Return whether an interval of a share covers more than half of all values, or of a difference more than all."""
    return is_share(metric) and high - low > (0.5 if low >= 0 and high <= 1 else 2)


def capital(text: str) -> str:
    """Return a text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def interval_text(metric: str, low: float | None, high: float | None, n: int) -> str:
    """Return `97.2 to 98.4`, or a dash for fewer than two replicates.

    An interval without width is `3 seeds equal`, one of nearly all values `2 seeds are too few`.
    """
    if low is None or high is None or not math.isfinite(low):
        return DASH
    if equal_seeds(low, high):
        return f"{n} seeds equal"
    if says_little(metric, low, high):
        return f"{n} seeds are too few"
    factor, form = (100, ".2f") if is_share(metric) else (1, ".4g")
    return f"{factor * low:{form}} to {factor * high:{form}}"


def reach(metric: str, mean: float, low: float | None, high: float | None, n: int) -> str:
    """Return ` ± 0.12`, the wider side of an interval over `n` seeds (in points for a share), or an empty text.

    An interval without width is ` (3 seeds equal)`, one that rounds to none ` ± <0.01`, and one of nearly all values
    ` (2 seeds are too few)`. Where mean - reach cannot be, both ends are given: ` (0 to 0.51)`.
    """
    if low is None or high is None:
        return ""
    if equal_seeds(low, high):
        return f" ({n} seeds equal)"
    if says_little(metric, low, high):
        return f" ({n} seeds are too few)"
    half = max(mean - low, high - mean)
    if mean - half < natural_bounds(metric)[0] <= low:
        factor, form = (100, ".2f") if is_share(metric) else (1, ".2g")
        return f" ({factor * low:{form}} to {factor * high:{form}})"
    if not is_share(metric):
        return f" ± {half:.2g}"
    return f" ± {100 * half:.2f}" if half >= 0.00005 else " ± <0.01"


def format_signed(metric: str, value: float | None) -> str:
    """Return a difference with its sign: points for a share, thousands for a count, otherwise three digits."""
    if value is None or not math.isfinite(value):
        return DASH
    value, form = (100 * value, ".2f") if is_share(metric) else (value, ",.0f" if metric in SIZE_METRICS else ".3g")
    text = f"{abs(value):{form}}"
    return text if not text.strip("0.,") else f"{'−' if value < 0 else '+'}{text}"


def unit_text(metric: str, value: float) -> str:
    """Return an unsigned difference in the metric's unit: points for a share."""
    if not is_share(metric):
        return f"{value:.3g}"
    points = f"{float(f'{100 * value:.3g}'):g}"
    return f"{points} point{'s' * (points != '1')}"


def spell_seconds(seconds: float) -> str:
    """Return `3.2 hours`, in the largest unit of which there are two or more."""
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def spell_metric(metric: str) -> str:
    """Return a metric's name in words: `val_accuracy` is `validation accuracy`."""
    words = {
        "params": "parameters",
        "params_body": "parameters without embedding and head",
        "flops": "FLOPs per sample",
        "wall_seconds": "training seconds",
        "q": "Q",
    }
    if metric in words:
        return words[metric]
    prefix, _, rest = metric.partition("_")
    first = {"val": "validation", "train": "training"}.get(prefix, prefix)
    return f"{first} {rest.replace('_', ' ').replace('bleu', 'BLEU')}".strip()


def better_end(metric: str, objectives: Iterable[ObjectiveLike], ends: tuple[str, str]) -> str:
    """Return the one of two ends, of low and of high values, at which a metric is better; '' if nothing says it."""
    higher = is_higher_better(metric, objectives)
    return "" if higher is None else ends[higher]


def decade(value: float) -> int:
    """Return the power of ten of a positive number."""
    return math.floor(math.log10(value))


def round_numbers(low: float, high: float, steps: Iterable[float] = (1, 2, 5)) -> list[float]:
    """Return `steps` times the powers of ten between two positive numbers, in order."""
    grid = (step * 10.0**power for power in range(decade(low), decade(high) + 1) for step in steps)
    return [value for value in grid if low <= value <= high]


def evenly(items: list[Any], most: int) -> list[Any]:
    """Return at most `most` items, spread evenly over the list, in order."""
    if len(items) <= most:
        return items
    return [items[i] for i in np.linspace(0, len(items) - 1, most).round().astype(int)] if most else []


def printable(text: str) -> str:
    """Return text without control characters, so that a name cannot control a terminal."""
    return one_printable_line(text)
