"""A study handed to a running Ray cluster by `ablate submit`: a real head with its dashboard, a token, a real job."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from ablate.base.errors import RequestError, ResourceError
from ablate.execution import jobs
from ablate.ledger import Ledger
from support.ports import free_port

STUDY = """\
study: handed
datasets: {digits: {patch: 4, train_limit: 128}}
model: {width: 8, depth: 1, mlp: none}
training: {epochs: 2, batch_size: 32, learning_rate: {float: [1e-3, 1e-2], log: true}}
scheduler: {name: none}
budget: {trials: 2}
confirm: null
"""


@pytest.mark.parametrize("address", ["127.0.0.1:6379", "ray://head:10001", "auto", "head"])
def test_what_is_no_dashboard_s_address_is_refused_at_once(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Mock(side_effect=AssertionError("somebody was asked"))
    monkeypatch.setattr(socket.socket, "connect", asked)
    monkeypatch.setattr(socket, "getaddrinfo", asked)
    with pytest.raises(RequestError, match="give the dashboard's address, http://HOST:8265") as refused:
        jobs.submit(address, jobs.Job(name="tiny", study_text=STUDY, words=("ablate",)))
    assert str(refused.value).startswith(f"--address {address}: ")
    asked.assert_not_called()


def test_a_cluster_that_starts_nothing_is_not_said_to_lack_ablate(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Mock()
    client.get_job_status.return_value.value = "PENDING"
    client.get_job_logs.return_value = ""
    monkeypatch.setattr(jobs, "_client", lambda address: client)
    monkeypatch.setattr(jobs, "PROBE_SECONDS", 0.0)
    monkeypatch.setattr(jobs, "POLL_SECONDS", 0.0)
    with pytest.raises(ResourceError, match=r"still PENDING there after 0 s[.] Does the cluster have a free CPU"):
        jobs.submit("http://head:8265", jobs.Job(name="tiny", study_text=STUDY, words=("ablate",)))


@pytest.fixture(scope="module")
def dashboard() -> Iterator[str]:
    """The address of a head with a dashboard and one CPU; the environment holds its token inside the block."""
    port = free_port()
    scripts = str(Path(sys.executable).parent)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(16))
        patch.setenv("PATH", f"{scripts}{os.pathsep}{os.environ['PATH']}")
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--temp-dir", folder]
        ports = [
            "--port",
            str(free_port()),
            "--dashboard-port",
            str(port),
            "--ray-client-server-port",
            str(free_port()),
        ]
        ports += ["--dashboard-agent-listen-port", str(free_port())]
        own = ["--num-cpus", "1", "--node-ip-address", "127.0.0.1", "--disable-usage-stats"]
        head = subprocess.Popen(
            [*command, *ports, *own, "--object-store-memory", str(80 * 2**20)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            _wait(f"http://127.0.0.1:{port}")
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(head.pid, signal.SIGKILL)
            head.wait()


def _wait(address: str, seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(f"{address}/api/version", timeout=5).close()
            return
        except urllib.error.HTTPError:
            return  # it answers, and asks for the token
        except OSError:
            assert time.monotonic() < deadline, "the dashboard does not answer"
            time.sleep(0.2)


def submit(file: Path, runs: Path, address: str) -> subprocess.CompletedProcess[str]:
    own = [sys.executable, "-m", "ablate", "submit", str(file), "--address", address]
    place = ["--runs-dir", str(runs), "--tracker", "none", "--device", "cpu"]
    return subprocess.run([*own, "--", *place], capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.slow
def test_a_study_is_handed_over_followed_and_handed_over_again_without_a_new_row(
    dashboard: str, tmp_path: Path
) -> None:
    (tmp_path / "handed.yaml").write_text(STUDY)
    rows = []
    for _ in range(2):
        done = submit(tmp_path / "handed.yaml", tmp_path / "runs", dashboard)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Submitted handed-" in done.stdout
        assert "Report: " in done.stdout, "its log is followed to the end"
        with Ledger.open(f"sqlite:///{tmp_path}/runs/handed/ledger.sqlite", create=False) as ledger:
            rows.append((ledger.trials("handed"), ledger.reports("handed"), ledger.events("handed")))
    assert len(rows[0][0]) == 2
    assert rows[0] == rows[1]
    assert _left(dashboard) == ["SUCCEEDED"] * 2


def _left(dashboard: str) -> list[str]:
    headers = {"Authorization": f"Bearer {os.environ['RAY_AUTH_TOKEN']}"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{dashboard}/api/jobs/", headers=headers), timeout=60
    ) as answer:
        found = json.load(answer)
        return [job["status"] for job in found if str(job["submission_id"]).startswith("handed-")]


WITHOUT = """
import sys
from ablate.execution import jobs
jobs.PROBE = sys.argv[2]
try:
    jobs.submit(sys.argv[1], jobs.Job(name="handed", study_text="", words=("true",)))
except jobs.ResourceError as error:
    sys.exit(str(error))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("probe", "said"),
    [
        ("python -c 'import ablat'", "the cluster has no ablate"),
        ("sh -c 'exit 3'", "the cluster has another version of ablate than"),
    ],
)
def test_a_cluster_without_this_ablate_gets_no_study(probe: str, said: str, dashboard: str) -> None:
    before = _left(dashboard)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, dashboard, probe], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert said in done.stderr.splitlines()[-1]
    assert _left(dashboard) == before


@pytest.mark.slow
def test_no_dashboard_and_a_wrong_token_are_one_clear_line(
    dashboard: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "handed.yaml").write_text(STUDY)
    for address, token in (("http://127.0.0.1:9", os.environ["RAY_AUTH_TOKEN"]), (dashboard, "another" * 8)):
        monkeypatch.setenv("RAY_AUTH_TOKEN", token)
        done = submit(tmp_path / "handed.yaml", tmp_path / "runs", address)
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith(f"ablate: --address {address}: no Ray dashboard takes a job there: ")
        assert done.stderr.endswith("those of the cluster?\n")
        assert len(done.stderr.splitlines()) == 1
