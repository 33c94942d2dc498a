"""Tables against the values that went into the ledger, and against their documentation."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablate.base import files as folder
from ablate.base.errors import ResultsDownError
from ablate.core.trial import Decision, Report, TrialState
from ablate.ledger import Ledger, NewTrial, StudyWriter
from ablate.results.trials import tables as results
from ablate.results.trials.tables import reports_table, searched_values, trials_table, write_tables
from ablate.study.space import IntRange, Space
from support.ledgers import SHAPE, SIZE, STUDY, Clock, key, new_trial, report_of, take
from support.paths import REPOSITORY

DOCUMENT = REPOSITORY / "docs" / "tables.md"
CHOICES = [32, "none", 8.5, True, None]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite", clock=Clock()) as opened:
        yield opened


@pytest.fixture
def filled(ledger: Ledger) -> Iterator[Ledger]:
    """Two data sets; five trials with an int-or-'none' parameter, NaN, a metric that one trial has alone."""
    with take(ledger) as writer:
        fill(writer)
        yield ledger


def fill(writer: StudyWriter) -> None:
    for number, choice in enumerate(CHOICES):
        parameters = {"model.mlp": choice, "model.width": 60 + number, "train.learning_rate": 10.0**-number}
        if number == 1:
            parameters |= {"model.residual": False, "only.int_and_float": 3, "variant": "symmetric"}
        if number == 2:
            parameters |= {"only.int_and_float": 0.5}
        writer.add_trials([new_trial(number, "mnist", parameters=parameters)])
    writer.add_trials([NewTrial(config=new_trial(0, stage="confirm", source=4).config)])
    for number in (0, 1):
        writer.start(key(number, "mnist"))
        writer.report(key(number, "mnist"), report_of(1, 0.5, 0.25), Decision.CONTINUE)
    writer.report(key(0, "mnist"), report_of(2, 0.375, 0.125, final=True), Decision.CONTINUE, TrialState.COMPLETE)
    broken = report_of(2, math.nan, 0.5, diverged=(True, False))
    writer.report(key(1, "mnist"), broken, Decision.STOP, TrialState.FAIL, "diverged")
    writer.start(key(2, "mnist"))
    odd = Report(epoch=1, metrics=({"val_loss": 1.0, "state": 7.0}, {"val_loss": 2.0, "state": 9.0}), wall_seconds=2.0)
    writer.report(key(2, "mnist"), odd, Decision.CONTINUE)


def test_trials_table_holds_what_the_ledger_was_given(filled: Ledger) -> None:
    table = trials_table(filled.snapshot(STUDY))
    assert table.select("dataset", "trial").rows() == [("digits", 0), *(("mnist", n) for n in range(5))]
    assert table["stage"].to_list() == ["confirm"] + ["search"] * 5
    assert table["source"].to_list() == [4, None, None, None, None, None]
    assert table["variant"].to_list() == [None, None, "symmetric", None, None, None]
    assert table["state"].to_list() == ["WAITING", "COMPLETE", "FAIL", "RUNNING", "WAITING", "WAITING"]
    assert table["epochs"].to_list() == [0, 2, 2, 1, 0, 0]
    assert table["max_epochs"].to_list() == [9] * 6
    assert table["attempt"].to_list() == [0, 1, 1, 1, 0, 0]
    assert table["wall_seconds"].to_list() == [0.0, 3.0, 3.0, 2.0, 0.0, 0.0]
    assert table["error"].to_list() == [None, None, "diverged", None, None, None]
    assert table["params"].to_list() == [None] + [SIZE["params"]] * 5
    held_out = 144  # a tenth of 1437 samples
    q = (SHAPE.train_samples - held_out) * SHAPE.outputs / SIZE["params"]  # paper A, Eq. 12
    assert table["q"].to_list() == [None] + [q] * 5


def test_parameters_of_mixed_types_keep_their_values(filled: Ledger) -> None:
    table = trials_table(filled.snapshot(STUDY)).filter(pl.col("dataset") == "mnist")
    assert table["model.mlp"].to_list() == ["32", "none", "8.5", "true", None]
    assert (table["model.width"].dtype, table["model.width"].to_list()) == (pl.Int64, [60, 61, 62, 63, 64])
    assert table["train.learning_rate"].to_list() == [1.0, 0.1, 0.01, 10.0**-3, 10.0**-4]
    assert (table["model.residual"].dtype, table["model.residual"].to_list()) == (
        pl.Boolean,
        [None, False, None, None, None],
    )
    assert table["only.int_and_float"].to_list() == [None, 3.0, 0.5, None, None]


def test_metrics_are_the_last_epoch_s_means_with_nan_apart_from_null(filled: Ledger) -> None:
    table = trials_table(filled.snapshot(STUDY))
    losses = table["val_loss"].to_list()
    assert [losses[0], losses[1], losses[3], losses[4]] == [None, (0.375 + 0.125) / 2, 1.5, None]
    assert math.isnan(losses[2]), "one replicate diverged"
    assert table["metric.state"].to_list() == [None, None, None, 8.0, None, None], "a metric never hides a column"


def test_reports_table_holds_every_replicate_s_values(filled: Ledger) -> None:
    table = reports_table(filled.snapshot(STUDY))
    assert table.select("trial", "epoch", "replicate", "seed").rows() == [
        (trial, epoch, replicate, 100 + replicate)
        for trial, epochs in ((0, 2), (1, 2), (2, 1))
        for epoch in range(1, epochs + 1)
        for replicate in (0, 1)
    ]
    assert table["val_loss"].to_list()[:6] == [0.5, 0.25, 0.375, 0.125, 0.5, 0.25]
    assert math.isnan(table["val_loss"][6])
    assert table["diverged"].to_list() == [False] * 6 + [True, False, False, False]
    assert table["decision"].to_list() == ["CONTINUE"] * 6 + ["STOP"] * 2 + ["CONTINUE"] * 2
    assert table["final"].to_list() == [False, False, True, True] + [False] * 6


def test_parquet_files_hold_the_same_tables_and_are_replaced_whole(filled: Ledger, tmp_path: Path) -> None:
    home = tmp_path / "runs" / "s"
    for _ in range(2):
        paths = write_tables(filled.snapshot(STUDY), home)
    assert paths == (home / "trials.parquet", home / "reports.parquet")
    assert sorted(path.name for path in home.iterdir()) == ["reports.parquet", "trials.parquet"], "nothing temporary"
    assert pl.read_parquet(paths[0]).equals(trials_table(filled.snapshot(STUDY)))
    assert pl.read_parquet(paths[1]).equals(reports_table(filled.snapshot(STUDY)))


def test_a_table_that_cannot_be_written_is_one_line_and_the_old_one_stays(
    filled: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [path.read_bytes() for path in write_tables(filled.snapshot(STUDY), tmp_path)]

    def full(_file: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(folder.os, "fsync", full)
        with pytest.raises(
            ResultsDownError, match=r"^/.*trials\.parquet cannot be written: No space left[^\n]*; free some [^\n]*$"
        ):
            write_tables(filled.snapshot(STUDY), tmp_path)
    assert [(tmp_path / name).read_bytes() for name in ("trials.parquet", "reports.parquet")] == before
    assert not list(tmp_path.glob("*.tmp"))


def test_an_empty_study_has_empty_tables_with_every_fixed_column(ledger: Ledger, tmp_path: Path) -> None:
    take(ledger).release()
    trials, reports = write_tables(ledger.snapshot(STUDY), tmp_path)
    assert pl.read_parquet(trials).schema == pl.Schema(results.TRIAL_COLUMNS)
    assert pl.read_parquet(reports).schema == pl.Schema(results.REPORT_COLUMNS)
    assert trials_table(ledger.snapshot("no such study")).height == 0


def documented(section: str) -> dict[str, str]:
    """Return column -> type of the first table below `section` in docs/tables.md."""
    text = DOCUMENT.read_text().split(f"## {section}")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `([^`]+)` \| (\w+) \|", text, flags=re.MULTILINE))


@pytest.mark.parametrize(
    ("section", "columns"), [("trials.parquet", results.TRIAL_COLUMNS), ("reports.parquet", results.REPORT_COLUMNS)]
)
def test_the_documented_schema_is_the_written_one(section: str, columns: dict[str, pl.DataType]) -> None:
    assert list(documented(section).items()) == [(name, str(dtype.base_type())) for name, dtype in columns.items()]


def test_searched_values_are_what_the_sampler_chose(filled: Ledger) -> None:
    names = ["model.mlp", "model.width", "train.learning_rate", "never.tried"]
    space = Space(ranges={name: IntRange(int=(0, 1)) for name in names})
    snapshot = filled.snapshot(STUDY)
    table = trials_table(snapshot).filter(pl.col("dataset") == "mnist")
    found = searched_values(table, space)
    assert [repr(values["model.mlp"]) for values in found] == [repr(choice) for choice in CHOICES]
    chosen = {trial.key.number: trial.config.parameters for trial in snapshot.trials if trial.key.dataset == "mnist"}
    assert found == [{name: chosen[number][name] for name in names[:3]} for number in table["trial"]]


EQUAL = st.sampled_from([1, True, 1.0, "1", 0, False, -0.0, None, "null", "None", "", "true", 2**53 + 1, 2.0**53, 0.5])
VALUES = st.one_of(EQUAL, st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=3))


@given(st.lists(VALUES, max_size=6), st.integers(0, 2))
def test_different_values_have_different_cells_which_parquet_keeps(values: list[Any], absent: int) -> None:
    column = results._parameter("x", [*values, *[results.NOT_THERE] * absent])
    cells = pl.read_parquet(BytesIO(results.parquet_bytes(pl.DataFrame([column]))))["x"].to_list()
    exact = [json.dumps(value) for value in values]
    pairs = set(zip(exact, map(repr, cells), strict=False))
    assert len(pairs) == len(set(exact)) == len({cell for _, cell in pairs})
    assert cells[len(values) :] == [None] * absent
    if absent:
        assert None not in cells[: len(values)]
