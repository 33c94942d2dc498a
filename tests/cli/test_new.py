"""`ablate new` writes a study file that the other commands accept as it stands."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from ablate.core.registry import TASKS
from ablate.study import load_study
from support.commands import run
from support.paths import REPOSITORY

SCHEMA = json.loads((REPOSITORY / "search_spaces" / "schema.json").read_text())
MODULE = """\
import dataclasses


class Kept:
    def state_dict(self): return {}
    def load_state_dict(self, state): pass


def train(config, run):
    run.keep(model=Kept())
    for epoch in run.epochs():
        yield {"val_accuracy": config["lr"] * config["new_width"] * config.get("dropout", 0.5), "params": 3}


def test(model, config):
    return {"test_accuracy": 0.5}


def plain(config, run):
    return {"val_error": config["lr"]}


def dynamic(config, run):
    for epoch in run.epochs():
        yield dict(val_loss=sum(config.values()))


@dataclasses.dataclass
class Settings:
    lr: float = 0.3
    width: int = 100
    momentum: float = 0.9
    scale: float = 2
    decay: float = 0.0
    bias: bool = True
    optimizer: str = "adam"
    layers: list = dataclasses.field(default_factory=list)


def handed(config, run):
    return {"val_loss": Settings(**config).lr}


def build(first, *, rate=1e-3, heads): ...


def fitted(config, run):
    fit(run, {"eta": config["eta"]})


def called(config, run):
    build(run, **config)
    return {"val_loss": config.get("smoothing", 0.1)}
"""
ALONE = MODULE.replace("def test(", "def other(")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a training function and a script, in which commands are typed."""
    (tmp_path / "fresh_own.py").write_text(MODULE)
    (tmp_path / "fresh_alone.py").write_text(ALONE)
    (tmp_path / "train.py").write_text("import sys\nprint(f'val_accuracy=0.{len(sys.argv[1])}')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield tmp_path
    for name in ("fresh_own", "fresh_alone"):
        sys.modules.pop(name, None)


def written(capfd: pytest.CaptureFixture[str], name: str, *more: str) -> tuple[str, dict[str, Any]]:
    """Return text and content of the file that the command writes, once `ablate plan` has accepted it."""
    code, out, err = run(capfd, "new", name, *more)
    assert code == 0, err
    file = Path(out.splitlines()[0].removeprefix("Written: "))
    assert file == Path.cwd() / f"{name}.yaml"
    code, out, err = run(capfd, "plan", str(file), "--no-time")
    assert code == 0, err
    return file.read_text(), yaml.safe_load(file.read_text())


def test_a_function_is_read_for_its_names_epochs_metric_and_test(folder: Path, capfd: Any) -> None:
    text, content = written(capfd, "fresh", "--function", "fresh_own:train")
    assert content["config"] == {
        "lr": {"float": [1e-4, 1e-1], "log": True}, "new_width": {"int": [8, 64], "log": True},
    }  # fmt: skip
    assert "  # dropout: {float: [0.0, 1.0], default: 0.5} # optional: the function has a default\n" in text
    assert content["epochs"] == 9
    assert content["objectives"] == [{"metric": "val_accuracy", "direction": "maximize"}]
    assert content["confirm"] == {"replicates": 3}
    optional = text.replace("  # dropout", "  dropout")
    (folder / "fresh.yaml").write_text(optional)
    assert run(capfd, "plan", "fresh.yaml", "--no-time")[0] == 0, "the commented range must be one too"


def test_a_function_that_returns_has_no_epochs_and_one_without_test_no_confirmation(folder: Path, capfd: Any) -> None:
    _, content = written(capfd, "plain", "--function", "fresh_alone:plain")
    assert "epochs" not in content
    assert content["objectives"] == [{"metric": "val_error", "direction": "minimize"}]
    assert content["confirm"] is None
    assert written(capfd, "fitted", "--function", "fresh_alone:fitted")[1]["epochs"] == 9, "an adapter reports epochs"
    text, content = written(capfd, "dynamic", "--function", "fresh_alone:dynamic")
    assert (content["epochs"], content["config"]) == (9, {})
    assert "It reads others too: add them" in text


def test_the_placeholders_of_a_command_are_its_settings(folder: Path, capfd: Any) -> None:
    command = f"{sys.executable} train.py {{lr}} {{hidden}} {{odd}} {{seed}}"
    text, content = written(capfd, "script", "--command", command)
    assert content["trainable"] == {"command": command, "metric": "val_accuracy={number}"}
    assert list(content["config"]) == ["lr", "hidden", "odd"]
    assert "odd: {float: [0.1, 1.0]} # an example: set its bounds, or write {choices" in text
    _, content = written(capfd, "loss", "--command", command, "--metric", "val_loss=mean loss {number}")
    assert content["objectives"] == [{"metric": "val_loss", "direction": "minimize"}]


def test_defaults_of_a_dataclass_and_of_a_signature_are_tried_first(folder: Path, capfd: Any) -> None:
    text, content = written(capfd, "handed", "--function", "fresh_alone:handed")
    assert content["config"] == {
        "lr": {"float": [0.03, 3.0], "log": True, "default": 0.3},
        "width": {"int": [25, 400], "log": True, "default": 100},
        "momentum": {"float": [0.0, 1.0], "default": 0.9},
        "scale": {"float": [0.2, 20.0], "log": True, "default": 2.0},
        "decay": {"float": [0.0, 0.01], "default": 0.0},
        "bias": {"choices": [True, False], "default": True},
        "optimizer": "adam",
    }
    assert "  # layers: " in text, "its default is no value of a study file"
    first = {f"config.{name}": spec["default"] for name, spec in content["config"].items() if isinstance(spec, dict)}
    assert load_study(Path("handed.yaml")).start_of("data") == (first,)
    _, content = written(capfd, "called", "--function", "fresh_alone:called")
    assert "epochs" not in content
    assert content["config"] == {
        "heads": {"int": [1, 4]},
        "smoothing": {"float": [0.0, 0.5], "default": 0.1},
        "rate": {"float": [0.0001, 0.01], "log": True, "default": 0.001},
    }


def test_defaults_of_a_script_are_tried_first(folder: Path, capfd: Any) -> None:
    script = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float, default=2e-3)\n"
    script += "p.add_argument('--opt', choices=['a', 'b'], default='b')\np.add_argument('--ema', action='store_true')\n"
    (folder / "train.py").write_text(script + "p.add_argument('--act', default='relu')\n")
    command = f"{sys.executable} train.py --lr {{lr}} --opt={{opt}} {{ema?--ema}} --act {{act}} {{other}} {{seed}}"
    text, content = written(capfd, "script", "--command", command)
    assert content["config"] == {
        "lr": {"float": [1e-4, 1e-1], "log": True, "default": 2e-3},
        "opt": {"choices": ["a", "b"], "default": "b"},
        "ema": {"choices": [True, False], "default": False},
        "act": "relu",
        "other": {"float": [0.1, 1.0]},
    }
    assert "The default is yours, and is tried first" in text


@pytest.mark.parametrize("task", TASKS.names())
def test_the_file_of_every_task_is_valid(task: str, folder: Path, capfd: Any) -> None:
    code, _, err = run(capfd, "new", "built-in", "--task", task)
    assert code == 0, err
    content = yaml.safe_load(Path("built-in.yaml").read_text())
    jsonschema.validate(content, SCHEMA)
    study = load_study(Path("built-in.yaml"))
    assert [entry.task for entry in study.datasets.values()] == [task]


@pytest.mark.services
@pytest.mark.parametrize("task", ["digits", "reverse", "numbers"])
def test_the_file_of_a_task_is_planned(task: str, folder: Path, capfd: Any) -> None:
    text, content = written(capfd, "planned", "--task", task)
    assert content["budget"] == {"trials": 24}
    assert len([line for line in text.splitlines() if "#" in line]) > 6


@pytest.mark.services
def test_a_new_file_is_searched(folder: Path, capfd: Any) -> None:
    written(capfd, "fresh", "--function", "fresh_own:train")
    code, out, err = run(capfd, "search", "fresh.yaml", "--executor", "local", "--tracker", "none")
    assert code == 0, err
    assert "Settings: ablate pick fresh\nReport: " in out
    shutil.rmtree(folder / "runs" / "fresh")


def test_a_wrong_name_writes_no_training_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capfd, "new", "a b", "--supervised")
    assert (code, "study = 'a b': a name has" in err) == (2, True)
    assert not any(tmp_path.iterdir())


WRONG = {
    "two kinds": (
        ["--task", "digits", "--function", "a:b"],
        "--command, --supervised and --from: a study tunes one thing",
    ),
    "unknown task": (["--task", "digit"], "Did you mean 'digits'"),
    "no function": (["--function", "fresh_own:trian"], "Did you mean 'train'"),
    "no placeholder": (["--command", "python train.py"], "write {NAME} for each setting"),
    "brace": (["--command", "python {"], "braces"),
    "metric": (["--command", "python {lr}", "--metric", "(x)"], "begin with the name of the metric"),
    "metric of a task": (["--metric", "val_x=(.)"], "belongs to --command"),
}


@pytest.mark.parametrize(("words", "says"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_request_is_one_line_and_writes_nothing(words: list[str], says: str, folder: Path, capfd: Any) -> None:
    code, _, err = run(capfd, "new", "wrong", *words)
    assert code == 2
    assert says in err
    assert len(err.strip().splitlines()) == 1
    assert not Path("wrong.yaml").exists()


def test_a_file_is_never_overwritten_and_a_name_is_checked(folder: Path, capfd: Any) -> None:
    (folder / "mine.yaml").write_text("kept")
    code, _, err = run(capfd, "new", "mine")
    assert (code, (folder / "mine.yaml").read_text()) == (2, "kept")
    assert "mine.yaml exists and is kept" in err
    code, _, err = run(capfd, "new", "../mine")
    assert code == 2
    assert not (folder.parent / "mine.yaml").exists()
