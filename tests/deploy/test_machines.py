"""Plain `ray start` on machines, by deploy/machines: with a token that is made once, and fetched by ssh."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.deployed import DEPLOY, shellcheck

HEAD, WORKER = DEPLOY / "machines" / "head.sh", DEPLOY / "machines" / "worker.sh"
PLAYED = {
    "ray": 'echo "ray $* | $RAY_AUTH_MODE $RAY_AUTH_TOKEN_PATH" >> "$PLAY"\n',
    "ablate": 'echo "ablate ${VERSION:-0.1.0}"\n',
    "hostname": "echo alpha\n",
    "ssh": """\
echo "ssh $*" >> "$PLAY"
[ "$1" = nowhere ] && exit 255
case "$2" in
python*) echo 0.1.0 ;;
cat*) echo "0123456789abcdef" ;;
esac
""",
}


class Machine:
    """One machine: a home, and programs that say how they were called."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.binaries = folder / "bin"
        self.binaries.mkdir()
        self.play = folder / "said"
        for name, body in PLAYED.items():
            (self.binaries / name).write_text(f"#!/bin/sh\n{body}")
            (self.binaries / name).chmod(0o755)

    def run(self, script: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
        """Run a script and return exit code, output and errors."""
        known: Mapping[str, str] = {"PATH": f"{self.binaries}:/usr/bin:/bin", "HOME": str(self.home)}
        done = subprocess.run(
            ["sh", str(script), *arguments], env={**known, "PLAY": str(self.play), **environment},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    def said(self) -> list[str]:
        """Return how the programs were called."""
        return self.play.read_text().splitlines() if self.play.exists() else []

    @property
    def token(self) -> Path:
        """Where Ray looks for its token."""
        return self.home / ".ray" / "auth_token"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine on which nothing has been started."""
    return Machine(tmp_path)


def test_the_head_makes_a_token_once_and_asks_for_it(machine: Machine) -> None:
    code, out, err = machine.run(HEAD)
    assert (code, err) == (0, "")
    token = machine.token.read_text()
    assert re.fullmatch("[0-9a-f]{64}", token)
    assert stat.S_IMODE(machine.token.stat().st_mode) == 0o600
    assert token not in out
    assert "sh worker.sh alpha:6379" in out
    assert "ablate search STUDY.yaml --address alpha:6379" in out
    (line,) = machine.said()
    assert line.startswith("ray start --head --port=6379 --num-cpus=0 --num-gpus=0 ")
    assert line.endswith(f"| token {machine.token}")
    machine.run(HEAD, "--block", PORT="7000")
    assert machine.token.read_text() == token
    assert "--port=7000" in machine.said()[1]
    assert "--block |" in machine.said()[1]


def test_a_worker_fetches_the_token_and_joins(machine: Machine) -> None:
    code, out, err = machine.run(WORKER, "alpha", "--num-gpus=4")
    assert (code, out, err) == (0, "", "")
    assert machine.token.read_text() == "0123456789abcdef\n"
    assert stat.S_IMODE(machine.token.stat().st_mode) == 0o600
    assert machine.said()[-1].startswith("ray start --address=alpha:6379 ")
    assert machine.said()[-1].endswith(f"--num-gpus=4 | token {machine.token}")
    assert not any("0123456789abcdef" in line for line in machine.said())


def test_a_worker_that_has_a_token_keeps_it(machine: Machine) -> None:
    machine.token.parent.mkdir()
    machine.token.write_text("mine")
    assert machine.run(WORKER, "alpha:7000")[0] == 0
    assert machine.token.read_text() == "mine"
    assert not any("cat" in line for line in machine.said())
    assert "--address=alpha:7000" in machine.said()[-1]


FAULTS = {
    "no-head": ((), {}, "worker.sh: say where the head is: sh worker.sh HEAD[:PORT]"),
    "no-ssh": (("nowhere",), {}, "worker.sh: nowhere: the token cannot be fetched by ssh; copy ~/.ray/auth_token"),
    "another-version": (
        ("alpha",),
        {"VERSION": "0.2.0"},
        "worker.sh: alpha has ablate 0.1.0, this machine a",
    ),
}


@pytest.mark.parametrize(("arguments", "environment", "said"), FAULTS.values(), ids=FAULTS.keys())
def test_what_will_not_do_is_one_line_and_ray_is_not_started(
    machine: Machine, arguments: tuple[str, ...], environment: dict[str, str], said: str
) -> None:
    code, out, err = machine.run(WORKER, *arguments, **environment)
    assert (code, out) == (2, "")
    assert err.startswith(said)
    assert len(err.splitlines()) == 1
    assert not any(line.startswith("ray") for line in machine.said())
    assert not machine.token.exists()
    assert not list(machine.home.glob(".ray/*.part"))


@pytest.mark.parametrize("script", [HEAD, WORKER], ids=lambda path: path.name)
def test_without_ablate_nothing_starts(machine: Machine, script: Path) -> None:
    (machine.binaries / "ablate").unlink()
    code, _, err = machine.run(script, "alpha")
    assert code == 2
    assert err.endswith("ablate is not found: activate the environment that ablate is installed in\n")
    assert not machine.said()


@pytest.mark.parametrize("script", [HEAD, WORKER], ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script: Path) -> None:
    done = subprocess.run([*shellcheck(), str(script)], capture_output=True, text=True, check=False)
    assert done.stdout == ""


@pytest.mark.faults
@pytest.mark.timeout(300)
def test_a_real_head_lets_nobody_in_without_its_token(machine: Machine) -> None:
    for name in ("ray", "ablate"):
        (machine.binaries / name).unlink()
    path = f"{machine.binaries}:{Path(sys.executable).parent}:/usr/bin:/bin"
    known = {"PATH": path, "HOME": str(machine.home), "RAY_TMPDIR": "/tmp/ray-machines", "PLAY": str(machine.play)}
    options = ["--block", "--include-dashboard=false", "--node-ip-address=127.0.0.1", "--ray-client-server-port=26380"]
    log = machine.home / "log"
    with log.open("w") as output:
        command, environment = ["sh", str(HEAD), *options], known | {"PORT": "26379"}
        head = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
    try:

        def answers(**token: str) -> bool:
            check = ["ray", "status", "--address", "127.0.0.1:26379"]
            done = subprocess.run(check, env=known | token, capture_output=True, timeout=60, check=False)
            return done.returncode == 0

        deadline = time.monotonic() + 120
        while not answers(RAY_AUTH_MODE="token"):  # by the file in its home
            assert head.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(1)
        assert not answers(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64)
        assert not answers(RAY_AUTH_MODE="disabled")
    finally:
        head.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            head.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(head.pid, signal.SIGKILL)
        head.wait(60)
        shutil.rmtree("/tmp/ray-machines", ignore_errors=True)
