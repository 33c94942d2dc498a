"""A warning about a study's result: a code that a machine reads and a sentence that a person reads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import polars as pl

from ablate.base.plain_text import counted
from ablate.core.objectives import is_share
from ablate.results.statistics.intervals import FEW_SEEDS, smallest_effect

FEW_ERRORS, HEAVY = 10, 0.3  # lognormal samples: their interval covers in less than about .9 above such a tail


@dataclass(frozen=True, kw_only=True)
class StudyWarning:
    """What limits the trust in a result, before its tables: a code such as `unequal-budget`, and one sentence."""

    code: str
    text: str

    @property
    def sentence(self) -> str:
        """The text with a full stop at its end."""
        return f"{self.text.rstrip('.')}."


def few_seeds(seeds: int, what: str, setting: str) -> Iterator[StudyWarning]:
    """Yield the warning of fewer than FEW_SEEDS seeds, called `what`, of which `setting` makes more."""
    if seeds < FEW_SEEDS:
        size = smallest_effect(seeds)
        shown = f"only differences of {size:.1f} standard deviations or more" if seeds > 1 else "no differences"
        text = f"{counted(seeds, what)}: {shown} are found reliably. More `{setting}` find smaller ones"
        yield StudyWarning(code="few-seeds", text=f"{text}.")


def equal_seeds(which: str) -> StudyWarning:
    """Return the warning of trials, in words, that have equal numbers in all their seeds."""
    text = (
        f"{which}: all seeds have the same numbers, so there is one run and no spread. Does the code use its seed? A"
        " command gets it by {seed} or ABLATE_SEED, a function by run.seed. Where training has no chance in it, let"
        " the seed choose the split of the data."
    )
    return StudyWarning(code="equal-seeds", text=text)


def split_samples(trials: pl.DataFrame, column: str) -> int | None:
    """Return how many samples a split has, the fewest of the trials of its data set, or None if it is not known."""
    found = trials[column].drop_nulls()
    return int(found.to_numpy().min()) if len(found) else None


def few_errors(shares: Iterable[tuple[float, int]]) -> Iterator[StudyWarning]:
    """Yield the warning of a share, with its number of samples, that has few errors, or few without one."""
    expected = min((min(share, 1 - share) * count for share, count in shares), default=math.inf)
    if expected < FEW_ERRORS:
        text = f"The smallest error is {expected:.2g} test samples: below {FEW_ERRORS}, intervals for other samples"
        yield StudyWarning(code="few-errors", text=f"{text} cover between .93 and 1 of cases, not .95")


def heavy_tail(tails: Iterable[tuple[str, float]]) -> Iterator[StudyWarning]:
    """Yield the warning of a metric that is no share, with its `Spread.tail`, if that is large."""
    if found := dict.fromkeys(metric for metric, tail in tails if tail > HEAVY and not is_share(metric)):
        text = f"A few test samples make up most of {' and '.join(found)}: intervals for other samples are too narrow"
        yield StudyWarning(code="heavy-tail", text=text)


def coarse_splits(trials: pl.DataFrame, split: str, *margins: float) -> Iterator[StudyWarning]:
    """Yield the warning of each margin of a share that is smaller than one sample of a split."""
    count = split_samples(trials, f"{split}_samples")
    for margin in margins:
        if count and 1 / count > margin:
            text = (
                f"One of the {count:,} {split} samples is worth {100 / count:.2g} points, more than the margin of "
                f"{100 * margin:.3g} points: this split cannot tell such differences."
            )
            yield StudyWarning(code=f"coarse-{split}", text=text)
