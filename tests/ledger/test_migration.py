"""Ledgers of older schema versions: a driver migrates them once; a reader takes them as they are."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, NullPool, create_engine, inspect
from sqlalchemy.exc import IntegrityError

from ablate.ledger import Ledger, migration, schema
from ablate.ledger.database import Database
from ablate.study import parse_study
from support.commands import run
from support.ledgers import Clock
from support.paths import TESTS
from support.searches import hold_of, search_of

FOLDER = TESTS / "ledger" / "version_1"
STUDY = "older"
STUDY_TEXT = """\
study: tuned
datasets: {digits: {patch: 4}}
model: {width: 8, depth: 1, mlp: 8}
training: {epochs: 1}
parts: {mlp: {model: {mlp: none}}}
tune: {trials: 2, training.learning_rate: {float: [0.001, 0.1], log: true}}
compare: {baseline: complete}
"""
SECONDS = 50.0  # two drivers: 20 s and 30 s from the first act to the last commit, 10,000 s apart


@contextmanager
def connected(storage: str) -> Iterator[Connection]:
    """Yield a connection that is in a new transaction."""
    with create_engine(storage, poolclass=NullPool).begin() as connection:
        yield connection


def run_script(connection: Connection, script: Path) -> None:
    for statement in script.read_text().split(";\n"):
        if statement.strip():
            connection.exec_driver_sql(statement)


def make_version_1(storage: str) -> None:
    """Write the tables of version 1, in the words of that version, and a study with two finished trials."""
    with connected(storage) as connection:
        kind = connection.dialect.name
        for script in (FOLDER / f"{kind}.sql", FOLDER / "rows.sql"):
            run_script(connection, script)
        if kind == "postgresql":
            for table in ("study", "trial", "report", "note"):
                sequence = f"pg_get_serial_sequence('ablate_{table}', 'id')"
                connection.exec_driver_sql(f"SELECT setval({sequence}, 1000)")


@pytest.fixture
def version_1(storage: str) -> str:
    """The URL of a ledger of version 1, once on each kind of database."""
    make_version_1(storage)
    return storage


def shape(storage: str) -> dict[str, set[tuple[str, str, bool]]]:
    """Return name, type and nullability of each column by table."""
    with connected(storage) as connection:
        seen = inspect(connection)
        return {
            table: {(c["name"], str(c["type"]), bool(c["nullable"])) for c in seen.get_columns(table)}
            for table in seen.get_table_names()
        }


def test_a_driver_migrates_it_once_and_says_so(
    version_1: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Ledger.open(version_1, create=False) as reader:
        before = reader.snapshot(STUDY)
        assert before.study is not None
        with caplog.at_level(logging.WARNING), Ledger.open(version_1) as ledger:
            after = ledger.snapshot(STUDY)
            identity = ledger.id
        assert reader.snapshot(STUDY) == before, "whoever has it open reads on"
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.endswith("migrated from schema 1 to 3")
    assert (after.trials, after.reports, after.notes) == (before.trials, before.reports, before.notes)
    assert len(after.trials) == 2
    assert after.study is not None
    assert (after.study.active_seconds, after.study.store, after.study.tracking) == (SECONDS, None, None)
    assert identity
    with Ledger.open(version_1) as again:
        assert again.id == identity
    assert len(caplog.records) == 1
    if version_1.startswith("sqlite"):
        fresh = f"sqlite:///{tmp_path}/fresh.sqlite"
        Ledger.open(fresh).close()
        assert shape(version_1) == shape(fresh)


def test_a_ledger_of_version_2_takes_tuning_trials_after_the_migration(
    storage: str, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(storage) as connection:
        run_script(connection, TESTS / "ledger" / "version_2" / f"{connection.dialect.name}.sql")
    study = parse_study(STUDY_TEXT)
    with Ledger.open(storage) as ledger, hold_of(study, ledger, file_text=STUDY_TEXT) as writer:
        assert ledger.id == "made-by-version-2"
        config = search_of(study, writer, ledger).next_trial()
        assert config is not None
        assert config.stage == "tune"
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == ["migrated from schema 2 to 3"]
    with pytest.raises(IntegrityError, match="ablate_trial_stage"), connected(storage) as connection:
        connection.exec_driver_sql("UPDATE ablate_trial SET stage = 'another'")
    if storage.startswith("sqlite"):
        with connected(storage) as connection:
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"
            assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []


def test_the_time_that_was_spent_before_counts_and_the_search_continues(version_1: str) -> None:
    clock = Clock(1_700_100_000.0)
    with Ledger.open(version_1, clock=clock, monotonic=clock) as ledger:
        record = ledger.study(STUDY)
        assert record is not None
        study = parse_study(record.file_text)
        with hold_of(study, ledger, file_text=record.file_text) as writer:
            search = search_of(study, writer, ledger)
            assert writer.active_seconds() == SECONDS
            clock.now += 60
            config = search.next_trial()
            assert config is not None
            assert config.key.number == 2
            clock.now += 11
            search.stop()
            search.pause(config.key)
            assert writer.active_seconds() == SECONDS + 11


def test_of_many_that_open_it_at_once_one_migrates(version_1: str, caplog: pytest.LogCaptureFixture) -> None:
    def identity(_: int) -> str | None:
        with Ledger.open(version_1) as ledger:
            return ledger.id

    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(identity, range(8)))
    assert len(found) == 1
    assert None not in found
    assert sum("migrated" in record.getMessage() for record in caplog.records) == 1


def test_a_migration_that_breaks_off_leaves_version_1(version_1: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class BrokenOffError(Exception):
        pass

    def broken() -> str:
        raise BrokenOffError

    before = shape(version_1)
    with monkeypatch.context() as patch:
        patch.setattr(migration, "new_id", broken)
        with pytest.raises(BrokenOffError):
            Ledger.open(version_1)
    assert shape(version_1) == before
    with Ledger.open(version_1) as ledger:
        assert ledger.id
        assert len(ledger.trials(STUDY)) == 2


@pytest.mark.services
def test_commands_that_look_read_it_and_change_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "runs" / STUDY
    home.mkdir(parents=True)
    make_version_1(f"sqlite:///{home}/ledger.sqlite")
    before = shape(f"sqlite:///{home}/ledger.sqlite")
    runs = ("--runs-dir", str(home.parent))
    code, out, err = run(capfd, "status", STUDY, "--json", *runs)
    assert code == 0, err
    assert json.loads(out)["trials"]["digits"]["COMPLETE"] == 2
    for command in (["list"], ["report", STUDY], ["trial", STUDY, "1"]):
        code, _, err = run(capfd, *command, *runs)
        assert code == 0, err
    assert shape(f"sqlite:///{home}/ledger.sqlite") == before


@pytest.mark.services
def test_the_command_migrates_it_and_finishes_the_study(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "runs" / STUDY
    home.mkdir(parents=True)
    make_version_1(f"sqlite:///{home}/ledger.sqlite")
    options = ("--runs-dir", str(home.parent), "--executor", "local", "--device", "cpu", "--tracker", "none")
    code, out, err = run(capfd, "resume", STUDY, *options)
    assert code == 0, err
    assert "2 trials in the ledger" in out
    with Ledger.open(f"sqlite:///{home}/ledger.sqlite", create=False) as ledger:
        assert len(ledger.trials(STUDY)) == 3


@pytest.mark.services
def test_a_request_to_an_older_ledger_is_taken_up_by_the_driver_that_migrates_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "runs" / STUDY
    home.mkdir(parents=True)
    make_version_1(f"sqlite:///{home}/ledger.sqlite")
    runs = ("--runs-dir", str(home.parent))
    before = shape(f"sqlite:///{home}/ledger.sqlite")
    code, _, err = run(capfd, "enqueue", STUDY, "model.mlp=8", "training.learning_rate=0.005", *runs)
    assert code == 0, err
    assert shape(f"sqlite:///{home}/ledger.sqlite") == before, "a request needs no other tables"
    code, _, err = run(capfd, "resume", STUDY, *runs, "--executor", "local", "--device", "cpu", "--tracker", "none")
    assert code == 0, err
    with Ledger.open(f"sqlite:///{home}/ledger.sqlite", create=False) as ledger:
        third = ledger.trials(STUDY)[2]
        assert not ledger.requests(STUDY)
    assert dict(third.config.parameters) == {"model.mlp": 8, "training.learning_rate": 0.005}


def test_the_tables_of_this_version_are_known_to_the_migration() -> None:
    """Each column that version 1 had not is added; a further change of the tables needs a further version."""
    with_all = {table.name: {column.name for column in table.columns} for table in schema.metadata.sorted_tables}
    new = {table.name: set(names) for table, names in migration.SINCE_VERSION_2.items()}
    old = (FOLDER / "sqlite.sql").read_text()
    for name, columns in with_all.items():
        lines = old.partition(f"CREATE TABLE {name} (")[2].partition("\n);")[0].splitlines()
        there = {line.split()[0] for line in lines if line.strip()} & columns
        assert columns - there == new.get(name, set()), name


def test_what_makes_tables_and_takes_them_back_migrates_nothing(version_1: str) -> None:
    before = shape(version_1)
    Ledger.look(version_1)
    Database.refuse_where_none_can_be_made(version_1)
    assert shape(version_1) == before
