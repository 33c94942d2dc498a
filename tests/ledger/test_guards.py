"""What keeps a ledger true when things go wrong between two statements: fences, leases, snapshots, the disk."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from ablate.base.errors import LedgerDownError, LedgerError, StaleDriverError, StorageError
from ablate.base.files import DiskFolder
from ablate.core.trial import Decision
from ablate.ledger import Ledger, database
from support.ledgers import STUDY, Clock, key, new_trial, report_of, take
from support.postgres import PostgresServer


@pytest.fixture
def ledger(storage: str) -> Iterator[Ledger]:
    with Ledger.open(storage, clock=Clock()) as opened:
        yield opened


@pytest.fixture
def on_postgres(postgres_server: PostgresServer) -> Iterator[Ledger]:
    with Ledger.open(postgres_server.empty()) as opened:
        yield opened


def fail_commits(ledger: Ledger, count: int) -> None:
    """Let the next `count` commits fail before they happen."""
    dialect: Any = ledger._database.engine.dialect
    real = type(dialect).do_commit.__get__(dialect)
    left = [count]

    def commit(connection: Any) -> None:
        if left[0] > 0:
            left[0] -= 1
            fault = dialect.loaded_dbapi.OperationalError("cut before the commit")
            fault.sqlite_errorname = "SQLITE_BUSY"
            raise fault
        real(connection)

    dialect.do_commit = commit


def test_a_write_that_was_rolled_back_is_not_taken_for_the_first_write_of_the_driver_that_took_over(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = take(ledger)
    old.add_trials([new_trial(0), new_trial(1)])
    took: list[Any] = []

    def overtaken(_seconds: float) -> None:
        if not took:
            took.append(take(ledger, takeover=True, holder="bob"))
            took[0].start(key(1))  # one write, as the old one wanted one

    monkeypatch.setattr(database, "time", Mock(monotonic=time.monotonic, sleep=overtaken))
    fail_commits(ledger, 1)
    with pytest.raises(StaleDriverError):
        old.start(key(0))
    assert old.lost
    assert {trial.key.number: trial.attempt for trial in ledger.trials(STUDY)} == {0: 0, 1: 1}
    took[0].release()
    old.release()


def test_a_heartbeat_that_failed_once_beats_again(storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger.open(storage) as ledger, take(ledger, lease_seconds=0.6) as writer:
        real, beats = writer.renew, list[float]()

        def renew() -> None:
            beats.append(time.monotonic())
            if len(beats) == 1:
                raise LedgerError("ledger: a hiccup")
            real()

        monkeypatch.setattr(writer, "renew", renew)
        taken = ledger.study(STUDY)
        assert taken is not None
        assert taken.held_until is not None
        deadline = time.monotonic() + 200
        while len(beats) < 4:  # the third has ended
            assert time.monotonic() < deadline
            time.sleep(0.02)
        record = ledger.study(STUDY)
        assert record is not None
        assert record.held_until is not None
        assert record.held_until > taken.held_until


@pytest.mark.parametrize("state", ["40001", "40P01", "55P03", "25P03", "57P01", "08006", "53300"])
def test_a_transaction_that_the_server_refuses_for_now_is_run_again(state: str, on_postgres: Ledger) -> None:
    tries: list[int] = []

    def body(connection: Connection) -> str:
        tries.append(1)
        if len(tries) == 1:
            connection.execute(text(f"DO $$ BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = '{state}'; END $$"))
        return "done"

    assert on_postgres._database.write(body) == "done"
    assert len(tries) == 2


def test_a_frozen_driver_cannot_keep_its_lock(on_postgres: Ledger) -> None:
    def shown(connection: Connection) -> list[str]:
        names = ("idle_in_transaction_session_timeout", "lock_timeout")
        return [str(connection.execute(text(f"SHOW {name}")).scalar_one()) for name in names]

    assert on_postgres._database.write(shown) == ["20s", "30s"]
    assert on_postgres._database.read(shown) == ["20s", "30s"]


def test_two_reads_of_one_snapshot_see_one_moment(ledger: Ledger) -> None:
    with take(ledger) as writer:
        writer.add_trials([new_trial(0)])
        writer.start(key(0))

        def seen(connection: Connection) -> list[int]:
            counts = [connection.execute(text("SELECT count(*) FROM ablate_report")).scalar_one()]
            writer.report(key(0), report_of(1), Decision.CONTINUE)
            return [*counts, connection.execute(text("SELECT count(*) FROM ablate_report")).scalar_one()]

        assert ledger._database.read(seen) == [0, 0]
        assert len(ledger.reports(STUDY)) == 2


def test_what_is_wrong_for_good_is_told_from_what_passes(postgres_server: PostgresServer, tmp_path: Path) -> None:
    faults: dict[str, Callable[[], object]] = {
        "password": lambda: Ledger.open(postgres_server.url(password="wrong")),
        "absent": lambda: Ledger.open(postgres_server.url("nowhere")),
        "port": lambda: Ledger.open("postgresql+psycopg://ada@127.0.0.1:1/ablate"),
        "folder": lambda: Ledger.open(f"sqlite:///{tmp_path}"),
    }
    kinds = {}
    for name, fault in faults.items():
        with pytest.raises(LedgerError) as caught:
            fault()
        kinds[name] = type(caught.value)
    assert kinds == {"password": LedgerError, "absent": LedgerError, "port": LedgerDownError, "folder": StorageError}


def test_a_driver_of_the_database_that_repeats_the_password_is_not_quoted(postgres_server: PostgresServer) -> None:
    url = f"{postgres_server.empty()}&sslpassword=other-secret"
    with Ledger.open(url) as ledger:
        password = str(ledger._database.url.password)
        said = psycopg.OperationalError(f"cannot log in with {password} or other-secret\nat all")
        told = str(ledger._database.explain(OperationalError("", {}, said)))
    assert password not in told
    assert "other-secret" not in told
    assert "\n" not in told


def test_a_file_is_on_the_disk_before_its_name_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bool]] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, (tmp_path / "f" / "x").exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    DiskFolder(tmp_path / "f").write("x", b"1")
    assert [(name.partition(".")[0], there) for name, there in synced] == [("x", False), ("f", True)]


def test_sqlite_loses_nothing_to_a_dead_process_and_reaches_the_disk_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(f"sqlite:///{path}") as ledger:
        settings = [ledger._database._pragma(name) for name in ("synchronous", "journal_mode", "foreign_keys")]
        assert settings == [1, "wal", 1]
        writer = take(ledger)
        writer.add_trials([new_trial(0)])
        before = path.read_bytes()
        writer.release()
        assert path.read_bytes() != before, "the log was copied into the file"
        copy = tmp_path / "copy.sqlite"
        copy.write_bytes(path.read_bytes())
        assert sqlite3.connect(copy).execute("SELECT count(*) FROM ablate_trial").fetchone() == (1,)
