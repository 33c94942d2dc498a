"""Studies whose arms leave parts of a network out by path: a wrong verdict is impossible, or the trial says why."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import nn

import ablate
from ablate.functions.function import Function
from ablate.functions.networks import replacing
from support.commanded import own_trial
from support.commands import LOCAL, run
from support.forked import trained
from support.part_networks import Bert

CODE = """
import torch
from torch import nn
from torchvision.models.vision_transformer import VisionTransformer

x = torch.rand(32, 3, 16, 16, generator=torch.Generator().manual_seed(0))
y = (x.mean((1, 2, 3)) > x.mean()).long()

def train(config, run):
    model = run.build(VisionTransformer, 16, 8, 2, 2, 8, 16, num_classes=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    run.keep(model=model, optimizer=optimizer)
    for epoch in run.epochs():
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        yield {"val_loss": loss.item()}

def test(model, config):
    return {"test_loss": nn.functional.cross_entropy(model(x), y).item()}
"""
STUDY = """\
study: ablated
trainable: vit_code:train
config: {lr: 0.01}
epochs: 2
parts:
  attention: {replace: {"encoder.layers.*.self_attention": zero}}
  mlp: {replace: {"encoder.layers.*.mlp": zero}}
  half: {replace: {"encoder.layers.encoder_layer_1": remove}}
replicates: 2
objectives: [{metric: val_loss, direction: minimize}]
compare: {baseline: complete, metrics: [val_loss]}
"""


@pytest.mark.services
def test_each_part_of_a_network_of_someone_else_is_left_out_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "vit_code.py").write_text(CODE)
    (tmp_path / "study.yaml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    code, _, err = run(capfd, "compare", "study.yaml", "--executor", "local", "--tracker", "none")
    assert code == 0, err
    trials = pl.read_parquet(tmp_path / "runs" / "ablated" / "trials.parquet").filter(stage="search")
    sizes = dict(trials.select("variant", "params").rows())
    assert sizes["complete"] - sizes["without-attention"] == 2 * (4 * 8**2 + 4 * 8)
    assert sizes["complete"] - sizes["without-mlp"] == 2 * (2 * 8 * 16 + 16 + 8)
    assert sizes["complete"] - sizes["without-half"] == (4 * 8**2 + 4 * 8) + (2 * 8 * 16 + 16 + 8) + 2 * 16
    found = ablate.load_study("ablated").verdicts()
    written = pl.read_csv(tmp_path / "runs" / "ablated" / "report" / "comparison.csv")
    written = written.filter(kind="variant")
    assert found["variant"].to_list() == written["variant"].to_list()
    assert found["difference"].to_list() == pytest.approx(written["difference"].to_list(), nan_ok=True)
    wrong = STUDY.replace("_layer_1", "_layer_9").replace("study: ablated", "study: wrong")
    (tmp_path / "study.yaml").write_text(wrong)
    for command in ("plan", "compare", "search"):
        code, _, err = run(capfd, command, "study.yaml", *(LOCAL if command != "plan" else ()))
        assert code == 2, err
        assert "no module, parameter or buffer has the path 'encoder.layers.encoder_layer_9'" in err
    assert not (tmp_path / "runs" / "wrong").exists(), "nothing is trained, also not the complete network"


NET = """
import torch
from torch import nn
from support.part_networks import Bert, ClosureGPT, ClosureNet, SimpleViT

class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 3)])
        self.held = list(self.layers)

    def forward(self, x):
        return self.held[1](self.held[0](x).tanh())

class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 6), nn.Tanh())
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.body(x))

x = torch.rand(32, 8, generator=torch.Generator().manual_seed(0))
y = (3 * x.mean(1)).long()

def train(config, run):
    model = run.build(NETWORK) if config.get("build", True) else NETWORK()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    run.keep(model=model, optimizer=optimizer)
    for epoch in run.epochs():
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        yield {"val_loss": loss.item()}

def test(model, config):
    return {"test_loss": nn.functional.cross_entropy(model(x), y).item()}
"""
LEFT_OUT = """\
study: left
trainable: MODULE:train
config: {build: BUILD}
epochs: 2
parts:
  mlp: {replace: WHAT}
replicates: 2
objectives: [{metric: val_loss, direction: minimize}]
compare: {baseline: complete, metrics: [val_loss]}
"""


@pytest.mark.services
@pytest.mark.parametrize(
    ("network", "what", "build", "says"),
    [
        ("ClosureNet", "{parts: zero}", "true", "replace parts: zero: a ModuleDict is never called"),
        ("Listed", "{layers.0: zero}", "true", "replace layers.0: the network still calls this part (Linear)"),
        ("Listed", "{layers.0: remove}", "true", "replace layers.0: the network still calls this part (Linear)"),
        ("Listed", "{layers.0: torch.nn:Identity}", "true", "replace layers.0: the network still calls this part"),
        (
            "ClosureNet",
            "{parts.down: zero}",
            "false",
            "replace: parts.down: the function builds no network by run.build",
        ),
        ("Wide", "{body: identity}", "true", "replace body: identity: its input is [32, 8], the output is [32, 6]"),
    ],
)
def test_an_arm_whose_part_still_computes_fails_with_its_path(
    network: str,
    what: str,
    build: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    module = f"left_{zlib.crc32(request.node.name.encode())}"
    (tmp_path / f"{module}.py").write_text(NET.replace("NETWORK", network))
    text = LEFT_OUT.replace("MODULE", module).replace("BUILD", build).replace("WHAT", what)
    (tmp_path / "study.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    planned, _, said = run(capfd, "plan", "study.yaml")
    code, _, err = run(capfd, "compare", "study.yaml", *LOCAL)
    if network != "Listed" and build == "true":  # without values, the network is called only where shapes depend on it
        assert (planned, code, err) == (2, 2, said.replace("Sizing the architectures …\n", ""))
        assert says.replace("[32, ", "[") in err.replace("[32, ", "[")
        assert len(err.strip().splitlines()) == 1
        assert not (tmp_path / "runs").exists()
        return
    assert planned == (network == "Listed"), said  # the row that is timed fails
    assert (tmp_path / "runs").exists(), err
    trials = pl.read_parquet(tmp_path / "runs" / "left" / "trials.parquet")
    assert dict(trials.select("variant", "state").rows()) == {"complete": "COMPLETE", "without-mlp": "FAIL"}
    [number] = trials.filter(state="FAIL")["trial"]
    assert says in " ".join(run(capfd, "trial", "left", str(number))[1].split())


class OwnAttention(nn.Module):
    """Takes the place of an attention: a linear layer with weights of its own."""

    def __init__(self, old: nn.Module) -> None:
        super().__init__()
        self.old, self.linear = old, nn.Linear(6, 6)

    def forward(self, hidden_states: torch.Tensor, **others: Any) -> Any:
        mixed, weights = self.old(hidden_states, **others)
        return self.linear(mixed), weights


X = torch.rand(8, 4, 6, generator=torch.Generator().manual_seed(0))


def bert(config: Any, run: Any) -> Any:
    model = run.build(Bert)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.keep(model=model, optimizer=optimizer)
    for _ in run.epochs():
        loss = model(X + torch.rand(())).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield {"val_loss": loss.item()}


@pytest.mark.parametrize(
    "what",
    [
        {"layers.0.attention": "zero", "layers.1.attention": f"{__name__}:OwnAttention"},
        {"layers.*.attention": {"share": "layers.0.attention"}, "layers.1.output": "zero"},
        {"layers.1": "identity", "layers.0": "freeze"},
    ],
    ids=str,
)
@pytest.mark.parametrize("stopped", [0, 1, 2])
def test_a_trial_with_parts_left_out_continues_to_the_same_bits(
    what: dict[str, Any], stopped: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacing.PARTS, "load", lambda name: OwnAttention)
    config = own_trial("mine:train", epochs=3, replace=what, seeds=(0, 1), study_seed=3)

    def begun(place: Path | None, attempt: int) -> Any:
        function = Function(name="mine:train", train=bert, test=None)
        return trained(function, config, checkpoints=place, attempt=attempt)

    whole = {report.epoch: report.metrics for report in begun(None, 1)}
    first = begun(tmp_path, 1)
    for _ in range(stopped):
        next(first)
    first.close()
    torch.rand(7)
    assert {report.epoch: report.metrics for report in begun(tmp_path, 2)} == {
        epoch: metrics for epoch, metrics in whole.items() if epoch >= stopped
    }
