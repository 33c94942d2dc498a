"""deploy/ as kubectl builds it: every object is good, every connection is meant, every name is the one studies use."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from ablate.kubernetes.preflight import SECRET, URL_KEY
from ablate.kubernetes.template import manifest
from support.cluster_schemas import pods_of
from support.deployed import (
    DEPLOY,
    OVERLAYS,
    PARTS,
    WORKLOADS,
    End,
    Plain,
    built,
    connects,
    containers,
    expanded_arguments,
    make_secret,
    number,
    one,
    pod_of,
    references,
)
from support.deployment_rules import ENDS, NEEDED, NEEDED_OF, refused
from support.manifests import BUCKET_SECRETS, DRIVER_SECRETS, METRICS_PORT, PLACES, container, head
from support.manifests import request as study

EVERY = ("base", *OVERLAYS, *PARTS)


@pytest.mark.parametrize("folder", EVERY)
def test_every_object_is_good(folder: str) -> None:
    found = refused(built(folder))
    if folder == "base":
        found = [line for line in found if line != "Deployment/mlflow: ablate has no version"]  # overlays give one
    assert found == []


@pytest.mark.parametrize("folder", OVERLAYS)
def test_studies_mlflow_and_the_database_reach_each_other(folder: str) -> None:
    objects = built(folder)
    for source, target, port in [*NEEDED, *NEEDED_OF[folder]]:
        assert connects(objects, ENDS[source], ENDS[target], port), f"{source} cannot reach {target}:{port}"
    for source in ("head", "worker", "submitter", "mlflow", "postgres", "data"):
        assert connects(objects, ENDS[source], End(address="169.254.20.10"), 53, "UDP"), f"{source} has no names"


def test_nothing_outside_is_needed_on_one_node() -> None:
    objects = built("overlays/local")
    for name in ("head", "worker", "submitter", "mlflow", "postgres"):
        assert not connects(objects, ENDS[name], ENDS["the internet"], 443)
    assert connects([*objects, *built("data")], ENDS["data"], ENDS["the internet"], 443)
    assert not connects([*objects, *built("data")], ENDS["data"], ENDS["the node's metadata"], 443)


@pytest.mark.parametrize("folder", OVERLAYS)
def test_the_pods_of_a_study_carry_the_labels_that_the_policies_name(folder: str) -> None:
    objects = built(folder)
    pods = {each["metadata"]["labels"]["ablate.dev/component"]: each for each in pods_of(manifest(study())[-1])}
    for source, target in (("head", "worker"), ("worker", "head"), ("submitter", "head")):
        ends = [End(tuple(pods[name]["metadata"]["labels"].items())) for name in (source, target)]
        assert connects(objects, ends[0], ends[1], 6379)
    head = End(tuple(pods["head"]["metadata"]["labels"].items()))
    mlflow = End(tuple(pod_of(one(objects, "Deployment", "mlflow"))["metadata"]["labels"].items()))
    assert connects(objects, head, mlflow, 5000)
    assert connects(objects, ENDS["Prometheus"], head, METRICS_PORT)
    if folder == "overlays/local":
        postgres = End(tuple(pod_of(one(objects, "StatefulSet", "postgres"))["metadata"]["labels"].items()))
        assert connects(objects, head, postgres, 5432)
        assert connects(objects, mlflow, postgres, 5432)


# --- one oracle for names: what deploy/ makes is what a study's manifest refers to ---


@pytest.mark.parametrize(("folder", "kind"), [("overlays/local", "local"), ("overlays/gpu", "gpu")])
def test_the_secret_has_the_keys_that_pods_ask_for(folder: str, kind: str, tmp_path: Path) -> None:
    made = make_secret(
        tmp_path / "made", kind,
        STORAGE_URL="postgresql+psycopg://a:b@db/ablate", MLFLOW_BACKEND_URL="postgresql+psycopg://a:b@db/mlflow",
        AWS_ACCESS_KEY_ID="id", AWS_SECRET_ACCESS_KEY="key",
    )  # fmt: skip
    assert made.code == 0, made.said
    deployed = [*built(folder), *built("ui")]
    wanted = {(name, key) for name, key, needed in references(deployed, "secretKeyRef") if needed or kind == "gpu"}
    wanted |= {(name, key) for name, key, needed in references(manifest(study()), "secretKeyRef") if needed}
    assert {name for name, _ in wanted} == {SECRET}
    assert URL_KEY in made.data
    assert {key for _, key in wanted} <= set(made.data)
    optional = set(DRIVER_SECRETS.values())
    assert set(made.data) <= {key for _, key in wanted} | optional, "nothing is made that nobody reads"
    if kind == "gpu":
        assert optional <= set(made.data)


@pytest.mark.parametrize("folder", OVERLAYS)
def test_the_settings_have_the_keys_that_pods_ask_for(folder: str) -> None:
    objects = built(folder)
    settings = one(objects, "ConfigMap", "ablate")["data"]
    asked = set(references(manifest(study()), "configMapKeyRef"))
    assert {key for _, key, _ in asked} == PLACES
    assert {name for name, _, _ in asked} == {"ablate"}
    assert set(settings) <= PLACES, "a setting that nobody reads"
    if folder == "overlays/gpu":
        assert {key for _, key, needed in asked if needed} <= set(settings)
    for name, key, needed in references(objects, "configMapKeyRef"):
        assert not needed or key in one(objects, "ConfigMap", name)["data"]


@pytest.mark.parametrize("folder", OVERLAYS)
def test_accounts_claims_and_services_have_the_names_that_studies_use(folder: str) -> None:
    objects = built(folder)
    pods = list(pods_of(manifest(study())[-1]))
    one(objects, "Namespace", study().namespace)
    for each in pods:
        one(objects, "ServiceAccount", each["spec"]["serviceAccountName"])
    for each in objects:
        if each["kind"] in WORKLOADS and "serviceAccountName" in each["spec"]["template"]["spec"]:
            one(objects, "ServiceAccount", each["spec"]["template"]["spec"]["serviceAccountName"])
    one(objects, "PersistentVolumeClaim", "ablate-data")
    for name in claims(objects):
        one(objects, "PersistentVolumeClaim", name)
    service = one(objects, "Service", "mlflow")
    address = f"http://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    assert one(objects, "ConfigMap", "ablate")["data"]["MLFLOW_TRACKING_URI"] == address
    for each in objects:
        if each["kind"] == "Service":
            owners = [pod_of(owner) for owner in objects if owner["kind"] in WORKLOADS]
            chosen = [o for o in owners if each["spec"]["selector"].items() <= o["metadata"]["labels"].items()]
            assert len(chosen) == 1, "a service finds one set of pods"
            ports = {port["name"] for port in chosen[0]["spec"]["containers"][0]["ports"]}
            assert {port["targetPort"] for port in each["spec"]["ports"]} <= ports


def claims(objects: Sequence[Plain]) -> set[str]:
    """Return the claims that workloads mount."""
    volumes = [v for each in objects if each["kind"] in WORKLOADS for v in each["spec"]["template"]["spec"]["volumes"]]
    return {v["persistentVolumeClaim"]["claimName"] for v in volumes if "persistentVolumeClaim" in v}


def test_the_optional_parts_name_what_there_is() -> None:
    base, local = built("base"), built("overlays/local")
    (monitor,) = built("monitoring")
    heads = [each for each in pods_of(manifest(study())[-1]) if each["spec"]["containers"][0]["name"] == "ray-head"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= heads[0]["metadata"]["labels"].items()
    ports = {port["name"]: port["containerPort"] for port in heads[0]["spec"]["containers"][0]["ports"]}
    assert ports[monitor["spec"]["podMetricsEndpoints"][0]["port"]] == METRICS_PORT
    queue = one(built("kueue/queue"), "LocalQueue", "ablate")
    one(built("kueue/queue"), "ClusterQueue", queue["spec"]["clusterQueue"])
    cluster_queue = one(built("kueue/queue"), "ClusterQueue", "ablate")
    labels = cluster_queue["spec"]["namespaceSelector"]["matchLabels"]
    assert labels == {"kubernetes.io/metadata.name": one(base, "Namespace", "ablate")["metadata"]["name"]}
    together = [*local, *built("ui")]
    page = End(tuple(pod_of(one(together, "Deployment", "ablate-ui"))["metadata"]["labels"].items()))
    assert connects(together, page, ENDS["postgres"], 5432)
    assert not any(connects(together, ENDS[name], page, 5005) for name in ("a pod of ours", "a pod elsewhere"))
    assert {name for _, name, _ in references(together, "configMapKeyRef")} <= {*PLACES, "MLFLOW_ARTIFACTS_DESTINATION"}
    job = one(built("data"), "Job", "ablate-data")
    assert claims([job]) == {"ablate-data"}
    places = {each["name"]: each["mountPath"] for each in container(head(manifest(study())))["volumeMounts"]}
    assert job["spec"]["template"]["spec"]["containers"][0]["volumeMounts"][1]["mountPath"] == places["data"]
    assert claims(local) == {"mlflow-artifacts"}
    one(local, "PersistentVolumeClaim", "ablate-runs")


def test_a_queue_promises_no_more_than_the_quota_leaves_beside_mlflow() -> None:
    hard = one(built("overlays/gpu"), "ResourceQuota", "ablate")["spec"]["hard"]
    (group,) = one(built("kueue/queue"), "ClusterQueue", "ablate")["spec"]["resourceGroups"]
    (mlflow,) = containers([one(built("overlays/gpu"), "Deployment", "mlflow")])
    for each in group["flavors"][0]["resources"]:
        for name in ("requests", "limits"):
            limit = hard.get(f"{name}.{each['name']}")
            beside = number(mlflow["resources"][name].get(each["name"], "0"))
            assert limit is None or number(each["nominalQuota"]) + beside <= number(limit)
    assert set(group["coveredResources"]) == {"cpu", "memory", "nvidia.com/gpu"}, "all that the pods of a study ask for"


def test_each_right_of_a_user_is_explained_and_none_is_wide() -> None:
    role = one(built("base"), "Role", "ablate-user")
    text = (DEPLOY / "base/access.yaml").read_text()
    assert len(re.findall(r"- apiGroups: \[.*\] # \S", text)) == len(role["rules"])
    for rule in role["rules"]:
        assert "*" not in {*rule["verbs"], *rule["resources"], *rule["apiGroups"]}
        assert not {"escalate", "bind", "impersonate", "deletecollection", "update"} & set(rule["verbs"])
        if "secrets" in rule["resources"]:
            assert rule["resourceNames"] == ["ablate"]
            assert rule["verbs"] == ["get"]
    for group, resource in (("batch", "jobs"), ("apps", "deployments")):  # kubectl logs job/…, exec deploy/…
        (verbs,) = [rule["verbs"] for rule in role["rules"] if resource in rule["resources"]]
        assert verbs == ["get"]
        assert [rule["apiGroups"] for rule in role["rules"] if resource in rule["resources"]] == [[group]]
    binding = one(built("base"), "RoleBinding", "ablate-user")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert {each["kind"] for each in binding["subjects"]} == {"Group"}, "no account of a pod has any right"


def test_the_namespace_enforces_what_our_rules_check() -> None:
    labels = one(built("base"), "Namespace", "ablate")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.services
@pytest.mark.filterwarnings("ignore::UserWarning")  # MLflow's own, as it is imported
def test_mlflow_is_started_with_options_and_variables_that_it_has() -> None:
    from mlflow.cli import server
    from mlflow.environment_variables import MLFLOW_AUTH_CONFIG_PATH, MLFLOW_SERVER_ENABLE_JOB_EXECUTION
    from mlflow.server.security_utils import is_allowed_host_header

    deployment = one(built("overlays/local"), "Deployment", "mlflow")
    (container,) = containers([deployment])
    assert container["command"] == ["tini", "-g", "--", "mlflow", "server"]
    parsed = server.make_context("server", expanded_arguments(deployment)).params
    assert parsed["app_name"] == "basic-auth"
    assert parsed["serve_artifacts"] is True
    assert parsed["port"] == container["ports"][0]["containerPort"]
    variables = {parameter.envvar for parameter in server.params}
    names = {entry["name"] for entry in container["env"]}
    assert {"MLFLOW_BACKEND_STORE_URI", "MLFLOW_ARTIFACTS_DESTINATION"} <= names & variables
    assert {MLFLOW_AUTH_CONFIG_PATH.name, MLFLOW_SERVER_ENABLE_JOB_EXECUTION.name} <= names
    hosts = parsed["allowed_hosts"].split(",")
    for good in ("mlflow:5000", "mlflow.ablate.svc:5000", "localhost:5000", "localhost:5050", "127.0.0.1:5000"):
        assert is_allowed_host_header(hosts, good), good
    for bad in ("mlflow.evil.example:5000", "evil.example", "10.0.0.1:5000", "mlflow", ""):
        assert not is_allowed_host_header(hosts, bad), bad
    auth = container["volumeMounts"][[each["name"] for each in container["volumeMounts"]].index("auth")]
    (path,) = [entry["value"] for entry in container["env"] if entry["name"] == MLFLOW_AUTH_CONFIG_PATH.name]
    assert path.startswith(auth["mountPath"])
    bucket = {entry["name"] for entry in container["env"]} & set(BUCKET_SECRETS)
    assert bucket == set(BUCKET_SECRETS)
