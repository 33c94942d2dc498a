"""A planted comparison: trials and reports with known effects of variant, configuration, data set and seed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import polars as pl

from ablate.base.randomness import stream
from ablate.results.trials.tables import REPORT_COLUMNS, TRIAL_COLUMNS
from ablate.study import Study, parse_study

METRICS = ("train_loss", "val_loss", "val_accuracy")
EPOCHS = 4
FILE = """\
study: table
protocol: paper
datasets:
  short: {task: digits, patch: 2}
  long: {task: digits, patch: 4}
  vision: {task: digits}
model: {width: 32, depth: {choices: [2, 4]}, heads: {choices: [2, 4]}}
training: {epochs: 4, learning_rate: 1e-3}
settings:
  - {datasets: [vision], model: {depth: 3}}
variants:
  - {name: qkv}
  - {name: kv, model: {similarity: shared}}
  - {name: k, model: {similarity: shared, value: key}, datasets: [short, long]}
replicates: 3
compare:
  baseline: qkv
  columns: {lists: [short, long], images: [vision]}
  metrics: [val_accuracy, val_loss]
  published:
    val_accuracy:
      lists: {qkv: 0.698, kv: {value: 0.705, note: as printed}}
    params: {lists: {qkv: 30000, kv: 21000}}
  source: Table 2
  notes: [one epoch less than the paper]
"""
PARAMS = {"qkv": 30_000, "kv": 20_000, "k": 10_000}
EFFECTS = {"qkv": 0.0, "kv": -0.004, "k": -0.05}


def make_study(text: str = FILE, **changes: Any) -> Study:
    """Return the planted study; `changes` replace sections of the file."""
    return Study.model_validate({**parse_study(text).model_dump(exclude_unset=True), **changes})


class Run(NamedTuple):
    """One seed of one trial of a planted design."""

    variant: str
    dataset: str
    others: dict[str, Any]
    seed: int


def truth(variant: str, dataset: str, configuration: dict[str, Any], seed: int) -> float:
    """Return the planted accuracy: variant + data set + configuration + seed + noise, each keyed by its name."""

    def draw(spread: float, purpose: str, *path: str | int) -> float:
        return spread * float(stream(0, dataset, 0, purpose, *path).standard_normal())

    settings = json.dumps(configuration, sort_keys=True)
    noise = draw(0.003, "noise", variant, settings, seed)
    shared = draw(0.03, "configuration", settings) + draw(0.01, "seed", seed)
    return 0.8 + EFFECTS.get(variant, 0.0) + draw(0.05, "dataset") + shared + noise


def plant(
    study: Study,
    *,
    value: Callable[[Run], float] = lambda run: truth(*run),
    states: Mapping[str | tuple[str, str, int], str] | None = None,
    otherwise: str = "COMPLETE",
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return trials and reports of the whole design.

    `states` say what became of a variant, or of (variant, data set, number of the configuration): a state, or
    `diverged`; `otherwise` of all others.
    """
    known = states or {}
    rows: list[dict[str, Any]] = []
    reports: list[dict[str, Any]] = []
    for dataset in study.labels:
        seen: list[dict[str, Any]] = []
        for number, parameters in enumerate(study.design(dataset)):
            variant = str(parameters["variant"])
            others = {name: setting for name, setting in parameters.items() if name != "variant"}
            seen += [others] if others not in seen else []
            became = known.get((variant, dataset, seen.index(others)), known.get(variant, otherwise))
            row = _trial(study, dataset, number, variant, others, became)
            own = _reports(row, {seed: value(Run(variant, dataset, others, seed)) for seed in study.seeds_of(variant)})
            rows.append(row)
            reports += [] if became == "WAITING" else own
    names = sorted({name for row in rows for name in row if "." in name})
    kinds = {name: pl.Series([row.get(name) for row in rows]).dtype for name in names}
    trials = pl.DataFrame(rows, schema={**TRIAL_COLUMNS, **kinds, **dict.fromkeys(METRICS, pl.Float64())})
    return trials, pl.DataFrame(reports, schema={**REPORT_COLUMNS, **dict.fromkeys(METRICS, pl.Float64())})


def row_of(table: pl.DataFrame, variant: str, column: str = "lists", metric: str = "val_accuracy") -> dict[str, Any]:
    """Return the one row of a table of a comparison that is of a variant, a column and a metric."""
    (row,) = table.filter(metric=metric, column=column, variant=variant).rows(named=True)
    return row


def _trial(
    study: Study, dataset: str, number: int, variant: str, others: dict[str, Any], became: str
) -> dict[str, Any]:
    row = {"study": study.name, "dataset": dataset, "trial": number, "stage": "search", "variant": variant}
    row |= {"state": "FAIL" if became == "diverged" else became, "attempt": 1, "replicates": study.replicates}
    row |= {"epochs": EPOCHS if became == "COMPLETE" else 2, "max_epochs": EPOCHS, "wall_seconds": 2.0}
    row |= {"params": PARAMS.get(variant, 1000), "q": 5.0, "flops": 1000, "params_body": 900}
    errors = {"diverged": "diverged at epoch 2 (seeds [1])", "FAIL": "out of memory"}
    return row | others | {"error": errors.get(became)}


def _reports(trial: dict[str, Any], last: dict[int, float]) -> list[dict[str, Any]]:
    """Return a trial's reports, each seed's accuracy rising to its last value."""
    rows = []
    for epoch in range(1, trial["epochs"] + 1):
        for replicate, (seed, final) in enumerate(last.items()):
            gone = (trial["error"] or "").startswith("diverged") and epoch == trial["epochs"] and replicate == 1
            accuracy = math.nan if gone else final - 0.1 * (EPOCHS - epoch)
            row = {name: trial[name] for name in ("study", "dataset", "trial", "stage")}
            row |= {"replicate": replicate, "seed": seed, "epoch": epoch, "decision": "CONTINUE", "diverged": gone}
            row |= {
                "final": epoch == EPOCHS,
                "counts": epoch == trial["epochs"],
                "val_accuracy": accuracy,
                "val_loss": 2 * (1 - accuracy),
            }
            rows.append(row)
    return rows
