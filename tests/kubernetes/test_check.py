"""`ablate k8s render --check` through the real `kubectl`, against an API server that answers what a test says."""

from __future__ import annotations

import base64
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.api_server import ApiServer
from support.paths import REPOSITORY

URL = base64.b64encode(b"postgresql+psycopg://ablate:tr0ub4dor@db.internal:5432/ablate").decode()


def good() -> ApiServer:
    """Return a cluster that lacks nothing."""
    return ApiServer(objects={("namespaces", "ablate"): {}, ("secrets", "ablate"): {"data": {"storage-url": URL}}})


def check(api: ApiServer, folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of the command."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    study = REPOSITORY / "search_spaces/digits.yaml"
    words = [sys.executable, "-m", "ablate", "k8s", "render", str(study), "--image", "r/ablate:0.1.0", "--check"]
    with api.running(folder) as environment:
        known = {"PATH": f"{Path(shutil.which('kubectl') or '').parent}:/usr/bin:/bin", **environment}
        done = subprocess.run(
            [*words, *arguments], env=known, capture_output=True, text=True, timeout=120, check=False
        )  # fmt: skip
    assert "tr0ub4dor" not in done.stdout + done.stderr
    return done.returncode, done.stdout, done.stderr


ASKING = "ablate: asking the cluster of kubectl's context test-context, namespace ablate\n"


@pytest.mark.services
def test_a_cluster_that_lacks_nothing_is_named_and_gets_the_manifest(tmp_path: Path) -> None:
    api = good()
    code, out, err = check(api, tmp_path, "--gpus", "8", "--gpus-per-node", "8")
    assert (code, err) == (0, ASKING)
    assert "kind: RayJob" in out
    objects = {"configmaps/digits-study", "poddisruptionbudgets/digits-head", "rayjobs/digits"}
    assert set(api.asked) - {"namespaces/ablate"} == {"secrets/ablate", *objects}
    tried = {each["kind"]: each for each in api.created}
    assert tried.keys() == {"ConfigMap", "PodDisruptionBudget", "RayJob"}
    assert [tried[each["kind"]]["metadata"]["name"] for each in yaml.safe_load_all(out)] == [
        "digits-study", "digits-head", "digits",
    ]  # fmt: skip


@pytest.mark.services
def test_whoever_may_not_create_a_study_is_told_before_anything_is_printed(tmp_path: Path) -> None:
    api = good()
    api.denied = {"rayjobs"}
    code, out, err = check(api, tmp_path)
    assert (code, out) == (2, "")
    assert 'rayjobs is forbidden: User "ada" cannot create "rayjobs". Ask for the Role ablate-user' in err


@pytest.mark.services
def test_who_sees_nothing_of_the_namespace_is_told_and_gets_nothing(tmp_path: Path) -> None:
    api = good()
    api.forbidden = {"secrets", "configmaps", "poddisruptionbudgets", "rayjobs"}
    code, out, err = check(api, tmp_path)
    assert (code, out) == (2, "")
    assert 'rayjobs is forbidden: User "ada" cannot get resource "rayjobs"' in err
