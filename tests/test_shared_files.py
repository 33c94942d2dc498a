"""A team shares a folder of studies: whatever a study writes there follows the umask, SQLite's files too."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ablate.ledger import Ledger
from support.commands import TINY, local, run

TEAM, MEMBER = 64001, 64002  # a group and a user without names
GROUP_WRITES = 0o020


@pytest.fixture(params=[0o002, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    former = os.umask(request.param)
    yield request.param
    os.umask(former)


@pytest.mark.services
def test_no_file_of_a_study_is_more_closed_or_more_open_than_the_umask_says(
    umask: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    command = [word for word in local(tmp_path / "tiny.yaml", tmp_path / "runs") if word not in ("--tracker", "none")]
    code, _, err = run(capfd, *command)
    assert code == 0, err
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert {"ledger.sqlite", "mlflow.db", "index.html"} <= {path.name for path in files}
    wrong = {str(path.relative_to(tmp_path)): oct(path.stat().st_mode & 0o777) for path in files}
    assert {name: mode for name, mode in wrong.items() if mode != oct(0o666 & ~umask)} == {}


@pytest.mark.parametrize("umask", [0o002], indirect=True)
def test_the_files_beside_an_open_ledger_are_the_groups_too(umask: int, tmp_path: Path) -> None:
    with (
        Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite") as ledger,
        ledger.acquire("s", file_text="", fingerprint="f", seed=1, holder="first"),
    ):
        names = {path.name: path.stat().st_mode & GROUP_WRITES for path in tmp_path.iterdir()}
    assert names == dict.fromkeys(("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"), GROUP_WRITES)


@pytest.mark.skipif(os.getuid() != 0, reason="acting as another user needs root")
@pytest.mark.parametrize("umask", [0o002], indirect=True)
def test_another_member_of_the_team_writes_the_ledger_without_a_chmod(umask: int, tmp_path: Path) -> None:
    for folder in (tmp_path, *(each for each in tmp_path.parents if each.name.startswith(("pytest-", "popen-")))):
        folder.chmod(0o755)
    shared = tmp_path / "shared"
    shared.mkdir()
    os.chown(shared, 0, TEAM)
    shared.chmod(0o2775)
    url = f"sqlite:///{shared}/ledger.sqlite"
    Ledger.open(url).close()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(TEAM)
            os.setuid(MEMBER)
            with (
                Ledger.open(url) as ledger,
                ledger.acquire("s", file_text="", fingerprint="f", seed=1, holder="member"),
            ):
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with closing(sqlite3.connect(shared / "ledger.sqlite")) as raw:
        assert raw.execute("SELECT name FROM ablate_study").fetchall() == [("s",)]
