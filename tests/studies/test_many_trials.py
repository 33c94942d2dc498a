"""What a user reads of a study of many trials: a bounded number of lines, and work that is done once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console
from sqlalchemy import text

from ablate.cli import inspect
from ablate.core.trial import TrialConfig
from ablate.results.importance import importance
from ablate.results.rendering.grid import MOST_LINES, Column, Grid
from ablate.results.trials import results
from ablate.studies import report
from ablate.study.space import FloatRange, Space
from support.commands import run, succeed
from support.ledgers import raw_connection
from support.page_reader import draw_nothing
from support.searches import run_trial
from support.status_driver import Driver

STUDY = """\
study: many
datasets: {digits: {patch: 4}}
model:
  width: {int: [8, 400], step: 4}
  depth: {int: [1, 4]}
  mlp: {choices: [none, 32, 128]}
  similarity: {choices: [separate, shared, collapsed]}
  value: {choices: [separate, none]}
training: {epochs: 1}
sampler: {name: random}
scheduler: {name: none}
budget: {trials: 300}
confirm: null
"""


def larger_is_better(config: TrialConfig, epoch: int) -> float:
    width, depth = (config.parameters[f"model.{name}"] for name in ("width", "depth"))
    return 1 - 1 / (1 + width * width * depth + 10 * width)


@pytest.fixture
def many(tmp_path: Path) -> Driver:
    """A study of 300 trials whose accuracy grows with the size: nearly every size is on the front."""
    driver = Driver(tmp_path, STUDY)
    while (config := driver.search.next_trial()) is not None:
        run_trial(driver.search, config, larger_is_better)
    return driver


def test_status_has_a_bounded_number_of_lines_and_names_the_best(many: Driver, capfd: Any) -> None:
    many.leave()
    out = succeed(capfd, "status", "many", "--runs-dir", str(many.runs))
    assert len(out.splitlines()) <= 60
    assert re.search(r"… and \d+ more: front.csv", out)
    best = re.search(r"Best: trial (\d+)", out)
    assert best is not None
    assert any(line.startswith(f"trial {best[1]} ") for line in out.splitlines())


def test_errors_are_counted_and_not_repeated(many: Driver, capfd: Any) -> None:
    with raw_connection(many.ledger) as connection:
        where = "update ablate_trial set state = 'FAIL', error = {} where number {}"
        connection.execute(text(where.format("'out of memory'", "< 200")))
        connection.execute(text(where.format("'no number of trial ' || number", ">= 200 and number < 290")))
        connection.commit()
    many.leave()
    out = succeed(capfd, "status", "many", "--runs-dir", str(many.runs))
    failures = [line for line in out.splitlines() if line.startswith("FAIL")]
    assert failures[0] == "FAIL many/digits/0 and 199 more: out of memory"
    assert len(failures) == 5
    assert "and 86 more: ablate status many --json" in out


def test_status_makes_its_tables_once(many: Driver, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    many.leave()
    made: list[int] = []
    make = results.reports_table
    monkeypatch.setattr(results, "reports_table", lambda snapshot: made.append(1) or make(snapshot))
    succeed(capfd, "status", "many", "--runs-dir", str(many.runs))
    assert len(made) == 1


def test_a_report_that_takes_long_says_once_what_it_computes(
    many: Driver, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    many.leave()
    draw_nothing(monkeypatch)
    monkeypatch.setattr(inspect, "LATE", 0.0)
    _, out, err = run(capfd, "report", "many", "--runs-dir", str(many.runs))
    assert err.splitlines() == [report.writing_text("many")]
    assert out.startswith("Report: ")


@pytest.mark.parametrize("rows", [1, 10, 200])
def test_a_table_in_a_terminal_ends_and_says_how_many_rows_its_file_has_besides(rows: int) -> None:
    names = [f"a long name of row {number} that needs two lines" for number in range(rows)]
    columns = [Column(heading=heading, cell=lambda row: row["name"]) for heading in ("Name",)]
    columns += [Column(heading="Value", cell=lambda row: "0.123456789")]
    grid = Grid(caption="", frame=pl.DataFrame({"name": names}), columns=columns, csv="all.csv", total=2 * rows)
    console = Console(width=40)
    with console.capture() as captured:
        console.print(grid)
    text = captured.get()
    assert len(text.splitlines()) <= MOST_LINES + 4
    shown = text.count("0.123456789")
    assert f"… and {2 * rows - shown} more: all.csv" in text
    assert shown == min(rows, MOST_LINES // 2)


def test_a_setting_is_never_broken() -> None:
    names = ["width 64 · lr 0.00508", "activation gelu · lr 0.0071"]
    columns = [Column(heading="Settings", cell=lambda row: row["name"])]
    columns += [Column(heading="Value", cell=lambda row: "0.123456789")]
    console = Console(width=32)
    with console.capture() as captured:
        console.print(Grid(caption="", frame=pl.DataFrame({"name": names}), columns=columns, csv="all.csv"))
    lines = [line.replace("0.123456789", "").strip() for line in captured.get().splitlines()]
    assert lines[2:] == ["width 64 ·", "lr 0.00508", "activation gelu ·", "lr 0.0071"]


def test_the_work_of_the_importance_test_does_not_grow_with_the_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importance, "PERMUTATIONS", 1)
    drawn: list[int] = []
    shares = importance._shares
    monkeypatch.setattr(importance, "_shares", lambda *given: drawn.append(given[-1]) or shares(*given))
    space = Space(ranges={"a": FloatRange(float=(0.0, 1.0))})
    for trials in (100, 1000):
        points = [{"a": number / trials} for number in range(trials)]
        losses = [point["a"] for point in points]
        importance.importances("val_loss", losses, points, space, study_seed=0, dataset="digits")
    assert drawn == [100, 100, 100, 1000, importance.TREE_TRIALS, importance.TREE_TRIALS]
