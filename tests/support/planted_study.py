"""A planted study: trials and reports tables with known fronts, without training anything."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import polars as pl

from ablate.core.trial import CONFIRM_SEED_BASE
from ablate.results.front.front import front
from ablate.results.trials.tables import REPORT_COLUMNS, TRIAL_COLUMNS
from ablate.study import Study

METRICS = ("train_loss", "train_accuracy", "val_loss", "val_accuracy", "test_loss", "test_accuracy")
EPOCHS = 6
Networks = list[tuple[int, float, list[float]]]  # parameters, search accuracy, test accuracy of each seed


def make_study(**changes: Any) -> Study:
    """Return a small study with two searched axes."""
    content: dict[str, Any] = {
        "study": "planted",
        "datasets": ["digits"],
        "model": {"width": {"int": [8, 128], "step": 8}, "mlp": {"choices": [0, 64]}},
        "training": {"epochs": EPOCHS, "learning_rate": {"float": [1e-4, 1e-2], "log": True}},
    }
    return Study.model_validate({**content, **changes})


def trial_row(dataset: str, number: int, **values: Any) -> dict[str, Any]:
    """Return one row of the trials table, a complete search trial unless `values` say otherwise."""
    row = {
        "study": "planted",
        "dataset": dataset,
        "trial": number,
        "stage": "search",
        "state": "COMPLETE",
        "attempt": 1,
        "replicates": 1,
        "epochs": EPOCHS,
        "max_epochs": EPOCHS,
        "params": 1000,
        "flops": 34_000,
        "q": 17.97,
        "wall_seconds": 3.0,
        "model.width": 8,
        "model.mlp": 0,
        "training.learning_rate": 1e-3,
    }
    return {**row, **values}


def trials_of(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Return rows as a trials table with every documented column, the parameters and the metrics."""
    parameters = {"model.width": pl.Int64(), "model.mlp": pl.Int64(), "training.learning_rate": pl.Float64()}
    schema = {**TRIAL_COLUMNS, **parameters, **dict.fromkeys(METRICS, pl.Float64())}
    known = [{**row, "parameters": json.dumps({name: row[name] for name in parameters})} for row in rows]
    return pl.DataFrame(known, schema=schema)


def reports_of(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Return rows as a reports table with every documented column and metric."""
    return pl.DataFrame(rows, schema={**REPORT_COLUMNS, **dict.fromkeys(METRICS, pl.Float64())})


def report_rows(trial: dict[str, Any], accuracies: list[float]) -> list[dict[str, Any]]:
    """Return a trial's reports, one accuracy per replicate rising towards its last value."""
    confirm = trial["stage"] == "confirm"
    rows = []
    for epoch in range(1, trial["epochs"] + 1):
        for replicate, last in enumerate(accuracies):
            value = last - (last - 0.1) * math.expm1(trial["epochs"] - epoch) / math.expm1(EPOCHS)
            row = {"study": "planted", "dataset": trial["dataset"], "trial": trial["trial"], "stage": trial["stage"]}
            row |= {"replicate": replicate, "seed": replicate + CONFIRM_SEED_BASE * confirm, "epoch": epoch}
            row |= {
                "counts": epoch == trial["epochs"],
                "decision": "CONTINUE",
                "val_accuracy": value,
                "val_loss": 2 * (1 - value),
            }
            if confirm and epoch == trial["epochs"]:
                row |= {"test_accuracy": value, "test_loss": 2 * (1 - value)}
            rows.append(row)
    return rows


def plant_networks(networks: Networks, **changes: Any) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return trials and reports of networks; trial n + 10 confirms trial n if the network has test accuracies."""
    rows, reports = [], []
    for number, (params, searched, values) in enumerate(networks):
        known = {"params": params, "model.width": 8 * (number + 1), "val_accuracy": searched} | changes
        rows.append(trial_row("digits", number, **known))
        reports += report_rows(rows[-1], [searched])
        if values:
            own = {"stage": "confirm", "source": number, "replicates": len(values)}
            rows.append(trial_row("digits", number + 10, test_accuracy=float(np.mean(values)), **known, **own))
            reports += report_rows(rows[-1], values)
    return trials_of(rows), reports_of(reports)


def plant(
    study: Study, *, trials: int = 24, replicates: int = 3, confirmed: bool = True
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return trials and reports of a search, and of the confirmation of its front, by a planted error law."""
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    reports: list[dict[str, Any]] = []
    for dataset in study.datasets:
        for number in range(trials):
            state = str(rng.choice(["COMPLETE", "COMPLETE", "PRUNED", "FAIL"])) if number else "COMPLETE"
            width = int(rng.integers(1, 17)) * 8
            accuracy = 0.97 - width**-0.9 + float(rng.normal(0, 0.01))
            epochs = EPOCHS if state == "COMPLETE" else 2
            row = trial_row(dataset, number, state=state, epochs=epochs, params=width * width * 30)
            row |= {"model.width": width, "q": 17970 / (30 * width * width), "val_accuracy": accuracy}
            row |= {"error": "diverged at epoch 2", "val_accuracy": math.nan} if state == "FAIL" else {}
            rows.append(row)
            reports += report_rows(row, [accuracy])
        frozen = front(trials_of([r for r in rows if r["dataset"] == dataset]), study.objectives)
        for offset, source in enumerate(frozen.iter_rows(named=True) if confirmed else ()):
            values = [source["val_accuracy"] - 0.01 + float(rng.normal(0, 0.004)) for _ in range(replicates)]
            mean = float(np.mean(values))
            row = source | {"trial": trials + offset, "stage": "confirm", "source": source["trial"]}
            row |= {"replicates": replicates, "val_accuracy": mean, "test_accuracy": mean}
            rows.append(row)
            reports += report_rows(row, values)
    return trials_of(rows), reports_of(reports)
