"""The trials of a page, one by one: settings, numbers, last output, error, and commands to go on."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from ablate.base.plain_text import counted, settings_text
from ablate.core.objectives import quality_objective
from ablate.results.front.tables import network
from ablate.results.rendering.drawing import Figure, drawn_rows, evenly
from ablate.results.rendering.numbers import count, printable, quantity, spell_metric, spell_seconds
from ablate.results.trials.results import Results
from ablate.results.trials.tables import REPORT_COLUMNS
from ablate.study import Study
from ablate.study.yaml_text import assignments

MOST_DESCRIBED = 150  # trials of a data set
MOST_EPOCHS, MOST_LINES = 8, 10  # of a trial: reports, and lines of its output


def described_trials(results: Results, trials: pl.DataFrame, drawn: Sequence[Figure]) -> dict[str, Any]:
    """Return the template's values for `trials`: at most MOST_DESCRIBED of them, `others` are left out.

    Confirmations come first, then the trials that most of the figures `drawn` show.
    """
    figures = Counter(n for figure in drawn for n in {row["trial"] for row in drawn_rows(figure) if "trial" in row})
    rows = sorted(trials.iter_rows(named=True), key=lambda row: (row["stage"] != "confirm", -figures[row["trial"]]))
    kept = sorted(rows[:MOST_DESCRIBED], key=lambda row: (row["dataset"], row["trial"]))
    reports = results.reports.partition_by("dataset", "trial", as_dict=True) if results.reports.height else {}
    return {
        "command": shlex.join(["ablate", "trial", results.study.name]),
        "others": trials.height - len(kept),
        "trials": [_described(results, row, reports.get((row["dataset"], row["trial"]))) for row in kept],
    }


def _described(results: Results, row: Mapping[str, Any], reports: pl.DataFrame | None) -> dict[str, Any]:
    study = results.study
    settings = json.loads(row["parameters"] or "{}")
    seeds = [] if reports is None else reports["seed"].unique(maintain_order=True).to_list()
    tip = {"settings": printable(settings_text(settings, settings))}
    tip |= {"seeds": ", ".join(map(str, seeds))} if seeds else {}
    asked = commands_of_trial(study, row["dataset"], row["trial"], row["state"], settings)
    output = results.output(row["dataset"], row["trial"]) if results.output is not None else ""
    name = network(study, dict(row))
    return {
        "number": row["trial"],
        "dataset": row["dataset"],
        "name": f"Trial {row['trial']}" if len(study.labels) == 1 else f"{row['dataset']}, trial {row['trial']}",
        "source": row["source"],
        "variant": printable(row["variant"] or ""),
        "network": "" if name == f"trial {row['trial']}" else printable(name),
        "state": row["state"],
        "tip": json.dumps(tip),
        "terms": [(term, printable(text)) for term, text in _terms(study, row, seeds, settings, reports)],
        "output": "\n".join(map(printable, output.splitlines()[-MOST_LINES:])),
        "commands": [(what, shlex.join(["ablate", *words])) for what, words in asked],
    }


def _terms(
    study: Study,
    row: Mapping[str, Any],
    seeds: Sequence[int],
    settings: Mapping[str, Any],
    reports: pl.DataFrame | None,
) -> Iterator[tuple[str, str]]:
    attempts = f", {counted(row['attempt'], 'attempt')}" if (row["attempt"] or 0) > 1 else ""
    epochs = f"{row['epochs']} of {row['max_epochs']} {study.unit}s"
    yield (
        "State",
        f"{row['stage']} trial, {row['state']} after {epochs}, {spell_seconds(row['wall_seconds'] or 0)}{attempts}",
    )
    if row["source"] is not None:
        yield "Confirms", f"trial {row['source']}"
    yield "Settings", ", ".join(each.replace("=", " = ", 1) for each in assignments(settings))
    if seeds:
        yield "Seeds", ", ".join(map(str, seeds))
    if row["params"] is not None:
        yield "Size", f"{count(row['params'])} parameters, {count(row['flops'])} FLOPs per sample"
    if reports is not None:
        metrics = [name for name in reports.columns if name not in REPORT_COLUMNS]
        means = reports.group_by("epoch").agg(pl.col(metrics).mean()).sort("epoch")
        last = means.row(-1, named=True)
        yield (
            "Last report",
            ", ".join(f"{spell_metric(n)} {quantity(n, last[n])}" for n in metrics if last[n] is not None),
        )
        first = quality_objective(study.objectives).metric
        if first in metrics:
            cells = evenly(means.select("epoch", first).rows(), MOST_EPOCHS)
            yield f"{spell_metric(first)} by {study.unit}", ", ".join(f"{at}: {quantity(first, v)}" for at, v in cells)
    if row["error"]:
        yield "Error", row["error"]
    if row["mlflow_run_id"]:
        yield "MLflow run", row["mlflow_run_id"]


def commands_of_trial(
    study: Study, dataset: str, number: int, state: str, settings: Mapping[str, Any], place: Sequence[str] = ()
) -> Iterator[tuple[str, list[str]]]:
    """Yield what a reader may do with a trial, and the words of the command; `place` are options of where it is."""
    where = [*(["--dataset", dataset] if len(study.labels) > 1 else []), *place]
    of_trial = [study.name, str(number), *where]
    yield "All of its record", ["trial", *of_trial]
    if state == "FAIL":
        yield "Try it again, from its newest checkpoint", ["retry", *of_trial]
        yield "Train it again from its beginning", ["retry", *of_trial, "--from-start"]
    if study.compare is None and study.campaign is None and study.deterministic is None:
        searched = study.space_for(dataset).names()
        words = assignments({name: value for name, value in settings.items() if name in searched})
        yield "Try it with other values", ["enqueue", study.name, *words, *where]
