"""Files of other tools, and the study that `ablate new --from` makes of one."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution

from ablate.studies.optuna_file import real_distribution
from ablate.study import Study, parse_study
from ablate.study.space import Choices, Range
from support.commands import run

WANDB: dict[str, Any] = {
    "program": "train it.py",
    "method": "bayes",
    "metric": {"name": "val_loss", "goal": "minimize"},
    "run_cap": 30,
    "parameters": {"lr": {"distribution": "log_uniform_values", "min": 0.0001, "max": 0.1}, "epochs": {"value": 9}},
    "early_terminate": {"type": "hyperband", "min_iter": 3, "eta": 2},
}
CONTAINER: dict[str, Any] = {
    "name": "main",
    "image": "docker.io/mine:1",
    "command": ["python3", "/opt/a b.py", "--lr=${trialParameters.rate}", "--num-epochs=20"],
    "args": ["{x}", "--layers", "${trialParameters.layers}", "--out=${trialParameters.trial}"],
    "env": [{"name": "TOKEN", "value": "hunter2"}, {"name": "BATCH", "value": "${trialParameters.batch}"}],
    "resources": {"limits": {"nvidia.com/gpu": 2}},
}
KATIB: dict[str, Any] = {
    "apiVersion": "kubeflow.org/v1beta1",
    "kind": "Experiment",
    "spec": {
        "objective": {"type": "maximize", "objectiveMetricName": "Validation-accuracy", "goal": 0.99},
        "algorithm": {"algorithmName": "tpe"},
        "earlyStopping": {
            "algorithmName": "medianstop",
            "algorithmSettings": [{"name": "min_trials_required", "value": "1"}, {"name": "start_step", "value": "5"}],
        },
        "parallelTrialCount": 3,
        "maxTrialCount": 12,
        "parameters": [
            {"name": "lr", "parameterType": "double", "feasibleSpace": {"min": "0.01", "max": "0.03"}},
            {"name": "num-layers", "parameterType": "int", "feasibleSpace": {"min": "2", "max": "5"}},
            {"name": "batch", "parameterType": "discrete", "feasibleSpace": {"list": ["32", "64"]}},
        ],
        "trialTemplate": {
            "primaryContainerName": "main",
            "trialParameters": [
                {"name": "rate", "reference": "lr"},
                {"name": "layers", "reference": "num-layers"},
                {"name": "trial", "reference": "${trialSpec.Name}"},
            ],
            "trialSpec": {"spec": {"template": {"spec": {"containers": [{"name": "other"}, CONTAINER]}}}},
        },
    },
}  # fmt: skip
HYDRA: dict[str, Any] = {
    "defaults": ["_self_", {"override hydra/sweeper": "optuna"}],
    "optimized_metric": "val/acc_best",
    "hydra": {
        "sweeper": {
            "direction": "maximize",
            "n_trials": 20,
            "sampler": {"_target_": "optuna.samplers.TPESampler", "seed": 1},
            "params": {"db.lr": "interval(0.1, 0.5)", "+layers": "choice(1, 2)", "~old": None, "++n_epochs": 7},
        }
    },
}


def written(capfd: Any, source: Any) -> tuple[str, Study]:
    """Return text and study of the file for a source."""
    if not isinstance(source, str):
        Path("source.yaml").write_text(json.dumps(source))
        source = "source.yaml"
    Path("other.yaml").unlink(missing_ok=True)
    code, _, err = run(capfd, "new", "other", "--from", source)
    assert code == 0, err
    text = Path("other.yaml").read_text()
    return text, parse_study(text)


def distribution(spec: Range) -> BaseDistribution:
    """Return a range as Optuna's distribution."""
    return CategoricalDistribution(spec.choices) if isinstance(spec, Choices) else real_distribution(spec)


def with_setting(tool: str, spec: Any) -> dict[str, Any]:
    """Return a source of one setting `x`."""
    source = deepcopy({"wandb": WANDB, "katib": KATIB, "hydra": HYDRA}[tool])
    if tool == "wandb":
        source["parameters"] = {"x": spec}
    elif tool == "hydra":
        source["hydra"]["sweeper"]["params"] = {"x": spec}
    else:
        source["spec"]["parameters"] = [{"name": "x", **spec}]
        del source["spec"]["trialTemplate"]
    return source
