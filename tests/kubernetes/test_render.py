"""A rendered study passes KubeRay's CRD, Kubernetes' schemas and our rules, and says what a cluster needs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from ablate.cli import app as cli
from ablate.kubernetes.request import ClusterRequest
from ablate.kubernetes.template import manifest, rendered
from support.cluster_schemas import Plain, pods_of, refusals
from support.manifests import (
    BUCKET_SECRETS,
    DRIVER_SECRETS,
    METRICS_PORT,
    NO_ABLATE,
    REQUESTS,
    combined,
    container,
    head,
    hook,
    job,
    request,
    worker,
)


@pytest.fixture(params=REQUESTS.values(), ids=REQUESTS.keys())
def good(request: pytest.FixtureRequest) -> ClusterRequest:
    """One request after another."""
    found: ClusterRequest = request.param
    return found


def test_every_reader_passes_what_is_rendered(good: ClusterRequest) -> None:
    assert refusals(manifest(good)) == []


def test_yaml_says_the_same_as_the_manifest(good: ClusterRequest) -> None:
    assert list(yaml.safe_load_all(rendered(good))) == manifest(good)
    assert manifest(good)[0]["data"] == {"study.yaml": good.study_text}


STUDIES = {
    "tabs, spaces at an end and signs": "study: a  # \t two \n\n  x: \ty\n- { é – 🎲 'b': \"c\" }   \n",
    "no newline at the end": "study: a\nx: 1",
    "spaces before the first word": "   study: a\n  x: 1\n\n\n",
    "what looks like another document": "--- \nstudy: a\n...\n---\n# %TAG\n",
}


@pytest.mark.parametrize("text", STUDIES.values(), ids=STUDIES.keys())
def test_the_study_is_a_block_that_a_reviewer_reads_line_by_line(text: str) -> None:
    printed = rendered(request(study_text=text)).partition("---\napiVersion: policy")[0]
    lines = printed.partition("study.yaml: |")[2].splitlines()[1:]
    assert [line.removeprefix("    ") for line in lines] == text.splitlines()


def test_kubernetes_own_reader_of_yaml_says_the_same() -> None:
    names = ("a-name-that-yaml-takes-for-true", "eight-gpus-on-one-node", "digest", "compare")
    for good in (*(REQUESTS[name] for name in names), *(request(study_text=text) for text in STUDIES.values())):
        assert combined(rendered(good)) == manifest(good)


def test_the_command_is_one_that_ablate_has(good: ClusterRequest) -> None:
    text = job(manifest(good))["entrypoint"]
    words = shlex.split(text)
    assert words[:1] == ["ablate"]
    assert words == text.split(), "a word that needs quotes does not pass the submitter's shell and Ray's"
    command = get_command(cli.app).commands[words[1]]  # type: ignore[attr-defined]
    parsed = command.make_context(words[1], words[2:]).params
    assert parsed["file"] == Path("/study/study.yaml")
    assert parsed["address"] == "auto"
    assert parsed["gpus"] == good.gpus
    assert parsed["runs_dir"] == Path("/runs")
    assert parsed["gpus_per_trial"] == (good.gpus_per_trial if good.gpus else 1.0)
    assert parsed["device"] == ("auto" if good.gpus else "cpu")
    assert parsed["metrics_port"] == METRICS_PORT
    assert parsed["metrics_host"] == "0.0.0.0", "Prometheus scrapes the address of the pod"
    ports = {port["name"]: port["containerPort"] for port in container(head(manifest(good)))["ports"]}
    assert ports["ablate-metrics"] == parsed["metrics_port"]


def test_the_workers_hold_the_gpus_that_were_asked_for(good: ClusterRequest) -> None:
    group = worker(manifest(good))
    resources = container(group)["resources"]
    assert int(resources["limits"].get("nvidia.com/gpu", 0)) * group["replicas"] == good.gpus
    assert resources["requests"] == resources["limits"]
    assert group["minReplicas"] <= group["replicas"] == group["maxReplicas"]
    assert "nvidia.com/gpu" not in container(head(manifest(good)))["resources"]["limits"]


def test_what_a_retry_needs_is_said(good: ClusterRequest) -> None:
    spec = job(manifest(good))
    assert spec["shutdownAfterJobFinishes"] is True
    assert spec["rayClusterSpec"]["rayVersion"] == version("ray")
    assert spec["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    assert head(manifest(good))["rayStartParams"]["num-cpus"] == "0"
    assert "suspend" not in spec, "only a queue lets it go on"
    for pod in pods_of(next(each for each in manifest(good) if each["kind"] == "RayJob")):
        assert pod["spec"]["restartPolicy"] == "Never"
        assert pod["spec"]["terminationGracePeriodSeconds"] < 30, "a spot node gives 30 s"


def test_what_only_the_operator_checks_is_as_it_asks(good: ClusterRequest) -> None:
    """KubeRay 1.7 refuses other fields beside these (validation.go, the CRD's CEL rules); Kueue names groups."""
    spec = job(manifest(good))
    assert set(spec) == {
        "entrypoint", "submissionMode", "backoffLimit", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished",
        "preRunningDeadlineSeconds", "submitterConfig", "submitterPodTemplate", "rayClusterSpec",
    }  # fmt: skip
    assert spec["submissionMode"] == "K8sJobMode"
    assert 0 < spec["ttlSecondsAfterFinished"] <= 600, "so long the cluster keeps its GPUs after the end"
    assert set(spec["rayClusterSpec"]) == {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
    assert tuple(map(int, spec["rayClusterSpec"]["rayVersion"].split(".")[:2])) >= (2, 52), "for tokens"
    for group in (head(manifest(good)), worker(manifest(good))):
        assert "labels" not in group["rayStartParams"]
        assert "resources" not in group
    assert worker(manifest(good))["groupName"] == "workers", "head and submitter are Kueue's"


def test_pausing_and_stopping_fit_into_what_a_spot_node_gives() -> None:
    objects = manifest(request())
    waits = re.search(r"\+ (\d+)\)", hook())
    grace = re.search(r"--grace (\d+)", job(objects)["entrypoint"])
    assert waits is not None
    assert grace is not None
    total = head(objects)["template"]["spec"]["terminationGracePeriodSeconds"]
    assert int(grace[1]) < int(waits[1]), "the driver ends before nobody waits for it any more"
    assert int(waits[1]) + 1 + 6 < total, "a last turn of 1 s, then 3 s (measured) twice over for Ray to end"
    assert total < 30


def test_ray_ends_at_sigterm_and_no_hook_stops_it_before(good: ClusterRequest) -> None:
    """After `ray stop` process 1 waits for the GCS, which is gone, until it is killed (140 s with Ray 2.60)."""
    objects = manifest(good)
    for group in (head(objects), worker(objects)):
        assert "ray stop" not in repr(container(group).get("lifecycle"))
        assert {"name": "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "value": "0"} in container(group)["env"]
    assert "lifecycle" not in container(worker(objects))


def test_the_budget_protects_the_head_and_nothing_else(good: ClusterRequest) -> None:
    objects = manifest(good)
    budget = next(each for each in objects if each["kind"] == "PodDisruptionBudget")
    wanted = budget["spec"]["selector"]["matchLabels"].items()
    chosen = [pod for pod in pods_of(objects[-1]) if wanted <= pod["metadata"]["labels"].items()]
    assert [pod["spec"]["containers"][0]["name"] for pod in chosen] == ["ray-head"]
    assert budget["spec"]["minAvailable"] == 1


def test_an_autoscaler_leaves_the_head_s_node_alone_and_may_take_a_worker_s(good: ClusterRequest) -> None:
    assert head(manifest(good))["template"]["metadata"]["annotations"] == {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "karpenter.sh/do-not-disrupt": "true",
    }
    assert "annotations" not in worker(manifest(good))["template"]["metadata"]


def test_data_are_read_and_never_written(good: ClusterRequest) -> None:
    objects = manifest(good)
    for spec in (group["template"]["spec"] for group in (head(objects), worker(objects))):
        claims = [each["persistentVolumeClaim"] for each in spec["volumes"] if each["name"] == "data"]
        assert claims == [{"claimName": "ablate-data", "readOnly": True}]
        for each in [*spec["containers"], *spec.get("initContainers", [])]:
            mounts = [mount for mount in each["volumeMounts"] if mount["name"] == "data"]
            assert mounts == [{"name": "data", "mountPath": "/data", "readOnly": True}]


def test_a_job_that_does_not_come_up_ends_and_its_submitter_is_tried_again(good: ClusterRequest) -> None:
    spec = job(manifest(good))
    assert spec["preRunningDeadlineSeconds"] == 900
    assert spec["submitterConfig"] == {"backoffLimit": 2}


def test_a_start_fault_holds_nodes_for_90_minutes_at_most_in_all(good: ClusterRequest) -> None:
    """KubeRay 1.7 gives each attempt the deadline, and tries again after it as after any other end."""
    spec = job(manifest(good))
    assert (spec["backoffLimit"] + 1) * spec["preRunningDeadlineSeconds"] <= 90 * 60


def test_the_doctor_waits_inside_one_pod_and_less_than_an_attempt_has(good: ClusterRequest) -> None:
    """An init container that ends is a pod that KubeRay replaces, and with it goes the log that says why."""
    (doctor,) = head(manifest(good))["template"]["spec"]["initContainers"]
    waits = re.search(r"--wait (\d+)m", doctor["command"][-1])
    assert waits is not None
    assert int(waits[1]) == 10
    assert f"sleep {int(waits[1]) * 60}" in doctor["command"][-1], "an image without ablate is replaced no faster"
    assert int(waits[1]) * 60 < job(manifest(good))["preRunningDeadlineSeconds"]
    assert doctor["terminationMessagePolicy"] == "FallbackToLogsOnError"


@pytest.mark.parametrize(
    "words", [("--tracker", "none"), ("--tracker=none",), ("--tracker", "mlflow", "--tracker=none")]
)
def test_the_doctor_looks_at_no_tracking_server_where_the_study_is_not_tracked(words: tuple[str, ...]) -> None:
    (doctor,) = head(manifest(request(arguments=words)))["template"]["spec"]["initContainers"]
    assert doctor["command"][-1].endswith(" --tracker none")
    (doctor,) = head(manifest(request()))["template"]["spec"]["initContainers"]
    assert "--tracker" not in doctor["command"][-1]


def test_the_submitter_knows_no_place_and_mounts_nothing_but_a_scratch_folder(good: ClusterRequest) -> None:
    spec = job(manifest(good))["submitterPodTemplate"]["spec"]
    (found,) = spec["containers"]
    assert found["env"] == [{"name": "HOME", "value": "/tmp"}, {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"}]
    assert found["volumeMounts"] == [{"name": "tmp", "mountPath": "/tmp"}]
    assert spec["volumes"] == [{"name": "tmp", "emptyDir": {}}]


@pytest.mark.parametrize("code", [0, 2, None], ids=["sound", "a-fault", "no-ablate"])
def test_the_head_starts_only_where_the_doctor_has_looked_at_the_study_and_found_no_fault(
    code: int | None, good: ClusterRequest, tmp_path: Path
) -> None:
    """The init container's command as written, with an `ablate` that ends with `code`."""
    (doctor,) = head(manifest(good))["template"]["spec"]["initContainers"]
    if code is not None:
        (tmp_path / "ablate").write_text(f'#!/bin/sh\necho "ablate $*"\nexit {code}\n')
        (tmp_path / "ablate").chmod(0o755)
    done = subprocess.run(
        doctor["command"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == (2 if code is None else code)
    asked = "ablate doctor /study/study.yaml --runs-dir /runs --wait 10m"
    assert done.stdout.startswith(NO_ABLATE if code is None else asked)
    assert len(done.stdout.splitlines()) == 1


def secrets_of(found: Plain) -> dict[str, str]:
    """Return the variables of a container that come from a Secret, with their keys."""
    entries = [entry for entry in found.get("env", []) if "secretKeyRef" in entry.get("valueFrom", {})]
    return {entry["name"]: entry["valueFrom"]["secretKeyRef"]["key"] for entry in entries}


def test_secrets_come_by_reference_and_only_where_they_are_needed(good: ClusterRequest) -> None:
    objects = manifest(good)
    doctor = head(objects)["template"]["spec"]["initContainers"][0]
    assert secrets_of(container(head(objects))) == secrets_of(doctor) == DRIVER_SECRETS
    assert secrets_of(container(worker(objects))) == BUCKET_SECRETS, "a trial needs neither the ledger nor MLflow"
    assert secrets_of(job(objects)["submitterPodTemplate"]["spec"]["containers"][0]) == {}
    for pod in pods_of(objects[-1]):
        for each in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
            assert not {entry["name"] for entry in each["env"] if "value" in entry} & set(DRIVER_SECRETS)


def test_without_a_store_no_head_starts_because_a_retry_would_find_no_checkpoint(good: ClusterRequest) -> None:
    objects = manifest(good)
    doctor = head(objects)["template"]["spec"]["initContainers"][0]
    for each in (doctor, container(head(objects)), container(worker(objects))):
        (store,) = [entry for entry in each["env"] if entry["name"] == "ABLATE_STORE"]
        assert store["valueFrom"] == {"configMapKeyRef": {"name": "ablate", "key": "ABLATE_STORE"}}


DRIVER = """\
import signal, sys, time
def end(*_):
    print("paused", flush=True)
    time.sleep(1.5)
    print("ended", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, end)
print("at work", flush=True)
time.sleep(60)
"""


@pytest.mark.services
@pytest.mark.parametrize("command", ["search", "compare"])
def test_the_hook_ends_the_driver_waits_for_it_and_finds_nobody_else(command: str, tmp_path: Path) -> None:
    """The hook as written, among processes of its own: it looks for drivers by name, and others may run here."""
    own = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if not shutil.which("unshare") or subprocess.run([*own, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespace of processes can be made here")
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "ablate").write_text(DRIVER)
    (tmp_path / "hook").write_text(hook())
    script = tmp_path / "script"
    text = textwrap.dedent(f"""
        {sys.executable} {binaries}/ablate {command} /study/study.yaml >> {tmp_path}/said & driver=$!
        sleep 3000 & other=$!
        until grep -q 'at work' {tmp_path}/said; do sleep 0.1; done
        /bin/sh -c "$(cat {tmp_path}/hook)"
        wait $driver; echo "driver $?" >> {tmp_path}/said
        kill -0 $other && echo "other at work" >> {tmp_path}/said
        kill $other
    """)
    environment = os.environ | {"PATH": f"{binaries}:{os.environ['PATH']}"}
    script.write_text(text)
    subprocess.run([*own, "/bin/sh", str(script)], env=environment, timeout=200, check=False, capture_output=True)
    assert (tmp_path / "said").read_text().splitlines() == [
        "at work", "paused", "ended", "driver 75", "other at work",
    ]  # fmt: skip
