"""The Ray that a driver starts on a shared machine: nobody else gets in, and a killed driver's folders are removed."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ablate.base.processes import this_process
from ablate.base.scratch import OWNER, UNOWNED_SECONDS, remove_abandoned, scratch_folder
from support.faults import intruder
from support.faults.lossless import study
from support.faults.raylets import free_port
from support.faults.study_runs import Command, StudyRun

OPTIONS = ("--gpus", "0", "--cpus-per-trial", "1", "--device", "cpu", "--tracker", "none")
LISTEN = "0A"


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory(prefix="o-", dir="/tmp", ignore_cleanup_errors=True) as name:
        os.chmod(name, 0o755)
        yield Path(name)


def start(folder: Path, name: str) -> tuple[StudyRun, Command]:
    """Start a study without an address and return it while a trial trains."""
    run = StudyRun(folder=folder, text=study(name, trials=2, epochs=4000), options=OPTIONS, pace=0.2)
    command = run.search(fresh=True)
    command.until(lambda: len(run.steps()) >= 2)
    return run, command


def listening(pids: list[int]) -> set[str]:
    """Return the addresses on which some of the processes listen, from /proc/net/tcp."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link))
            except OSError:
                continue
            inodes |= {found[1]} if found else set()
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTEN and words[9] in inodes:
                raw = bytes.fromhex(words[1].partition(":")[0])
                packed = b"".join(raw[n : n + 4][::-1] for n in range(0, len(raw), 4))
                address = ipaddress.ip_address(packed)
                addresses.add(str(getattr(address, "ipv4_mapped", None) or address))
    return addresses


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="acting as another user needs root")
def test_another_user_reads_no_token_and_cannot_reach_the_ray_of_a_driver(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = place / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    _, command = start(place, "private")
    try:
        lines = command.children()
        (address,) = {found[1] for line in lines.values() if (found := re.search(r"--gcs-address=(\S+)", line))}
        pids = [command.pid, *lines]
        attack = [sys.executable, intruder.__file__, address, str(home), *map(str, pids)]
        done = subprocess.run(attack, capture_output=True, text=True, timeout=120, check=False)
        found = json.loads(done.stdout)
        assert not (home / ".ray").exists(), "a token in a file"
        assert found["tokens"] == 0
        assert found["files"] == []
        assert found["store"].startswith("AuthenticationError")
        assert found["task"] == f"ConnectionError: Failed to connect to Ray cluster at {address}"
        assert "InvalidAuthToken" in done.stderr
        assert listening(pids) == {"127.0.0.1"}
    finally:
        command.kill()
        command.end()


@pytest.mark.parametrize(("options", "host"), [((), "127.0.0.1"), (("--metrics-host", "0.0.0.0"), "0.0.0.0")])
def test_metrics_are_served_to_this_machine_only_unless_asked_for(
    options: tuple[str, ...], host: str, tmp_path: Path
) -> None:
    run = StudyRun(folder=tmp_path, text=study("metrics", trials=1, epochs=4000), pace=0.2)
    command = run.search("--metrics-port", str(free_port()), *options)
    try:
        command.until(lambda: len(run.steps()) >= 1)
        assert listening([command.pid]) == {host}
    finally:
        command.end()


@pytest.mark.slow
def test_the_folders_of_a_killed_driver_are_removed_by_the_next_one(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = place / "t"  # a short name: Unix sockets lie below
    scratch.mkdir()
    for name in ("TMPDIR", "RAY_TMPDIR"):
        monkeypatch.setenv(name, str(scratch))
    _, killed = start(place / "a", "killed")
    killed.kill()
    killed.end()
    left = {folder.name for folder in scratch.glob("ablate-*")}
    assert {name.split("-")[1] for name in left} >= {"ray", "tune"}
    _, second = start(place / "b", "second")
    try:
        assert not left & {folder.name for folder in scratch.iterdir()}
        second.signal(15)
        assert second.wait() == 75, second.output
    finally:
        second.kill()
        second.end()
    assert not list(scratch.glob("ablate-*"))


def owned(folder: Path, **changes: object) -> Path:
    """Make a scratch folder of a process that is dead, but for `changes`."""
    folder.mkdir()
    owner = {"place": this_process().place, "pid": 2**22 - 7, "started": "1", **changes}
    (folder / OWNER).write_text(json.dumps(owner))
    return folder


def test_only_folders_of_dead_processes_of_this_user_are_removed(tmp_path: Path) -> None:
    elsewhere = owned(tmp_path / "elsewhere")
    dead = owned(tmp_path / "ablate-tune-dead")
    own = this_process()
    kept = [
        elsewhere,
        owned(tmp_path / "ablate-tune-alive", pid=own.pid, started=own.started),
        owned(tmp_path / "ablate-tune-container", place=str(uuid.uuid4())),
        owned(tmp_path / "ablate-tune-damaged", pid="?"),
        owned(tmp_path / "unrelated-dead"),
    ]
    (tmp_path / "ablate-tune-unnamed").mkdir()
    (tmp_path / "ablate-tune-file").write_text("")
    (tmp_path / "ablate-tune-link").symlink_to(elsewhere)
    inside = owned(tmp_path / "ablate-tune-inside")
    (inside / "d").symlink_to(elsewhere)
    if os.getuid() == 0:
        kept.append(owned(tmp_path / "ablate-tune-stranger"))
        os.chown(kept[-1], intruder.NOBODY, intruder.NOBODY)
    remove_abandoned(tmp_path)
    assert not dead.exists()
    assert not inside.exists()
    assert all((folder / OWNER).exists() for folder in kept)
    names = {entry.name for entry in tmp_path.iterdir()}
    assert {"ablate-tune-unnamed", "ablate-tune-file", "ablate-tune-link"} <= names


def unowned(folder: Path, *names: str, age: float = 2 * UNOWNED_SECONDS) -> Path:
    """Make a folder such as a process leaves that is killed before it has named itself in it."""
    folder.mkdir(mode=0o700)
    for name in names:
        (folder / name).write_text("")
    then = time.time() - age
    os.utime(folder, (then, then))
    return folder


def test_folders_that_never_got_an_owner_are_removed_after_an_hour(tmp_path: Path) -> None:
    gone = [unowned(tmp_path / "ablate-tune-abcd1234"), unowned(tmp_path / "ablate-ray-ab_d1234", OWNER)]
    kept = [
        unowned(tmp_path / "ablate-tune-young123", age=UNOWNED_SECONDS / 2),
        unowned(tmp_path / "ablate-tune-results1", "table.csv"),
        unowned(tmp_path / "ablate-experiments"),
        unowned(tmp_path / "tune-abcd1234"),
    ]
    if os.getuid() == 0:
        kept.append(unowned(tmp_path / "ablate-tune-stranger"))
        os.chown(kept[-1], intruder.NOBODY, intruder.NOBODY)
    remove_abandoned(tmp_path)
    assert [folder.name for folder in gone if folder.exists()] == []
    assert [folder.name for folder in kept if not folder.exists()] == []


def test_a_scratch_folder_is_closed_to_others_and_gone_afterwards(tmp_path: Path) -> None:
    with scratch_folder("tune", base=tmp_path) as folder:
        assert folder.parent.stat().st_mode & 0o777 == 0o700
        assert not list(folder.iterdir())
        remove_abandoned(tmp_path)
        assert folder.is_dir()
    assert not list(tmp_path.iterdir())
