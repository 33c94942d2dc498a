"""`ablate new --from` writes the search space of another tool, and names what has no counterpart."""

from __future__ import annotations

import ast
import copy
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

from ablate.functions.command_output import NumberReader
from ablate.functions.command_words import words_of
from ablate.study import Study, parse_study
from ablate.study.patterns import metric_name
from ablate.study.sections import MetricPattern
from support.commands import run
from support.foreign import HYDRA, KATIB, WANDB, distribution, with_setting, written


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


WORDS_OF_WANDB = [
    {"value": 10}, {"value": "a b"}, {"value": [1, 2]}, {"values": ["adam", "sgd"]}, {"values": [1, 2.5, "x"]},
    {"values": [0.1, 1e-05, 3]}, {"values": ["a", "b"], "probabilities": [0.9, 0.1]}, {"values": ["{x}", "$y", "it's"]},
]  # fmt: skip


@pytest.mark.parametrize(
    "macro", ["args", "args_no_hyphens", "args_no_equals", "args_append_hydra", "args_override_hydra"]
)
def test_the_command_gets_the_words_that_the_agent_of_wandb_passes(macro: str, capfd: Any) -> None:
    names, draw = ["x", "opt.lr", "num-layers", "epochs", "seed", "lambda", "{}", "1st"], random.Random(0)
    for shift in range(3):
        specs = {name: WORDS_OF_WANDB[(3 * k + shift) % len(WORDS_OF_WANDB)] for k, name in enumerate(names)}
        command = ["${interpreter}", "${program}", "-u", f"${{{macro}}}"]
        _, study = written(capfd, WANDB | {"parameters": specs, "command": command})
        drawn = {
            name: draw.choice(spec["values"]) if "values" in spec else spec["value"] for name, spec in specs.items()
        }
        texts = [json.dumps(value) if isinstance(value, list) else value for value in drawn.values()]
        owns = [*study.config]
        if len(owns) < len(names):
            owns.insert(names.index("epochs"), "epochs")
        theirs = create_sweep_command_args({"args": {name: {"value": value} for name, value in drawn.items()}})[macro]
        assert words_of(command_of(study), dict(zip(owns, texts, strict=True))) == [
            "python",
            "train it.py",
            "-u",
            *theirs,
        ]


def command_of(study: Study) -> str:
    found: str = json.loads(study.trainable.removeprefix("command:"))["command"]
    return found


def test_nested_settings_and_json_are_passed_as_one_word(capfd: Any) -> None:
    nested = {
        "model": {"parameters": {"width": {"values": [8, 16]}, "head": {"parameters": {"act": {"value": "relu"}}}}}
    }
    source = WANDB | {"parameters": nested | {"amp": {"values": [True, None]}}, "command": ["${args}", "${args_json}"]}
    text, study = written(capfd, source)
    assert study.config["model_head_act"] == "relu"
    values = {"model_width": 8, "model_head_act": "relu", "amp": None}
    first, amp, whole = words_of(command_of(study), values)
    inner = {"width": 8, "head": {"act": "relu"}}
    theirs = create_sweep_command_args({"args": {"model": {"value": inner}, "amp": {"value": None}}})
    assert ast.literal_eval(first.removeprefix("--model=")) == ast.literal_eval(
        theirs["args"][0].removeprefix("--model=")
    )
    assert (json.loads(whole), amp) == (json.loads(theirs["args_json"][0]), "--amp=null")
    assert "# W&B passes True, False and None" in text


def test_a_macro_of_wandb_that_carries_meaning_stays_or_is_to_be_filled_in(capfd: Any) -> None:
    words = ["${env}", "A=1", "${interpreter}", "${program}", "{1}", "--epochs=5", "${args_no_boolean_flags}"]
    source = WANDB | {"parameters": {"lr": {"value": 1}, "fast": {"values": [True, False]}}, "command": words}
    text, study = written(capfd, source)
    assert command_of(study) == "env A=1 python 'train it.py' '{{1}}' --epochs={epochs} '--lr={lr}' '{fast?--fast}'"
    assert (study.epochs, "FILL IN" in text) == (5, False)
    for macro in ("${args_json_file}", "${envvar:HOME}", "${strange}"):
        text, study = written(capfd, source | {"command": [*words, macro]})
        assert text.splitlines()[2].startswith("# FILL IN: trainable.command")
    text, study = written(capfd, source | {"command": ["python", "x.py"]})
    assert "'--lr={lr}' '--fast={fast}'" in command_of(study)
    assert "FILL IN: the source's command does not use lr, fast" in text


BANDS = [  # early_terminate, first band, eta, epochs; None: to be filled in
    ({"s": 2, "eta": 3, "max_iter": 27}, 3, 3, 27),
    ({"s": 9, "eta": 2, "max_iter": 20}, 1, 2, 20),
    ({"s": 1, "max_iter": 100}, 33, 3, 100),
    ({"min_iter": 4}, 4, 3, None),
]


@pytest.mark.parametrize(("early", "first", "eta", "epochs"), BANDS)
def test_the_first_band_of_hyperband_is_the_first_rung(
    early: Any, first: int, eta: int, epochs: Any, capfd: Any
) -> None:
    source = WANDB | {"early_terminate": {"type": "hyperband", **early}, "parameters": {"lr": {"values": [1, 2]}}}
    text, study = written(capfd, source)
    assert (study.scheduler.name, study.scheduler.min_epochs, study.scheduler.reduction) == ("asha", first, eta)
    assert study.epochs == epochs if epochs else "# FILL IN: how often" in text
    source["parameters"]["epochs"] = {"value": 12}
    text, study = written(capfd, source)
    assert (study.epochs, [*study.config], "FILL IN" in text) == (12, ["lr"], False)
    source["parameters"]["epochs"] = {"values": [12, 24]}
    assert "FILL IN: how often the command prints the metric; the source searches epochs" in written(capfd, source)[0]


def test_a_sweep_of_wandb_as_a_whole(capfd: Any) -> None:
    text, study = written(
        capfd, WANDB | {"project": "mine", "metric": {"name": "val/acc", "goal": "maximize", "target": 1}}
    )
    assert [(o.metric, o.direction) for o in study.objectives] == [("val_acc", "maximize")]
    assert (study.sampler.name, study.budget.trials, study.scheduler.min_epochs, study.epochs) == ("gp", 30, 3, 9)
    for lost in ("project: mine", "metric.target: 1 (no value ends a search"):
        assert f"# Without a counterpart: {lost}" in text
    Path("train it.py").touch()
    code, _, err = run(capfd, "plan", "other.yaml", "--no-time")
    assert code == 0, err
    several = [{"name": "val/acc", "goal": "maximize"}, {"name": "latency"}]
    _, study = written(capfd, {key: value for key, value in WANDB.items() if key != "metric"} | {"metrics": several})
    assert [(o.metric, o.direction) for o in study.objectives] == [("val_acc", "maximize"), ("val_latency", "minimize")]


def test_an_experiment_of_katib_as_a_whole(capfd: Any) -> None:
    text, study = written(capfd, KATIB)
    command = (
        "env 'BATCH={batch}' python3 '/opt/a b.py' '--lr={lr}' --num-epochs={epochs} '{{x}}' --layers '{num_layers}'"
    )
    assert command_of(study) == f"{command} '--out={{trial}}'"
    assert [(o.metric, o.direction) for o in study.objectives] == [("val_accuracy", "maximize")]
    assert (study.sampler.name, study.budget.trials, study.epochs) == ("tpe", 12, 20)
    assert (study.scheduler.name, study.scheduler.min_epochs, study.scheduler.reduction) == ("asha", 5, 2)
    assert "# Without a counterpart: spec.objective.goal: 0.99" in text
    assert "ablate k8s render other.yaml --image docker.io/mine:1 --gpus 6 --gpus-per-trial 2" in text
    assert "hunter2" not in text
    code, _, err = run(capfd, "plan", "other.yaml", "--no-time")
    assert code == 0, err


def test_what_katib_alone_can_fill_in_is_left_to_the_user(capfd: Any) -> None:
    source = copy.deepcopy(KATIB)
    source["spec"]["metricsCollectorSpec"] = {"collector": {"kind": "StdOut"}}
    assert "FILL IN" not in written(capfd, source)[0]
    source["spec"]["metricsCollectorSpec"] = {
        "source": {"filter": {"metricsFormat": ["x"]}},
        "collector": {"kind": "StdOut"},
    }
    source["spec"]["trialTemplate"]["trialParameters"][2]["reference"] = "${trialSpec.Namespace}"
    text, study = written(capfd, source)
    assert "# FILL IN: trainable.command, trainable.metrics" in text
    assert "--out=${{trialParameters.trial}}" in command_of(study)


def test_hyperband_of_katib_gives_its_epochs_to_the_study(capfd: Any) -> None:
    source = copy.deepcopy(KATIB)
    settings = {"resource_name": "num-layers", "eta": "2", "r_l": "8"}
    entries = [{"name": name, "value": value} for name, value in settings.items()]
    source["spec"]["algorithm"] = {"algorithmName": "hyperband", "algorithmSettings": entries}
    del source["spec"]["earlyStopping"]
    _, study = written(capfd, source)
    assert "--layers '{epochs}'" in command_of(study)
    assert (study.sampler.name, study.epochs, study.scheduler.reduction, [*study.config]) == (
        "random",
        8,
        2,
        ["lr", "batch"],
    )


def test_a_sweeper_of_hydra_as_a_whole(capfd: Any) -> None:
    text, study = written(capfd, HYDRA)
    assert command_of(study) == "python main.py 'db.lr={db_lr}' '+layers={layers}' '~old' '++n_epochs={epochs}'"
    assert [(o.metric, o.direction) for o in study.objectives] == [("val_acc_best", "maximize")]
    assert (study.sampler.name, study.budget.trials, study.epochs) == ("tpe", 20, 7)
    assert [*study.config] == ["db_lr", "layers"]
    assert "# Without a counterpart: hydra.sweeper.sampler.seed: 1" in text
    assert "# FILL IN: the program of this configuration" in text


def test_a_study_of_optuna_has_the_distributions_of_its_trials(capfd: Any) -> None:
    url = "sqlite:///optuna.db"
    study = optuna.create_study(storage=url, study_name="one", directions=["maximize", "minimize"])
    known = {
        "lr": FloatDistribution(1e-4, 0.1, log=True),
        "step": FloatDistribution(0, 1, step=0.25),
        "n": IntDistribution(1, 9, step=2),
        "m": IntDistribution(1, 9, log=True),
        "c": CategoricalDistribution(["a", None, True, 1, 1.5]),
    }
    study.tell(study.ask(known), [1.0, 2.0])
    study.tell(study.ask({"lr": known["lr"]}), [1.0, 2.0])
    text, found = written(capfd, url)
    assert {name.removeprefix("config."): distribution(spec) for name, spec in found.space.ranges.items()} == known
    assert [each.direction for each in found.objectives] == ["maximize", "minimize"]
    assert found.budget.trials == 2
    assert "n: {int: [1, 9], step: 2} # not in every trial" in text
    optuna.create_study(storage=url, study_name="two")
    assert "sqlite:///optuna.db#NAME" in run(capfd, "new", "more", "--from", url)[2]
    assert run(capfd, "new", "more", "--from", f"{url}#one")[0] == 0


LINES = [  # a line that a program prints, and what is read of the metric `loss`
    ("loss=0.378 aux_loss=8.622", 0.378),
    ("train_loss: 1 loss: 2 val/loss: 3", 2),
    ("{'loss': '2', 'epoch': '1'}", 2),
    ("{'loss': 0.5, 'my-loss': 4}", 0.5),
    ('{"aux_loss": 3, "loss": 1e-3}', 0.001),
    ("best_loss=1", None),
    ("loss_scale=1", None),
    ("x.loss=1", None),
]


@pytest.mark.parametrize("tool", [WANDB, KATIB, HYDRA], ids=["wandb", "katib", "hydra"])
def test_the_pattern_of_a_converted_metric_reads_no_other_metric(tool: Any, capfd: Any) -> None:
    text = (
        json.dumps(tool)
        .replace("Validation-accuracy", "loss")
        .replace("val/acc_best", "loss")
        .replace("val_loss", "loss")
    )
    _, study = written(capfd, json.loads(text))
    patterns = json.loads(study.trainable.removeprefix("command:"))["metrics"]
    reader = NumberReader("val_loss", MetricPattern.model_validate(patterns["val_loss"]))
    assert [reader.last(line) for line, _ in LINES] == [value for _, value in LINES]


def test_a_printed_name_is_that_of_a_split_once() -> None:
    names = {"val/acc": "val_acc", "val_acc": "val_acc", "Validation-accuracy": "val_accuracy", "acc": "val_acc"}
    names |= {"train/loss": "train_loss", "valid loss": "val_loss", "eval_loss": "val_loss", "test/acc": "val_test_acc"}
    names |= {"val/loss/0": "val_loss_0", "value": "val_value", "trainable": "val_trainable", "mAP@0.5": "val_mAP@0.5"}
    assert {printed: metric_name(printed) for printed in names} == names


@pytest.mark.parametrize(
    "command", [["plan"], ["search"], ["compare"], ["k8s", "render", "--image", "mine:1"], ["doctor"]]
)
def test_a_file_that_says_fill_in_is_refused_in_one_line_with_its_place(command: list[str], capfd: Any) -> None:
    text, _ = written(capfd, with_setting("wandb", {"distribution": "new"}))
    number = next(i for i, line in enumerate(text.splitlines(), 1) if line.startswith("  x: "))
    Path("other.yaml").rename("earlier.yaml")
    said = run(capfd, "new", "other", "--from", "source.yaml")[1]
    assert "\nFill in first, where the file says FILL IN: config.x, epochs. Then type:\nablate plan other.yaml" in said
    code, out, err = run(capfd, *command, "other.yaml")
    assert (code, err.count("\n")) == (2, 1)
    assert f"other.yaml:{number}: config.x: says FILL IN" in out + err
    head = re.sub(" # FILL IN.*", "", text)
    for changed, place in (
        (head, "other.yaml:3: "),
        (head.replace("# FILL IN", "#").replace("epochs: 12", "epochs: FILL IN"), ": epochs: "),
    ):
        Path("other.yaml").write_text(changed)
        code, out, err = run(capfd, *command, "other.yaml")
        assert (code, err.count("\n"), place in out + err) == (2, 1, True), err


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
def test_one_value_of_another_type_refuses_no_file(source: Any, capfd: Any) -> None:
    for each in random.Random(0).sample(list(mutations(source)), 60):
        Path("source.yaml").write_text(json.dumps(each))
        Path("other.yaml").unlink(missing_ok=True)
        code, _, err = run(capfd, "new", "other", "--from", "source.yaml")
        is_known = isinstance(each, dict) and (
            each.get("kind") == "Experiment" or "hydra" in each or isinstance(each.get("parameters"), dict)
        )
        assert code == (0 if is_known else 2), (each, err)
        if code == 0:
            parse_study(Path("other.yaml").read_text())


BOMB = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("study: mine\n", "Known: a W&B sweep"),
        ("[1, 2]", "is a mapping"),
        (f"{BOMB}parameters: {{x: {{values: *a8}}}}\n", "too large"),
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
