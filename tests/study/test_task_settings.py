"""Each task has its own settings: those of another task are refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ablate.core.registry import TASKS, read_task
from support.commands import run
from support.entries import is_not_had, refusal

COMMON = {"task", "validation", "train_limit", "share"}
OWN = {
    "patch": {"digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "tiny_imagenet", "imagenet", "image_folder"},
    "image_size": {"tiny_imagenet", "imagenet", "image_folder", "set_anomaly"},
    "path": {"image_folder", "set_anomaly"},
    "length": {"reverse", "sort", "sub", "swap", "copy", "numbers", "tiny_shakespeare"},
    "options": {"tiny_imagenet", "imagenet"},
}
VALUES = {"patch": 2, "image_size": 8, "path": "x", "length": 4, "options": {}}
WITHOUT_TORCH = """
import sys
from ablate.core.registry import TASKS
from ablate.study import parse_study
parse_study("study: s\\ndatasets: [" + ", ".join(TASKS.names()) + "]\\n")
print(sorted({"torch", "ray", "optuna", "mlflow", "polars"} & set(sys.modules)))
"""


@pytest.mark.parametrize("task", TASKS.names())
def test_a_task_takes_the_settings_that_it_has_and_no_others(task: str) -> None:
    for setting, tasks in OWN.items():
        if task in tasks:
            assert read_task({"task": task, setting: VALUES[setting]}).model_fields_set == {"task", setting}
        else:
            said = refusal(task=task, **{setting: VALUES[setting]})
            known = sorted(COMMON | {name for name, owners in OWN.items() if task in owners})
            assert is_not_had(said, task, setting)
            assert said.endswith(f"Known: {', '.join(known)}.")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("mnist: {length: 5}", ":3: datasets.mnist.length = 5: task mnist does not have this setting. Known: patch, "),
        ("a: {task: set_anomaly, patch: 7}", ":3: datasets.a.patch = 7: task set_anomaly does not have this setting."),
        ("imagenet: {options: {worker: 2}}", "options.worker: this key is not known. Did you mean 'workers'"),
        ("imagenet: {options: {workers: -1}}", "options.workers = -1: Input should be greater than or equal to 0"),
        ("imagenet: {options: {augment: 'no'}}", "options.augment = 'no': Input should be a valid boolean"),
        (
            "a: {task: 'mine:build', patch: 7}",
            ":3: datasets.a.task = 'mine:build': task 'mine:build' is not known. Known: ",
        ),
        ("a: {task: 'mine:build'}", "Data of your own come with a training function: `ablate new NAME --supervised`"),
        (
            "a: {task: minst, length: 7}",
            ":3: datasets.a.task = 'minst': task 'minst' is not known. Did you mean 'mnist",
        ),
    ],
)
def test_plan_names_place_value_rule_and_what_is_known(
    entry: str, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(f"study: s\ndatasets:\n  {entry}\n")
    code, _, err = run(capfd, "plan", str(file))
    assert code == 2
    assert said in " ".join(err.split())


def test_the_settings_of_every_task_are_read_without_torch() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
