"""`size(config)` beside `train`: plan, constraints, suggestions, ledger and resume know it; each fault is one line."""

from __future__ import annotations

import json
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
        code, out, err = self.run("plan", "study.yaml", "--json")
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
