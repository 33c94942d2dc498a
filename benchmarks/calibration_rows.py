"""The row of a calibration: what was measured, how often, and what it should be."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ablate.base.randomness import stream


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured rate (or mean) of `n` repetitions with its standard `error`; the target is `low` to `high`."""

    what: str
    setting: str
    n: int
    measured: float
    error: float
    low: float
    high: float

    @property
    def passed(self) -> bool:
        """Whether the value is inside its target, give or take three standard errors of the simulation."""
        return self.low - 3 * self.error <= self.measured <= self.high + 3 * self.error

    def text(self) -> str:
        """Return the value beside its target."""
        return f"{self.measured:.3f} (n = {self.n:,}, target {self.low:g} to {self.high:g})"

    def cells(self) -> dict[str, object]:
        """Return the row of the CSV file."""
        rounded = {"measured": f"{self.measured:.3f}", "error": f"{self.error:.4f}"}
        bounds = {"low": f"{self.low:g}", "high": f"{self.high:g}", "pass": "pass" if self.passed else "FAIL"}
        return {"what": self.what, "setting": self.setting, "n": self.n, **rounded, **bounds}


def rate(what: str, setting: str, hits: Sequence[bool] | np.ndarray, target: tuple[float, float]) -> Row:
    """Return the row of a share of repetitions; its standard error is at least that of one hit."""
    n = len(hits)
    share = float(np.mean(hits)) if n else math.nan
    safe = min(max(share, 1 / (n + 1)), n / (n + 1)) if n else math.nan
    error = math.sqrt(safe * (1 - safe) / n) if n else math.nan
    return Row(what=what, setting=setting, n=n, measured=share, error=error, low=target[0], high=target[1])


def at_most(what: str, setting: str, page: Callable[[], bool], limit: float, share: float) -> Row:
    """Return the row of a rate of pages that is promised to be at most `limit`.

    Of a rate near the limit a true .07 must not pass for .05, which takes 4,000 pages; of others 600 are enough.
    """
    hits = [page() for _ in range(repetitions(600, share))]
    if np.mean(hits) > 0.6 * limit:
        hits += [page() for _ in range(repetitions(4_000, share) - len(hits))]
    return rate(what, setting, hits, (0.0, limit))


def average(what: str, setting: str, values: np.ndarray, target: tuple[float, float]) -> Row:
    """Return the row of a mean over repetitions."""
    mean, error = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values))
    return Row(what=what, setting=setting, n=len(values), measured=mean, error=error, low=target[0], high=target[1])


def generator(name: str, *path: str | int) -> np.random.Generator:
    """Return the generator of a row, keyed by its name."""
    return stream(0, "calibration", 0, name, *path)


def repetitions(number: int, share: float) -> int:
    """Return a share of the repetitions of a whole run."""
    return max(round(number * share), 4)
