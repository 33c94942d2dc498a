"""What matters in a search: the importance of each searched setting, as numbers, a table and sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from ablate.analysis.front import metric_values
from ablate.analysis.importance import RANGE, Importance, Importances, importances
from ablate.analysis.tables import searched_values
from ablate.base.plain_text import short_name
from ablate.objectives import signed
from ablate.report.drawing import safe_stem
from ablate.report.front.findings import Findings
from ablate.report.front.importance_figures import matter_figures
from ablate.report.latex import PageTable
from ablate.report.numbers import printable, spell_metric
from ablate.study import Study
from ablate.tuning.search_space import SearchSpace

CSV = "importance.csv"
COLUMNS: dict[str, pl.DataType] = {
    "dataset": pl.String(),
    "objective": pl.String(),
    "setting": pl.String(),
    "importance": pl.Float64(),
    "low": pl.Float64(),
    "high": pl.Float64(),
    "active": pl.Int64(),
    "trials": pl.Int64(),
    "best": pl.Int64(),
    "resamples": pl.Int64(),
}
METHOD = (
    "Importance",
    "PED-ANOVA (arXiv 2304.10255), computed by Optuna for each objective: how much the settings of the top tenth of "
    "the complete search trials (at least 5) differ from those of all of them. The shares of one objective sum to "
    "100%. A setting that is searched under a condition is judged in the trials that have it (arXiv 2601.20800). Lines "
    f"are the {RANGE[0]}th to {RANGE[1]}th percentile over resamples of the trials, and contain the share. A "
    "setting without influence has a share of a few percent by chance, and its line reaches nearly zero. Importance "
    "describes this search within its ranges; it is not what a change of the setting gains.",
)


def complete_search(trials: pl.DataFrame, dataset: str) -> pl.DataFrame:
    """Return the complete search trials of a data set."""
    return trials.filter(pl.col("dataset") == dataset, pl.col("stage") == "search", pl.col("state") == "COMPLETE")


def search_importances(study: Study, dataset: str, trials: pl.DataFrame) -> tuple[Importances, ...]:
    """Return the importances of a data set's searched settings, one for each objective in the file's order."""
    space = SearchSpace.of(study.space_for(dataset))
    rows = complete_search(trials, dataset)
    parameters = [space.encode(values) for values in searched_values(rows, space.space)]
    return tuple(
        importances(
            objective.metric,
            [signed(objective, value) for value in metric_values(rows, objective.metric).tolist()],
            parameters,
            space.distributions,
            study_seed=study.seed,
            dataset=dataset,
        )
        for objective in study.objectives
    )


def importance_table(found: Mapping[str, Sequence[Importances]]) -> pl.DataFrame:
    """Return one row per data set, objective and setting, the most important first (columns: docs/report.md)."""
    rows = [
        {
            "dataset": dataset,
            "objective": each.metric,
            "setting": row.parameter,
            "importance": row.share,
            **{name: getattr(row, name) for name in ("low", "high", "active")},
            **{name: getattr(each, name) for name in ("trials", "best", "resamples")},
        }
        for dataset, objectives in found.items()
        for each in objectives
        for row in each.rows
    ]
    return pl.DataFrame(rows, schema=COLUMNS)


def setting_labels(names: Sequence[str]) -> dict[str, str]:
    """Return each setting's short name in words, or the dotted name where two have the same."""
    short = Counter(short_name(name) for name in names)
    return {name: printable(short_name(name) if short[short_name(name)] == 1 else name) for name in names}


def what_matters(study: Study, found: Findings) -> dict[str, Any]:
    """Return the template's values of the section: figures, table, sentences; and the importances themselves."""
    objectives = search_importances(study, found.dataset, found.listed)
    labels = setting_labels(study.space_for(found.dataset).names())
    return {
        "importances": objectives,
        "sentences": _sentences(found, objectives, labels),
        "table": _page_table(found.dataset, objectives, labels),
        "figures": matter_figures(
            study, found.dataset, complete_search(found.listed, found.dataset), objectives, labels
        ),
    }


def _page_table(dataset: str, objectives: Sequence[Importances], labels: Mapping[str, str]) -> PageTable | None:
    known = [each for each in objectives if each.rows]
    if not known:
        return None
    headings = ["Setting"]
    for each in known:
        name = spell_metric(each.metric)
        headings += [name[:1].upper() + name[1:], "Range"]
    by_name = [{row.parameter: row for row in each.rows} for each in known]
    rows = [
        [labels[name], *(cell for own in by_name for cell in _cells(own.get(name))), _active(by_name, name, known)]
        for name in dict.fromkeys(name for each in known for name in each.order)
    ]
    return PageTable(
        stem=f"importance-{safe_stem(dataset)}",
        caption=f"Importance of the settings of {dataset}",
        headings=[*headings, "Searched in"],
        groups={"": rows},
        csv=CSV,
    )


def _cells(row: Importance | None) -> list[str]:
    if row is None:
        return ["–", "–"]
    return [f"{100 * row.share:.0f}%", f"{100 * row.low:.0f} to {100 * row.high:.0f}"]


def _active(by_name: Sequence[Mapping[str, Importance]], name: str, known: Sequence[Importances]) -> str:
    active, trials = next(
        (own[name].active, each.trials) for own, each in zip(by_name, known, strict=True) if name in own
    )
    return f"all {trials:,}" if active == trials else f"{active:,} of {trials:,}"


def _sentences(found: Findings, objectives: Sequence[Importances], labels: Mapping[str, str]) -> list[str]:
    """Return what the numbers rest on: the trials used and left out, conditional settings, and what is missing."""
    sentences = []
    search = found.listed.filter(pl.col("stage") == "search")
    known = [each for each in objectives if each.rows]
    if known:
        first = known[0]
        text = f"From {first.trials:,} complete search trials: what sets the best {first.best:,} of them apart."
        states = Counter(search["state"].to_list())
        left = [
            f"{states[state]:,} {word}"
            for state, word in (("PRUNED", "stopped early"), ("FAIL", "failed"))
            if states[state]
        ]
        sentences.append(text + (f" Left out: {' and '.join(left)}." if left else ""))
        partly = [(row, each.trials) for each in known[:1] for row in each.rows if row.active < each.trials]
        sentences += [
            f"{labels[row.parameter]} was searched in {row.active:,} of the {trials:,} trials, and is judged in those."
            for row, trials in partly
        ]
    reasons: dict[str, list[str]] = {}
    for each in objectives:
        if each.reason:
            reasons.setdefault(each.reason, []).append(spell_metric(each.metric))
    sentences += [f"No importances for {' and '.join(names)}: {reason}." for reason, names in reasons.items()]
    return sentences
