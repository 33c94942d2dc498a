"""What ablate takes from Ray's private parts: only one file does, it says why, and Ray still has it as it is used."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import ray
from ray import tune
from ray._private import ray_constants, ray_logging, services, worker
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
from ray._private.node import Node
from ray._raylet import AuthenticationTokenLoader, InnerGcsClient
from ray.air.execution._internal.actor_manager import RayActorManager
from ray.cloudpickle import CloudPickler
from ray.exceptions import NodeDiedError, ObjectLostError, OutOfMemoryError, RayActorError, WorkerCrashedError
from ray.experimental import internal_kv
from ray.job_config import JobConfig
from ray.train._internal.storage import StorageContext
from ray.tune.execution.tune_controller import TrialRunnerWrapper, TuneController
from ray.tune.experiment.trial import Trial, _TrialInfo

import ablate
from ablate.execution import ray_private
from ablate.execution.own_ray import environment
from ablate.execution.worker import TrialActor
from support import fakes
from support.paths import TESTS

SOURCES = Path(ablate.__file__).parent
RAY = Path(ray.__file__).parent
CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {  # name: (function, how it is called)
    "get_node": (services.get_node, ("gcs", "id"), {}),
    "address": (services.canonicalize_bootstrap_address_or_die, ("auto",), {}),
    "token": (maybe_enable_token_auth_if_token_available, (), {"warn_if_disabled": False}),
    "job": (JobConfig, (), {"_client_job": True}),
    "init": (ray.init, (), {"_node_ip_address": "127.0.0.1", "_temp_dir": "/tmp", "object_store_memory": 1}),
    "kill": (Node.kill_all_processes, (None,), {"check_alive": False, "allow_graceful": False}),
    "dead": (Node.dead_processes, (None,), {}),
    "put": (internal_kv._internal_kv_put, (b"key", b"1"), {}),
    "exists": (internal_kv._internal_kv_exists, (b"key",), {}),
    "failed": (RayActorManager._actor_task_failed, (None, "task", RuntimeError()), {}),
    "cleanup": (RayActorManager.cleanup, (None,), {}),
}


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
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            root: ast.AST = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id not in ("self", "os"):
                yield node.attr


def test_one_file_uses_private_apis_of_ray_and_its_top_names_them() -> None:
    found = {file: set(private_names(ast.parse(file.read_text()))) for file in SOURCES.rglob("execution/*.py")}
    assert {file.name for file, names in found.items() if names} == {"ray_private.py"}
    (names,) = [names for names in found.values() if names]
    said = str(ray_private.__doc__)
    assert {name for name in names if name not in said} <= {"services", "ray_constants", "Config", "_private"}
    assert len(names) > 12


@pytest.mark.parametrize("name", CALLS)
def test_a_private_function_takes_what_it_is_given(name: str) -> None:
    function, arguments, named = CALLS[name]
    inspect.signature(function).bind(*arguments, **named)


def test_ray_starts_its_raylet_through_the_functions_that_are_replaced() -> None:
    source = inspect.getsource(Node)
    assert "services.get_node(" in source
    assert "services.start_raylet(" in source
    assert "self.all_processes" in source
    assert "process" in services.ProcessInfo._fields, "it is asked whether it has ended"
    assert hasattr(InnerGcsClient, "get_all_node_info")
    assert "_global_node" in vars(worker)


STARTED = """
import os, sys
import ray
from ablate.execution.own_ray import own_ray
with own_ray(lambda: None):
    double = ray.remote(lambda number: 2 * number)
    print(ray.get(double.remote(21)), *ray._private.worker._global_node.all_processes)
    begun = [each for kind in ray._private.worker._global_node.all_processes.values() for each in kind]
    print(sum(os.getpgid(each.process.pid) == os.getpgrp() for each in begun))
print("ray.dashboard.optional_deps" in sys.modules)
"""


@pytest.mark.services
def test_a_ray_that_is_started_here_works_without_dashboard_and_monitors() -> None:
    done = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True, check=True)
    first, in_our_group, imported = done.stdout.splitlines()
    answer, *processes = first.split()
    assert answer == "42"
    assert set(processes) == {"gcs_server", "raylet"}
    assert in_our_group == "0", "a signal to the group of the driver would end Ray before trials have paused"
    assert imported == "False"


TAKEN = """
import json, os, sys
import ray
from ray import tune
from ablate.execution.own_ray import own_ray
from ablate.execution.ray_private import actors_of_tune

class Waiting:
    def __init__(self, config, storage):
        self.given = [storage, *(value for name, value in config.items() if "info" in name)]

    def train(self):
        ray_context = ray.get_runtime_context()
        return {"environment": ray_context.get_runtime_env_string(), "tune": "ray.tune" in sys.modules,
                "fork": os.environ["PL_DISABLE_FORK"], "given": self.given, "done": True, "training_iteration": 1}

    def get_auto_filled_metrics(self, debug_metrics_only=False):
        return {}

    def stop(self):
        pass

def result():
    kept = tune.CheckpointConfig(checkpoint_at_end=False)
    run = tune.RunConfig(storage_path=sys.argv[1], verbose=0, checkpoint_config=kept)
    found = tune.Tuner(tune.with_resources(tune.Trainable, {"cpu": 1}), run_config=run).fit()[0].metrics
    return {name: found[name] for name in ("environment", "tune", "fork", "given")}

with own_ray(lambda: None):
    with actors_of_tune(Waiting):
        print(chr(10) + json.dumps(result()))
    del os.environ["PL_DISABLE_FORK"]  # as in a Ray that someone else has started in this process
    with actors_of_tune(Waiting):
        print(chr(10) + json.dumps(result()))
"""


@pytest.mark.services
def test_an_actor_imports_nothing_of_tune_and_takes_a_worker_that_waits_where_that_has_tunes_settings(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", TAKEN, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    ours, anyone = (json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"environment"'))
    assert ours == {"environment": "{}", "tune": False, "fork": "1", "given": [None, None]}
    passed = json.loads(anyone.pop("environment"))["env_vars"]
    own = {name: value for name, value in passed.items() if name not in os.environ}  # Tune passes some of ours on
    assert own == ray_private.WORKER_SETTINGS, "Tune says so itself by a runtime environment"
    assert anyone == {"tune": False, "fork": "1", "given": [None, None]}


def test_what_tune_sends_is_again_sent_as_it_is_afterwards() -> None:
    sent = {StorageContext, _TrialInfo}
    with ray_private.actors_of_tune(Mock):
        assert sent <= set(CloudPickler.dispatch)
    assert not sent & set(CloudPickler.dispatch)


def test_an_actor_has_the_methods_that_tune_calls() -> None:
    called = set(re.findall(r"method_name ?= ?\"(\w+)\"", inspect.getsource(TuneController)))
    called |= set(re.findall(r"ray_actor\.(\w+)\.remote", inspect.getsource(Trial))) | {"stop"}
    without = {"train_buffered", "save", "restore", "export_model", "get_current_ip_pid"}  # never asked for
    assert {name for name in called if not hasattr(TrialActor, name)} == without
    for name in ("__init__", "reset", "train", "stop", "get_auto_filled_metrics"):
        assert parameters(getattr(TrialActor, name)) == parameters(getattr(tune.Trainable, name)), name


def parameters(function: Callable[..., Any]) -> set[str]:
    """Return the parameters of a method that Tune gives a value."""
    others = {"logger_creator", "now", "time_this_iter", "timestamp", "_ray_trace_ctx"}
    return set(inspect.signature(function).parameters) - others


TRAINER = """
import sys
import ray
from support import fakes

def train(config, **context):
    environment = ray.get_runtime_context().get_runtime_env_string()
    slow = sorted({"pandas", "ray.train", "ray.tune"} & set(sys.modules))
    fakes.note(context["checkpoints"].parents[2], "worker", config.key, environment=environment, slow=slow)
    yield from fakes.train(config, **context)
"""
SEARCH = """
import sys
from pathlib import Path
from ablate.execution import RayExecutor
from support import witness

home = Path(sys.argv[1])
with witness.searching(home, 2) as search:
    RayExecutor(home=home, device="cpu", trainer="where:train").run(search, on_event=lambda: None)
"""


@pytest.mark.services
def test_the_trials_of_a_search_take_workers_that_wait_and_import_nothing_of_tune(tmp_path: Path) -> None:
    (tmp_path / "where.py").write_text(TRAINER)
    environment = os.environ | {"PYTHONPATH": f"{TESTS}{os.pathsep}{tmp_path}"}
    subprocess.run([sys.executable, "-c", SEARCH, str(tmp_path)], env=environment, capture_output=True, check=True)
    found = [(line["environment"], line["slow"]) for line in fakes.trace(tmp_path) if line["what"] == "worker"]
    assert found == [("{}", [])] * 2


def test_ray_keeps_the_loopback_address_only_where_it_is_told_to() -> None:
    with ray_private._on_loopback():
        assert not ray_constants.ENABLE_RAY_CLUSTER
        assert services.resolve_ip_for_localhost("127.0.0.1") == "127.0.0.1"
    assert ray_constants.ENABLE_RAY_CLUSTER


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


def test_what_a_raylet_prints_is_dropped_inside_the_block() -> None:
    batch = {"ip": "127.0.0.1", "pid": "raylet", "lines": ["a line"], "job": None, "is_err": True, "actor_name": None}

    def printed() -> list[str]:
        return [line for each in ray_logging.stdout_deduplicator.deduplicate(batch) for line in each["lines"]]

    with ray_private.raylet_silenced():
        assert printed() == []
    assert printed() == ["a line"]


def test_ray_counts_this_machine_without_being_started() -> None:
    found = ray_private.own_resources()
    assert found["CPU"] == os.cpu_count()
    assert not ray.is_initialized()
    assert not ray_private.is_own()
    assert ray_private.ended_part() is None
    ray_private.kill()


ERRORS = [NodeDiedError("a"), ObjectLostError("a", None, ""), OutOfMemoryError("a"), WorkerCrashedError()]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_each_way_in_which_a_worker_goes_is_one_that_tune_knows(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(error, ray_private.WORKER_GONE)
    passed: list[Exception] = []
    monkeypatch.setattr(RayActorManager, "_actor_task_failed", lambda self, task, exception: passed.append(exception))
    before = RayActorManager._actor_task_failed
    with ray_private.every_death_known():
        RayActorManager._actor_task_failed(None, None, error)
        RayActorManager._actor_task_failed(None, None, ValueError())
    assert [type(each).__name__ for each in passed] == ["RayActorError", "ValueError"]
    assert RayActorManager._actor_task_failed is before


@pytest.mark.parametrize("error", [*ERRORS, RayActorError()], ids=lambda error: type(error).__name__)
def test_a_worker_that_goes_while_it_starts_leaves_its_trial_without_facts(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(ref: object) -> None:
        raise error

    monkeypatch.setattr(ray, "get", get)
    begun = Trial("begun", stub=True)
    begun._default_result_or_future = ray.ObjectRef.nil()
    with ray_private.every_death_known():
        assert begun.last_result == {"trial_id": begun.trial_id}


def test_a_scheduler_reaches_the_workers_of_its_tuner() -> None:
    assert "self._actor_manager" in inspect.getsource(TuneController.__init__)
    controller = Mock()
    ray_private.kill_workers(TrialRunnerWrapper(controller, Mock()))
    controller._actor_manager.cleanup.assert_called_once_with()


def test_the_variables_that_are_set_are_those_that_ray_reads() -> None:
    read = "".join(file.read_text() for folder in ("tune", "air", "train") for file in (RAY / folder).rglob("*.py"))
    for name in (*ray_private.TUNE_SETTINGS, ray_private.PENDING_TRIALS):
        assert re.search(rf"[\"']{name}[\"']", read), name


def test_the_settings_of_rays_own_processes_have_their_names() -> None:
    core = (RAY / "_raylet.so").read_bytes()
    waits = inspect.getsource(ray_constants) + inspect.getsource(services) + inspect.getsource(Node)
    for name in (ray_private.RAYLET_WAIT, ray_private.GCS_WAIT, ray_private.METRICS, *ray_private.CONNECTING):
        setting = name.removeprefix("RAY_")
        assert name in waits or setting in waits or setting.encode() in core, name


def test_errors_without_a_type_have_the_texts_by_which_they_are_known() -> None:
    core = (RAY / "_raylet.so").read_bytes() + (RAY / "exceptions.py").read_bytes()
    assert ray_private.DEAD_BECAUSE.encode() in core
