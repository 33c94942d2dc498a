"""deploy/ as kubectl builds it: every object is good, every connection is meant, every name is the one studies use."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from cluster_schemas import core_refusals, pods_of
from deployed import (
    DEPLOY,
    FOREIGN,
    OVERLAYS,
    PARTS,
    WORKLOADS,
    End,
    Plain,
    built,
    connects,
    containers,
    make_secret,
    one,
    pod,
    pod_of,
    references,
)

from ablate.errors import RequestError
from ablate.kubernetes import ClusterRequest, faults, manifest, preflight
from ablate.kubernetes.pods import BUCKET_SECRETS, DATA, DRIVER_SECRETS, METRICS_PORT, PLACES
from ablate.kubernetes.quantities import number

EVERY = ("base", *OVERLAYS, *PARTS)
CLUSTER_WIDE = ("Namespace", "PriorityClass", "ResourceFlavor", "ClusterQueue", "WorkloadPriorityClass")


def study(**changes: Any) -> ClusterRequest:
    """Return a request with the defaults of `ablate k8s render`, and `changes`."""
    fields: dict[str, Any] = {"name": "digits", "study_text": "study: digits\n", "image": "r/ablate:0.1.0", "gpus": 0}
    return ClusterRequest(**fields | changes)


def refused(objects: Sequence[Plain]) -> list[str]:
    """Return all that is wrong with what is deployed: schemas, rules, and what only a deployment can get wrong."""
    found = [fault.render("rules") for fault in faults(objects)]
    for each in objects:
        place = f"{each['kind']}/{each['metadata']['name']}"
        if each["kind"] in FOREIGN:
            if each["apiVersion"] != FOREIGN[each["kind"]]:
                found.append(f"{place}: is of {each['apiVersion']}")
        else:
            found += [f"{place}: {line}" for line in core_refusals(each)]
        if each["kind"] == "Secret":
            found.append(f"{place}: secrets are made by deploy/secret.sh")
        if each["kind"] not in CLUSTER_WIDE and each["metadata"].get("namespace") != "ablate":
            found.append(f"{place}: is in no namespace")
        if each["kind"] == "Service" and each["spec"].get("type", "ClusterIP") != "ClusterIP":
            found.append(f"{place}: is open to the world")
        if each["kind"] in WORKLOADS:
            if each["spec"]["template"]["spec"].get("automountServiceAccountToken") is not False:
                found.append(f"{place}: has a token of the API server")
            images = [container["image"] for container in containers([each])]
            found += [
                f"{place}: {image} has no version" for image in images if not re.search(r":(?!latest$)[^/]+$", image)
            ]
    if any(each["kind"] == "Namespace" for each in objects):
        found += [f"{a} may speak to {b}" for a, b, port in FORBIDDEN if connects(objects, ENDS[a], ENDS[b], port)]
    return found


ENDS = {
    "head": pod(component="head"),
    "worker": pod(component="worker"),
    "submitter": pod(component="submitter"),
    "data": pod(component="data"),
    "mlflow": pod(app="mlflow"),
    "postgres": pod(app="postgres"),
    "a pod of ours": pod(app="anything"),
    "a pod elsewhere": pod("default", app="anything"),
    "a pod elsewhere that calls itself head": pod("default", component="head"),
    "the operator": pod("kuberay-system", part="kuberay-operator"),
    "one that calls itself operator": pod("default", part="kuberay-operator"),
    "Prometheus": pod("monitoring", app="prometheus"),
    "the internet": End(address="93.184.216.34"),
    "the node's metadata": End(address="169.254.169.254"),
}
FORBIDDEN = [
    ("a pod elsewhere", "head", 8265), ("a pod elsewhere", "head", 6379), ("a pod elsewhere", "mlflow", 5000),
    ("a pod elsewhere", "postgres", 5432), ("a pod elsewhere that calls itself head", "mlflow", 5000),
    ("a pod elsewhere that calls itself head", "worker", 10001), ("one that calls itself operator", "head", 8265),
    ("the operator", "head", 6379), ("the operator", "worker", 8265), ("the internet", "head", 8265),
    ("the internet", "mlflow", 5000), ("Prometheus", "mlflow", 5000), ("Prometheus", "head", 8265),
    ("a pod elsewhere", "a pod of ours", 80), ("a pod of ours", "the internet", 443),
    ("a pod of ours", "head", 8265), ("a pod of ours", "postgres", 5432), ("worker", "mlflow", 5000),
    ("worker", "postgres", 5432), ("submitter", "postgres", 5432), ("submitter", "the internet", 443),
    ("postgres", "the internet", 443), ("worker", "the internet", 5432), ("head", "the internet", 22),
    ("head", "the node's metadata", 80), ("worker", "the node's metadata", 443), ("mlflow", "the node's metadata", 443),
]  # fmt: skip
NEEDED = [
    ("head", "worker", 10002), ("worker", "head", 6379), ("worker", "worker", 31234), ("submitter", "head", 8265),
    ("head", "mlflow", 5000), ("the operator", "head", 8265), ("Prometheus", "head", METRICS_PORT),
    ("Prometheus", "worker", 8080),
]  # fmt: skip
NEEDED_OF = {
    "overlays/local": [("head", "postgres", 5432), ("mlflow", "postgres", 5432)],
    "overlays/gpu": [("head", "the internet", 5432), ("head", "the internet", 443), ("worker", "the internet", 443),
                     ("mlflow", "the internet", 5432), ("mlflow", "the internet", 443)],
}  # fmt: skip


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


# --- one oracle for names: what deploy/ makes is what pods.py refers to ---


@pytest.mark.parametrize(("folder", "kind"), [("overlays/local", "local"), ("overlays/gpu", "gpu")])
def test_the_secret_has_the_keys_that_pods_ask_for(folder: str, kind: str, tmp_path: Path) -> None:
    made = make_secret(
        tmp_path / "made", kind,
        STORAGE_URL="postgresql+psycopg://a:b@db/ablate", MLFLOW_BACKEND_URL="postgresql+psycopg://a:b@db/mlflow",
        AWS_ACCESS_KEY_ID="id", AWS_SECRET_ACCESS_KEY="key",
    )  # fmt: skip
    assert made.code == 0, made.said
    wanted = {(name, key) for name, key, needed in references(built(folder), "secretKeyRef") if needed or kind == "gpu"}
    wanted |= {(name, key) for name, key, needed in references(manifest(study()), "secretKeyRef") if needed}
    assert {name for name, _ in wanted} == {"ablate"}
    assert {key for _, key in wanted} <= set(made.data)
    optional = {key for key, _ in DRIVER_SECRETS.values()}
    assert set(made.data) <= {key for _, key in wanted} | optional, "nothing is made that nobody reads"
    if kind == "gpu":
        assert optional <= set(made.data)


@pytest.mark.parametrize("folder", OVERLAYS)
def test_the_settings_have_the_keys_that_pods_ask_for(folder: str) -> None:
    objects = built(folder)
    settings = one(objects, "ConfigMap", "ablate")["data"]
    asked = set(references(manifest(study()), "configMapKeyRef"))
    assert {key for _, key, _ in asked} == set(PLACES)
    assert {name for name, _, _ in asked} == {"ablate"}
    assert set(settings) <= set(PLACES), "a setting that nobody reads"
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
    one(objects, "PersistentVolumeClaim", str(study().data_claim))
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
    head = next(pods_of(manifest(study())[-1]))
    heads = [each for each in pods_of(manifest(study())[-1]) if each["spec"]["containers"][0]["name"] == "ray-head"]
    assert head["kind"] == "Pod"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= heads[0]["metadata"]["labels"].items()
    ports = {port["name"]: port["containerPort"] for port in heads[0]["spec"]["containers"][0]["ports"]}
    assert ports[monitor["spec"]["podMetricsEndpoints"][0]["port"]] == METRICS_PORT
    queue = one(built("kueue"), "LocalQueue", "ablate")
    one(built("kueue"), "ClusterQueue", queue["spec"]["clusterQueue"])
    cluster_queue = one(built("kueue"), "ClusterQueue", "ablate")
    labels = cluster_queue["spec"]["namespaceSelector"]["matchLabels"]
    assert labels == {"kubernetes.io/metadata.name": one(base, "Namespace", "ablate")["metadata"]["name"]}
    job = one(built("data"), "Job", "ablate-data")
    assert claims([job]) == {study().data_claim}
    assert job["spec"]["template"]["spec"]["containers"][0]["volumeMounts"][1]["mountPath"] == DATA
    assert claims(local) == {"mlflow-artifacts"}
    one(local, "PersistentVolumeClaim", "ablate-runs")
    assert "--runs-claim ablate-runs" in (DEPLOY / "overlays/local/kustomization.yaml").read_text()


def test_a_queue_promises_no_more_than_the_quota_leaves_beside_mlflow() -> None:
    hard = one(built("overlays/gpu"), "ResourceQuota", "ablate")["spec"]["hard"]
    (group,) = one(built("kueue"), "ClusterQueue", "ablate")["spec"]["resourceGroups"]
    (mlflow,) = containers([one(built("overlays/gpu"), "Deployment", "mlflow")])
    for each in group["flavors"][0]["resources"]:
        for name in ("requests", "limits"):
            limit = hard.get(f"{name}.{each['name']}")
            beside = number(mlflow["resources"][name].get(each["name"], "0"))
            assert limit is None or number(each["nominalQuota"]) + beside <= number(limit)
    assert set(group["coveredResources"]) == {"cpu", "memory", "nvidia.com/gpu"}, "all that the pods of a study ask for"


def test_preflight_finds_all_of_it(tmp_path: Path) -> None:
    assert preflight(study(runs_claim="ablate-runs", memory="8Gi"), get=answering("overlays/local", tmp_path)) == []
    with pytest.raises(RequestError, match="still holds a placeholder") as error:
        preflight(study(gpus=16, cpus="8"), get=answering("overlays/gpu", tmp_path))
    assert len(str(error.value).splitlines()) == 2, "the bucket and its region, which only you know"
    with pytest.raises(RequestError, match="the study needs 17, the quota ablate leaves 16 of 16"):
        preflight(study(gpus=17), get=answering("overlays/gpu", tmp_path))


def answering(folder: str, temporary: Path) -> Callable[[Sequence[str]], Plain | None]:
    """Return a `kubectl get` to which all of `folder` has been applied, and its Secret made."""
    made = make_secret(temporary / "made", "local")
    data = {key: base64.b64encode(text.encode()).decode() for key, text in made.data.items()}
    objects = {(each["kind"].lower(), each["metadata"]["name"]): each for each in built(folder)}
    objects["secret", "ablate"] = {"data": data}
    objects["customresourcedefinition", "rayjobs.ray.io"] = {"kind": "CustomResourceDefinition"}

    def get(arguments: Sequence[str]) -> Plain | None:
        if arguments[0] == "resourcequota":
            return {"items": [each for (kind, _), each in objects.items() if kind == "resourcequota"]}
        return objects.get((arguments[0], arguments[1]))

    return get


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
    binding = one(built("base"), "RoleBinding", "ablate-user")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert {each["kind"] for each in binding["subjects"]} == {"Group"}, "no account of a pod has any right"


def test_the_namespace_enforces_what_our_rules_check() -> None:
    labels = one(built("base"), "Namespace", "ablate")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.filterwarnings("ignore::UserWarning")  # MLflow's own, as it is imported
def test_mlflow_is_started_with_options_and_variables_that_it_has() -> None:
    from mlflow.cli import server
    from mlflow.environment_variables import MLFLOW_AUTH_CONFIG_PATH, MLFLOW_SERVER_ENABLE_JOB_EXECUTION
    from mlflow.server.security_utils import is_allowed_host_header

    (container,) = containers([one(built("overlays/local"), "Deployment", "mlflow")])
    assert container["command"] == ["tini", "-g", "--", "mlflow", "server"]
    parsed = server.make_context("server", list(container["args"])).params
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


Mutation = Callable[[list[Plain]], object]


def spec(objects: list[Plain], kind: str = "Deployment", name: str = "mlflow") -> Plain:
    """Return the spec of a workload's pods."""
    found: Plain = one(objects, kind, name)["spec"]["template"]["spec"]
    return found


def first(objects: list[Plain], kind: str = "Deployment", name: str = "mlflow") -> Plain:
    """Return a workload's first container."""
    found: Plain = spec(objects, kind, name)["containers"][0]
    return found


def policy(objects: list[Plain], name: str) -> Plain:
    """Return the spec of a NetworkPolicy."""
    found: Plain = one(objects, "NetworkPolicy", name)["spec"]
    return found


def without(objects: list[Plain], kind: str, name: str) -> None:
    """Remove an object."""
    objects.remove(one(objects, kind, name))


SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "s", "namespace": "ablate"},
    "stringData": {"a": "b"},
}
EMPTY_SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "ablate"}}
MUTATIONS: dict[str, tuple[Mutation, str]] = {
    "root": (lambda o: spec(o)["securityContext"].update(runAsUser=0), "runAsNonRoot"),
    "root-database": (lambda o: spec(o, "StatefulSet", "postgres").pop("securityContext"), "runAsNonRoot"),
    "privileged": (lambda o: first(o)["securityContext"].update(privileged=True), "privileged"),
    "writable-root": (lambda o: first(o)["securityContext"].pop("readOnlyRootFilesystem"), "readOnlyRootFilesystem"),
    "no-limits": (lambda o: first(o)["resources"].pop("limits"), "limits: must name cpu and memory"),
    "no-requests": (lambda o: first(o, "StatefulSet", "postgres").pop("resources"), "requests: must name cpu"),
    "host-path": (lambda o: spec(o)["volumes"].append({"name": "h", "hostPath": {"path": "/"}}), "hostPath"),
    "host-network": (lambda o: spec(o).update(hostNetwork=True), "hostNetwork"),
    "mount-of-no-volume": (lambda o: spec(o)["volumes"].pop(), "is no volume of this pod"),
    "secret-object": (lambda o: o.append(SECRET), "no secret may stand in a manifest"),
    "secret-without-data": (lambda o: o.append(EMPTY_SECRET), "made by deploy/secret.sh"),
    "password-in-sight": (
        lambda o: first(o)["env"].append({"name": "MLFLOW_AUTH_ADMIN_PASSWORD", "value": "x"}), "from a Secret"),
    "password-in-a-url": (
        lambda o: first(o)["args"].append("--backend-store-uri=postgresql://a:b@c/d"), "hold no password"),
    "password-in-settings": (
        lambda o: one(o, "ConfigMap", "ablate")["data"].update(ABLATE_STORAGE="postgresql://a:b@c/d"), "place is a S"),
    "image-latest": (lambda o: first(o).update(image="ablate:latest"), "ablate:latest has no version"),
    "image-without-version": (lambda o: first(o).update(image="registry:5000/ablate"), "has no version"),
    "open-service": (lambda o: one(o, "Service", "mlflow")["spec"].update(type="NodePort"), "open to the world"),
    "token": (lambda o: spec(o).pop("automountServiceAccountToken"), "has a token of the API server"),
    "no-namespace": (lambda o: one(o, "Service", "mlflow")["metadata"].pop("namespace"), "is in no namespace"),
    "unknown-field": (lambda o: first(o).update(readiness={}), "'readiness' was unexpected"),
    "unknown-field-of-a-policy": (lambda o: policy(o, "mlflow").update(policyType=["Ingress"]), "'policyType' was"),
    "replicas-as-text": (lambda o: one(o, "Deployment", "mlflow")["spec"].update(replicas="1"), "is not of type"),
    "probe-without-a-port": (lambda o: first(o)["readinessProbe"]["httpGet"].pop("port"), "'port' is a required"),
    "no-denial": (lambda o: without(o, "NetworkPolicy", "deny-all"), "elsewhere may speak to a pod of ours"),
    "denial-of-one-direction": (lambda o: policy(o, "deny-all")["policyTypes"].remove("Ingress"), "to a pod of ours"),
    "mlflow-open-to-all-namespaces": (
        lambda o: policy(o, "mlflow")["ingress"][0]["from"][0].update(namespaceSelector={}), "elsewhere may speak"),
    "operator-from-anywhere": (
        lambda o: policy(o, "operator-to-head")["ingress"][0]["from"][0].update(namespaceSelector={}),
        "one that calls itself operator may speak to head"),
    "operator-on-every-port": (
        lambda o: policy(o, "operator-to-head")["ingress"][0].pop("ports"), "the operator may speak to head"),
    "metrics-on-every-port": (lambda o: policy(o, "metrics")["ingress"][0].pop("ports"), "Prometheus may speak"),
    "database-open-to-trials": (
        lambda o: policy(o, "ray").update(egress=[{}]) or policy(o, "postgres").update(ingress=[{}]),
        "worker may speak to postgres"),
    "ray-open-to-all-namespaces": (
        lambda o: policy(o, "ray").update(ingress=[{"from": [{"namespaceSelector": {}}]}]), "elsewhere may speak"),
}  # fmt: skip


@pytest.mark.parametrize(("mutate", "said"), MUTATIONS.values(), ids=MUTATIONS.keys())
def test_a_deployment_with_one_fault_is_refused(mutate: Mutation, said: str) -> None:
    objects = built("overlays/local")
    mutate(objects)
    assert any(re.search(said, line) for line in refused(objects)), refused(objects)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"cidr": "0.0.0.0/0"}, "mlflow may speak to the node's metadata"),
        ({"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}, "mlflow may speak to the node's metadata"),
    ],
)
def test_a_way_to_the_nodes_credentials_is_refused(block: Plain, said: str) -> None:
    objects = built("overlays/gpu")
    policy(objects, "mlflow-bucket-and-database")["egress"][0]["to"][0]["ipBlock"] = block
    assert said in refused(objects)


def test_another_version_of_kueue_is_noticed() -> None:
    objects = built("kueue")
    objects[0]["apiVersion"] = "kueue.x-k8s.io/v1alpha1"
    assert any("is of kueue.x-k8s.io/v1alpha1" in line for line in refused(objects))
