"""The answer of a search on page, terminal and in the CSV: one comparison, its verdicts and its warnings."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from ablate.results.front.assessment import assessments
from ablate.results.front.findings import Findings
from ablate.results.report import front_lines, front_table, write_report
from ablate.results.trials.results import Results
from support.page_reader import Reader, printed
from support.planted_study import Networks, make_study, trial_row, trials_of
from support.planted_study import plant_networks as planted

SPREAD = np.array([-0.002, 0.001, 0.0, 0.002, -0.001])
pytestmark = pytest.mark.usefixtures("quick")


def three(seeds: int = 5) -> Networks:
    """A network far below, one close to the best, and the best; seeds vary by 0.2 points."""
    means = ((1000, 0.80), (4000, 0.848), (16_000, 0.85))
    return [(p, m + 0.01, (m + np.roll(SPREAD, i)[:seeds]).tolist()) for i, (p, m) in enumerate(means)]


def shown(
    study: Any, trials: pl.DataFrame, reports: pl.DataFrame, folder: Path
) -> tuple[str, str, list[dict[str, str]]]:
    """Return the page's text, the terminal's text and the rows of front.csv."""
    path = write_report(Results(study, trials, reports), folder)
    terminal = printed(front_lines(Results(study, trials, reports)))
    assert max(map(len, terminal.splitlines())) <= 80
    with (path.parent / "front.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return Reader(path.read_text(encoding="utf-8")).text, " ".join(terminal.split()), rows


def test_the_smallest_network_within_the_margin_is_named_everywhere(tmp_path: Path) -> None:
    study = make_study(confirm={"replicates": 5, "margin": {"val_accuracy": 0.01}})
    trials, reports = planted(three())
    page, terminal, rows = shown(study, trials, reports, tmp_path)
    answer = Findings(Results(study, trials, reports), "digits").answer_text
    assert "The smallest that is non-inferior at a margin of 1 point: width 16 · no mlp, −0.20 points (" in answer
    assert answer.startswith("Best: width 24 · no mlp, test accuracy ")
    assert answer.endswith("4,000 parameters.")
    assert answer in page
    assert answer in terminal
    assert [row["verdict"] for row in rows] == ["worse", "non-inferior", "best"]
    assert [float(row["difference"]) for row in rows] == pytest.approx([-0.05, -0.002, 0.0])
    assert [float(row["front_probability"]) for row in rows][:2] == [1.0, 1.0]


def test_without_a_margin_the_page_says_what_is_not_distinguished_and_how_to_get_a_verdict(tmp_path: Path) -> None:
    study = make_study(confirm={"replicates": 5})
    page, terminal, rows = shown(study, *planted(three()), tmp_path)
    for said in (page, terminal):
        assert (
            "2 of the 3 on the front are not distinguished (5 seeds); the smallest of them: width 16 · no mlp," in said
        )
        assert "4,000 parameters, at most 0.534 points worse." in said
        assert "write the loss that you accept into the study file: confirm: {margin: {val_accuracy: 0.01}}" in said
    assert [row["verdict"] for row in rows] == ["worse", "not distinguished", "best"]


def test_a_margin_that_the_seeds_cannot_resolve_names_no_network_as_non_inferior(tmp_path: Path) -> None:
    study = make_study(confirm={"replicates": 5, "margin": {"val_accuracy": 0.001}})
    page, _, rows = shown(study, *planted(three()), tmp_path)
    assert "2 of the 3 on the front are not distinguished (5 seeds); the smallest of them: width 16" in page
    assert "write the loss" not in page, "it is in the file"
    assert "non-inferior" not in {row["verdict"] for row in rows}


def test_a_network_that_alone_is_not_worse_is_the_best(tmp_path: Path) -> None:
    networks = [three()[0], three()[2]]
    page, _, _ = shown(make_study(confirm={"replicates": 5}), *planted(networks), tmp_path)
    assert "16,000 parameters. The other on the front is worse (5 seeds)." in page
    assert "For a verdict" not in page


def test_a_network_that_is_best_only_after_the_adjustment_for_seeds_is_named(tmp_path: Path) -> None:
    """Two networks on the three easy seeds, one of them on ten further, hard ones: there its plain mean is lower."""
    easy = np.array([0.9, 0.902, 0.898])
    lucky = (4000, 0.9, easy.tolist())
    better = (16_000, 0.9, [0.921, 0.921, 0.918, *(0.8 + 0.001 * np.arange(10))])
    page, terminal, rows = shown(make_study(confirm={"replicates": 3}), *planted([lucky, better]), tmp_path)
    assert [(row["trial"], float(row["difference"])) for row in rows] == [("10", pytest.approx(-0.02))]
    for said in (page, terminal):
        assert "Best: width 8 · no mlp, 90.00% test accuracy, 4,000 parameters." in said
        assert "Adjusted for the seeds that each lacks, trial 11 is the best: 83.14% (" in said


def test_a_loss_is_better_where_it_is_lower() -> None:
    objectives = [
        {"metric": "val_loss", "direction": "minimize"},
        {"metric": "params", "direction": "minimize", "log": True},
    ]
    study = make_study(objectives=objectives, confirm={"replicates": 5, "margin": {"val_loss": 0.03}})
    trials, reports = planted(three())
    loss = pl.when(pl.col("test_accuracy").is_not_null()).then(2 * (1 - pl.col("test_accuracy")))
    trials = trials.with_columns(test_loss=loss, val_loss=2 * (1 - pl.col("val_accuracy")))
    table = front_table(Results(study, trials, reports))
    assert table["verdict"].to_list() == ["worse", "non-inferior", "best"]
    assert table["difference"].to_list() == pytest.approx([0.1, 0.004, 0.0])
    assert all(row["difference_low"] < row["difference"] < row["difference_high"] for row in table.rows(named=True))


def test_one_finished_confirmation_is_neither_an_answer_nor_called_confirmed(tmp_path: Path) -> None:
    study = make_study(confirm={"replicates": 5, "margin": {"val_accuracy": 0.01}})
    trials, reports = planted(three())
    late = pl.col("trial").is_in([11, 12])
    trials = trials.with_columns(state=pl.when(late).then(pl.lit("RUNNING")).otherwise("state"))
    page, terminal, rows = shown(study, trials, reports, tmp_path)
    for said in (page, terminal):
        assert "There is no answer yet: 1 of 3 confirmations has ended" in said
        assert "networks confirmed" not in said
        assert "network confirmed" not in said
        assert "Best: " not in said
        assert said.count("1 of 3 confirmations has ended") == 1
        assert "These numbers are provisional." in said
    assert "Warning (provisional)" in terminal
    assert {row["verdict"] for row in rows} == {""}
    assert not assessments(Results(study, trials, reports))


def test_warnings_are_coded_and_come_before_the_table(tmp_path: Path) -> None:
    study = make_study(confirm={"replicates": 3, "margin": {"val_accuracy": 0.005}})
    networks = three(seeds=3)
    trials, reports = planted(networks)
    failed = trial_row("digits", 20, stage="confirm", source=5, state="FAIL", error="out of memory")
    trials = pl.concat([trials, trials_of([failed])]).with_columns(
        validation_samples=pl.lit(144, pl.Int64()), test_samples=pl.lit(359, pl.Int64())
    )
    page, terminal, _ = shown(study, trials, reports, tmp_path)
    codes = ("failed-confirmations", "few-seeds", "coarse-validation")
    assert all(f"Warning ({code})" in terminal for code in codes)
    assert terminal.index("Warning (") < terminal.index("settings trial")
    text = "One of the 144 validation samples is worth 0.69 points, more than the margin of 0.5 points"
    assert "144 validation samples decided the search: one is 0.69 points. 359 test samples measured" in page
    for said in (page, terminal):
        assert text in said
        assert "out of memory" in said
        assert "3 confirmation seeds: only differences of 3.7 standard deviations or more are found reliably" in said
    assert page.index(text) < page.index("The front")


def test_a_seed_that_collapsed_is_named(tmp_path: Path) -> None:
    alone = [(1000, 0.81, [0.86, 0.861, 0.859, 0.50, 0.86]), (9000, 0.9, three()[2][2])]
    page, terminal, rows = shown(make_study(confirm={"replicates": 5}), *planted(alone), tmp_path)
    assert rows[0]["outlying_seeds"] == "1000003"
    assert "Warning (outlying-seeds): Not explained by the other seeds: seed 1000003 of width 8 · no mlp" in terminal
    assert "seed 1000003 of width 8" in page


def test_seeds_with_equal_numbers_are_one_run(tmp_path: Path) -> None:
    same = [(1000, 0.81, [0.86] * 5), *three()[1:]]
    page, terminal, _ = shown(make_study(confirm={"replicates": 5}), *planted(same), tmp_path)
    assert "Warning (equal-seeds): width 8 · no mlp: all seeds have the same numbers" in terminal
    assert "width 8 · no mlp: all seeds have the same numbers" in page
    assert not re.search(r"[^.]\.\.[^.]", page + terminal)


def test_equal_networks_share_the_first_place_and_equal_numbers_are_no_loss(tmp_path: Path) -> None:
    study = make_study(objectives=[{"metric": "val_accuracy", "direction": "maximize"}], confirm={"replicates": 3})
    page, terminal, _ = shown(study, *planted([(size, 0.9, [0.9] * 3) for size in (1000, 9000)]), tmp_path)
    for said in (page, terminal):
        assert "One of the 2 best: width 8 · no mlp, 90.00% test accuracy. Their seeds are equal or not shared" in said


def test_seeds_that_say_nothing_of_a_difference_give_no_number(tmp_path: Path) -> None:
    wide = [(1000, 0.5, [0.1, 0.9]), (9000, 0.6, [0.9, 0.2])]
    page, terminal, _ = shown(make_study(confirm={"replicates": 2}), *planted(wide), tmp_path)
    for said in (page, terminal):
        assert "and these seeds do not say how much worse it may be" in said
        assert "(2 seeds are too few)" in said


def test_what_all_networks_share_is_said_once(tmp_path: Path) -> None:
    page, terminal, _ = shown(make_study(confirm={"replicates": 5}), *planted(three()), tmp_path)
    assert "All have: no mlp · learning rate 0.001." in page
    assert "All have: no mlp · learning rate 0.001." in terminal
    table = terminal[terminal.index("settings trial") :]
    assert "no mlp" not in table
    assert "width 16" in table


def test_nothing_is_told_apart_by_seeds_that_are_equal_or_by_one_seed(tmp_path: Path) -> None:
    equal = [(p, s, [v[0]] * 5) for p, s, v in three()]
    page, _, rows = shown(make_study(confirm={"replicates": 5}), *planted(equal), tmp_path)
    assert "Their seeds are equal or not shared, so nothing tells them apart." in page
    assert {row["verdict"] for row in rows} == {""}
    page, _, _ = shown(make_study(confirm={"replicates": 1}), *planted(three(seeds=1)), tmp_path)
    assert "One seed does not tell them apart: raise confirm.replicates." in page


def test_the_figure_has_every_confirmed_run() -> None:
    from ablate.results.report import draw_figures

    study = make_study(confirm={"replicates": 5})
    networks = [*three(), (16_000, 0.86, (0.84 + SPREAD).tolist())]  # the last leaves the front on the test split
    trials, reports = planted(networks)
    front = draw_figures(Results(study, trials, reports))[0]
    layers = [layer.get("data", {}).get("values", []) for layer in front.spec["layer"]]
    ticks = next(values for values in layers if len(values) == 20)
    assert {point["size"] for point in ticks} == {1000, 4000, 16_000}


@pytest.mark.parametrize("seeds", [1, 5])
def test_networks_of_unknown_size_have_an_answer_and_no_columns_of_sizes(tmp_path: Path, seeds: int) -> None:
    """A command tells no size: the answer is the best, with what is as good."""
    objectives = [
        {"metric": "val_accuracy", "direction": "maximize"},
        {"metric": "wall_seconds", "direction": "minimize"},
    ]
    study = make_study(objectives=objectives, confirm={"replicates": seeds})
    sizes = {"params": None, "params_body": None, "flops": None, "q": None}
    trials, reports = planted(three(seeds), **sizes)
    seconds = pl.Series("wall_seconds", [float(number % 10 + 1) for number in trials["trial"]])
    page, terminal, rows = shown(study, trials.with_columns(seconds), reports, tmp_path)
    assert len(rows) == 3
    for text in (page, terminal):
        if seeds == 1:
            said = (
                "Best: width 24 · no mlp, 85.20% test accuracy, training seconds 3. One seed does not tell them apart"
            )
        else:
            said = "training seconds 3. 2 of the 3 on the front are not distinguished (5 seeds); the fastest of them:"
        assert said in text
    table = terminal[terminal.index("settings trial") :]
    assert "parameters" not in table
    assert "training seconds" in table
