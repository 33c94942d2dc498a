"""What deploy/README.md tells people to type exists: commands, options, files, keys, metrics."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from ablate.cli import app as cli
from ablate.kubernetes.template import manifest
from support.cluster_schemas import pods_of
from support.deployed import DEPLOY, REPOSITORY, built, containers, number, one
from support.manifests import METRICS_PORT, request

TEXT = (DEPLOY / "README.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", TEXT, re.S)
LINES = [line for block in BLOCKS for line in re.sub(r"\\\n\s*", "", block).splitlines()]


def commands(program: str) -> list[list[str]]:
    """Return the calls of a program in the blocks, as words."""
    found = []
    for line in LINES:
        for part in re.split(r"\s\|\s|&&|\$\(", re.sub(r" # .*| > \S+", "", line)):
            words = shlex.split(part.rstrip("& )").replace("$(", "")) if part.count("'") % 2 == 0 else part.split()
            words = words[[("=" in word and word.isupper()) for word in words].index(False) :] if words else words
            if words[:1] == [program]:
                found.append(words[1:])
    return found


@pytest.mark.parametrize("words", commands("ablate"), ids=" ".join)
def test_ablate_has_every_command_and_option(words: list[str]) -> None:
    command = get_command(cli.app)
    while hasattr(command, "commands"):
        command = command.commands[words[0]]
        words = words[1:]
    command.make_context("ablate", list(words))
    for path in words:
        if path.endswith(".yaml"):
            assert (REPOSITORY / path).is_file()


def test_eight_commands_make_a_study_from_nothing() -> None:
    lines = re.sub(r"\\\n\s*", "", BLOCKS[0]).splitlines()
    assert len(lines) <= 8
    assert any(line.startswith("ablate k8s render") for line in lines)


def test_what_the_first_study_asks_for_in_all_is_the_sum_of_its_pods() -> None:
    pods = pods_of(manifest(request(cpus=2, memory="4Gi"))[-1])
    every = [*(each for pod in pods for each in pod["spec"]["containers"]), *containers(built("overlays/local"))]
    cpus, memory = (sum(number(each["resources"]["requests"][name]) for each in every) for name in ("cpu", "memory"))
    assert f"asks for {float(cpus):g} CPUs and {float(memory / 2**30):g} GiB in all" in TEXT
    assert len(re.findall(r"digits.yaml --image ablate:0.1.0 --cpus 2 --memory 4Gi", TEXT)) == 2, (
        "it goes on as it began"
    )


@pytest.mark.parametrize("name", re.findall(r"kubectl wait \S+ job/(\S+)", TEXT))
def test_the_job_that_is_waited_for_is_there(name: str) -> None:
    one(built("data"), "Job", name)


@pytest.mark.parametrize("path", re.findall(r"(?:-k|sh|--file) (deploy/[\w/.-]+)", TEXT))
def test_every_path_is_there(path: str) -> None:
    assert (REPOSITORY / path).exists()


@pytest.mark.parametrize("path", re.findall(r"`(tests/[\w/.]+)`", TEXT))
def test_every_test_that_is_named_is_there(path: str) -> None:
    assert (REPOSITORY / path).exists()


def test_metrics_are_those_of_the_driver() -> None:
    source = (REPOSITORY / "ablate" / "driver" / "prometheus.py").read_text()
    known = set(re.findall(r'"(ablate_\w+)"', source))
    known |= {f"{name}_total" for name in known}
    (block,) = re.findall(r"```promql\n(.*?)```", TEXT, re.S)
    named = set(re.findall(r"\bablate_\w+", block))
    assert named
    assert named <= known
    assert f"port {METRICS_PORT}, `ablate-metrics`" in TEXT


def test_keys_services_and_names_are_those_that_are_deployed() -> None:
    script = (DEPLOY / "secret.sh").read_text()
    for key in re.findall(r"\{\.data\.([\w-]+)\}", TEXT):
        assert f"put {key} " in script
    local = built("overlays/local")
    for name in set(re.findall(r"svc/(\w+) ", TEXT)):
        one(local, "Service", name)
    for pod in set(re.findall(r"-- pg_dump|exec -n ablate (postgres)-0", TEXT)) - {""}:
        one(local, "StatefulSet", pod)
    one(local, "Deployment", "mlflow")
    one(local, "PersistentVolumeClaim", "ablate-runs")


def test_every_overlay_says_where_names_are_to_be_put() -> None:
    marked = {path.name for path in (DEPLOY / "overlays/gpu").glob("*.yaml") if "REPLACE" in path.read_text()}
    assert marked == {"kustomization.yaml", "settings.yaml", "data.yaml"}
    assert "REPLACE" in (DEPLOY / "data/kustomization.yaml").read_text()
    assert "REPLACE" in (DEPLOY / "overlays/tenant/kustomization.yaml").read_text()
    assert not [path for path in Path(DEPLOY / "overlays/local").glob("*.yaml") if "REPLACE" in path.read_text()]
