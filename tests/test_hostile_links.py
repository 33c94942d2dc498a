"""Links in a folder that somebody else packed lead no command out of it: nothing is read or overwritten there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ablate.base import files as folders
from ablate.base.files import DiskFolder, copy_into
from ablate.engine.tasks.text import characters
from support.commands import TINY, run

pytestmark = pytest.mark.services

SECRET = b"what the link points to"
RECORD = ("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a study that ended, with the report as `ablate report` wrote it."""
    place = tmp_path_factory.mktemp("study")
    (place / "tiny.yaml").write_text(TINY)
    command = [sys.executable, "-m", "ablate", "search", "tiny.yaml", "--executor", "local", "--tracker", "none"]
    subprocess.run([*command, "--runs-dir", "."], cwd=place, check=True, capture_output=True)
    return place / "tiny"


def written_names(home: Path) -> list[str]:
    """Return every path below `home` that a command wrote or made, and the folders that lead to it."""
    return sorted(str(path.relative_to(home)) for path in home.rglob("*"))


def unpacked(study: Path, runs: Path, name: str, victims: Path) -> Path:
    """Return a copy of `study` in which `name` is a link to a file, or a folder, of somebody else."""
    home = runs / "tiny"
    shutil.copytree(study, home)
    linked = home / name
    victim = victims / linked.name
    if linked.is_dir():
        shutil.copytree(linked, victim)
        for path in victim.rglob("*"):
            if path.is_file():
                path.write_bytes(SECRET)
        (victim / "another").write_bytes(SECRET)
        shutil.rmtree(linked)
    else:
        victims.mkdir(parents=True, exist_ok=True)
        shutil.copy(linked, victim) if name in RECORD and linked.exists() else victim.write_bytes(SECRET)
        linked.unlink(missing_ok=True)
    linked.symlink_to(victim)
    return home


def contents(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.services
def test_no_name_that_report_writes_leads_out_of_the_folder(
    study: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    names = [name for name in written_names(study) if "checkpoints/" not in name]
    assert {"ledger.sqlite", "trials.parquet", "study.yaml", "report", "report/index.html", "checkpoints"} <= {*names}
    for number, name in enumerate(dict.fromkeys([*names, *RECORD, "maps"])):
        runs, victims = tmp_path / f"runs-{number}", tmp_path / f"victims-{number}"
        home = unpacked(study, runs, name, victims)
        before = contents(victims)
        code, out, err = run(capfd, "report", "tiny", "--runs-dir", str(runs))
        assert contents(victims) == before, name
        assert SECRET.decode() not in out + err
        assert "Traceback" not in err
        if Path(name).parts[0] in (*RECORD, "ledger.json", "report", "checkpoints", "maps"):
            assert code == 2, (name, err)
            assert (
                err == f"ablate: {home / name}: is a symbolic link, which is not followed out of a study's folder."
                " Remove it.\n"
            )
        else:
            assert code == 0, (name, err)
            assert name == "study.yaml" or not (home / name).is_symlink(), "what is written replaces the link"


@pytest.mark.services
def test_the_names_that_are_used_for_a_moment_cannot_be_known_before(
    study: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The names that were used once: with the number of the process, which is counted up and easily guessed."""
    home = tmp_path / "runs" / "tiny"
    shutil.copytree(study, home)
    victim = tmp_path / "victim"
    victim.write_bytes(SECRET)
    pid = os.getpid()
    for name in [f".probe-{pid}", f"trials.parquet.{pid}.tmp", f"reports.parquet.{pid}.tmp"]:
        (home / name).symlink_to(victim)
    code, _, err = run(capfd, "report", "tiny", "--runs-dir", str(tmp_path / "runs"))
    assert code == 0, err
    assert victim.read_bytes() == SECRET


def test_a_study_on_another_disk_is_linked_to_as_a_whole(
    study: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    disk = tmp_path / "disk"
    shutil.copytree(study, disk / "runs" / "tiny")
    (disk / "runs" / "tiny" / "report" / "index.html").unlink()
    (tmp_path / "runs").symlink_to(disk / "runs")
    assert run(capfd, "report", "tiny", "--runs-dir", str(tmp_path / "runs"))[0] == 0
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "tiny").symlink_to(disk / "runs" / "tiny")
    for command in ("report", "status"):
        assert run(capfd, command, "tiny", "--runs-dir", str(tmp_path / "others"))[0] == 0
    assert (disk / "runs" / "tiny" / "report" / "index.html").is_file()


def test_a_file_is_made_where_nothing_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even a name that was guessed is not written through."""
    monkeypatch.setattr(folders.secrets, "token_hex", lambda _: "guessed")
    (tmp_path / "victim").write_bytes(SECRET)
    (tmp_path / "table.guessed.tmp").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        DiskFolder(tmp_path).write("table", b"new")
    assert (tmp_path / "victim").read_bytes() == SECRET


def test_files_follow_the_umask_and_what_a_killed_writer_left_is_swept(tmp_path: Path) -> None:
    former = os.umask(0o027)
    try:
        DiskFolder(tmp_path).write("table", b"new")
        descriptor, left = folders.new_file(tmp_path, "table")
    finally:
        os.umask(former)
    os.close(descriptor)
    assert (tmp_path / "table").stat().st_mode & 0o777 == 0o640
    DiskFolder(tmp_path).sweep(lambda name: name == "table")
    assert not left.exists()
    assert (tmp_path / "table").exists()


def test_a_linked_checkpoint_is_not_read_and_a_linked_page_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(SECRET)
    made = tmp_path / "made"
    DiskFolder(made).write("whole", b"content")
    (made / "linked").symlink_to(tmp_path / "victim")
    assert DiskFolder(made).names() == ["whole"]
    with pytest.raises(OSError, match="symbolic links"):
        DiskFolder(made).read("linked")
    copy_into(tmp_path / "sent", [made])
    assert DiskFolder(tmp_path / "sent" / "made").names() == ["whole"]


def test_a_download_is_written_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Answer:
        def __enter__(self) -> Answer:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def read(self, _: int) -> bytes:
            return b"text"

    monkeypatch.setattr(characters.urllib.request, "urlopen", lambda *_, **__: Answer())
    monkeypatch.setattr(characters, "_fault", lambda _: "")
    (tmp_path / "victim").write_bytes(SECRET)
    (tmp_path / f"input.txt.{os.getpid()}.partial").symlink_to(tmp_path / "victim")
    characters._download(tmp_path / "input.txt")
    assert (tmp_path / "victim").read_bytes() == SECRET
    assert (tmp_path / "input.txt").read_bytes() == b"text"
