"""A ledger on a disk that other machines may have mounted, and on one without locks."""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from ablate.base.shared_disk import journal_mode
from ablate.cli.app import main
from ablate.ledger import Ledger, database
from support.ledgers import STUDY, key, new_trial, take

STUDY_FILE = "study: s\ndatasets: {digits: {patch: 4}}\nmodel: {width: {choices: [8, 16]}}\nbudget: {trials: 1}\n"


@pytest.mark.parametrize(
    ("kind", "mode"),
    [("ext4", "wal"), ("overlay", "wal"), ("nfs4", "delete"), ("lustre", "delete"), ("fuse.sshfs", "delete")],
)
def test_the_file_system_decides(tmp_path: Path, kind: str, mode: str) -> None:
    device = tmp_path.stat().st_dev
    mounts = tmp_path / "mountinfo"
    lines = [
        f"43 27 {os.major(device)}:{os.minor(device)} / {tmp_path} rw,relatime shared:1 - {kind} host:/home rw",
        "44 27 999:99 / /elsewhere rw - nfs4 host:/elsewhere rw",
    ]
    mounts.write_text("\n".join(lines) + "\n")
    assert journal_mode(tmp_path, mounts) == mode
    assert journal_mode(tmp_path, tmp_path / "none") == "wal", "not Linux"


def mode_of(path: Path) -> str:
    connection = sqlite3.connect(path)
    try:
        return str(connection.execute("PRAGMA journal_mode").fetchone()[0])
    finally:
        connection.close()


def test_a_shared_ledger_has_no_log_that_other_machines_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(f"sqlite:///{path}"):
        pass
    assert mode_of(path) == "wal"
    monkeypatch.setattr(database, "journal_mode", lambda _: "delete")
    with Ledger.open(f"sqlite:///{path}", create=False):
        assert mode_of(path) == "wal", "a reader changes nothing"
    with Ledger.open(f"sqlite:///{path}") as ledger, take(ledger) as writer:
        writer.add_trials([new_trial(0)])
        assert [each.name for each in tmp_path.iterdir()] == [path.name]
        with Ledger.open(f"sqlite:///{path}", create=False) as reader:
            assert [trial.key for trial in reader.trials(STUDY)] == [key(0)]
    monkeypatch.undo()
    with Ledger.open(f"sqlite:///{path}"):  # as on the server whose local disk the other machines mount
        assert mode_of(path) == "delete"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_disk_without_locks_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    (tmp_path / "s.yaml").write_text(STUDY_FILE)
    monkeypatch.setattr(database.fcntl, "lockf", Mock(side_effect=OSError(number, os.strerror(number))))
    monkeypatch.setattr(
        sys, "argv", ["ablate", "search", str(tmp_path / "s.yaml"), "--runs-dir", str(tmp_path / "runs")]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = " ".join(capsys.readouterr().err.split())
    assert told.startswith("ablate: ledger sqlite:///")
    assert "its file system has no locks, which SQLite needs" in told
    assert told.count("ablate: ") == 1
    assert told.endswith("type --storage sqlite:///FILE with a file on another one")
