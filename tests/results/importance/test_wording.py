from __future__ import annotations

import csv
import json

import numpy as np
import polars as pl
import pytest

from ablate.results.front.findings import Findings
from ablate.results.importance.wording import (
    forecasts,
    search_importances,
    setting_labels,
    what_matters,
)
from ablate.results.report import write_report
from ablate.results.trials.results import Results
from support.page_reader import Reader, draw_nothing
from support.planted_study import make_study, reports_of, trial_row, trials_of

MODEL = {"width": {"int": [8, 128], "step": 8}, "mlp": {"choices": [0, 64, 128]}}
RATE = {"float": [1e-4, 1e-2], "log": True}
MOMENTUM = {"float": [0.5, 0.99], "when": {"training.optimizer": "sgd"}}
TRAINING = {"epochs": 6, "learning_rate": RATE, "optimizer": {"choices": ["adamw", "sgd"]}, "momentum": MOMENTUM}


def planted(count=80, *, seed=0, states=("COMPLETE",), **changes):
    """Return a study and its trials, of which the accuracy depends on the learning rate alone."""
    study = make_study(model=MODEL, training=TRAINING, **changes)
    rng = np.random.default_rng(seed)
    rows, extra = [], []
    for number in range(count):
        rate, width = float(10 ** rng.uniform(-4, -2)), int(rng.integers(1, 17)) * 8
        accuracy = 0.9 - 0.2 * (np.log10(rate) + 3) ** 2
        row = trial_row("digits", number, state=states[number % len(states)], val_accuracy=accuracy, params=width**2)
        chosen = {"model.width": width, "model.mlp": int(rng.choice([0, 64, 128])), "training.learning_rate": rate}
        rows.append(row | chosen)
        sgd = bool(rng.integers(2))
        chosen["training.optimizer"] = "sgd" if sgd else "adamw"
        if sgd:
            chosen["training.momentum"] = float(rng.uniform(0.5, 0.99))
        extra.append(chosen)
    types = {"training.optimizer": pl.String(), "training.momentum": pl.Float64()}
    columns = [pl.Series(name, [chosen.get(name) for chosen in extra], kind) for name, kind in types.items()]
    return study, trials_of(rows).with_columns(pl.Series("parameters", map(json.dumps, extra), pl.String()), *columns)


def matters(study, trials):
    return what_matters(Findings(Results(study, trials, reports_of([])), "digits"))


def test_each_objective_names_the_setting_that_decides_it():
    study, trials = planted()
    (accuracy,) = search_importances(Findings(Results(study, trials, reports_of([])), "digits"))
    assert (accuracy.metric, accuracy.order[0]) == ("val_accuracy", "training.learning_rate")
    assert accuracy.rows[0].total > 0.7
    assert [row.parameter for row in accuracy.rows if row.is_told] == ["training.learning_rate"]


def curve(trial, epochs, last):
    return [
        {"dataset": "digits", "trial": trial, "epoch": epoch, "val_accuracy": last - 0.1 * (epochs - epoch)}
        for epoch in range(1, epochs + 1)
    ]


def test_a_trial_that_was_stopped_early_counts_with_its_forecast():
    """Complete trials gain .3 from epoch 1 to 4, in the median; the stopped one had .5 after epoch 1."""
    rows = [trial_row("digits", 0, val_accuracy=0.9), trial_row("digits", 1, val_accuracy=0.7)]
    rows += [trial_row("digits", 2, state="PRUNED", val_accuracy=0.5), trial_row("digits", 3, state="PRUNED")]
    reports = pl.DataFrame([*curve(0, 4, 0.9), *curve(1, 4, 0.7), *curve(2, 1, 0.5)])
    found = forecasts(trials_of(rows), reports, "digits", "val_accuracy")
    assert found[:3] == pytest.approx([0.9, 0.7, 0.8])
    assert np.isnan(found[3])


def test_failed_and_confirmation_trials_do_not_enter():
    study, trials = planted(180, states=("COMPLETE", "PRUNED", "FAIL"))
    confirmed = trials.head(9).with_columns(
        trial=pl.col("trial") + 1000, stage=pl.lit("confirm"), state=pl.lit("COMPLETE")
    )
    found = matters(study, pl.concat([trials, confirmed]))
    assert [each.trials for each in found["importances"]] == [60]
    assert "Validation accuracy: learnt from 60 search trials." in found["sentences"]
    assert (
        "The front sampler chose these trials: where it tried little, the order of the settings may be wrong."
        in found["sentences"]
    )
    alone = trials.filter(pl.col("state") != "FAIL")
    assert found["importances"] == search_importances(Findings(Results(study, alone, reports_of([])), "digits"))


def test_a_conditional_setting_says_in_how_many_trials_it_was_searched():
    study, trials = planted()
    found = matters(study, trials)
    active = trials["training.momentum"].is_not_null().sum()
    row = next(row for row in found["table"].groups[""] if row[0] == "momentum")
    assert row[-1] == f"{active} of 80"


def test_of_too_few_trials_nothing_is_said_of_importances():
    for count in (0, 9, 59):
        found = matters(*planted(count))
        assert (found["table"], found["figure"], found["sentences"]) == (None, None, [])


def test_the_variant_is_a_setting():
    study, trials = planted(variants=[{"name": "qkv"}, {"name": "kv", "model": {"similarity": "shared"}}])
    names = ["qkv" if trial % 3 else "kv" for trial in trials["trial"]]
    better = pl.when(pl.col("variant") == "kv").then(0.9).otherwise(0.8)
    known = [
        json.dumps({**json.loads(text), "variant": name})
        for text, name in zip(trials["parameters"], names, strict=True)
    ]
    trials = trials.with_columns(pl.Series("variant", names), pl.Series("parameters", known))
    trials = trials.with_columns(val_accuracy=better)
    assert search_importances(Findings(Results(study, trials, reports_of([])), "digits"))[0].order[0] == "variant"


def test_page_and_csv_hold_the_same_importances(tmp_path, monkeypatch):
    draw_nothing(monkeypatch)
    study, trials = planted()
    path = write_report(Results(study, trials, reports_of([])), tmp_path)
    reader = Reader(path.read_text(encoding="utf-8"))
    with (path.parent / "importance.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    expected = search_importances(Findings(Results(study, trials, reports_of([])), "digits"))
    assert [(row["objective"], row["setting"]) for row in rows] == [
        (e.metric, r.parameter) for e in expected for r in e.rows
    ]
    for row, own in zip(rows, [r for e in expected for r in e.rows], strict=True):
        assert [float(row[name]) for name in ("importance", "first_order")] == [own.total, own.first]
        assert float(row["p"]) == own.p
    shown = [[" ".join(cell.split()) for cell in row] for row in reader.rows]
    begin = shown.index(["Setting", "Validation accuracy", "Alone", "Searched in"])
    assert shown[begin + 1][1] == f"{100 * expected[0].rows[0].total:.0f}%"
    assert "Importance of the settings" in reader.text


def test_labels_of_settings_are_dotted_where_short_names_collide():
    found = setting_labels(["model.width", "head.width", "training.learning_rate", "variant"])
    assert list(found.values()) == ["model.width", "head.width", "learning rate", "variant"]
