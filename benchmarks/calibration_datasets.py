"""Rows on verdicts about other data sets: a t test over the mean differences of data sets, which are a sample."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from calibration_rows import Row, generator, rate, repetitions

from ablate.results.comparison.verdicts import adjust, p_two_sided
from ablate.results.statistics.intervals import t_interval
from ablate.results.statistics.looks import ERROR

SEEDS, ARMS = 3, 10
UNEQUAL = (2, 2, 3, 5, 10)  # seeds by data set
FOUND, FIXED = "data sets as a sample", "these data sets only, read as if about others (not claimed)"


def drawn(random: np.random.Generator, arms: int, datasets: int, between: float) -> np.ndarray:
    """Return differences from a common baseline whose mean over all data sets is 0, [arms, data sets, seeds].

    A seed of one network has standard deviation 1; that of a difference is the square root of 2.
    """
    noise = random.standard_normal((arms + 1, datasets, SEEDS))
    return between * random.standard_normal((arms, datasets, 1)) + noise[1:] - noise[:1]


def other_datasets(share: float) -> Iterator[Row]:
    """Coverage of the mean over all data sets, and false verdicts on a page of ten arms, as the page finds them."""
    for datasets in (5, 8, 12):
        for between in (0.0, 1.0, 3.0):
            random = generator("other data sets", datasets, str(between))
            hits = []
            for _ in range(repetitions(20_000, share)):
                found = t_interval(drawn(random, 1, datasets, between)[0].mean(axis=1).tolist())
                hits.append(found.low <= 0 <= found.high)
            setting = f"{datasets} data sets, {SEEDS} seeds, {between:g} seed sd between data sets"
            yield rate(f"{FOUND}: coverage of the mean over all data sets", setting, hits, (0.94, 0.96))
            wrong: dict[str, list[bool]] = {FOUND: [], FIXED: []}
            for _ in range(repetitions(5_000, share)):
                page = drawn(random, ARMS, datasets, between)
                for list_of, axis in zip(wrong.values(), (2, 1), strict=True):
                    list_of.append(min(adjust([p_two_sided(row) for row in page.mean(axis=axis)])) < ERROR)
            what, arms = "superior or harmful", f"{ARMS} equal arms, {setting}"
            yield rate(f"{FOUND}: {what}", arms, wrong[FOUND], (0.0, 0.05))
            yield rate(f"{FIXED}: {what}", arms, wrong[FIXED], (0.08, 1.0) if between else (0.0, 0.05))


def unequal_datasets(share: float) -> Iterator[Row]:
    """Coverage with unequal numbers of seeds, and where the noise of data sets differs by up to ten times."""
    for ratio in (1.0, 10.0):
        for between in (0.0, 1.0, 3.0):
            random, hits = generator("unequal data sets", str(ratio), str(between)), []
            for _ in range(repetitions(20_000, share)):
                noise = 0.2 * ratio ** random.random(len(UNEQUAL)) if ratio > 1 else 1.0
                errors = noise * random.standard_normal(len(UNEQUAL)) * math.sqrt(2) / np.sqrt(UNEQUAL)
                found = t_interval((between * random.standard_normal(len(UNEQUAL)) + errors).tolist())
                hits.append(found.low <= 0 <= found.high)
            alike = "equal noise" if ratio == 1 else f"noise unequal by up to {ratio:g} times"
            setting = f"{', '.join(map(str, UNEQUAL))} seeds, {alike}, {between:g} seed sd between data sets"
            yield rate(f"{FOUND}: coverage of the mean over all data sets", setting, hits, (0.94, 0.985))
