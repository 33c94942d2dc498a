from __future__ import annotations

import csv
import json
import re

import numpy as np
import polars as pl
import pytest

from ablate.analysis import front
from ablate.report import frame, write_report
from ablate.report.drawing import drawn_data
from ablate.report.front.axes import objective_axis, setting_axis
from ablate.report.front.findings import findings
from ablate.report.front.importance import complete_search, search_importances, setting_labels, what_matters
from ablate.report.front.importance_figures import MOST_LINES, MOST_POINTS, drawn_trials, matter_figures
from ablate.report.tables import front_table
from ablate.study.space import Choices, FloatRange
from support.latex_reader import table_cells
from support.page_reader import Reader
from support.planted_study import make_study, reports_of, trial_row, trials_of

MODEL = {"width": {"int": [8, 128], "step": 8}, "mlp": {"choices": [0, 64, 128]}}
RATE = {"float": [1e-4, 1e-2], "log": True}
MOMENTUM = {"float": [0.5, 0.99], "when": {"training.optimizer": "sgd"}}
TRAINING = {"epochs": 6, "learning_rate": RATE, "optimizer": {"choices": ["adamw", "sgd"]}, "momentum": MOMENTUM}


def planted(count=60, *, seed=0, states=("COMPLETE",), **changes):
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
    reports = reports_of([])
    return what_matters(study, findings(study, "digits", trials, reports, front_table(study, trials, reports)))


def test_each_objective_names_the_setting_that_decides_it():
    study, trials = planted()
    accuracy, params = search_importances(study, "digits", trials)
    assert (accuracy.metric, accuracy.order[0]) == ("val_accuracy", "training.learning_rate")
    assert (params.metric, params.order[0]) == ("params", "model.width")
    assert accuracy.rows[0].share > 0.7
    assert params.rows[0].share > 0.7


def test_a_maximised_objective_equals_its_negative_minimised():
    study, trials = planted(objectives=[{"metric": "val_accuracy", "direction": "maximize"}])
    twin = study.model_copy(
        update={"objectives": make_study(objectives=[{"metric": "val_accuracy", "direction": "minimize"}]).objectives}
    )
    negated = trials.with_columns(-pl.col("val_accuracy"))
    assert search_importances(study, "digits", trials) == search_importances(twin, "digits", negated)


def test_pruned_failed_and_confirmation_trials_do_not_enter_and_are_counted():
    study, trials = planted(90, states=("COMPLETE", "PRUNED", "FAIL"))
    confirmed = trials.head(9).with_columns(
        trial=pl.col("trial") + 1000, stage=pl.lit("confirm"), state=pl.lit("COMPLETE")
    )
    found = matters(study, pl.concat([trials, confirmed]))
    assert found["importances"][0].trials == 30
    assert found["sentences"][0].startswith(
        "From 30 complete search trials: what sets the best 5 of them apart. Left out: "
    )
    assert "30 stopped early and 30 failed" in found["sentences"][0]
    alone = trials.filter(pl.col("state") == "COMPLETE")
    assert found["importances"] == search_importances(study, "digits", alone)


def test_a_conditional_setting_says_in_how_many_trials_it_was_searched():
    study, trials = planted()
    found = matters(study, trials)
    active = trials["training.momentum"].is_not_null().sum()
    assert f"momentum was searched in {active} of the 60 trials, and is judged in those." in found["sentences"]
    row = next(row for row in found["table"].groups[""] if row[0] == "momentum")
    assert row[-1] == f"{active} of 60"


def test_too_few_trials_are_said_and_nothing_is_drawn_of_importances():
    found = matters(*planted(9))
    assert found["table"] is None
    assert found["sentences"] == [
        "No importances for validation accuracy and parameters: 9 complete trials, 10 are needed."
    ]
    assert [figure.stem for figure in found["figures"]] == ["slices-digits-val_accuracy", "parallel-digits"]
    assert matters(*planted(0))["figures"] == []


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
    assert search_importances(study, "digits", trials)[0].order[0] == "variant"


def test_page_csv_and_latex_hold_the_same_importances(tmp_path, monkeypatch):
    monkeypatch.setattr(frame, "bundle", lambda: "")
    for name in ("write_png", "write_svg"):
        monkeypatch.setattr(frame, name, lambda figure, folder: folder)
    study, trials = planted()
    path = write_report(study, trials, reports_of([]), tmp_path)
    reader = Reader(path.read_text(encoding="utf-8"))
    with (path.parent / "importance.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    expected = search_importances(study, "digits", trials)
    assert [(row["objective"], row["setting"]) for row in rows] == [
        (e.metric, r.parameter) for e in expected for r in e.rows
    ]
    for row, own in zip(rows, [r for e in expected for r in e.rows], strict=True):
        assert [float(row[name]) for name in ("importance", "low", "high")] == [own.share, own.low, own.high]
    cells = table_cells((path.parent / "importance-digits.tex").read_text(encoding="utf-8"))
    assert cells[0] == ["Setting", "Validation accuracy", "Range", "Parameters", "Range", "Searched in"]
    assert all(row in [[" ".join(c.split()) for c in shown] for shown in reader.rows] for row in cells)
    assert cells[1][1] == f"{100 * expected[0].rows[0].share:.0f}%"
    assert "What matters" in reader.text


def test_ten_thousand_trials_are_thinned_with_the_front_and_the_best_kept():
    study, trials = planted(400)
    many = pl.concat(
        [
            trials.with_columns(trial=pl.col("trial") + 400 * i, val_accuracy=pl.col("val_accuracy") - i / 500)
            for i in range(25)
        ]
    )
    rows = complete_search(many, "digits")
    on_front = front(rows, study.objectives)["trial"].to_list()
    best = rows.sort("val_accuracy")["trial"][-1]
    for most in (MOST_POINTS, MOST_LINES):
        kept, dropped, found = drawn_trials(study, rows, "val_accuracy", most)
        assert kept.height <= most
        assert kept.height + dropped == 10_000
        assert {*on_front, best} <= set(kept["trial"])
        assert found == set(on_front)
        assert kept["trial"].is_sorted()
    figures = matter_figures(study, "digits", rows, (), setting_labels(study.space.names()))
    assert f"{MOST_POINTS} of 10,000 are drawn, the front and the best among them" in figures[0].caption
    assert sum(len(json.dumps(panel.spec)) for figure in figures for panel in figure.panels or (figure,)) < 700_000


def test_slices_show_each_trial_at_its_value():
    study, trials = planted(30)
    figure = next(f for f in matters(study, trials)["figures"] if f.stem.startswith("slices"))
    assert figure.panels[0].title == "learning rate"
    drawn = drawn_data(figure).filter(pl.col("panel") == "width").sort("trial")
    assert drawn["trial"].to_list() == list(range(30))
    assert [float(v) for v in drawn["value"]] == trials["model.width"].to_list()
    assert drawn["quality"].to_list() == pytest.approx((100 * trials["val_accuracy"]).to_list(), rel=1e-4)
    panel = next(panel for panel in figure.panels if panel.title == "momentum")
    assert panel.spec["layer"][0]["encoding"]["x"]["axis"]["format"] == "~g", "a half is 0.5 and not 500m"
    momentum = drawn_data(figure).filter(pl.col("panel") == "momentum")
    assert momentum.height == trials["training.momentum"].is_not_null().sum()


def test_parallel_coordinates_hold_every_axis_of_every_trial():
    study, trials = planted(30)
    figure = next(f for f in matters(study, trials)["figures"] if f.stem.startswith("parallel"))
    drawn = drawn_data(figure).filter(pl.col("trial").is_not_null())
    axes = ["width", "mlp", "learning rate", "optimizer", "momentum", "validation accuracy in %", "parameters"]
    assert set(drawn["axis"]) == set(axes)
    assert drawn.height == 30 * len(axes)
    unused = drawn.filter(pl.col("value") == "not searched")
    assert unused.height == trials["training.momentum"].is_null().sum()
    assert (unused["position"] < 0).all()
    assert drawn.filter(pl.col("value") != "not searched")["position"].is_between(0, 1).all()
    width = drawn.filter(pl.col("axis") == "width").sort("trial")["position"].to_list()
    assert width == pytest.approx([(w - 8) / 120 for w in trials["model.width"]], rel=1e-4)


def test_axes():
    rate = setting_axis(FloatRange(float=(1e-4, 1e-2), log=True), "rate")
    assert rate.position(1e-3) == pytest.approx(0.5)
    assert rate.labels() == [(0.0, "0.0001"), (1.0, "0.01")]
    mixed = setting_axis(Choices(choices=(1, "1", True, None)), "mixed")
    assert [mixed.shown(choice) for choice in (1, "1", True, None)] == ["1", '"1"', "true", "null"]
    assert [mixed.position(choice) for choice in (1, "1", True, None)] == pytest.approx([0, 1 / 3, 2 / 3, 1])
    alone = setting_axis(Choices(choices=("a name that is far too long",)), "one")
    assert alone.labels() == [(0.0, "a name that i…")]
    accuracy = objective_axis(make_study(), "val_accuracy", [0.1, *[0.5 + i / 100 for i in range(40)], float("nan")])
    assert accuracy.ends[1] == 89.0
    assert accuracy.position(0.1) == 0.0
    assert objective_axis(make_study(), "params", [10, 1000]).position(100) == pytest.approx(0.5)


def test_labels_of_settings_are_dotted_where_short_names_collide():
    found = setting_labels(["model.width", "head.width", "training.learning_rate", "variant"])
    assert list(found.values()) == ["model.width", "head.width", "learning rate", "variant"]


def test_hostile_names_stay_text(tmp_path, monkeypatch):
    monkeypatch.setattr(frame, "bundle", lambda: "")
    monkeypatch.setattr(frame, "write_png", lambda figure, folder: folder)
    wicked = "<script>alert(1)</script>\x1b[31m"
    study, trials = planted(variants=[{"name": wicked}, {"name": "\\input{x}"}])
    names = [wicked if trial % 2 else "\\input{x}" for trial in trials["trial"]]
    path = write_report(study, trials.with_columns(pl.Series("variant", names)), reports_of([]), tmp_path)
    text = path.read_text(encoding="utf-8")
    assert text.count("<script") == 4
    assert not re.search(r"<script>alert", (path.parent / "slices-digits-val_accuracy.svg").read_text())
    for tex in path.parent.glob("*.tex"):
        assert table_cells(tex.read_text(encoding="utf-8"))
