"""`ablate new --from` writes the search space of another tool, and names what has no counterpart."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from wandb.sdk.sweeps.scheduler.optuna import sweep_parameter_to_distribution

from ablate.studies.optuna_file import real_distribution
from ablate.study import load_study
from support.commands import run

WANDB: dict[str, Any] = {
    "program": "train it.py",
    "method": "bayes",
    "metric": {"name": "val_loss", "goal": "minimize"},
    "run_cap": 30,
    "parameters": {"lr": {"distribution": "log_uniform_values", "min": 0.0001, "max": 0.1}},
    "early_terminate": {"type": "hyperband", "min_iter": 3, "eta": 2},
}
KATIB: dict[str, Any] = {
    "apiVersion": "kubeflow.org/v1beta1",
    "kind": "Experiment",
    "spec": {
        "objective": {"type": "maximize", "objectiveMetricName": "accuracy", "goal": 0.99},
        "algorithm": {"algorithmName": "tpe"},
        "maxTrialCount": 12,
        "parameters": [
            {"name": "lr", "parameterType": "double", "feasibleSpace": {"min": "0.01", "max": "0.03"}},
            {"name": "num-layers", "parameterType": "int", "feasibleSpace": {"min": "2", "max": "5"}},
        ],
        "trialTemplate": {
            "trialParameters": [{"name": "rate", "reference": "lr"}, {"name": "layers", "reference": "num-layers"}],
            "trialSpec": {"spec": {"template": {"spec": {"containers": [{
                "command": ["python3", "/opt/a b.py", "--lr=${trialParameters.rate}"],
                "args": ["{x}", "--layers", "${trialParameters.layers}"],
                "env": [{"name": "TOKEN", "value": "hunter2"}],
            }]}}}},
        },
    },
}  # fmt: skip
HYDRA: dict[str, Any] = {
    "defaults": ["_self_"],
    "hydra": {
        "sweeper": {
            "_target_": "hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper",
            "direction": "maximize",
            "n_trials": 20,
            "sampler": {"_target_": "optuna.samplers.TPESampler", "seed": 1},
            "params": {"db.lr": "interval(0.1, 0.5)", "+layers": "choice(1, 2)"},
        }
    },
}
OF_WANDB = [
    ({"value": 10}, 10),
    ({"values": ["adam", "sgd"]}, {"choices": ["adam", "sgd"]}),
    ({"distribution": "categorical", "values": [1, 2.5, None]}, {"choices": [1, 2.5, None]}),
    ({"min": 1, "max": 5}, {"int": [1, 5]}),
    ({"min": 1, "max": 5.5}, {"float": [1, 5.5]}),
    ({"distribution": "uniform", "min": 1, "max": 5}, {"float": [1, 5]}),
    ({"distribution": "int_uniform", "min": -3, "max": 5}, {"int": [-3, 5]}),
    ({"distribution": "q_uniform", "min": 0, "max": 8, "q": 2}, {"int": [0, 8], "step": 2}),
    ({"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.25}, {"float": [0, 1], "step": 0.25}),
    ({"distribution": "log_uniform_values", "min": 0.001, "max": 1}, {"float": [0.001, 1], "log": True}),
    ({"distribution": "q_log_uniform_values", "min": 1, "max": 64}, {"int": [1, 64], "log": True}),
    ({"distribution": "q_log_uniform_values", "min": 8, "max": 64, "q": 8}, {"float": [8, 64], "log": True}),
    ({"distribution": "inv_log_uniform_values", "min": 0.1, "max": 1}, {"float": [0.1, 1], "log": True}),
    ({"distribution": "log_uniform", "min": -2, "max": 0}, {"float": [math.exp(-2), 1.0], "log": True}),
    ({"distribution": "inv_log_uniform", "min": 0, "max": 2}, {"float": [math.exp(-2), 1.0], "log": True}),
]
OF_KATIB = [
    ("double", {"min": "1e-3", "max": "1", "distribution": "logUniform"}, {"float": [0.001, 1], "log": True}),
    ("double", {"min": "0", "max": "1", "step": "0.25"}, {"float": [0, 1], "step": 0.25}),
    ("int", {"min": "2", "max": "8", "step": "3"}, {"int": [2, 8], "step": 3}),
    ("discrete", {"list": ["0.5", "1"]}, {"choices": [0.5, 1]}),
    ("categorical", {"list": ["sgd", "1"]}, {"choices": ["sgd", "1"]}),
]
OF_HYDRA = [
    ("1,2,'a,b'", {"choices": [1, 2, "a,b"]}),
    ("choice(adam, true)", {"choices": ["adam", True]}),
    ("5", 5),
    ("range(1, 10)", {"int": [1, 9]}),
    ("range(4)", {"int": [0, 3]}),
    ("range(start=1,stop=10,step=3)", {"int": [1, 7], "step": 3}),
    ("range(-5.5, 5.5, step=0.5)", {"float": [-5.5, 5.0], "step": 0.5}),
    ("interval(1, 5)", {"float": [1, 5]}),
    ("int(interval(1, 8))", {"int": [1, 8]}),
    ("tag(log, interval(1e-5, 0.1))", {"float": [1e-5, 0.1], "log": True}),
    ("tag(log, int(interval(1, 64)))", {"int": [1, 64], "log": True}),
]
WITHOUT = [  # a parameter that no range can express, by source
    *[("wandb", {"distribution": name, "mu": 0, "sigma": 1}) for name in ("normal", "q_log_normal", "beta")],
    ("katib", {"min": "0", "max": "1", "distribution": "normal"}),
    *[
        ("hydra", text)
        for text in ("glob(*)", "range(5, 1)", "int(interval(0.5, 2))", "int(" * 9_000 + "1" + ")" * 9_000)
    ],
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(capfd: Any, source: Any) -> tuple[str, dict[str, Any]]:
    """Return text and content of the study file for a source, which `ablate plan` accepts."""
    if not isinstance(source, str):
        Path("source.yaml").write_text(json.dumps(source))
        source = "source.yaml"
    code, _, err = run(capfd, "new", "other", "--from", source)
    assert code == 0, err
    code, _, err = run(capfd, "plan", "other.yaml", "--no-time")
    assert code == 0, err
    text = Path("other.yaml").read_text()
    return text, yaml.safe_load(text)


def with_parameter(tool: str, spec: Any, kind: str = "double") -> dict[str, Any]:
    """Return a source of one parameter `x`."""
    source = copy.deepcopy({"wandb": WANDB, "katib": KATIB, "hydra": HYDRA}[tool])
    if tool == "wandb":
        source["parameters"] = {"x": spec}
    elif tool == "hydra":
        source["hydra"]["sweeper"]["params"] = {"x": spec}
    else:
        source["spec"]["parameters"] = [{"name": "x", "parameterType": kind, "feasibleSpace": spec}]
        del source["spec"]["trialTemplate"]
    return source


@pytest.mark.parametrize(("spec", "expected"), OF_WANDB)
def test_a_parameter_of_wandb_is_the_range_that_wandb_itself_makes_of_it(spec: Any, expected: Any, capfd: Any) -> None:
    _, content = written(capfd, with_parameter("wandb", spec))
    found = content["config"]["x"]
    assert found == expected or found == {"float": pytest.approx(expected["float"]), "log": True}
    try:
        theirs = sweep_parameter_to_distribution(spec)
    except ValueError:  # Optuna has no distribution of this name
        return
    ours = load_study(Path("other.yaml")).space_for("data").ranges.get("config.x")
    assert theirs == (real_distribution(ours) if ours else optuna.distributions.CategoricalDistribution([expected]))


@pytest.mark.parametrize(("kind", "spec", "expected"), OF_KATIB)
def test_a_parameter_of_katib(kind: str, spec: Any, expected: Any, capfd: Any) -> None:
    assert written(capfd, with_parameter("katib", spec, kind))[1]["config"] == {"x": expected}


@pytest.mark.parametrize(("spec", "expected"), OF_HYDRA)
def test_an_override_of_hydra(spec: str, expected: Any, capfd: Any) -> None:
    assert written(capfd, with_parameter("hydra", spec))[1]["config"] == {"x": expected}


@pytest.mark.parametrize(("tool", "spec"), WITHOUT)
def test_what_no_range_can_express_is_to_be_filled_in(tool: str, spec: Any, capfd: Any) -> None:
    text, content = written(capfd, with_parameter(tool, spec))
    (line,) = [line for line in text.splitlines() if line.startswith("  x: ")]
    assert content["config"] == {"x": {"float": [0.1, 1.0]}}
    assert "# FILL IN: " in line
    assert json.dumps(spec)[1:40] in line


def test_a_sweep_of_wandb_as_a_whole(capfd: Any) -> None:
    text, content = written(capfd, WANDB | {"project": "mine", "parameters": {
        "lr": {"min": 0.0, "max": 1.0}, "epochs": {"value": 3}, "fast": {"values": [True, False]},
        "nested": {"parameters": {}},
    }, "command": ["${env}", "${interpreter}", "${program}", "{1}", "${args_no_boolean_flags}", "${args_json}"],
    })  # fmt: skip
    assert content["trainable"]["command"] == (
        "python 'train it.py' '{{1}}' '--lr={lr}' '--epochs={epochs_}' '{fast?--fast}'"
    )
    assert content["objectives"] == [{"metric": "val_loss", "direction": "minimize"}]
    assert content["scheduler"] == {"name": "asha", "min_epochs": 3, "reduction": 2}
    assert (content["sampler"], content["budget"]) == ({"name": "gp"}, {"trials": 30})
    assert content["config"]["epochs_"] == 3
    for lost in ("project: mine", "command: ${args_json}", 'parameters.nested: {"parameters": {}}'):
        assert f"# Without a counterpart: {lost}" in text


def test_an_experiment_of_katib_as_a_whole(capfd: Any) -> None:
    text, content = written(capfd, KATIB)
    command = "python3 '/opt/a b.py' '--lr={lr}' '{{x}}' --layers '{num_layers}'"
    assert content["trainable"] == {"command": command, "metrics": {"val_accuracy": r"accuracy\s*[=:]\s*{number}"}}
    assert content["config"] == {"lr": {"float": [0.01, 0.03]}, "num_layers": {"int": [2, 5]}}
    assert content["objectives"] == [{"metric": "val_accuracy", "direction": "maximize"}]
    assert (content["sampler"], content["budget"]) == ({"name": "tpe"}, {"trials": 12})
    assert "# Without a counterpart: spec.objective.goal: 0.99" in text
    assert "hunter2" not in text


def test_a_sweeper_of_hydra_as_a_whole(capfd: Any) -> None:
    text, content = written(capfd, HYDRA)
    assert content["trainable"]["command"] == "python main.py 'db.lr={db_lr}' 'layers={layers}'"
    assert content["config"] == {"db_lr": {"float": [0.1, 0.5]}, "layers": {"choices": [1, 2]}}
    assert content["objectives"][0]["direction"] == "maximize"
    assert (content["sampler"], content["budget"]) == ({"name": "tpe"}, {"trials": 20})
    assert "# Without a counterpart: hydra.sweeper.sampler.seed: 1" in text


def test_a_study_of_optuna_has_the_distributions_of_its_trials(capfd: Any) -> None:
    url = "sqlite:///optuna.db"
    study = optuna.create_study(storage=url, study_name="one", directions=["maximize", "minimize"])
    known = {
        "lr": optuna.distributions.FloatDistribution(1e-4, 0.1, log=True),
        "step": optuna.distributions.FloatDistribution(0, 1, step=0.25),
        "n": optuna.distributions.IntDistribution(1, 9, step=2),
        "c": optuna.distributions.CategoricalDistribution(["a", None, True]),
    }
    study.tell(study.ask(known), [1.0, 2.0])
    study.tell(study.ask({"lr": known["lr"]}), [1.0, 2.0])
    text, content = written(capfd, url)
    ranges = load_study(Path("other.yaml")).space_for("data").ranges
    assert {name.removeprefix("config."): real_distribution(spec) for name, spec in ranges.items()} == known
    assert [each["direction"] for each in content["objectives"]] == ["maximize", "minimize"]
    assert content["budget"] == {"trials": 2}
    assert "n: {int: [1, 9], step: 2} # not in every trial" in text
    optuna.create_study(storage=url, study_name="two")
    assert "sqlite:///optuna.db#NAME" in run(capfd, "new", "more", "--from", url)[2]
    assert run(capfd, "new", "more", "--from", f"{url}#one")[0] == 0


def mutations(value: Any) -> Iterator[Any]:
    """Yield copies of a source in which one value is of another type."""
    yield from (None, 5, -1e300, "x\n# y: {z", [], [1], {}, {"a": {}}, True)
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in children:
        for each in mutations(inner):
            changed = copy.copy(value)
            changed[key] = each
            yield changed


@pytest.mark.parametrize("source", [WANDB, KATIB, HYDRA], ids=["wandb", "katib", "hydra"])
def test_a_value_of_another_type_is_refused_in_words_or_gives_a_study_that_loads(source: Any, capfd: Any) -> None:
    found = list(mutations(source))
    codes = set()
    for each in random.Random(0).sample(found, 60):
        Path("source.yaml").write_text(json.dumps(each))
        Path("other.yaml").unlink(missing_ok=True)
        code, _, err = run(capfd, "new", "other", "--from", "source.yaml")
        assert code == (0 if Path("other.yaml").exists() else 2), (each, err)
        assert err.startswith("ablate: ") or code == 0
        if code == 0:
            load_study(Path("other.yaml"))
        codes.add(code)
    assert codes == {0, 2}


BOMB = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("study: mine\n", "Known: a W&B sweep"),
        ("[1, 2]", "is a mapping"),
        (f"{BOMB}parameters: {{x: {{values: *a8}}}}\n", "too large"),
        ("parameters: {a b: {value: 1}, a-b: {value: 2}}\n", "two settings would be called 'a_b'"),
        ("parameters: {x: {min: 3, max: 1}}\n", "low must not exceed high"),
        ("parameters: !!python/object:os.system {}\n", "does not fit"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, told: str, capfd: Any) -> None:
    Path("source.yaml").write_text(text)
    code, _, err = run(capfd, "new", "other", "--from", "source.yaml")
    assert (code, Path("other.yaml").exists()) == (2, False)
    assert told in err


@pytest.mark.parametrize("url", ["sqlite:///none.db", "postgresql://ada:hunter2@db/x", "sqlite:///source.yaml"])
def test_an_address_that_holds_no_study_of_optuna_is_refused_and_not_made(url: str, capfd: Any) -> None:
    Path("source.yaml").write_text("x")
    code, _, err = run(capfd, "new", "other", "--from", url)
    assert code == 2
    assert "hunter2" not in err
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["source.yaml"]
