"""What a cluster lacks is said before anything is created there: by a `kubectl` that answers from files."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ablate.base.errors import RequestError
from ablate.cli import app as cli
from ablate.kubernetes.kubectl import kubectl_get
from ablate.kubernetes.preflight import preflight
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
[ -f "$ANSWERS/$2-$3.error" ] && { cat "$ANSWERS/$2-$3.error" >&2; exit 1; }
[ -f "$ANSWERS/error" ] && { cat "$ANSWERS/error" >&2; exit 1; }
[ -f "$ANSWERS/$2-$3" ] && cat "$ANSWERS/$2-$3"
exit 0
"""


def secret(**data: str) -> dict[str, Any]:
    """Return a Secret as kubectl prints it."""
    return {"data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}}


def ended(status: str) -> dict[str, Any]:
    """Return a RayJob whose deployment has a status."""
    return {"metadata": {"name": "digits", "namespace": "ablate"}, "status": {"jobDeploymentStatus": status}}


READS = ("get ", "apply --dry-run=server ", "config current-context")
GOOD: dict[str, Any] = {
    "context": "kind-here\n",
    "refusal": "",
    "secret-ablate": secret(**{"storage-url": URL}),
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
    assert preflight(request()) == []
    assert [line.split()[:2] for line in cluster.asked()] == [
        ["apply", "--dry-run=server"], ["get", "secret"], ["get", "rayjob"],
    ]  # fmt: skip
    assert (cluster.folder / "tried").read_text() == rendered(request()), "what will be applied"


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
    "no-secret": ({"secret-ablate": None}, {}, "secret ablate: there is none. deploy/secret.sh"),
    "no-key": (
        {"secret-ablate": secret(**{"aws-access-key-id": "x"})}, {}, "has no key storage-url. deploy/secret.sh"),
    "database-no-url": ({"secret-ablate": secret(**{"storage-url": "db.internal"})}, {}, "is no address of a Postgr"),
    "database-mysql": ({"secret-ablate": secret(**{"storage-url": "mysql://a@b/c"})}, {}, "is no address of a Postgre"),
    "database-sqlite": ({"secret-ablate": secret(**{"storage-url": "sqlite:////x"})}, {}, "would end with its pod"),
    "database-without-a-name": (
        {"secret-ablate": secret(**{"storage-url": "postgresql://db"})}, {}, "no address of a PostgreSQL database"),
    "database-bad-port": (
        {"secret-ablate": secret(**{"storage-url": "postgresql://db:x/y"})}, {}, "storage-url is no address"),
    "database-placeholder": (
        {"secret-ablate": secret(**{"storage-url": "postgresql://a:PASSWORD@db/x"})}, {}, "still holds a placeholder"),
    "database-host-of-the-example": (
        {"secret-ablate": secret(**{"storage-url": "postgresql://a:b@db.example.org/x"})}, {}, "still holds a placeh"),
    "secret-not-base64": ({"secret-ablate": {"data": {"storage-url": "%%%"}}}, {}, "storage-url is no address"),
    "no-right": ({"refusal": DENIED}, {}, 'cannot create resource "rayjobs".*Role ablate-user'),
    "jobs": ({"refusal": EXCEEDED}, {}, r"exceeded quota: team, requested: count/rayjobs\.ray\.io=1.*a larger quota"),
    "job-failed": (
        {"rayjob-digits": ended("Failed")}, {},
        r"rayjob digits: is there already \(Failed\).*kubectl delete rayjob digits --namespace ablate"),
    "job-at-work": (
        {"rayjob-digits": ended("Running")}, {}, r"\(Running\).*It is at work"),
    "job-new": ({"rayjob-digits": {"kind": "RayJob"}}, {}, r"is there already \(not started\)"),
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
    cluster.answer({"refusal": DENIED, "secret-ablate": None, "rayjob-digits": ended("Running")})
    with pytest.raises(RequestError, match="rayjob digits") as refused:
        preflight(request())
    assert [line.split(":")[1].strip() for line in str(refused.value).splitlines()] == [
        "kubectl apply --dry-run=server", "secret ablate", "rayjob digits",
    ]  # fmt: skip


FORBIDDEN = 'Error from server (Forbidden): secrets "ablate" is forbidden: User "ada" cannot get resource "secrets"'


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


def test_the_command_prints_a_manifest_only_where_the_cluster_takes_it(cluster: Cluster, run: Run) -> None:
    cluster.answer({"secret-ablate": None})
    code, out, err = run("--gpus", "8", "--check")
    assert (code, out) == (2, ""), "nothing for `kubectl apply` to read"
    assert "secret ablate: there is none" in err
    cluster.answer()
    code, out, err = run("--gpus", "8", "--check")
    assert (code, err) == (0, ASKED)
    assert "kind: RayJob" in out
    assert all(asked.startswith(READS) for asked in cluster.asked())


def test_what_may_not_be_seen_is_noted_and_stops_nothing(cluster: Cluster, run: Run) -> None:
    cluster.answer({"secret-ablate.error": FORBIDDEN})
    code, out, err = run("--check")
    assert (code, err) == (0, f"{ASKED}ablate: secret ablate: not looked at, you may not see it\n")
    assert "kind: RayJob" in out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--name", "My_Study"), "Try --name my-study."),
        (("--", "--nonsense"), "No such option: --nonsense"),
        (("--", "--scale", "0.5"), "is not for this place: give it to `ablate k8s render`"),
        (("--cpus", "2", "--", "--cpus-per-trial", "4"), "--cpus-per-trial = 4.0: a node has 2"),
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
