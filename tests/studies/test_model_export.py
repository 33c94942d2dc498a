"""`ablate export model`: settings, numbers and weights of one replicate, as PyTorch computes with them."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import ablate
from ablate.ledger import Ledger
from ablate.studies.locations import Locations
from ablate.studies.network import load_network
from support.commands import TINY, local, refused, succeed

pytestmark = pytest.mark.services


def trained(folder: Path, text: str, capfd: pytest.CaptureFixture[str]) -> Path:
    """Run a study and return the folder of its runs."""
    file = folder / "study.yaml"
    file.write_text(text)
    succeed(capfd, *local(file, folder / "runs"))
    return folder / "runs"


def export(runs: Path, *words: str) -> list[str]:
    return ["export", "model", *words, "--runs-dir", str(runs)]


def test_a_network_of_the_family_is_its_weights_settings_and_numbers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runs = trained(tmp_path, TINY.replace("confirm: {replicates: 2}", "confirm: {replicates: 3}"), capfd)
    with_seed = load_network("tiny", Locations(runs_dir=runs), number=3, replicate=1)
    out = succeed(capfd, *export(runs, "tiny", str(tmp_path / "net"), "--trial", "3", "--replicate", "1"))
    names = ["config.json", "settings.json", "weights.safetensors"]
    assert out.splitlines() == [f"Written: {tmp_path / 'net' / name}" for name in names]
    assert sorted(p.name for p in (tmp_path / "net").iterdir()) == names
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    weights, state = load_file(tmp_path / "net" / "weights.safetensors"), with_seed.module.state_dict()
    assert set(weights) == set(state)
    assert all(torch.equal(weights[name], value) for name, value in state.items())
    kept = ablate.load_study("tiny", runs_dir=runs).load(3, replicate=1)
    assert all(torch.equal(kept.weights[name], value) for name, value in state.items())
    (tmp_path / "plain").write_text("")
    modes = {(tmp_path / "net" / name).stat().st_mode for name in names}
    assert modes == {(tmp_path / "plain").stat().st_mode}, "teams share them"
    content = json.loads((tmp_path / "net" / "config.json").read_text())
    assert content["seed"] == with_seed.config.seeds[1]
    assert content["settings"] == with_seed.config.settings.model_dump(mode="json")
    assert (content["trial"], content["replicate"], content["versions"]["torch"]) == (3, 1, version("torch"))
    assert content["metrics"]["test_accuracy"]["n"] == 3
    assert json.loads((tmp_path / "net" / "settings.json").read_text()) == content["settings"]
    succeed(capfd, *export(runs, "tiny", str(tmp_path / "net"), "--trial", "3", "--replicate", "1"))
    err = refused(capfd, *export(runs, "tiny", str(tmp_path / "net"), "--trial", "3"))
    assert "something other than an export of this model" in err
    assert "has replicates 0 to 2, not 9" in refused(capfd, *export(runs, "tiny", "--trial", "3", "--replicate", "9"))


FUNCTION = """\
def train(config, run):
    for epoch in run.epochs():
        yield {"val_accuracy": config["width"] / 100 + config["lr"]}
"""
OWN = """\
study: mine
trainable: own_widths:train
config: {width: {choices: [10, 20]}, lr: 0.5}
epochs: 2
objectives: [{metric: val_accuracy, direction: maximize}]
sampler: {name: grid}
scheduler: {name: none}
confirm: null
"""


def test_a_function_that_keeps_nothing_is_its_settings_and_can_be_picked(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_widths.py").write_text(FUNCTION)
    monkeypatch.syspath_prepend(str(tmp_path))
    runs = trained(tmp_path, OWN, capfd)
    out = succeed(capfd, *export(runs, "mine", str(tmp_path / "net")))
    assert out.splitlines()[0] == "The code keeps nothing by run.keep, so there are settings and numbers alone."
    assert sorted(p.name for p in (tmp_path / "net").iterdir()) == ["config.json", "settings.json"]
    assert json.loads((tmp_path / "net" / "settings.json").read_text()) == {"width": 20, "lr": 0.5}
    file = tmp_path / "one.yaml"
    succeed(capfd, "pick", "mine", "--min", "val_accuracy=0.65", "--study", str(file), "--runs-dir", str(runs))
    succeed(capfd, *local(file, runs))
    (name,) = (path.name for path in runs.iterdir() if path.is_dir() and path.name.startswith("mine-"))
    with Ledger.open(f"sqlite:///{runs}/{name}/ledger.sqlite") as ledger:
        (config,) = (trial.config for trial in ledger.trials(name))
    assert config.settings.model_dump()["config"] == {"width": 20, "lr": 0.5}
    assert config.epochs == 2
