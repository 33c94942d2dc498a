"""What a cluster lacks is said before anything is created there: by a `kubectl` that answers from files."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablate.base.errors import RequestError
from ablate.cli import app as cli
from ablate.kubernetes.kubectl import kubectl_get
from ablate.kubernetes.preflight import needs, preflight
from ablate.kubernetes.quantities import SUFFIXES, number
from ablate.kubernetes.request import ClusterRequest
from ablate.kubernetes.template import rendered
from support.paths import REPOSITORY

STUDY = str(REPOSITORY / "search_spaces/digits.yaml")
URL = "postgresql+psycopg://ablate:tr0ub4dor@db.internal:5432/ablate"
KUBECTL = """\
#!/bin/sh
echo "$*" >> "$ANSWERS/asked"
[ "$1 $2" = "config current-context" ] && { cat "$ANSWERS/context"; exit 0; }
[ -f "$ANSWERS/sleep" ] && exec sleep 30
if [ "$*" = "apply --dry-run=server --filename=-" ]; then
    cat > "$ANSWERS/tried"; [ -s "$ANSWERS/refusal" ] && { cat "$ANSWERS/refusal" >&2; exit 1; }; exit 0
fi
[ "$1" = get ] || { echo "this test allows kubectl get and dry runs only" >&2; exit 99; }
name=$3; case "$name" in --namespace|-o) name=all;; esac
[ -f "$ANSWERS/$2-$name.error" ] && { cat "$ANSWERS/$2-$name.error" >&2; exit 1; }
[ -f "$ANSWERS/error" ] && { cat "$ANSWERS/error" >&2; exit 1; }
[ -f "$ANSWERS/$2-$name" ] && cat "$ANSWERS/$2-$name"
exit 0
"""


def secret(**data: str) -> dict[str, Any]:
    """Return a Secret as kubectl prints it."""
    return {"data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}}


def quota(used: Mapping[str, str] | None = None, **hard: str) -> dict[str, Any]:
    """Return a list of one ResourceQuota; `_` stands for `/` or `.` as in the names of resources."""
    names = {"gpus": "requests.nvidia.com/gpu", "cpu": "requests.cpu", "memory": "limits.memory", "pods": "pods"}
    names |= {"clusters": "count/rayclusters.ray.io"}
    status = {"hard": {names[key]: value for key, value in hard.items()}}
    status["used"] = {names[key]: value for key, value in (used or {}).items()}
    return {"kind": "List", "items": [{"metadata": {"name": "team"}, "status": status}]}


def node(gpus: int = 8, **labels: str) -> dict[str, Any]:
    """Return a list of one node."""
    allocatable = {"cpu": "15890m", "memory": "60Gi", "nvidia.com/gpu": str(gpus)}
    return {"kind": "List", "items": [{"metadata": {"labels": labels}, "status": {"allocatable": allocatable}}]}


def claim(phase: str = "Bound", **spec: str) -> dict[str, Any]:
    """Return a PersistentVolumeClaim."""
    return {"kind": "PersistentVolumeClaim", "spec": spec, "status": {"phase": phase}}


READS = ("get ", "apply --dry-run=server ", "config current-context")
GOOD: dict[str, Any] = {
    "context": "kind-here\n",
    "refusal": "",
    "nodes-all": node(),
    "secret-ablate": secret(**{"storage-url": URL}),
    "configmap-ablate": {"data": {"ABLATE_STORE": "s3://bucket/ablate", "MLFLOW_TRACKING_URI": "http://mlflow:5000"}},
    "serviceaccount-ablate": {"kind": "ServiceAccount"},
    "persistentvolumeclaim-ablate-data": claim(),
    "localqueues.kueue.x-k8s.io-ablate": {"kind": "LocalQueue"},
    "resourcequota-all": quota(gpus="8", cpu="200", memory="1Ti", pods="20"),
}


@dataclass
class Cluster:
    """What the fake kubectl answers."""

    folder: Path

    def answer(self, changes: Mapping[str, Any] = {}, /) -> None:
        """Answer as a good cluster does, with `changes`; None is for what is not there."""
        for name, found in (GOOD | dict(changes)).items():
            if found is not None:
                (self.folder / name).write_text(found if isinstance(found, str) else json.dumps(found))

    def asked(self) -> list[str]:
        """Return the command lines that it was called with."""
        return (self.folder / "asked").read_text().splitlines()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A kubectl in front of all others."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "answers").mkdir()
    (tmp_path / "bin/kubectl").write_text(KUBECTL)
    (tmp_path / "bin/kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("ANSWERS", str(tmp_path / "answers"))
    return Cluster(tmp_path / "answers")


ASKED = "ablate: asking the cluster of kubectl's context kind-here, namespace ablate\n"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `ablate k8s render` on the digits study in this process."""

    def start(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ablate", "k8s", "render", STUDY, "--image", "r/ablate:0.1.0", *arguments])
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capfd.readouterr()

    return start


def request(**changes: Any) -> ClusterRequest:
    """Return a good request with `changes`."""
    fields: dict[str, Any] = {"name": "digits", "study_text": "study: digits\n", "image": "r/ablate:0.1.0", "gpus": 4}
    return ClusterRequest(**fields | changes)


def test_a_good_cluster_is_asked_and_nothing_else(cluster: Cluster) -> None:
    cluster.answer()
    assert preflight(request(queue="ablate")) == []
    assert all(line.startswith(READS) for line in cluster.asked())
    assert len(cluster.asked()) == len(GOOD), "each thing once but the context, and the RayJob, which is not there"
    assert (cluster.folder / "tried").read_text() == rendered(request(queue="ablate")), "what will be applied"


REFUSED = 'Error from server ({}): error when creating "STDIN": '
NO_KIND = (
    'error: resource mapping not found for name: "digits" namespace: "ablate" from "STDIN": no matches for kind'
    ' "RayJob" in version "ray.io/v1"\nensure CRDs are installed first\n'
)
NOT_FOUND = 3 * (REFUSED.format("NotFound") + 'namespaces "research" not found\n')
UNKNOWN = (
    "Warning: unrecognized format\n"
    + REFUSED.format("BadRequest")
    + 'RayJob in version "v1" cannot be handled as a RayJob: strict decoding error: unknown field "spec.submitter"\n'
)
CLOSED = """\
Error from server (Forbidden): error when retrieving current configuration of:
Resource: "/v1, Resource=configmaps", GroupVersionKind: "/v1, Kind=ConfigMap"
Name: "digits-study", Namespace: "ablate"
from server for: "STDIN": configmaps "digits-study" is forbidden: User "ada" cannot get resource "configmaps"
"""
DENIED = REFUSED.format("Forbidden") + 'rayjobs.ray.io is forbidden: User "ada" cannot create resource "rayjobs"\n'
EXCEEDED = (
    REFUSED.format("Forbidden")
    + 'rayjobs.ray.io "digits" is forbidden: exceeded quota: team, requested: count/rayjobs.ray.io=1, used:'
    " count/rayjobs.ray.io=2, limited: count/rayjobs.ray.io=2\n"
)
MISSING = {
    "no-kuberay": (
        {"refusal": NO_KIND}, {}, r'no matches for kind "RayJob" .*KubeRay is not installed \(deploy/README'),
    "no-namespace": (
        {"refusal": NOT_FOUND}, {"namespace": "research"}, 'namespaces "research" not found.*kubectl apply -k deploy'),
    "another-kuberay": ({"refusal": UNKNOWN}, {}, r'strict decoding error: unknown field "spec\.submitter"\.$'),
    "no-right-to-look": ({"refusal": CLOSED}, {}, 'configmaps "digits-study" is forbidden.*Role ablate-user'),
    "no-secret": ({"secret-ablate": None}, {}, "secret ablate, key storage-url: there is no such secret"),
    "no-key": (
        {"secret-ablate": secret(**{"aws-access-key-id": "x"})}, {}, "key storage-url: is missing.*deploy/secret.sh"),
    "database-no-url": ({"secret-ablate": secret(**{"storage-url": "db.internal"})}, {}, "is no address of a Postgr"),
    "database-mysql": ({"secret-ablate": secret(**{"storage-url": "mysql://a@b/c"})}, {}, "is no address of a Postgre"),
    "database-sqlite": ({"secret-ablate": secret(**{"storage-url": "sqlite:////x"})}, {}, "a pod's own disk"),
    "database-without-a-name": (
        {"secret-ablate": secret(**{"storage-url": "postgresql://db"})}, {}, "no address of a PostgreSQL database"),
    "database-bad-port": (
        {"secret-ablate": secret(**{"storage-url": "postgresql://db:x/y"})}, {}, "storage-url: is no URL"),
    "database-placeholder": (
        {"secret-ablate": secret(**{"storage-url": "postgresql://a:PASSWORD@db/x"})}, {}, "still holds a placeholder"),
    "database-host-of-the-example": (
        {"secret-ablate": secret(**{"storage-url": "postgresql://a:b@db.example.org/x"})}, {}, "still holds a placeh"),
    "secret-not-base64": ({"secret-ablate": {"data": {"storage-url": "%%%"}}}, {}, "storage-url: is no URL"),
    "no-settings": ({"configmap-ablate": None}, {}, "key ABLATE_STORE: is missing: checkpoints would end with their"),
    "no-store": ({"configmap-ablate": {"data": {}}}, {}, "key ABLATE_STORE: is missing.*or give --runs-claim"),
    "store-placeholder": (
        {"configmap-ablate": {"data": {"ABLATE_STORE": "s3://REPLACE/ablate"}}}, {}, "'s3://REPLACE/ablate': still"),
    "no-service-account": ({"serviceaccount-ablate": None}, {}, "serviceaccount ablate: is missing"),
    "no-data": ({"persistentvolumeclaim-ablate-data": None}, {}, "persistentvolumeclaim ablate-data: is missing"),
    "another-data-claim": ({}, {"data_claim": "images"}, "persistentvolumeclaim images: is missing"),
    "no-runs": ({}, {"runs_claim": "ablate-runs"}, "persistentvolumeclaim ablate-runs: is missing"),
    "no-default-storage-class": (
        {"persistentvolumeclaim-ablate-data": claim("Pending"), "storageclass-all": {"items": [{"metadata": {}}]}}, {},
        "persistentvolumeclaim ablate-data: is not bound and names no storage class, and the cluster has no default"),
    "no-storage-class": (
        {"persistentvolumeclaim-ablate-data": claim("Pending", storageClassName="fast")}, {},
        "persistentvolumeclaim ablate-data: names the storage class 'fast', and there is none"),
    "no-right": ({"refusal": DENIED}, {}, 'cannot create resource "rayjobs".*Role ablate-user'),
    "no-priority-class": (
        {}, {"queue": "ablate", "priority_class": "urgent"}, "priority class = 'urgent': there is none, or no Kueue"),
    "jobs": ({"refusal": EXCEEDED}, {}, r"exceeded quota: team, requested: count/rayjobs\.ray\.io=1.*a larger quota"),
    "clusters": (
        {"resourcequota-all": quota({"clusters": "2"}, clusters="2")}, {}, r"count/rayclusters.*needs 1, .*leaves 0"),
    "no-queue": ({}, {"queue": "mine"}, "queue = 'mine': there is none, or no Kueue"),
    "no-kueue": (
        {"localqueues.kueue.x-k8s.io-ablate.error": 'error: the server doesn\'t have a resource type "localqueues"'},
        {"queue": "ablate"}, "queue = 'ablate': there is none, or no Kueue: the job would wait for ever"),
    "more-gpus-than-quota": (
        {"resourcequota-all": quota(gpus="3")}, {},
        r"requests.nvidia.com/gpu: the study needs 4, the quota team leaves 3 of 3\. Ask for less"),
    "gpus-used-by-others": (
        {"resourcequota-all": quota({"gpus": "6"}, gpus="8")}, {}, "needs 4, the quota team leaves 2 of 8"),
    "more-used-than-there-is": ({"resourcequota-all": quota({"gpus": "9"}, gpus="8")}, {}, "leaves 0 of 8"),
    "memory": ({"resourcequota-all": quota(memory="64Gi")}, {}, "needs 137Gi, the quota team leaves 64Gi of 64Gi"),
    "cpu": ({"resourcequota-all": quota(cpu="4500m")}, {}, "needs 34.5, the quota team leaves 4.5 of 4500m"),
    "pods": ({"resourcequota-all": quota(pods="5")}, {}, "pods: the study needs 6, the quota team leaves 5"),
    "job-failed": (
        {"rayjobs.ray.io-digits": {"status": {"jobDeploymentStatus": "Failed"}}}, {},
        r"rayjob digits: is there already \(Failed\).*kubectl delete rayjob digits --namespace ablate"),
    "job-at-work": (
        {"rayjobs.ray.io-digits": {"status": {"jobDeploymentStatus": "Running"}}}, {}, r"\(Running\).*It is at work"),
    "job-new": ({"rayjobs.ray.io-digits": {"kind": "RayJob"}}, {}, r"is there already \(not started\)"),
}  # fmt: skip


@pytest.mark.parametrize(("answers", "changes", "line"), MISSING.values(), ids=MISSING.keys())
def test_what_a_cluster_lacks_is_one_clear_line(
    cluster: Cluster, answers: Mapping[str, Any], changes: dict[str, Any], line: str
) -> None:
    cluster.answer(answers)
    with pytest.raises(RequestError, match=line) as refused:
        preflight(request(**changes))
    assert len(str(refused.value).splitlines()) == 1
    assert "tr0ub4dor" not in str(refused.value)
    assert all(asked.startswith(READS) for asked in cluster.asked())


def test_all_that_a_cluster_lacks_is_said_at_once(cluster: Cluster) -> None:
    cluster.answer({"secret-ablate": None, "configmap-ablate": None, "resourcequota-all": quota(gpus="1", pods="1")})
    with pytest.raises(RequestError, match="storage-url") as refused:
        preflight(request())
    assert len(str(refused.value).splitlines()) == 4


def test_a_study_without_a_bucket_needs_no_store(cluster: Cluster) -> None:
    cluster.answer({"configmap-ablate": {"data": {}}, "persistentvolumeclaim-ablate-runs": {}})
    (cluster.folder / "persistentvolumeclaim-ablate-runs").write_text(json.dumps(claim()))
    assert preflight(request(runs_claim="ablate-runs")) == []


def test_what_may_not_be_seen_is_noted_and_stops_nothing(cluster: Cluster) -> None:
    forbidden = 'Error from server (Forbidden): secrets "ablate" is forbidden: User "ada" cannot get resource "secrets"'
    closed = ["secret ablate", "configmap ablate", "serviceaccount ablate"]
    cluster.answer({f"{what.replace(' ', '-')}.error": forbidden for what in closed})
    assert preflight(request()) == [f"{what}: not looked at, you may not see it" for what in closed]


FORBIDDEN = 'Error from server (Forbidden): "ada" cannot get this'


def test_whoever_may_see_nothing_of_the_namespace_is_told_so_and_gets_no_manifest(cluster: Cluster, run: Run) -> None:
    """The command answered 0, as if it had looked."""
    cluster.answer({"error": FORBIDDEN})
    code, out, err = run("--check", "--namespace", "research")
    assert (code, out) == (3, "")
    assert "ablate: asking the cluster of kubectl's context kind-here, namespace research" in err
    assert "secret ablate: not looked at, you may not see it" in err
    assert err.splitlines()[-1].startswith("nothing of namespace research could be looked at")
    cluster.answer({"refusal": DENIED})
    code, out, err = run("--check")
    assert (code, out) == (3, "")
    assert 'cannot create resource "rayjobs"' in err, "what is known is said as well"


@pytest.mark.parametrize(
    ("nodes", "changes"),
    [
        (node(gpus=0), {}),
        (node(), {"node_selector": ("pool=a",)}),
        (node(**{"kubernetes.io/arch": "arm64"}), {"arch": "amd64"}),
        (node(), {"cpus": "16"}),
        (node(), {"memory": "64Gi"}),
        ({"items": []}, {}),
    ],
    ids=["no-gpu", "no-pool", "another-architecture", "too-few-cpus", "too-little-memory", "no-node"],
)
def test_no_node_that_holds_a_worker_is_said_and_may_be_one_that_has_yet_to_come(
    nodes: dict[str, Any], changes: dict[str, Any], cluster: Cluster
) -> None:
    cluster.answer({"nodes-all": nodes})
    (note,) = preflight(request(**changes))
    assert note.startswith("no node that is here now holds a worker (")
    assert "1 nvidia.com/gpu" in note
    cluster.answer({"nodes-all": node(pool="a", **{"kubernetes.io/arch": "amd64"})})
    assert preflight(request(node_selector=("pool=a",), arch="amd64")) == []


def test_a_claim_of_a_class_that_is_there_or_is_the_default_may_wait_to_be_bound(cluster: Cluster) -> None:
    default = {"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}}
    cluster.answer({"persistentvolumeclaim-ablate-data": claim("Pending"), "storageclass-all": {"items": [default]}})
    assert preflight(request()) == []
    named = {"persistentvolumeclaim-ablate-data": claim("Pending", storageClassName="fast")}
    cluster.answer(named | {"storageclass-fast": {"kind": "StorageClass"}})
    assert preflight(request()) == []
    cluster.answer({"persistentvolumeclaim-ablate-data": claim("Pending"), "storageclass-all.error": FORBIDDEN})
    assert preflight(request()) == ["storageclass: not looked at, you may not see it"], "there may be a default"


@pytest.mark.parametrize(
    "said",
    [
        "Unable to connect to the server: dial tcp 10.0.0.1:443: i/o timeout",
        "The connection to the server localhost:8080 was refused - did you specify the right host or port?",
        "error: You must be logged in to the server (Unauthorized)",
    ],
)
def test_a_server_that_does_not_answer_is_one_line(cluster: Cluster, said: str) -> None:
    cluster.answer({"error": f"E1121 12:00:00 memcache.go:265: couldn't get current server API group list\n{said}\n"})
    with pytest.raises(RequestError) as refused:
        preflight(request())
    assert str(refused.value) == f"kubectl get secret ablate --namespace ablate: {said}"


def test_a_kubectl_that_hangs_is_left(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.answer({"sleep": ""})
    monkeypatch.setattr(sys.modules[kubectl_get.__module__], "KUBECTL_SECONDS", 0.3)
    with pytest.raises(RequestError, match=r"no answer within 0\.3 s: is the cluster up"):
        preflight(request())


def test_no_kubectl_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RequestError, match=r"^kubectl is not installed: https://"):
        preflight(request())


def test_an_answer_that_is_no_json_is_one_line(cluster: Cluster) -> None:
    cluster.answer({"secret-ablate": "<html>"})
    with pytest.raises(RequestError, match="kubectl get secret ablate --namespace ablate: the answer is no JSON"):
        preflight(request())


def test_kubectl_is_asked_for_json_within_a_time(cluster: Cluster) -> None:
    assert kubectl_get(["pods", "--namespace", "a"]) is None
    assert cluster.asked() == ["get pods --namespace a -o json --ignore-not-found --request-timeout=15s"]


def test_needs_are_counted_over_all_pods() -> None:
    assert needs(request(gpus=8, gpus_per_node=4, cpus="12", memory="64Gi")) == {
        "pods": 4,
        "cpu": 2 * 12 + 2 + Fraction(1, 2),
        "memory": (2 * 64 + 8 + 1) * 2**30,
        "nvidia.com/gpu": 8,
    }


QUANTITIES = {"8": 8, "500m": Fraction(1, 2), "1.5": Fraction(3, 2), "32Gi": 32 * 2**30, "16G": 16 * 10**9, "1e3": 1000}


@pytest.mark.parametrize(("text", "value"), QUANTITIES.items())
def test_quantities_are_numbers(text: str, value: Fraction) -> None:
    assert number(text) == value


@given(st.integers(0, 10**9), st.sampled_from(sorted(SUFFIXES)))
def test_a_quantity_and_its_suffix_multiply(digits: int, suffix: str) -> None:
    assert number(f"{digits}{suffix}") == digits * SUFFIXES[suffix]


@pytest.mark.parametrize("text", ["", "Gi", "8 Gi", "1,5", "8gb", "0x8", "1e", "--1", "8Mm"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no quantity of Kubernetes'"):
        number(text)


def test_the_command_prints_a_manifest_only_where_the_cluster_can_run_it(cluster: Cluster, run: Run) -> None:
    cluster.answer({"secret-ablate": None})
    code, out, err = run("--gpus", "9", "--check")
    assert code == 2
    assert out == "", "nothing for `kubectl apply` to read"
    assert "key storage-url: there is no such secret" in err
    assert "the study needs 9, the quota team leaves 8 of 8" in err
    cluster.answer()
    code, out, err = run("--gpus", "8", "--check")
    assert (code, err) == (0, ASKED)
    assert "kind: RayJob" in out
    assert all(asked.startswith(READS) for asked in cluster.asked())


def test_the_command_names_what_it_may_not_see_on_the_side(cluster: Cluster, run: Run) -> None:
    cluster.answer({"resourcequota-all.error": 'Error from server (Forbidden): "ada" cannot list resourcequotas'})
    code, out, err = run("--check")
    assert (code, err) == (0, f"{ASKED}ablate: resourcequota: not looked at, you may not see it\n")
    assert "kind: RayJob" in out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--name", "My_Study"), "Try --name my-study."),
        (("--", "--nonsense"), "No such option: --nonsense"),
        (("--", "--scale", "0.5"), "is not for this place: give it to `ablate k8s render`"),
        (("--cpus", "2", "--", "--cpus-per-trial", "4"), "--cpus-per-trial 4: a trial has its CPUs on one node"),
        (("--", "--cpus-per-trial", "many"), "Invalid value for '--cpus-per-trial'"),
        (("--", "--storage", "postgresql://a:tr0ub4dor@b/c"), "password"),
        (("--gpus", "3", "--gpus-per-node", "2"), "must be a multiple of --gpus-per-node 2"),
    ],
)
def test_a_bad_command_renders_nothing(run: Run, arguments: tuple[str, ...], line: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert line in " ".join(err.split())
    assert "tr0ub4dor" not in err


def test_an_option_that_is_refused_is_not_proposed(run: Run) -> None:
    assert "--storage" not in run("--", "--storag", "x")[2]
    assert "--tracker" in run("--", "--tracke", "x")[2]
