"""What ablate takes from Ray's private parts: one file names and reads it, and can do without it."""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray import tune
from ray._raylet import AuthenticationTokenLoader, Config
from ray.job_config import JobConfig
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment.trial import Trial

import ablate
from ablate.execution import ray_private, ray_process, tune_adapter
from ablate.execution.own_ray import SETTINGS, environment
from ablate.execution.worker import TrialActor

SOURCES = Path(ablate.__file__).parent
RAY = Path(ray.__file__).parent
NAMES = {"AuthenticationTokenLoader", "Config", "_client_job"}


def private_names(tree: ast.AST) -> Iterator[str]:
    """Yield the private names of Ray that a module imports or reaches through `ray`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ray":
            parts = (node.module or "").split(".")
            for alias in node.names:
                if any(part.startswith("_") for part in (*parts, alias.name)) or "experimental" in parts:
                    yield alias.name
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("ray._"))
        if isinstance(node, ast.keyword) and (node.arg or "").startswith("_"):
            yield str(node.arg)
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            root: ast.AST = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id not in ("self", "os"):
                yield node.attr


def test_one_file_uses_private_names_of_ray_and_its_top_has_them_all() -> None:
    found = {file: set(private_names(ast.parse(file.read_text()))) for file in SOURCES.rglob("execution/*.py")}
    assert {file.name: names for file, names in found.items() if names} == {"ray_private.py": NAMES}
    assert all(name in str(ray_private.__doc__) for name in NAMES)


def test_ray_has_the_private_names_that_are_read() -> None:
    inspect.signature(JobConfig).bind(_client_job=True)
    assert ray_private.job_config()._client_job
    assert callable(Config.initialize)
    assert callable(AuthenticationTokenLoader.instance().reset_cache)


def test_without_the_private_names_their_readers_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.job_config.JobConfig.__init__", lambda self: None)
    assert isinstance(ray_private.job_config(), JobConfig)
    monkeypatch.setitem(sys.modules, "ray._raylet", builtins)
    ray_private.read_authentication()


STARTED = """
import json, os, sys
from ablate.execution import ray_private
from ablate.execution.cluster import ray_session

if sys.argv[1:] == ["without"]:
    import ablate.execution.cluster as cluster, ablate.execution.own_ray as own_ray
    cluster.read_authentication = own_ray.read_authentication = lambda: None
    cluster.job_config = lambda: None
if sys.argv[1:] == ["imported"]:
    import ray
with ray_session(None) as connection:
    import ray
    group = connection.own.process.pid
    answer = ray.get(ray.remote(lambda number: 2 * number).remote(21))
    found = [place for place in os.listdir("/proc") if place.isdigit()]
    lines = []
    for place in found:
        try:
            if os.getpgid(int(place)) == group:
                lines.append(open(f"/proc/{place}/cmdline").read().replace(chr(0), " "))
        except OSError:
            pass
    print(json.dumps({"answer": answer, "lines": lines, "apart": os.getpgrp() != group}))
"""


@pytest.mark.services
@pytest.mark.parametrize("how", ["", "imported", "without"])
def test_a_ray_that_is_started_here_is_apart_and_has_no_dashboard_and_monitors(how: str) -> None:
    command = [sys.executable, "-c", STARTED, *filter(None, [how])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["answer"] == 42
    assert found["apart"], "a signal to the group of the driver would end Ray before trials have paused"
    programs = [line for line in found["lines"] if line]
    assert any("/gcs_server" in line for line in programs)
    assert any("/raylet/raylet" in line for line in programs)
    assert not [line for line in programs for name in ray_process.SUPERFLUOUS if name.decode() in line]


def test_ray_has_the_processes_and_settings_by_the_names_that_are_known_here() -> None:
    source = (RAY / "_private" / "services.py").read_text()
    for name in ray_process.SUPERFLUOUS:
        assert f'"{name.decode().rpartition("/")[2]}"' in source, name
    core = (RAY / "_raylet.so").read_bytes() + (RAY / "_private" / "ray_constants.py").read_bytes()
    for name in SETTINGS:
        assert name.removeprefix("RAY_").encode() in core, name
    assert tune_adapter.DEAD_BECAUSE.encode() in core
    read = "".join(file.read_text() for folder in ("tune", "air", "train") for file in (RAY / folder).rglob("*.py"))
    for name in (*tune_adapter.TUNE_SETTINGS, tune_adapter.PENDING_TRIALS):
        assert re.search(rf"[\"']{name}[\"']", read), name


def test_the_actor_overrides_what_a_trainable_documents() -> None:
    assert issubclass(TrialActor, tune.Trainable)
    own = {name for name in vars(TrialActor) if not name.startswith("_")}
    assert own - {"change"} <= set(vars(tune.Trainable))
    called = set(re.findall(r"method_name ?= ?\"(\w+)\"", inspect.getsource(TuneController)))
    assert not {name for name in called if not hasattr(TrialActor, name)}
    assert hasattr(Trial("begun", stub=True).temporary_state, "ray_actor")


def test_ray_reads_a_token_again_and_forgets_it() -> None:
    def has_token() -> bool:
        return bool(AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True))

    with environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="a" * 64, HOME="/nowhere"):
        ray_private.read_authentication()
        assert has_token()
        del os.environ["RAY_AUTH_TOKEN"]
        ray_private.read_authentication()
        assert not has_token()
    ray_private.read_authentication()
