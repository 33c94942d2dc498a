"""Commands that look at a study answer as of one moment, whatever a driver commits between their reads."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from sqlalchemy import Engine, event

from support.commands import LOCAL, succeed

STUDY = "moment"
FILE = """\
study: moment
datasets: {digits: {patch: 4, train_limit: 128}}
model: {width: 8, depth: 1, mlp: {choices: [none, 8]}}
training: {epochs: 2, batch_size: 32}
sampler: {name: grid}
scheduler: {name: none}
budget: {trials: 2}
confirm: null
"""
ONE_MORE = """\
INSERT INTO ablate_trial SELECT NULL, study_id, dataset, :number, stage, replace(config, '"number":1', :key),
  replicates,
  'FAIL', attempt, epochs_done, wall_seconds, params, params_body, flops, size, shape, sampler_state, 'out of memory',
  checkpoint, mlflow_run_id, driver_term, revision, created_at, started_at, finished_at FROM ablate_trial WHERE id = 2;
INSERT INTO ablate_report SELECT NULL, study_id, (SELECT max(id) FROM ablate_trial), epoch, replicate, metrics,
  diverged, final, decision, checkpoint, wall_seconds, driver_term, created_at FROM ablate_report WHERE id = 4;
INSERT INTO ablate_note SELECT NULL, 1, 'test_opened', 'digits', '{"trial": 0}', 2, created_at FROM ablate_note
  WHERE id = 1;
UPDATE ablate_lease SET term = term + 1;
"""


class Driver:
    """Commits one more failed trial, with a report and a note, under one more epoch, after each read of anybody."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.commits = 0

    def after(self, connection: object, cursor: object, statement: str, *_: object) -> None:
        if not statement.startswith("SELECT") or "FROM ablate_" not in statement:
            return
        number = self.commits + 2
        with sqlite3.connect(self.file) as writer:
            for line in ONE_MORE.split(";\n"):
                names = {"number": number, "key": f'"number":{number}'}
                writer.execute(line, {name: value for name, value in names.items() if f":{name}" in line})
        writer.close()
        self.commits += 1


@pytest.fixture
def driver(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Driver]:
    """A study in `tmp_path/runs`, with two complete trials, and somebody who commits after each read."""
    (tmp_path / "study.yaml").write_text(FILE)
    succeed(capfd, "search", str(tmp_path / "study.yaml"), *LOCAL, "--runs-dir", str(tmp_path / "runs"))
    home = tmp_path / "runs" / STUDY
    found = Driver(home / "ledger.sqlite")
    event.listen(Engine, "after_cursor_execute", found.after)
    yield found
    event.remove(Engine, "after_cursor_execute", found.after)


@pytest.mark.parametrize("command", [["status", STUDY], ["list"]], ids=["status", "list"])
def test_the_parts_of_an_answer_are_of_one_moment(
    command: list[str], driver: Driver, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = succeed(capfd, *command, "--json", "--runs-dir", str(tmp_path / "runs"))
    answer = json.loads(out)
    found = answer[0] if isinstance(answer, list) else answer
    assert driver.commits >= 3, "each read was followed by a commit"
    failed = found["trials"]["digits"]["FAIL"]
    seen = {"failed": len(found["failed"]), "openings": len(found["test_opened"]), "epoch": found["driver_term"] - 1}
    assert seen == {"failed": failed, "openings": failed, "epoch": failed}


def test_the_tables_of_a_report_are_of_one_moment(
    driver: Driver, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    succeed(capfd, "report", STUDY, "--runs-dir", str(tmp_path / "runs"))
    assert driver.commits >= 3
    home = tmp_path / "runs" / STUDY
    trials, reports = pl.read_parquet(home / "trials.parquet"), pl.read_parquet(home / "reports.parquet")
    assert set(trials["trial"]) == set(reports["trial"])


def test_the_front_and_the_table_of_a_terminal_are_of_one_moment(
    driver: Driver, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A second transaction would have met a trial that the first one had not: no table is joined from two."""
    reads: list[int] = []

    def began(connection: object, *_: object) -> None:
        reads.append(0)

    def read(connection: object, cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("SELECT") and "FROM ablate_report" in statement:
            reads[-1] += 1

    event.listen(Engine, "begin", began)
    event.listen(Engine, "after_cursor_execute", read)
    try:
        succeed(capfd, "status", STUDY, "--runs-dir", str(tmp_path / "runs"))
    finally:
        event.remove(Engine, "begin", began)
        event.remove(Engine, "after_cursor_execute", read)
    assert sum(reads) == 1, "the reports are read once"
