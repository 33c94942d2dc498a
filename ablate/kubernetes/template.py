"""The manifest of a study: manifest.yaml.j2 with the values of one request, as objects and as YAML."""

from __future__ import annotations

import json
import shlex
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
import yaml
from markupsafe import Markup

from ablate.base.errors import Fault, RequestError
from ablate.kubernetes.request import (
    ANNOTATION_BYTES,
    ARCHITECTURE,
    DOCTOR_MINUTES,
    ClusterRequest,
    applied_bytes,
    option_value,
)

USER = 1000
SETTINGS = "ablate"  # the ConfigMap with the places of the store and of MLflow
RUNS, DATA, STUDY, SCRATCH = "/runs", "/data", "/study", "/tmp"
GRACE_SECONDS = 28  # spot nodes give 30
PAUSE_SECONDS = 20  # the part of GRACE_SECONDS in which running trials pause
METRICS_PORT = 9464
NO_ABLATE = "ablate: this image has no ablate. Build it from deploy/Dockerfile and name it with --image."
BUCKET_SECRETS = {  # variable: (key, optional)
    "AWS_ACCESS_KEY_ID": ("aws-access-key-id", True),
    "AWS_SECRET_ACCESS_KEY": ("aws-secret-access-key", True),
}
DRIVER_SECRETS = BUCKET_SECRETS | {
    "ABLATE_STORAGE": ("storage-url", False),
    "MLFLOW_TRACKING_USERNAME": ("mlflow-username", True),
    "MLFLOW_TRACKING_PASSWORD": ("mlflow-password", True),
}
PLACES = ("ABLATE_STORE", "MLFLOW_TRACKING_URI", "AWS_ENDPOINT_URL_S3", "AWS_REGION")  # keys of the ConfigMap
DRIVER = "bin/[a]blate (search|compare)"  # a pattern that matches the driver and not the shell that searches for it
# Ends the driver and waits for it. Ray gives its jobs only 3 s, and trials do not pause if the driver is killed. Ray
# ends at the SIGTERM that follows. `ray stop` would end the GCS first; `ray start --block` would then wait for a kill.
STOP = (
    f"pkill -TERM -f '{DRIVER}'; end=$(($(date +%s) + {PAUSE_SECONDS}));"
    f" while pgrep -f '{DRIVER}' >/dev/null && [ $(date +%s) -lt $end ]; do sleep 1; done"
)
NOT_TEXT = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null", "~"))


def rendered(request: ClusterRequest) -> str:
    """Return the manifest as YAML for `kubectl apply -f -`; raise RequestError if it is too large for that."""
    objects = manifest(request)
    for each in objects:
        if (size := applied_bytes(each)) >= ANNOTATION_BYTES:
            rule = f"`kubectl apply` takes an object of less than {ANNOTATION_BYTES:,} bytes."
            place = f"{each['kind']}/{each['metadata']['name']}"
            raise RequestError(Fault(path=place, value=size, rule=rule).render("manifest"))
    return yaml.dump_all(objects, Dumper=_Blocks, sort_keys=False, width=4096)


def manifest(request: ClusterRequest) -> list[dict[str, Any]]:
    """Return the study's ConfigMap, the head's PodDisruptionBudget and the RayJob, as plain values."""
    values = {
        "r": request, "ray": version("ray"), "entrypoint": entrypoint(request), "doctor": _doctor(request),
        "stop": STOP, "grace": GRACE_SECONDS, "user": USER, "metrics_port": METRICS_PORT, "places": PLACES,
        "secrets": {"head": DRIVER_SECRETS, "worker": BUCKET_SECRETS}, "settings": SETTINGS,
        "architecture": ARCHITECTURE, "runs": RUNS, "data": DATA, "study": STUDY, "scratch": SCRATCH,
    }  # fmt: skip
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, if PyYAML was built with libyaml
    study, *others = yaml.load_all(_template().render(values), Loader=loader)
    return [study | {"data": {"study.yaml": request.study_text}}, *others]


def entrypoint(request: ClusterRequest) -> str:
    """Return the command that the head runs; it creates or resumes the study, so that a retry continues it."""
    words = ["ablate", request.command, f"{STUDY}/study.yaml", "--address", "auto", "--gpus", str(request.gpus)]
    words += ["--gpus-per-trial", f"{request.gpus_per_trial:g}"] if request.gpus else ["--device", "cpu"]
    if request.worker_range is not None:
        words += ["--autoscale", str(request.workers)]
    words += ["--runs-dir", RUNS, "--grace", str(PAUSE_SECONDS - 2), "--metrics-port", str(METRICS_PORT)]
    # Prometheus scrapes the pod's address; the network policy keeps others out.
    return shlex.join([*words, "--metrics-host", "0.0.0.0", *request.arguments])


def _doctor(request: ClusterRequest) -> str:
    look = f"exec ablate doctor {STUDY}/study.yaml --runs-dir {RUNS} --wait {DOCTOR_MINUTES}m"
    tracker = option_value(request.arguments, "--tracker")
    look += f" --tracker {tracker}" if tracker else ""
    # KubeRay replaces a head whose doctor ends, so this one keeps running for inspection until it is deleted.
    stay = f"trap 'exit 143' TERM; sleep {DOCTOR_MINUTES * 60} & wait $!; exit 2"
    return f"command -v ablate >/dev/null || {{ echo '{NO_ABLATE}'; {stay}; }}; {look}"


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        # A value is written as JSON, which is YAML in one line; what a macro returns is Markup already.
        finalize=lambda value: value if isinstance(value, Markup) else Markup(json.dumps(value)),
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True,
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    return environment.get_template("manifest.yaml.j2")


class _Blocks(yaml.SafeDumper):
    """Writes text of several lines as a block."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Quote any text that a YAML reader takes for a number or a boolean: Kubernetes' own takes `y` and `1e3`."""
    plain = text[:1].isalpha() or text[:1] == "/"
    style = "|" if "\n" in text else None if plain and text.lower() not in NOT_TEXT else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Blocks.add_representer(str, _text)
