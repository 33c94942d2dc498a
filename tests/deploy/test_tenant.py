"""A second team on the same cluster: one name makes it, and what the cluster shares outlives it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.deployed import DEPLOY, OVERLAYS, built, expanded_arguments, one
from support.deployment_rules import CLUSTER_WIDE

TENANT = "overlays/tenant"


def renamed(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the tenant's objects after its name has been put at the one place that says REPLACE."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    shutil.copytree(DEPLOY, folder / "deploy")
    file = folder / "deploy" / TENANT / "kustomization.yaml"
    lines = file.read_text().splitlines()
    (place,) = [index for index, line in enumerate(lines) if line.endswith("# REPLACE")]
    lines[place] = f"namespace: {name}"
    file.write_text("\n".join(lines))
    done = subprocess.run(["kubectl", "kustomize", str(file.parent)], capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


def test_one_name_makes_a_tenant(tmp_path: Path) -> None:
    """It is the first team's deployment and queue, with another name everywhere and separate files."""
    tenant = renamed(tmp_path, "vision")
    stores = {name: one(tenant, "ConfigMap", name)["data"] for name in ("ablate", "mlflow")}
    assert stores["ablate"].pop("ABLATE_STORE") == "s3://REPLACE/vision"
    assert stores["mlflow"].pop("MLFLOW_ARTIFACTS_DESTINATION") == "s3://REPLACE/mlflow/vision"
    first = [*built("overlays/gpu"), *built("kueue/queue")]
    del one(first, "ConfigMap", "ablate")["data"]["ABLATE_STORE"]
    del one(first, "ConfigMap", "mlflow")["data"]["MLFLOW_ARTIFACTS_DESTINATION"]
    assert "vision" in json.dumps(tenant)
    assert ordered(json.loads(json.dumps(tenant).replace("vision", "ablate"))) == ordered(first)


def ordered(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return objects by kind and name."""
    return sorted(objects, key=lambda each: (each["kind"], each["metadata"]["name"]))


def test_mlflow_answers_by_the_names_of_its_own_namespace(tmp_path: Path) -> None:
    deployment = one(renamed(tmp_path, "vision"), "Deployment", "mlflow")
    (hosts,) = [word for word in expanded_arguments(deployment) if word.startswith("--allowed-hosts=")]
    assert "mlflow.vision.svc:5000,mlflow.vision.svc.cluster.local:5000" in hosts
    assert "ablate" not in hosts


@pytest.mark.parametrize("folder", [*OVERLAYS, TENANT])
def test_deleting_a_team_removes_nothing_that_others_use(folder: str) -> None:
    objects = built(folder)
    (namespace,) = [each["metadata"]["name"] for each in objects if each["kind"] == "Namespace"]
    wide = {(each["kind"], each["metadata"]["name"]) for each in objects if each["kind"] in CLUSTER_WIDE}
    assert wide <= {("Namespace", namespace), ("ClusterQueue", namespace)}


def test_what_teams_share_is_there_before_them() -> None:
    spec = one(built("overlays/gpu"), "Deployment", "mlflow")["spec"]["template"]["spec"]
    one(built("cluster"), "PriorityClass", spec["priorityClassName"])
    (group,) = one(built("kueue/queue"), "ClusterQueue", "ablate")["spec"]["resourceGroups"]
    one(built("kueue"), "ResourceFlavor", group["flavors"][0]["name"])
    assert {each["kind"] for folder in ("cluster", "kueue") for each in built(folder)} <= set(CLUSTER_WIDE)
