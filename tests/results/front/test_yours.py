"""The user's settings beside the best of a search: what is said first, and how sure it is."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import scipy

from ablate.ledger import EventRecord
from ablate.ledger.requests import ANSWERED
from ablate.results.front.figures import figures
from ablate.results.front.findings import Findings
from ablate.results.report import front_lines, write_report
from ablate.results.statistics.looks import share_of
from ablate.results.trials.results import Results
from ablate.studies.status import results_as_values
from ablate.study import Study
from support.page_reader import Reader, printed
from support.planted_study import Networks, make_study, plant_networks

pytestmark = pytest.mark.usefixtures("quick")

ONE = [{"metric": "val_accuracy", "direction": "maximize"}]
WIDTH = {"width": {"int": [8, 128], "step": 8, "default": 8}, "mlp": {"choices": [0, 64], "default": 0}}
RATE = {"epochs": 6, "learning_rate": {"float": [1e-4, 1e-2], "log": True, "default": 1e-3}}
NOISE = np.array([-0.004, 0.003, 0.001, 0.002, -0.002])


def study_with(**changes: Any) -> Study:
    fields = {"objectives": ONE, "model": WIDTH, "training": RATE, "confirm": {"replicates": 5}}
    return make_study(**(fields | changes))


def event(**payload: Any) -> EventRecord:
    return EventRecord(
        rowid=1, kind=ANSWERED, dataset="digits", payload={"start": 0, "message": "m", **payload}, driver_term=1,
        created_at=0.0,
    )  # fmt: skip


def planted(networks: Networks, study: Study | None = None, *, answer: dict[str, Any] | None = None) -> Results:
    """Return results in which trial 0 has the user's settings, and every network that has seeds is confirmed."""
    return Results(study or study_with(), *plant_networks(networks), [event(**(answer or {"trial": 0}))])


def about(mean: float, shift: int = 0, seeds: int = 5) -> list[float]:
    return (mean + np.roll(NOISE, shift)[:seeds]).tolist()


def answer(results: Results) -> str:
    return Findings(results, "digits").answer_text


def interval(first: list[float], second: list[float]) -> tuple[float, float]:
    """Return mean and half width of a paired t interval at the error of the first look, in points."""
    gaps = 100 * (np.array(first) - second)
    reach = scipy.stats.t.ppf(1 - 0.05 * share_of(1) / 2, len(gaps) - 1) * scipy.stats.sem(gaps)
    return float(gaps.mean()), float(reach)


def test_the_answer_begins_with_the_paired_difference_on_fresh_seeds(tmp_path: Path) -> None:
    mine, best = about(0.80), about(0.84, 2)
    results = planted([(1000, 0.81, mine), (4000, 0.85, best)])
    mean, half = interval(best, mine)
    first = (
        f"Better than your settings: test accuracy 84.00% instead of 80.00% (+{mean:.2f} ± {half:.2f} points, 5 seeds)."
    )
    assert answer(results).startswith(first)
    page = Reader(write_report(results, tmp_path).read_text(encoding="utf-8")).text
    assert first in page
    assert "width 8 (yours)" in page
    terminal = " ".join(printed(front_lines(results)).split())
    assert terminal.startswith(first)
    assert "(yours)" in terminal
    values = results_as_values_of(results)
    assert values["answer"]["digits"].startswith(first)
    mine_told = values["yours"]["digits"]
    assert (mine_told["trial"], mine_told["standing"]) == (0, "better")
    assert mine_told["difference"] == pytest.approx(mean / 100)
    assert mine_told["high"] - mine_told["low"] == pytest.approx(2 * half / 100)
    with (tmp_path / "report" / "front.csv").open(encoding="utf-8", newline="") as file:
        assert [row["yours"] for row in csv.DictReader(file)] == ["false"], "they are not on the front"


def results_as_values_of(results: Results) -> dict[str, Any]:
    class Read:
        """What `results_as_values` reads of a stored study."""

    found: Any = Read()
    found.results = results
    return results_as_values(found)


LOSS = [{"metric": "val_loss", "direction": "minimize"}]
WHO = "your settings: test accuracy"
NOT_SHOWN = f"Not shown to be better than {WHO}"
ALIKE = "the seeds give the same numbers, so chance of a seed plays no part."
CASES: dict[str, tuple[list[float], list[float], str, str]] = {
    "worse": (about(0.84), about(0.80, 2), f"Worse than {WHO} 80.00% instead of 84.00% (−4", "worse"),
    "equal": (about(0.80), about(0.80, 1), f"{NOT_SHOWN} 80.00% ", "not shown"),
    "few": (about(0.80, 0, 1), about(0.84, 1, 1), f"{NOT_SHOWN} 83.80%", "not shown"),
    "alike": ([0.8] * 5, [0.84] * 5, f"Better than {WHO} 84.00% instead of 80.00%; {ALIKE}", "better"),
    "alike, worse": ([0.84] * 5, [0.8] * 5, f"Worse than {WHO} 80.00% instead of 84.00%; {ALIKE}", "worse"),
    "alike, equal": ([0.8] * 2, [0.8] * 2, f"Neither better nor worse than {WHO} 80.00%, as theirs; ", "not shown"),
    "parallel": ([0.25, 0.5], [0.5, 0.75], f"{NOT_SHOWN} 62.50% instead of 37.50%, and the seeds give no", "not shown"),
}  # fmt: skip


@pytest.mark.parametrize(("mine", "best", "begins", "standing"), CASES.values(), ids=CASES.keys())
def test_what_is_not_shown_is_not_claimed(mine: list[float], best: list[float], begins: str, standing: str) -> None:
    results = planted([(1000, 0.81, mine), (4000, 0.85, best)])
    assert answer(results).startswith(begins)
    found = Findings(results, "digits").yours
    assert found is not None
    assert found.standing == standing


def test_why_a_single_seed_shows_nothing() -> None:
    assert "one fresh seed shows no noise" in answer(planted([(1, 0.8, [0.8]), (2, 0.85, [0.84])]))


def test_a_loss_is_better_when_it_falls() -> None:
    results = planted([(1000, 0.81, about(0.80)), (4000, 0.85, about(0.84, 2))])
    found = Findings(Results(study_with(objectives=LOSS), *_with_losses(results)), "digits")
    assert found.answer_text.startswith("Better than your settings: test loss 0.32 instead of 0.4 (−0.08 ± ")


def _with_losses(results: Results) -> tuple[Any, Any, Any]:
    lost = {f"{split}_loss": 2 * (1 - pl.col(f"{split}_accuracy")) for split in ("val", "test")}
    return results.trials.with_columns(**lost), results.reports, results.events


def test_settings_that_nothing_beats_are_the_best() -> None:
    results = planted([(1000, 0.90, about(0.88)), (4000, 0.85, [])])
    assert answer(results).startswith("Your settings are the best of 2 complete trials: no other is better.")
    assert answer(planted([(1000, 0.90, []), (4000, 0.85, [])], study_with(confirm=None))).startswith(
        "Your settings are"
    )


def test_without_fresh_seeds_no_interval_is_claimed() -> None:
    text = answer(planted([(1000, 0.80, []), (4000, 0.85, [])], study_with(confirm=None)))
    assert text.startswith(
        "Better than your settings on the search's own seed: validation accuracy 85.00% instead of 80.00%. Best: "
    )
    assert "±" not in text


def test_what_the_sampler_chose_of_them_is_said() -> None:
    of = study_with(training={"epochs": 6, "learning_rate": {"float": [1e-4, 1e-2], "log": True}})
    text = answer(planted([(1000, 0.81, about(0.80)), (4000, 0.85, about(0.84, 2))], of))
    assert text.startswith("Better than your settings (the sampler chose learning rate): test accuracy 84.00%")


def test_settings_that_were_refused_or_failed_are_not_compared() -> None:
    networks: Networks = [(1000, 0.80, []), (4000, 0.85, about(0.84))]
    refused = planted(networks, answer={"refused": "it cannot be trained because of the constraint params <= 9"})
    assert answer(refused).startswith("Your settings were not tried: it cannot be trained because of the constraint")
    lost = planted([(1000, 0.80, about(0.8)), (4000, 0.85, about(0.84))])
    state = pl.when(pl.col("trial") == 10).then(pl.lit("FAIL")).otherwise("state")
    failed = Results(lost.study, lost.trials.with_columns(state=state, error=pl.lit("out of memory")), *_rest(lost))
    assert answer(failed).startswith("Your settings (trial 0) are not compared: out of memory.")


def _rest(results: Results) -> tuple[Any, Any]:
    return results.reports, results.events


TWO = [*ONE, {"metric": "params", "direction": "minimize", "log": True}]


def test_with_several_objectives_they_are_a_row_and_a_sentence(tmp_path: Path) -> None:
    networks: Networks = [(5000, 0.81, about(0.80)), (4000, 0.85, about(0.84, 2)), (900, 0.7, about(0.7, 3))]
    results = planted(networks, study_with(objectives=TWO))
    text = answer(results)
    assert not text.startswith("Your settings"), "the answer to several objectives is the front"
    assert text.endswith(
        "Your settings are not on the front: 80.00% test accuracy, 5,000 parameters; dominated by 1 of "
        "the 2 on it, such as width 16 · no mlp: 84.00% test accuracy, 4,000 parameters."
    )
    assert "parameters; dominated by width 16" in answer(planted(networks[:2], study_with(objectives=TWO)))
    page = Reader(write_report(results, tmp_path).read_text(encoding="utf-8")).text
    assert "(yours)" in page
    assert "no longer on the front" not in page, "they never were"
    networks[0] = (100, 0.6, about(0.6))
    on_it = planted(networks, study_with(objectives=TWO))
    assert answer(on_it).endswith("Your settings are on the front: 60.00% test accuracy, 100 parameters.")
    assert [row["yours"] for row in Findings(on_it, "digits").rows] == [True, False, False]


def test_settings_that_break_a_constraint_are_told_to() -> None:
    of = study_with(objectives=ONE, constraints=["params <= 2000"])
    text = answer(planted([(5000, 0.9, about(0.9)), (900, 0.7, about(0.7, 3))], of))
    assert text.startswith("Your settings do not keep params <= 2000: 90.00% test accuracy.")


def test_the_line_of_a_history_is_of_trials_that_keep_the_constraints() -> None:
    of = study_with(objectives=ONE, constraints=["params <= 2000"])
    values = {0: (900, 0.5), 1: (5000, 0.9), 2: (900, 0.4), 3: (1000, 0.6), 4: (1000, 0.55)}
    found = planted([(params, value, []) for params, value in values.values()], of)
    figure = figures(Findings(found, "digits"))[0]
    dots, line = (layer["data"]["values"] for layer in figure.spec["layer"])
    assert [(dot["size"], dot["quality"]) for dot in dots] == [
        (n, pytest.approx(100 * value)) for n, (_, value) in values.items()
    ]
    assert [(step["size"], step["quality"]) for step in line] == [(0, 50), (3, 60), (4, 60)]
