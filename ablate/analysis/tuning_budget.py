"""What the tuning of each row of a comparison cost and found, and whether that was fair."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from ablate.analysis.study_warnings import StudyWarning
from ablate.base.plain_text import settings_text
from ablate.objectives import best_place
from ablate.study import VARIANT, Study
from ablate.study.space import Choices, FloatRange, IntRange, Range

NEAR_BORDER = 0.05  # share of a range, on its scale, within which an optimum counts as at the border
BUDGET_COLUMNS: dict[str, pl.DataType] = {
    **dict.fromkeys(("dataset", "variant", "configuration"), pl.String()),
    **dict.fromkeys(("trials", "complete", "failed", "unfinished", "epochs"), pl.Int64()),
    "seconds": pl.Float64(),
    "best_trial": pl.Int64(),
    "score": pl.Float64(),
    "best": pl.String(),
    "border": pl.String(),
}


def tuning_metric(study: Study) -> str:
    """Return the metric that tuning optimises: the first compared one, on validation."""
    assert study.tuning_metric is not None
    return study.tuning_metric


def tuning_trials_of(study: Study, trials: pl.DataFrame) -> pl.DataFrame:
    """Return the tuning trials of the data sets that run, with their `configuration` in words."""
    own = trials.filter(pl.col("stage") == "tune", pl.col("dataset").is_in(study.labels))
    searched = [name for name in study.space.names() if name != VARIANT and name in own.columns]
    texts = [settings_text(row, searched) for row in own.iter_rows(named=True)]
    return own.with_columns(pl.Series("configuration", texts, pl.String()))


def tuning_budget(study: Study, trials: pl.DataFrame) -> pl.DataFrame:
    """Return one row per data set, configuration and row of the comparison, in the order of their first trial.

    `trials` is the trials table (docs/tables.md). `epochs` and `seconds` are sums over the tuning trials, `score` is
    the metric of the best one in its own unit, `best` its values as JSON, and `border` names the settings whose best
    value is within 5% of an end of their range.
    """
    metric = tuning_metric(study)
    rows = []
    for part in tuning_trials_of(study, trials).partition_by("dataset", "configuration", VARIANT, maintain_order=True):
        listed = part.sort("trial").rows(named=True)
        scored = [row for row in listed if row["state"] == "COMPLETE" and _is_number(row.get(metric))]
        place = best_place(metric, [row[metric] for row in scored], study.objectives)
        best = None if place is None else scored[place]
        states = [row["state"] for row in listed]
        lost = states.count("COMPLETE") - len(scored)  # without a finite score, as where one of several seeds diverged
        values = {name: best.get(name) for name in study.tuned.names()} if best else {}
        rows.append(
            {
                **{name: listed[0][name] for name in ("dataset", "variant", "configuration")},
                "trials": len(listed),
                "complete": len(scored),
                "failed": states.count("FAIL") + states.count("PRUNED") + lost,
                "unfinished": states.count("WAITING") + states.count("RUNNING"),
                "epochs": sum(row["epochs"] or 0 for row in listed),
                "seconds": math.fsum(row["wall_seconds"] or 0.0 for row in listed),
                "best_trial": best and best["trial"],
                "score": best and best[metric],
                "best": json.dumps(values),
                "border": ", ".join(
                    name for name, value in values.items() if at_border(study.tuned.ranges[name], value)
                ),
            }
        )
    return pl.DataFrame(rows, schema=BUDGET_COLUMNS)


def _is_number(value: Any) -> bool:
    return value is not None and math.isfinite(value)


def at_border(spec: Range, value: Any) -> bool:
    """Return whether a value is within NEAR_BORDER of an end of a numeric range, on the range's scale."""
    if isinstance(spec, Choices) or not isinstance(value, int | float):
        return False
    assert isinstance(spec, FloatRange | IntRange)
    low, high, at = (math.log(x) if spec.log else float(x) for x in (*spec.bounds, value))
    return low < high and min(at - low, high - at) <= NEAR_BORDER * (high - low)


def count_untuned(study: Study, trials: pl.DataFrame) -> Counter[tuple[str, str]]:
    """Return how many configurations of (data set, row) are not trained because all of their tuning trials failed."""
    if study.tune is None:
        return Counter()
    budget = tuning_budget(study, trials).filter(pl.col("best_trial").is_null(), pl.col("unfinished") == 0)
    return Counter(budget.select("dataset", "variant").rows())


def tuning_warnings(study: Study, trials: pl.DataFrame, reports: pl.DataFrame) -> list[StudyWarning]:
    """Return what makes the tuning of a comparison unfair or its best values doubtful; none without `tune`."""
    if study.tune is None:
        return []
    budget = tuning_budget(study, trials)
    return [*_unequal(budget), *_failed(budget), *_borders(budget), *_reused(reports), *_on_test(study, budget)]


def _unequal(budget: pl.DataFrame) -> Iterator[StudyWarning]:
    for part in budget.partition_by("dataset", "configuration", maintain_order=True):
        if part["unfinished"].sum():
            continue
        spent = {_name(row): (row["complete"], row["epochs"]) for row in part.iter_rows(named=True)}
        least, most = min(spent, key=spent.__getitem__), max(spent, key=spent.__getitem__)
        if spent[least] != spent[most]:
            few, many = spent[least], spent[most]
            text = (
                f"On {part['dataset'][0]} the rows were not tuned equally: {least} has {few[0]} complete tuning trials "
                f"({few[1]:,} epochs), {most} has {many[0]} ({many[1]:,}). The row with more is favoured by luck alone."
            )
            yield StudyWarning(code="unequal-budget", text=text)


def _failed(budget: pl.DataFrame) -> Iterator[StudyWarning]:
    rows = [row for row in budget.iter_rows(named=True) if row["failed"]]
    if rows:
        total, asked = sum(row["failed"] for row in rows), budget["trials"].sum()
        listed = _listed([f"{row['dataset']} {_name(row)} {row['failed']}" for row in rows])
        text = f"{total} of {asked} tuning trials failed or diverged: {listed}. They cannot be a row's best."
        yield StudyWarning(code="failed-tuning", text=text)
    without = [row for row in rows if row["best_trial"] is None and not row["unfinished"]]
    if without:
        listed = _listed([f"{row['dataset']} {_name(row)}" for row in without])
        text = f"No tuning trial is complete for {listed}, so these rows were not trained."
        yield StudyWarning(code="no-tuned-row", text=text)


def _borders(budget: pl.DataFrame) -> Iterator[StudyWarning]:
    rows = [row for row in budget.iter_rows(named=True) if row["border"]]
    names = dict.fromkeys(name for row in rows for name in row["border"].split(", "))
    for setting in names:
        own = [row for row in rows if setting in row["border"].split(", ")]
        listed = _listed([f"{row['dataset']} {_name(row)}" for row in own])
        text = (
            f"The best {setting} is at a border of its range for {listed}: a wider range may hold a better value, and "
            "for these rows the comparison says less."
        )
        yield StudyWarning(code="border-optimum", text=text)


def _reused(reports: pl.DataFrame) -> Iterator[StudyWarning]:
    tuned, trained = (set(reports.filter(pl.col("stage") == stage)["seed"].to_list()) for stage in ("tune", "search"))
    if shared := sorted(tuned & trained):
        text = (
            f"Seeds {', '.join(map(str, shared))} were used for tuning and for the comparison: the best values were "
            "chosen on them, so their numbers look better than they are."
        )
        yield StudyWarning(code="seeds-reused", text=text)


def _on_test(study: Study, budget: pl.DataFrame) -> Iterator[StudyWarning]:
    if study.protocol == "paper" and budget.height:
        text = (
            "Under `protocol: paper` validation is the test split: the best values were chosen on the samples on which "
            "the rows are compared, so each row looks better than it is."
        )
        yield StudyWarning(code="tuned-on-test", text=text)


def _name(row: Mapping[str, Any]) -> str:
    return " ".join(part for part in (row["variant"], row["configuration"]) if part)


def _listed(names: Sequence[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
