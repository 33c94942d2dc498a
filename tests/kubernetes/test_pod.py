"""The head's pod as rendered and as KubeRay completes it: doctor, Ray, entrypoint and hook, in a container made here.

Its user, read-only root, empty folders and environment are the manifest's; see pods_here for what is not here. The one
worker runs inside the head's container, because this machine's containers have no network between them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ablate.kubernetes.request import ClusterRequest
from ablate.kubernetes.template import rendered
from support.manifests import NO_ABLATE, combined
from support.pods_here import Here, Inside, require_containers

STUDY = """\
study: in-a-pod
datasets: {digits: {patch: 4, train_limit: 256}}
model: {width: 8, depth: 1, mlp: {choices: [none, 8, 16, 24]}}
training: {epochs: 60, batch_size: 16, learning_rate: {float: [1e-3, 1e-2], log: true}}
scheduler: {name: none}
budget: {trials: 4}
confirm: null
"""
OPERATOR = {  # what KubeRay adds to the environment of a head
    "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4, "RAY_ADDRESS": "127.0.0.1:6379",
    "RAY_PORT": "6379", "RAY_USAGE_STATS_KUBERAY_IN_USE": "1",
}  # fmt: skip
LEDGER, NOWHERE = "sqlite:////runs/ledger.sqlite", "postgresql+psycopg://ada@127.0.0.1:1/ablate"
HEALTH = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:52365/api/healthz', timeout=5).read().decode())"


def parts() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the RayJob's spec and its head group."""
    request = ClusterRequest(name="in-a-pod", study_text=STUDY, image="r/ablate:1", arguments=("--tracker", "none"))
    spec = combined(rendered(request), "runs-claim")[-1]["spec"]
    return spec, spec["rayClusterSpec"]["headGroupSpec"]


def here(folder: Path, group: dict[str, Any], container: dict[str, Any], storage: str, **changes: str) -> Here:
    """Return a container of the head, with its claim as a folder that outlives it."""
    runs, data, user = folder / "runs", folder / "data", group["template"]["spec"]["securityContext"]["runAsUser"]
    for each in (runs, data):
        each.mkdir(exist_ok=True)
        os.chown(each, user, user)
    folder.chmod(0o755)
    return Here(
        folder=folder / container["name"], pod=group["template"]["spec"], container=container,
        secrets={"ablate": {"storage-url": storage}}, settings={"in-a-pod-study": {"study.yaml": STUDY}},
        folders={"runs": runs, "data": data}, changes=changes,
    )  # fmt: skip


@pytest.mark.services
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("storage", "path", "code", "said"),
    [
        pytest.param(LEDGER, None, 0, "ok    study: in-a-pod: digits, all data", id="good", marks=pytest.mark.faults),
        pytest.param(NOWHERE, None, 2, "FAULT ledger:", id="no-database", marks=pytest.mark.faults),
        pytest.param(LEDGER, "/usr/bin:/bin", 2, NO_ABLATE, id="no-ablate"),
    ],
)
def test_the_doctor_looks_before_ray_starts(
    tmp_path: Path, storage: str, path: str | None, code: int, said: str
) -> None:
    require_containers()
    _, group = parts()
    (doctor,) = group["template"]["spec"]["initContainers"]
    assert doctor["command"][-1].count("--wait 10m") == doctor["command"][-1].count("sleep 600") == 1
    doctor["command"][-1] = doctor["command"][-1].replace("--wait 10m", "--wait 2s").replace("sleep 600", "sleep 1")
    one = here(tmp_path, group, doctor, storage, **({"PATH": path} if path else {}))
    with one.started() as container:
        assert container.wait(180) == code, one.log()
    assert said in one.log()
    assert one.log().rstrip().splitlines()[-1].startswith("ablate: ") or code == 0


@contextmanager
def ray(pod: Here, group: dict[str, Any]) -> Iterator[Inside]:
    """Start the head's container with the operator's command."""
    options = {**group["rayStartParams"], "metrics-export-port": "8080", "dashboard-agent-listen-port": "52365"}
    start = " ".join(["ray start --head", *(f"--{key}={value}" for key, value in sorted(options.items())), "--block"])
    with pod.started(["/bin/bash", "-c", "--", f"ulimit -n 65536; {start}"], alone=True) as inside:
        yield inside


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_ray_the_entrypoint_and_the_hook_run_on_a_read_only_root(tmp_path: Path) -> None:
    require_containers()
    spec, group = parts()
    (container,) = group["template"]["spec"]["containers"]
    pod = here(tmp_path, group, container, LEDGER, **OPERATOR)
    said = tmp_path / "driver"
    with ray(pod, group) as inside:
        deadline = time.monotonic() + 240
        while "success" not in inside.run("python", "-c", HEALTH).stdout:  # as the operator's probes ask
            assert time.monotonic() < deadline, pod.log()[-3000:]
            time.sleep(1)
        assert inside.run("sh", "-c", "touch /opt/x || touch /x").returncode != 0
        refused = inside.run("env", "RAY_AUTH_TOKEN=" + "f" * 64, "ray", "status")
        assert refused.returncode != 0, "another token lets nobody in"
        joined = inside.run(
            "ray", "start", "--address=127.0.0.1:6379", "--num-cpus=2", "--object-store-memory=100000000"
        )
        assert joined.returncode == 0, joined.stdout + joined.stderr
        driver = inside.begin(said, "sh", "-c", spec["entrypoint"])
        while "of 4" not in said.read_text():
            assert driver.poll() is None, said.read_text()
            assert time.monotonic() < deadline + 180, said.read_text()
            time.sleep(0.5)
        before = time.monotonic()
        ended = inside.run(*container["lifecycle"]["preStop"]["exec"]["command"])
        assert driver.wait(30) == 75, said.read_text() + ended.stdout + ended.stderr
        inside.terminate()  # the hook is over
        grace = group["template"]["spec"]["terminationGracePeriodSeconds"] - (time.monotonic() - before)
        assert inside.wait(grace) == 1, "Ray ends by itself, and is not killed when its time is over"
    assert "nothing is lost" in said.read_text()
    assert list((tmp_path / "runs/in-a-pod").rglob("*.safetensors")), "what was in training has been written"
