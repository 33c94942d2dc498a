"""A network of a user's own (`builder:`) runs in a process of its own too, between whose turns sizes are asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablate.api import load_study
from support.commands import LOCAL, run

CODE = """
import os, sys
import torch
from torch import nn

print("imported")

class Net(nn.Module):
    def __init__(self, inputs, outputs, width):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs))

    def forward(self, x):
        if self.training:
            print("a step")
        return self.body(x)

def build(config, shape):
    ENDS
    return Net(shape.tokens * shape.features, shape.outputs, config.width)
"""
STUDY = """\
study: networks
datasets: {digits: {patch: 4, train_limit: 64}}
model: {builder: "mine:build", width: {choices: [4, 8, 16]}}
training: {epochs: 3, batch_size: 32}
objectives: [{metric: val_accuracy, direction: maximize}, {metric: params, direction: minimize}]
scheduler: {name: none}
budget: {trials: 3}
confirm: null
"""


def searched(
    folder: Path, ends: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    (folder / "mine.py").write_text(CODE.replace("ENDS", ends))
    (folder / "study.yaml").write_text(STUDY)
    monkeypatch.chdir(folder)
    return run(capfd, "search", "study.yaml", *LOCAL)


@pytest.mark.services
def test_a_network_prints_into_the_file_of_its_trial_and_nowhere_else(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    code, out, err = searched(tmp_path, "pass", monkeypatch, capfd)
    assert code == 0, err
    assert not [line for line in caplog.messages if "gets a new process" in line], "importing it leaves nothing behind"
    assert "a step" not in out + err
    assert (out + err).count("imported") <= 1
    counts = [
        path.read_text().count("a step")
        for path in sorted((tmp_path / "runs/networks/checkpoints/digits").glob("*/output.txt"))
    ]
    assert len(counts) == 3
    assert min(counts) >= 3, "steps of every epoch, also of those after a size was asked for"
    assert len(set(load_study("networks").trials()["params"].to_list())) == 3


@pytest.mark.services
@pytest.mark.parametrize("ends", ["sys.exit(0)", "os._exit(0)", "raise KeyboardInterrupt"])
def test_a_network_that_ends_its_process_is_one_line_and_no_success(
    ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code, _, err = searched(tmp_path, ends, monkeypatch, capfd)
    assert code == 2, err
    [line] = [line for line in err.splitlines() if line.startswith("ablate: ")]
    assert "mine.py:19: " in line
    assert "Traceback" not in err
