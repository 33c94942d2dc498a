"""`size(config)` beside `train`: plan, constraints, suggestions, ledger and resume know it; each fault is one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ablate.functions.border import guarded
from ablate.ledger import Ledger
from support.commands import LOCAL, checked, run

CODE = """
import os
from torch import nn

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stem, self.head = nn.Linear(64, width), nn.Linear(width, 10)

def train(config, run):
    model = run.build(Net, config["width"])
    run.keep(model=model)
    for epoch in run.epochs():
        with open("trained", "a") as file:
            file.write(f"{config['width']}\\n")
        yield {"val_loss": config["lr"] + 1 / config["width"]}
"""
SIZE = "\ndef size(config):\n    return Net(config['width'])\n"
STUDY = """\
study: sized
trainable: mine:train
config: {width: {choices: [4, 8, 16, 32, 64]}, lr: {float: [0.001, 0.1], log: true}}
epochs: 2
objectives: [{metric: val_loss, direction: minimize}, {metric: params, direction: minimize, log: true}]
budget: {trials: 8}
confirm: null
"""


def params(width: int) -> int:
    """Two linear layers: weights and biases."""
    return 65 * width + 11 * width - width + 10


class Here:
    """A folder with a function and a study, and the command line in it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capfd = folder, capfd
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(str(folder))

    def write(self, code: str, study: str = STUDY) -> None:
        sys.modules.pop("mine", None)
        guarded.end_processes()
        (self.folder / "mine.py").write_text(code)
        (self.folder / "study.yaml").write_text(study)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        return run(self._capfd, *arguments)

    def plan(self) -> tuple[int, dict[str, dict[str, float]], str]:
        """Return the exit code, the rows of the plan by name, and what was said."""
        code, out, err = self.run("plan", "study.yaml", "--json", "--no-time")
        rows = checked("plan", out)["rows"] if code == 0 else []
        return code, {row["variant"]: row for row in rows}, err + out

    def trials(self):
        with Ledger.open(f"sqlite:///{self.folder}/runs/sized/ledger.sqlite", create=False) as ledger:
            return ledger.trials("sized"), ledger.events("sized")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Here:
    return Here(tmp_path, monkeypatch, capfd)


FORMS = {
    "module": SIZE,
    "number": "\ndef size(config):\n    return 75 * config['width'] + 10\n",
    "mapping": "\ndef size(config):\n    return {'params': 75 * config['width'] + 10}\n",
    "numpy": "\ndef size(config):\n    import numpy\n    return numpy.int64(75 * config['width'] + 10)\n",
    "handed on": "\ndef size(config):\n    return make(config)\ndef make(config):\n    return Net(config['width'])\n",
    "spread": "\ndef size(config):\n    return make(**config)\ndef make(width, lr):\n    return Net(width)\n",
    "needs values": "\ndef size(config):\n    import torch\n    [float(x) for x in torch.linspace(0, 1, 3)]\n"
    "    return Net(config['width'])\n",
    "changes config": "\ndef size(config):\n    return Net(config.pop('width'))\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_size_is_the_closed_form_in_plan_and_ledger(form: str, here: Here) -> None:
    here.write(CODE + FORMS[form])
    code, rows, said = here.plan()
    assert code == 0, said
    spread = form == "spread"  # it is given all settings, so any may decide
    assert {row["params"] for row in rows.values()} == {params(width) for width in (4, 8, 16, 32, 64)}
    assert spread or {name: row["params"] for name, row in rows.items()} == {
        f"width={width}": params(width) for width in (4, 8, 16, 32, 64)
    }
    assert not Path("trained").exists(), "a plan trains nothing"
    code, _, err = here.run("search", "study.yaml", *LOCAL)
    assert code == 0, err
    trials, events = here.trials()
    assert len(trials) == 8
    for trial in trials:
        assert dict(trial.size) == {"params": params(trial.config.parameters["config.width"])}
        assert trial.params == trial.size["params"]
    [noted] = [event.payload for event in events if event.kind == "known_sizes"]
    settings = ["config.lr", "config.width"] if spread else ["config.width"]
    built = form not in ("number", "mapping", "numpy")
    assert noted == {"metrics": ["params"], "settings": settings, "builds": built}


COSTS = """
def size(config):
    w = config["width"]
    return {"params": 75 * w + 10, "latency_ms": w / 8, "energy": 1}
"""
TIMED = """\
study: sized
trainable: mine:train
config: {width: {choices: [4, 8, 16, 32, 64]}, lr: {float: [0.001, 0.1], log: true}}
epochs: 2
objectives: [{metric: val_loss, direction: minimize}, {metric: latency_ms, direction: minimize, log: true}]
constraints: [params <= 2500, latency_ms >= 1]
budget: {trials: 6}
confirm: {replicates: 2}
"""
TEST = "\ndef test(model, config):\n    return {'test_loss': config['lr'] + 1 / config['width']}\n"


def test_a_cost_of_any_name_is_an_objective_a_constraint_and_a_column(here: Here) -> None:
    """params <= 2500 leaves widths up to 32, latency_ms >= 1 those from 8: other networks are never trained."""
    here.write(CODE + TEST + COSTS, TIMED)
    code, rows, said = here.plan()
    assert code == 0, said
    assert {name: row["latency_ms"] for name, row in rows.items()} == {f"width={w}": w / 8 for w in (4, 8, 16, 32, 64)}
    assert "add `size" not in said
    code, out, err = here.run("search", "study.yaml", *LOCAL)
    assert code == 0, err
    assert {int(line) for line in Path("trained").read_text().split()} <= {8, 16, 32}
    assert "latency" in out
    trials, _ = here.trials()
    for trial in trials:
        width = trial.config.parameters["config.width"]
        assert dict(trial.size) == {"params": params(width), "latency_ms": width / 8, "energy": 1}
    assert {trial.config.stage for trial in trials} == {"search", "confirm"}
    code, out, _ = here.run("trial", "sized", "0", "--json")
    assert checked("trial", out)["size"] == dict(trials[0].size)
    page = Path("runs/sized/report/index.html").read_text()
    assert "Latency ms" in page


def body(text: str) -> str:
    return f"\ndef size(config):\n    {text}\n"


FAULTS = {
    "raises": (body("return Net(config['widht'])"), "size(config): mine.py:19: KeyError: 'widht' (config: {"),
    "exits": (body("raise SystemExit(3)"), "mine.py:19: the code called sys.exit(3) in size(config) (config" ),
    "dies": (body("os._exit(3)"), "called os._exit(3)"),
    "text": (body("return '338'"), "it returned '338' (str): return a torch module, a whole number of parameters"),
    "nothing": (body("pass"), "it returned None (NoneType)"),
    "bool": (body("return True"), "it returned True (bool)"),
    "nan": (body("return float('nan')"), "it returned params=nan (float): a cost is a finite number from 0"),
    "negative": (body("return -1"), "it returned params=-1 (int): a cost is a finite number from 0"),
    "broken": (body("return 1.5"), "it returned params=1.5 (float): params is a whole number below 2^63"),
    "no cost": (body("return {}"), "it returned no cost"),
    "bool in a mapping": (body("return {'params': True}"), "it returned params=True (bool)"),
    "text in a mapping": (body("return {'params': '12'}"), "it returned params='12' (str)"),
    "several values": (body("import numpy\n    return {'params': numpy.ones(2)}"), "it returned params=array"),
    "a name of training": (body("return {'val_loss': 1.0}"), "the name is taken"),
    "a column": (body("return {'parameters': 3}"), "the name is taken"),
    "a name that is no text": (body("return {1: 3}"), "its name is text"),
    "parameters": ("\ndef size(config, run):\n    return 1\n", "the function must take size(config)"),
    "class": (body("return Net"), "it returned <class 'mine.Net'> (type)"),
    "other names": (
        body("return {'params': 1} if config['width'] < 9 else {'params': 1, 'x': 2}"), "return the same names for all",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_of_size_is_one_line(fault: str, here: Here) -> None:
    code, said = FAULTS[fault]
    here.write(CODE + code)
    for command in (("plan", "study.yaml"), ("search", "study.yaml", *LOCAL)):
        status, _, err = here.run(*command)
        assert (status, len([line for line in err.splitlines() if line.startswith("ablate: ")])) == (2, 1), err
        assert said in err
        assert "Traceback" not in err
    assert not Path("trained").exists()


ODD = (
    "if config['width'] in (4, 16):\n        raise ValueError('4 and 16 are odd')\n    return 75 * config['width'] + 10"
)
REASON = "size(config): mine.py:20: ValueError: 4 and 16 are odd"


def test_a_configuration_for_which_size_raises_is_named_and_never_trained(here: Here) -> None:
    own = STUDY.replace("64]}", "64], default: 16}").replace("true}}", "true, default: 0.01}}")
    here.write(CODE + body(ODD), own)
    code, rows, said = here.plan()
    assert code == 0, said
    assert {name: row.get("params") for name, row in rows.items()} == {
        f"width={width}": None if width in (4, 16) else params(width) for width in (4, 8, 16, 32, 64)
    }
    assert "`size` raises for " in said
    assert f"such ones are never trained: {REASON}" in said
    code, out, err = here.run("search", "study.yaml", *LOCAL)
    assert code == 0, err
    assert REASON in out + err
    trials, _ = here.trials()
    assert len(trials) == 8
    assert {trial.config.parameters["config.width"] for trial in trials} <= {8, 32, 64}
    assert "Your settings were not tried: it cannot be trained because size(config): " in " ".join(out.split())


def test_a_comparison_with_a_row_for_which_size_raises_is_refused(here: Here) -> None:
    compared = STUDY.replace("width: {choices: [4, 8, 16, 32, 64]}", "width: 8").replace(
        "lr: {float: [0.001, 0.1], log: true}", "lr: 0.1"
    )
    compared = compared.replace("budget: {trials: 8}\nconfirm: null\n", "")
    compared += "parts: {wide: {config: {width: 16}}}\ncompare: {baseline: complete, metrics: [val_loss]}\n"
    here.write(CODE + body(ODD), compared)
    for command in (("plan", "study.yaml"), ("compare", "study.yaml", *LOCAL)):
        status, _, err = here.run(*command)
        assert (status, "ValueError: 4 and 16 are odd" in err) == (2, True), err
    assert not Path("trained").exists()


def test_a_size_that_hangs_is_ended(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "SIZE_SECONDS", 1.0)
    here.write(CODE + body("while True: pass"))
    status, _, err = here.run("plan", "study.yaml")
    assert (status, err.count("\n")) == (2, 1), err
    assert "size(config) has not returned for 1 s" in err


@pytest.mark.parametrize(
    "code", ["", "\nsize = (28, 28)\n", "\ndef size(image, axis):\n    return 1\n", "\nfrom numpy import size\n"]
)
def test_without_a_size_plan_says_what_it_would_bring_and_other_names_are_left_alone(code: str, here: Here) -> None:
    here.write(CODE + code)
    status, rows, said = here.plan()
    assert status == 0, said
    assert {row["params"] for row in rows.values()} == {params(width) for width in (4, 8, 16, 32, 64)}
    _, out, _ = here.run("plan", "study.yaml")
    assert "add `size(config)` beside mine:train, and the search knows the size of every candidate" in " ".join(
        out.split()
    )


def test_a_declared_cost_that_nothing_tells_is_refused(here: Here) -> None:
    for code, said in ((CODE, "which is not there"), (CODE + SIZE, "which returns params")):
        here.write(code, STUDY.replace("metric: params", "metric: latency_ms"))
        for command in (("plan", "study.yaml"), ("search", "study.yaml", *LOCAL)):
            status, _, err = here.run(*command)
            assert status == 2
            assert "'latency_ms': a metric is params, params_body, flops, wall_seconds, or starts with val_" in err
            assert said in err
    command = "trainable: {command: 'python mine.py', metrics: {val_loss: 'loss ([0-9.]+)'}}"
    here.write(CODE, STUDY.replace("trainable: mine:train", command).replace("metric: params", "metric: latency_ms"))
    status, _, err = here.run("plan", "study.yaml")
    assert status == 2
    assert "objectives.1.metric" in err


def test_a_size_that_differs_from_the_trained_network_ends_the_study(here: Here) -> None:
    here.write(CODE + body("return 75 * config['width'] + 11"))
    status, _, err = here.run("search", "study.yaml", *LOCAL)
    assert status != 0
    [line] = [line for line in err.splitlines() if line.startswith("ablate: ")]
    assert "size(config) gives params " in line
    assert ", and its first report has " in line


KINDS = """
def train(config, run):
    for epoch in run.epochs():
        yield {"val_loss": config["lr"] + len(str(config["kind"]))}
"""


def test_the_choices_1_true_and_text_have_sizes_of_their_own(here: Here) -> None:
    code = body("kind = config['kind']\n    return {int: 10, bool: 20, str: 30}[type(kind)]")
    study = STUDY.replace("config: {width: {choices: [4, 8, 16, 32, 64]}", "config: {kind: {choices: [1, true, '1']}")
    here.write(KINDS + code, study)
    status, out, err = here.run("plan", "study.yaml", "--json")
    assert status == 0, err
    assert [row["params"] for row in checked("plan", out)["rows"]] == [10, 20, 30]


def test_a_killed_study_continues_with_the_same_suggestions(here: Here, tmp_path: Path) -> None:
    """Killed after its third trial, it suggests what the study does that nobody kills: what is known is recorded."""
    slow = CODE.replace("        with open", "        __import__('time').sleep(0.05)\n        with open")
    here.write(slow + SIZE, STUDY.replace("trials: 8", "trials: 12"))
    status, _, err = here.run("search", "study.yaml", *LOCAL, "--runs-dir", "whole")
    assert status == 0, err
    command = [sys.executable, "-m", "ablate", "search", "study.yaml", *LOCAL]
    with subprocess.Popen(
        command, start_new_session=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as killed:
        while not Path("trained").exists() or Path("trained").read_text().count("\n") < 24 + 6:
            assert killed.poll() is None
        os.killpg(killed.pid, signal.SIGKILL)
    status, _, err = here.run("search", "study.yaml", *LOCAL)
    assert status == 0, err
    found, events = here.trials()
    with Ledger.open(f"sqlite:///{tmp_path}/whole/sized/ledger.sqlite", create=False) as ledger:
        whole = ledger.trials("sized")
    assert [trial.config.parameters for trial in found] == [trial.config.parameters for trial in whole]
    assert [dict(trial.size) for trial in found] == [dict(trial.size) for trial in whole]
    assert sum(event.kind == "known_sizes" for event in events) == 1


PARTS = """\
study: parts
trainable: mine:train
config: {width: 8, lr: 0.01}
epochs: 1
parts: {head: {replace: {head: zero}}}
objectives: [{metric: val_loss, direction: minimize}]
compare: {baseline: complete, metrics: [val_loss]}
"""


@pytest.mark.parametrize("form", ["module", "number"])
def test_parts_that_are_left_out_are_no_part_of_the_size(form: str, here: Here) -> None:
    """Without its head the network has 65 * 8 parameters; a number that `size` returns says nothing of it."""
    here.write(CODE + FORMS[form], PARTS)
    code, rows, said = here.plan()
    assert code == 0, said
    assert {name: row["params"] for name, row in rows.items()} == {"complete": params(8), "without-head": 520}
