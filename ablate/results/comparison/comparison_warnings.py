"""Warnings of a comparison: what limits the trust in its verdicts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl

from ablate.base.plain_text import counted
from ablate.core.objectives import count_states, given_for, is_of_training, is_share
from ablate.results.comparison.rows import comparison, judged_rows, metrics, verdicts
from ablate.results.comparison.runs import Runs, collect
from ablate.results.comparison.tuning_budget import count_untuned, tuning_warnings
from ablate.results.statistics.looks import ERROR, MARGINS, holm, last_plan, late_margins, plan_of
from ablate.results.trials.results import Results, once
from ablate.results.trials.study_warnings import (
    StudyWarning,
    coarse_splits,
    equal_seeds,
    few_errors,
    few_seeds,
    heavy_tail,
)
from ablate.study import PLACEBO, VARIANT, Study

NAMED = 6  # variants that a warning names


@once
def comparison_warnings(results: Results) -> list[StudyWarning]:
    """Return the warnings of a comparison, in the order in which they are shown."""
    study, runs = results.study, collect(results)
    return [
        *_post_hoc(results, runs),
        *_unfinished(results, runs),
        *_failed(runs),
        *_failed_seeds(results),
        *_diverged(study, runs),
        *few_seeds(study.replicates, "seed", "replicates"),
        *_coarse(results),
        *_samples(results),
        *_equal_rows(study, runs),
        *_equal_seeds(results, runs),
        *_placebo(results),
        *tuning_warnings(results),
    ]


def _post_hoc(results: Results, runs: Runs) -> Iterator[StudyWarning]:
    """Warn of margins that were set or changed after the first trial had ended."""
    late = list(late_margins(results.events))
    plan, last = plan_of(results.study), last_plan(results.events) or {}
    ended = _ended(runs)
    if late:
        when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(late[-1].created_at))
        before = counted(late[-1].payload["ended"], "trial")
        text = f"compare.margin or compare.diverged was set or changed at {when} UTC, after {before} had ended"
    elif ended and any(plan[name] != last.get(name, {}) for name in MARGINS):
        text = f"no driver has noted this compare.margin or compare.diverged, and {counted(ended, 'trial')} have ended"
    else:
        return
    yield StudyWarning(code="post-hoc-margin", text=f"{text}: whoever set it may have seen results.")


def _unfinished(results: Results, runs: Runs) -> Iterator[StudyWarning]:
    """Warn while trials have not ended; of tuned rows count seeds, because a row has a trial for each winner."""
    study = results.study
    planned, ended = sum(len(study.design(label)) for label in study.labels), _ended(runs)
    text = f"{ended:,} of {counted(planned, 'trial')} have ended"
    if study.tune is not None:
        rows = results.trials.filter(pl.col("stage") == "search", pl.col("dataset").is_in(study.labels))
        ended = int(rows.filter(pl.col("state").is_in(["COMPLETE", "PRUNED", "FAIL"]))["replicates"].sum())
        planned = planned * study.replicates - count_untuned(results).total()
        text = f"{ended:,} of {planned:,} seeds of the rows have ended"
    if ended < planned:
        yield StudyWarning(code="unfinished", text=f"{text}: these numbers will change.")


def _failed(runs: Runs) -> Iterator[StudyWarning]:
    failed = (runs.table["state"] == "FAIL").to_numpy() & ~runs.diverged
    if failed.any():
        text = (
            f"{counted(int(failed.sum()), 'trial')} failed for another reason than divergence ({_named(runs, failed)})"
        )
        yield StudyWarning(code="failed-trials", text=f"{text}: a configuration that failed is in no difference.")


def _failed_seeds(results: Results) -> Iterator[StudyWarning]:
    """Warn of trials that gave seeds to a configuration that has others, and failed for another reason."""
    study, trials, reports = results.study, results.trials, results.reports
    diverged = reports.filter("diverged").select("dataset", "trial").unique()
    own = trials.filter(pl.col("stage") == "search", pl.col("state") == "FAIL", pl.col("source").is_not_null())
    own = own.filter(pl.col("dataset").is_in(study.labels)).join(diverged, on=["dataset", "trial"], how="anti")
    if own.height:
        named = ", ".join(f"{variant} {count}" for variant, count in own[VARIANT].value_counts().sort(VARIANT).rows())
        seeds = int(own["replicates"].sum())
        text = (
            f"{counted(seeds, 'seed')} in {counted(own.height, 'trial')} failed for another reason than divergence "
            f"({named}): they are in no difference, and whether the others are like them is not known."
        )
        yield StudyWarning(code="failed-seeds", text=text)


def _diverged(study: Study, runs: Runs) -> Iterator[StudyWarning]:
    if not runs.diverged.any():
        return
    seeds = runs.last.filter(pl.col("diverged")).height
    text = f"{counted(seeds, 'seed')} diverged, in {counted(int(runs.diverged.sum()), 'trial')}"
    text += f" ({_named(runs, runs.diverged)})"
    values = ", ".join(f"{value:g} in {metric}" for metric, value in study.compared.diverged.items())
    rule = f"each counts as {values}" if values else "without compare.diverged their cells have no mean"
    yield StudyWarning(code="diverged-seeds", text=f"{text}: {rule}.")


def _coarse(results: Results) -> Iterator[StudyWarning]:
    """Warn of splits of which one sample is more than the margin of their accuracy."""
    margins, splits = results.study.compared.margin, {"val": "validation", "test": "test"}
    for metric in filter(is_share, metrics(results)):
        split, margin = splits.get(metric.partition("_")[0]), given_for(margins, metric)
        if split and margin is not None:
            yield from coarse_splits(results.trials, split, margin)


def _samples(results: Results) -> Iterator[StudyWarning]:
    """Warn of intervals for other samples that rest on few errors, or on few samples with large losses."""
    rows = comparison(results).drop_nulls("samples").select("metric", "mean", "samples").rows()
    yield from few_errors((mean, count) for metric, mean, count in rows if is_share(metric))
    pairs = ((row.metric, row.pair.spread) for row in judged_rows(results))
    yield from heavy_tail((metric, spread.tail) for metric, spread in pairs if spread is not None)


def _equal_rows(study: Study, runs: Runs) -> Iterator[StudyWarning]:
    """Warn of variants whose complete trials have equal numbers: they are one network under several names."""
    names = list(filter(is_of_training, runs.last.columns))
    if all(map(is_share, names)):
        return  # shares of few samples are equal by chance
    own = runs.last.filter("of_complete", pl.col(VARIANT) != PLACEBO)
    own = own.join(runs.table.select("place", "configuration"), on="place").sort("dataset", "configuration", "seed")
    same: dict[tuple[Any, ...], list[str]] = {}
    for (variant,), rows in own.group_by(VARIANT, maintain_order=True):
        key = tuple(rows.select("dataset", "configuration", "seed", *names).iter_rows())
        same.setdefault(key, []).append(str(variant))
    for variants in same.values():
        if len(variants) > 1:
            listed = f"{', '.join(sorted(variants)[:-1])} and {max(variants)}"
            text = f"{listed} have equal numbers in every seed: they are one {study.noun} under {len(variants)} names."
            yield StudyWarning(code="equal-rows", text=text)


def _equal_seeds(results: Results, runs: Runs) -> Iterator[StudyWarning]:
    """Warn of trials with equal seeds in every metric; if there are none, of rows with equal seeds in one metric."""
    if runs.alike:
        chosen = np.isin(np.arange(runs.table.height), list(runs.alike))
        yield equal_seeds(f"{counted(len(runs.alike), 'trial')} ({_named(runs, chosen)})")
    elif names := dict.fromkeys(row.metric for row in judged_rows(results) if row.pair.alike):
        yield equal_seeds(f"{' and '.join(names)} against {results.study.compared.baseline}")


def _placebo(results: Results) -> Iterator[StudyWarning]:
    """Warn where the baseline on other seeds differs from the baseline, by Holm over all metrics and columns at .05."""
    study = results.study
    if not study.compared.placebo:
        return
    found = verdicts(results)
    own = found.filter(pl.col("variant") == PLACEBO, pl.col("p").is_not_null()).rows(named=True)
    for row, p in zip(own, holm([row["p"] for row in own]), strict=True):
        if p < ERROR:
            tests = f", Holm's over {len(own)} tests" if len(own) > 1 else ""
            text = (
                f"On {row['column']} the placebo, which is the baseline on other seeds, differs from the baseline in "
                f"{row['metric']} (p = {p:.4f}{tests}). Chance alone gives this warning in 5% of studies; otherwise "
                "seeds vary more than the intervals say, for example by the luck of tuning. Add seeds."
            )
            yield StudyWarning(code="placebo-differs", text=text)


def _ended(runs: Runs) -> int:
    states: Mapping[str, int] = count_states(runs.table["state"])
    return sum(states[name] for name in ("COMPLETE", "PRUNED", "FAIL"))


def _named(runs: Runs, chosen: np.ndarray[Any, np.dtype[np.bool_]]) -> str:
    """Return `without-mlp 2, kv 1`: the variants of chosen trials with their number, the most frequent first."""
    counts = runs.table.filter(chosen)[VARIANT].value_counts(sort=True).sort("count", VARIANT, descending=[True, False])
    shown = [f"{variant} {count}" for variant, count in counts.head(NAMED).iter_rows()]
    return ", ".join([*shown, *([f"{counts.height - NAMED} more variants"] if counts.height > NAMED else [])])
