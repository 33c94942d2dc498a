"""`ablate parts`: the parts of a network as a study can name them; the section that it prints is one that runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from torchvision.models import vit_b_16

from ablate.study.yaml_text import write_yaml
from support.commands import LOCAL, run

CODE = """
import torch
from torch import nn
from torchvision.models.vision_transformer import VisionTransformer
from torchvision.models import vit_b_16
from support.part_networks import ClosureGPT

def images(config, run):
    model = run.build(VisionTransformer, 16, 8, config["layers"], 2, config.get("width", 8), 16, num_classes=2)
    return train(config, run, model, torch.rand(4, 3, 16, 16))

def fitted(config, run):
    return {"val_loss": 1.0}

def train(config, run, model, x):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.keep(model=model, optimizer=optimizer)
    for epoch in run.epochs():
        print("a line of the user's code is no part of the list")
        loss = model(x).float().square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        yield {"val_loss": loss.item()}

def vit(config, run):
    yield from images(config, run)

def direct(config, run):
    model = run.build(nn.Linear, config["layers"], 2)
    for epoch in run.epochs():
        yield {"val_loss": 0.0}

def large(config, run):
    model = run.build(vit_b_16)
    for epoch in run.epochs():
        model(torch.rand(2, 3, 224, 224)).sum().backward()
        yield {"val_loss": 0.0}

def texts(config, run):
    yield from train(config, run, run.build(ClosureGPT), torch.arange(10).reshape(2, 5))

def reported(config, run):
    model = run.build(ClosureGPT)
    loss = model(torch.arange(10).reshape(2, 5)).float().square().mean()
    print("a line of the user's code is no part of the list")
    run.report({"val_loss": loss.item()})

def not_called(config, run):
    model = run.build(ClosureGPT)
    for epoch in run.epochs():
        raise SystemExit(f"{model.nothing}")
        yield {"val_loss": 0.0}

def broken(config, run):
    raise OSError("no data here")
    yield

def plain(config, run):
    for epoch in run.epochs():
        yield {"val_loss": 0.0}

def test(model, config):
    return {"test_loss": 0.0}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "parts_code.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def listed(capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = run(capfd, "parts", *arguments, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def test_the_parts_of_vit_b_16(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = listed(capfd, "parts_code:large")
    parts = {part["path"]: part for part in found["parts"]}
    assert found["params"] == sum(p.numel() for p in vit_b_16().parameters())
    mlp = parts["encoder.layers.encoder_layer_*.mlp"]
    assert (mlp["count"], mlp["params"], mlp["type"]) == (12, 2 * 768 * 3072 + 3072 + 768, "MLPBlock")
    assert mlp["input"] == mlp["output"] == [2, 197, 768]
    assert mlp["actions"] == ["identity", "zero", "freeze", "share"]
    assert parts["encoder.layers.encoder_layer_*.mlp.0"]["actions"] == ["zero", "freeze", "share"]
    assert parts["encoder.layers.encoder_layer_*.self_attention.out_proj"]["note"] == "not called in a forward pass"
    assert parts["encoder.pos_embedding"] | {"note": ""} == parts["encoder.pos_embedding"]
    assert (parts["encoder.pos_embedding"]["kind"], parts["encoder.pos_embedding"]["params"]) == (
        "parameter",
        197 * 768,
    )
    wanted = {"class_token", "pos_embedding", "ln_1", "self_attention", "ln_2", "mlp"}
    assert set(found["section"]) == wanted


@pytest.mark.parametrize("function", ["vit", "texts", "reported"])
def test_the_printed_section_runs_as_it_stands(function: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "layers=2"] if function == "vit" else []
    code, out, err = run(capfd, "parts", f"parts_code:{function}", *settings)
    assert code == 0, err
    assert "a line of the user's code" not in out
    attention = "encoder.layers.encoder_layer_*.self_attention.out_proj (2 of them)"
    assert (attention in out.splitlines()) is (function == "vit"), "a path is whole at every width"
    section = yaml.safe_load(out[out.index("parts:") :])
    study = {
        "study": "ready",
        "trainable": f"parts_code:{function}",
        "config": {"layers": 2} if function == "vit" else {},
        "epochs": 1,
        "replicates": 2,
        "objectives": [{"metric": "val_loss", "direction": "minimize"}],
        "compare": {"baseline": "complete", "metrics": ["val_loss"]},
    }
    (folder / "study.yaml").write_text(write_yaml({**study, **section}))
    code, _, err = run(capfd, "compare", "study.yaml", *LOCAL)
    assert code == 0, err
    trials = pl.read_parquet(folder / "runs" / "ready" / "trials.parquet").filter(stage="search")
    assert set(trials["state"]) == {"COMPLETE"}
    assert len(trials) == 1 + len(section["parts"]) > 4
    found = listed(capfd, "study.yaml")
    assert found["section"] == section["parts"]


def test_a_study_file_gives_values_inside_its_ranges(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = """\
study: searched
trainable: parts_code:vit
config: {layers: {choices: [1, 2, 3]}, width: {int: [8, 16], step: 8}, lr: {float: [0.1, 0.2]}}
epochs: 1
objectives: [{metric: val_loss, direction: minimize}]
budget: {trials: 2}
"""
    (folder / "study.yaml").write_text(text)
    found = {part["path"]: part for part in listed(capfd, "study.yaml")["parts"]}
    assert found["encoder.layers.encoder_layer_*.mlp"]["count"] == 2
    assert found["encoder.layers.encoder_layer_*.mlp"]["output"] == [4, 5, 16]


def test_the_parts_of_a_built_in_network_are_settings(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "study.yaml").write_text("study: built\ndatasets: {digits: {patch: 4}}\nmodel: {width: 8, depth: 2}\n")
    code, out, err = run(capfd, "parts", "study.yaml")
    assert (code, out) == (2, "")
    assert "the built-in networks have no parts by path: what they can do without is a setting" in err
    assert len(err.splitlines()) == 1


def test_a_network_that_cannot_be_called_is_listed_without_shapes(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capfd, "parts", "parts_code:not_called")
    assert code == 0, err
    assert "The network was not called" in out
    assert "transformer.h.*.ln_1" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["parts_code:fitted"], "'parts_code:fitted' neither yields nor calls run.build: its network cannot be listed"),
        (["parts_code:direct"], "reads config['layers']: give it by --set layers=VALUE, or name a study file"),
        (["parts_code:direct", "--set", "layers=2", "--set", "lr=1"], "--set lr: trainable 'parts_code:direct' never"),
        (["parts_code:vit"], "KeyError: 'layers'. Settings that it reads are given by --set NAME=VALUE"),
        (["parts_code:vit", "--set", "layers"], "--set 'layers': write NAME=VALUE"),
        (["parts_code:vit", "--set", "layers=2", "--set", "layers=3"], "layers is given twice: leave one of them out"),
        (["parts_code:vit", "--set", "a-b=1"], "--set 'a-b=1': write NAME=VALUE"),
        (["parts_code:broken"], "before it has built a network: OSError: no data here"),
        (["parts_code:plain"], "builds no network by run.build before its first epoch"),
        (["parts_code:nothing"], "has no 'nothing'"),
        (["command: python train.py"], "the network of a command is out of reach"),
        (["nothere.yaml"], "nothere.yaml"),
    ],
    ids=str,
)
def test_what_cannot_be_listed_is_one_line(
    arguments: list[str], says: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capfd, "parts", *arguments)
    assert code == 2
    assert says in err
    assert len(err.strip().splitlines()) == 1
