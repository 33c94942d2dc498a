"""The fit of error against size over the rows of a comparison."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from ablate.results.comparison.rows import first_metric
from ablate.results.comparison.runs import collect, measure
from ablate.results.front.fitted import Fit, fit_of
from ablate.results.front.front import size_metric
from ablate.results.trials.results import Results, once
from ablate.study import PLACEBO, VARIANT


@once
def comparison_fits(results: Results) -> dict[str, Fit]:
    """Return the fit of the first metric of a comparison on every data set: each row but the placebo is a network."""
    study, runs = results.study, collect(results)
    metric, size = first_metric(study), size_metric(study.objectives)
    measured = measure(runs, metric)
    rows = runs.table.filter(pl.col(VARIANT) != PLACEBO)
    split = "test_samples" if metric.startswith("test_") else "validation_samples"
    fits = {}
    for dataset in study.labels:
        own = rows.filter(pl.col("dataset") == dataset)
        listed = [
            (row["place"], row.get(size), measured.values[row["place"]][measured.known[row["place"]]].tolist())
            for row in own.iter_rows(named=True)
        ]
        counts = own[split].unique().to_list()
        fit = Fit(dataset=dataset, metric=metric, size=size, count=counts[0] if len(counts) == 1 else None)
        known = fit_of(study, fit, listed, measured.samples)
        fits[dataset] = replace(known, barred="the study is scaled") if study.scale != 1 else known
    return fits
