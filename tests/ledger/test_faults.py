"""Whatever is wrong with the storage is one clear line, without the password."""

from __future__ import annotations

import builtins
import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from ablate.base.errors import LedgerDownError, LedgerError
from ablate.core.trial import Decision
from ablate.ledger import Ledger, StudyWriter
from support.ledgers import STUDY, key, new_trial, raw_connection, report_of, take
from support.postgres import PASSWORD, PostgresServer


def one_line(url: str, **options: Any) -> str:
    """Return what opening `url` says, in one line."""
    with pytest.raises(LedgerError, match=r"^ledger[: ]") as caught:
        Ledger.open(url, **{"retry_seconds": 0.0, **options})
    said = str(caught.value)
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgres://ada:hunter2@db/ablate", "'postgres://' is not a storage URL; write 'postgresql+psycopg://"),
        ("mysql+pymysql://ada:hunter2@db/ablate", "storage 'mysql+pymysql' is not known; write 'sqlite:///PATH' or"),
        ("runs/ledger.sqlite", "the storage is not a URL; write 'sqlite:///PATH'"),
        ("postgresql://ada:hunter2@db:port/ablate", "the storage is not a URL"),
        ("sqlite://", "a ledger needs a file"),
        ("sqlite:///:memory:", "a ledger needs a file"),
        ("postgresql+psycopg://ada:hunter2@127.0.0.1:1/ablate", "//***@127.0.0.1:1/ablate: connection failed"),
        ("postgresql://ada@127.0.0.1:1/ablate?password=hunter2", "127.0.0.1:1/ablate: connection failed"),
    ],
)
def test_a_wrong_url_is_one_line(url: str, said: str) -> None:
    if "127.0.0.1" in url:
        pytest.importorskip("psycopg", reason="psycopg is not installed")
    found = one_line(url)
    assert said in found
    assert "hunter2" not in found


def test_a_missing_driver_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_psycopg(name: str, *rest: Any, **options: Any) -> Any:
        if name.split(".")[0] == "psycopg":
            raise ModuleNotFoundError("No module named 'psycopg'", name="psycopg")
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without_psycopg)
    found = one_line("postgresql+psycopg://ada:hunter2@127.0.0.1:1/ablate")
    place = "ledger postgresql+psycopg://***@127.0.0.1:1/ablate"
    assert found == f"{place}: the driver is not installed: pip install 'psycopg[binary]'"


def test_a_wrong_password_is_refused_without_saying_it(postgres_server: PostgresServer) -> None:
    found = one_line(postgres_server.url(password="hunter2"))
    assert "password authentication failed" in found
    assert "hunter2" not in found
    assert "does not exist" in (absent := one_line(postgres_server.url("nowhere")))
    assert PASSWORD not in absent


def test_files_that_are_no_ledger(tmp_path: Path) -> None:
    absent = tmp_path / "deep" / "ledger.sqlite"
    assert one_line(f"sqlite:///{absent}", create=False).endswith("there is no ledger here")
    assert not absent.parent.exists()
    (tmp_path / "notes.txt").write_text("this is no database, but it is long enough to have a header " * 20)
    assert "the file is not a database" in one_line(f"sqlite:///{tmp_path}/notes.txt")
    assert "this is a folder" in one_line(f"sqlite:///{tmp_path}")
    assert "notes.txt is a file" in one_line(f"sqlite:///{tmp_path}/notes.txt/ledger.sqlite")


def test_another_program_s_database_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    before = path.read_bytes()
    assert one_line(f"sqlite:///{path}", create=False).endswith("there is no ledger here")
    assert path.read_bytes() == before


def test_a_damaged_file_is_said(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(f"sqlite:///{path}") as ledger, take(ledger) as writer:
        writer.add_trials([new_trial(number) for number in range(50)])
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    found = one_line(f"sqlite:///{path}")
    assert "the file is damaged; restore it from a copy (database disk image is malformed)" in found


def test_a_damaged_row_is_said(storage: str) -> None:
    with Ledger.open(storage) as ledger, take(ledger) as writer:
        writer.add_trials([new_trial(0)])
        with raw_connection(ledger) as raw:
            raw.execute(text("UPDATE ablate_trial SET config = '{\"key\": 3}'"))
            raw.commit()
        with pytest.raises(LedgerError, match=r"^ledger [^\n]*: trial digits/0 is damaged: [^\n]*$"):
            ledger.trials(STUDY)


OLDER = "an older ablate (schema {}, here 5)"
OTHER_VERSIONS = [(0, OLDER.format(0)), (3, OLDER.format(3)), (6, "a newer ablate (schema 6")]


@pytest.mark.parametrize(("version", "said"), OTHER_VERSIONS)
def test_another_schema_version_is_refused(version: int, said: str, storage: str) -> None:
    with Ledger.open(storage) as ledger, raw_connection(ledger) as raw:
        raw.execute(text(f"UPDATE ablate_schema SET version = {version}"))
        raw.commit()
    assert said in one_line(storage)


@pytest.fixture
def foreign_folder() -> Iterator[Path]:
    """A folder that the test's user may read but not write; root becomes nobody for the time being."""
    folder = Path(tempfile.mkdtemp(prefix="ablate-ro-"))
    was_root = os.geteuid() == 0
    folder.chmod(0o777)
    try:
        yield folder
    finally:
        if was_root:
            os.seteuid(0)
        folder.chmod(0o777)
        shutil.rmtree(folder)


def lock_out(folder: Path) -> None:
    """Make `folder` and the files in it unwritable for the running process."""
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    if os.geteuid() == 0:
        os.seteuid(65534)


def test_an_unwritable_folder_is_said(foreign_folder: Path) -> None:
    lock_out(foreign_folder)
    assert "cannot be opened; check that its folder exists and is writable" in one_line(
        f"sqlite:///{foreign_folder}/ledger.sqlite"
    )
    assert "the folder cannot be made or read (Permission denied)" in one_line(
        f"sqlite:///{foreign_folder}/deep/ledger.sqlite"
    )


def test_a_finished_study_can_be_read_where_nothing_may_be_written(foreign_folder: Path) -> None:
    url = f"sqlite:///{foreign_folder}/ledger.sqlite"
    with Ledger.open(url) as ledger, take(ledger) as writer:
        writer.add_trials([new_trial(0)])
        wanted = ledger.trials(STUDY)
    lock_out(foreign_folder)
    with Ledger.open(url, create=False) as reader:
        assert reader.trials(STUDY) == wanted
        with pytest.raises(LedgerError, match="the file or its folder is not writable"):
            take(reader)


def report_until_refused(writer: StudyWriter, written: list[int]) -> None:
    """Report one epoch after another and append to `written` what was acknowledged."""
    for epoch in range(1, 2000):
        writer.report(key(0), report_of(epoch), Decision.CONTINUE)
        written.append(epoch)


def test_a_full_disk_is_one_line_and_the_hold_goes_on_once_it_is_freed(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no small file system can be mounted: {mounted.stderr.strip()}")
    try:
        with Ledger.open(f"sqlite:///{disk}/ledger.sqlite") as ledger, take(ledger) as writer:
            writer.add_trials([new_trial(0)])
            writer.start(key(0))
            (disk / "ballast").write_bytes(b"x" * (shutil.disk_usage(disk).free - 64 * 1024))
            written: list[int] = []
            with pytest.raises(
                LedgerError, match=r"^ledger sqlite:///[^\n]*: the disk is full; free some space[^\n]*$"
            ):
                report_until_refused(writer, written)
            done = written[-1]
            assert [r.epoch for r in ledger.reports(STUDY) if r.replicate == 1] == list(range(1, done + 1))
            (disk / "ballast").unlink()
            writer.report(key(0), report_of(done + 1), Decision.CONTINUE)
            assert ledger.trials(STUDY)[0].epochs_done == done + 1
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_without_inodes_is_one_line_and_passes(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "nr_inodes=20", "tmpfs", str(disk)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no small file system can be mounted: {mounted.stderr.strip()}")
    url = f"sqlite:///{disk}/ledger.sqlite"
    try:
        with Ledger.open(url) as ledger, take(ledger) as writer:
            writer.add_trials([new_trial(0)])
        taken = []
        with suppress(OSError):
            for number in range(100):
                (disk / str(number)).touch()
                taken.append(disk / str(number))
        with pytest.raises(LedgerDownError, match=r"^ledger [^\n]*: the disk has no space or no inodes left; [^\n]*$"):
            Ledger.open(url)
        for path in taken:
            path.unlink()
        with Ledger.open(url) as ledger:
            assert len(ledger.trials(STUDY)) == 1
    finally:
        subprocess.run(["umount", str(disk)], check=True)
