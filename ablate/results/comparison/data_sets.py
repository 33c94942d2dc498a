"""Verdicts about other data sets: a variant and the baseline by data set, with data sets as a random effect."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ablate.results.comparison.compared_samples import Places
from ablate.results.comparison.runs import Measured, Paired, Runs, pair_by_seed
from ablate.study import Study
from ablate.study.sections import FEWEST_DATASETS


def sampled_columns(study: Study) -> dict[str, tuple[str, ...]]:
    """Return the columns whose data sets are a sample of others, with the running data sets of each."""
    asked = {} if study.compare is None else study.compare.sampled(study.datasets)
    return {name: tuple(label for label in labels if label in study.labels) for name, labels in asked.items()}


def pair_by_dataset(runs: Runs, measured: Measured, places: Places, others: Places) -> Paired:
    """Return the means of two variants by data set, each over the seeds and configurations that both have there.

    The mean difference of data set k is mu + b_k + noise / sqrt(n_k), so a t test over the D means is that of the mixed
    model: exact with D - 1 degrees of freedom if every data set has as many seeds. With unequal numbers of seeds, or
    data sets of unequal noise, it keeps its 5% (Ibragimov and Müller, Journal of Business & Economic Statistics 2010).
    """
    pairs = {}
    for name, own in places.items():
        pair = pair_by_seed(runs, measured, {name: own}, {name: others.get(name, {})})
        if pair.seeds:
            pairs[name] = pair
    return Paired(
        own=np.array([pair.own.mean() for pair in pairs.values()]),
        baseline=np.array([pair.baseline.mean() for pair in pairs.values()]),
        lost=np.zeros(len(pairs), dtype=np.bool_),
        seeds=tuple(pairs),
        compared=sum(pair.compared for pair in pairs.values()),
        spread=None,
        over="data sets",
        between=sd_between([pair.own - pair.baseline for pair in pairs.values()]),
    )


def sd_between(differences: list[NDArray[np.float64]]) -> float | None:
    """Return the standard deviation between data sets of their true differences; each array has the seeds of one.

    The variance of the means less what the seeds explain of it, at least 0: the estimate of REML if every data set has
    as many seeds. None for fewer than FEWEST_DATASETS, with one seed somewhere, or if a seed diverged.
    """
    if len(differences) < FEWEST_DATASETS or min(map(len, differences)) < 2:
        return None
    of_means = float(np.var([own.mean() for own in differences], ddof=1))
    found = of_means - float(np.mean([own.var(ddof=1) / len(own) for own in differences]))
    return math.sqrt(max(found, 0.0)) if math.isfinite(found) else None
