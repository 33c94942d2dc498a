from __future__ import annotations

import csv
import json
import re

import numpy as np
import polars as pl
import pytest

from ablate.ledger import EventRecord
from ablate.results.front.axes import objective_axis, setting_axis
from ablate.results.front.findings import Findings
from ablate.results.front.front import front
from ablate.results.importance.figures import MOST_LINES, MOST_POINTS, drawn_trials, matter_figures
from ablate.results.importance.size_shares import UNCOUNTED
from ablate.results.importance.wording import (
    complete_search,
    forecasts,
    search_importances,
    setting_labels,
    what_matters,
)
from ablate.results.rendering.drawing import drawn_data
from ablate.results.report import frame, write_report
from ablate.results.trials.results import Results
from ablate.study.space import Choices, FloatRange
from support.latex_reader import table_cells
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


def noted(shares, *, networks=48, error=0.0, reason=""):
    payload = {"shares": {"params": shares}, "networks": networks, "error": error, "reason": reason}
    event = {"rowid": 1, "dataset": "digits", "driver_term": 1, "created_at": 0.0}
    return [EventRecord(kind="size_shares", payload=payload, **event)]


EXACT = noted({"model.mlp": [0.002, 0.004], "model.width": [0.95, 0.99]})


def matters(study, trials, events=EXACT):
    reports = reports_of([])
    return what_matters(Findings(Results(study, trials, reports, events), "digits"))


def test_each_objective_names_the_setting_that_decides_it():
    study, trials = planted()
    accuracy, params = search_importances(Findings(Results(study, trials, reports_of([]), EXACT), "digits"))
    assert (accuracy.metric, accuracy.order[0]) == ("val_accuracy", "training.learning_rate")
    assert accuracy.rows[0].total > 0.7
    assert [row.parameter for row in accuracy.rows if row.is_told] == ["training.learning_rate"]
    assert (params.order, params.rows[0].total) == (("model.width", "model.mlp"), 0.99), "as noted, not as learnt"


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        (
            EXACT,
            "Parameters: counted on all 48 networks of the space, not learnt from trials. Without influence: "
            "optimizer, learning rate, momentum.",
        ),
        (
            noted({"model.width": [None, 0.97]}, networks=900, error=0.021),
            "Parameters: estimated from 900 networks drawn from the space (standard error at most 2.1 points), not "
            "learnt from trials. Without influence: mlp, optimizer, learning rate, momentum.",
        ),
        (noted({}, reason="20 s are too few"), "No importances for parameters: 20 s are too few."),
        ([], f"No importances for parameters: {UNCOUNTED}."),
    ],
)
def test_the_page_says_what_the_shares_of_a_size_rest_on(events, sentence):
    found = matters(*planted(9), events)
    assert sentence in found["sentences"]
    rows = {row[0]: row[1:] for row in found["table"].groups[""]} if found["table"] else {}
    assert {f"model.{name}" for name in rows} == {name for each in events for name in each.payload["shares"]["params"]}
    if events == EXACT:
        assert rows == {"width": ["99%", "95%"], "mlp": ["<1%", "<1%"]}
        assert len(drawn_data(found["figures"][0])) == 2, "no bar for the rate"


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
    assert [each.trials for each in found["importances"]] == [60, None]
    assert "Validation accuracy: learnt from 60 search trials." in found["sentences"]
    assert "The front sampler chose these trials: where it tried little, the forest knows little." in found["sentences"]
    alone = trials.filter(pl.col("state") != "FAIL")
    assert found["importances"] == search_importances(Findings(Results(study, alone, reports_of([]), EXACT), "digits"))


def test_a_conditional_setting_says_in_how_many_trials_it_was_searched():
    study, trials = planted()
    found = matters(study, trials)
    active = trials["training.momentum"].is_not_null().sum()
    assert f"momentum was searched in {active} of these trials, and counts in those." in found["sentences"]
    row = next(row for row in found["table"].groups[""] if row[0] == "momentum")
    assert row[-1] == f"{active} of 80"


def test_too_few_trials_are_said_and_nothing_is_drawn_of_importances():
    found = matters(*planted(9), noted({}, reason="why"))
    assert found["table"] is None
    assert found["sentences"] == [
        "No importances for validation accuracy: 9 trials, 60 are needed.",
        "No importances for parameters: why.",
    ]
    assert [figure.stem for figure in found["figures"]] == ["slices-digits-val_accuracy", "parallel-digits"]
    assert matters(*planted(0), [])["figures"] == []


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


def test_page_csv_and_latex_hold_the_same_importances(tmp_path, monkeypatch):
    draw_nothing(monkeypatch)
    study, trials = planted()
    path = write_report(Results(study, trials, reports_of([]), EXACT), tmp_path)
    reader = Reader(path.read_text(encoding="utf-8"))
    with (path.parent / "importance.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    expected = search_importances(Findings(Results(study, trials, reports_of([]), EXACT), "digits"))
    assert [(row["objective"], row["setting"]) for row in rows] == [
        (e.metric, r.parameter) for e in expected for r in e.rows
    ]
    for row, own in zip(rows, [r for e in expected for r in e.rows], strict=True):
        assert [float(row[name]) for name in ("importance", "first_order")] == [own.total, own.first]
        assert row["p"] == ("" if own.p is None else str(own.p))
    cells = table_cells((path.parent / "importance-digits.tex").read_text(encoding="utf-8"))
    assert cells[0] == ["Setting", "Validation accuracy", "Alone", "Parameters", "Alone", "Searched in"]
    assert all(row in [[" ".join(c.split()) for c in shown] for shown in reader.rows] for row in cells)
    assert cells[1][1] == f"{100 * expected[0].rows[0].total:.0f}%"
    assert "Importance of the settings" in reader.text


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
    assert figure.panels[0].title == "width", "without importances the file's order"
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
    monkeypatch.setattr(frame, "png", lambda figure: b"")
    wicked = "<script>alert(1)</script>\x1b[31m"
    study, trials = planted(variants=[{"name": wicked}, {"name": "\\input{x}"}])
    names = [wicked if trial % 2 else "\\input{x}" for trial in trials["trial"]]
    path = write_report(Results(study, trials.with_columns(pl.Series("variant", names)), reports_of([])), tmp_path)
    text = path.read_text(encoding="utf-8")
    assert text.count("<script") == 4
    assert not re.search(r"<script>alert", (path.parent / "slices-digits-val_accuracy.svg").read_text())
    for tex in path.parent.glob("*.tex"):
        assert table_cells(tex.read_text(encoding="utf-8"))
