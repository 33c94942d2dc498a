"""Parts of the built-in networks, and of a builder's, by path: against the same networks with the part taken out."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor, nn

from ablate.base.errors import RequestError, TrialError
from ablate.engine.models import build, initial_parameters, measure
from ablate.engine.models.settings import InputShape, ModelConfig
from ablate.engine.training import predictor, train
from ablate.engine.training.family import FamilySettings
from ablate.engine.training.modules import stackable
from ablate.engine.training.served_model import read
from ablate.engine.training.serving import serve
from ablate.engine.training.settings import TrainConfig
from support.commands import LOCAL, run
from support.own_networks import NETWORKS
from support.small_training import SHAPE, numbers, stripes, trial

SMALL = ModelConfig(width=8, depth=2, heads=2, mlp=6)
WITHOUT_MLP = {"blocks.*.mlp": "zero"}
X = torch.rand(5, 4, 3, generator=torch.Generator().manual_seed(0))


class Listed(nn.Module):
    """Holds its layers in a list too, by which it calls them."""

    def __init__(self, config: ModelConfig, shape: InputShape) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Linear(shape.features, shape.features), nn.Linear(shape.features, shape.outputs)]
        )
        self.held = list(self.layers)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.held[1](self.held[0](x).tanh()).mean(-2)
        return scores


class InTraining(nn.Module):
    """Calls the first layer through a list, in training alone."""

    def __init__(self, config: ModelConfig, shape: InputShape) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(shape.features, shape.features)])
        self.head = nn.Linear(shape.features, shape.outputs)
        self.held = list(self.layers)

    def forward(self, x: Tensor) -> Tensor:
        x = (self.held if self.training else self.layers)[0](x)
        scores: Tensor = self.head(x).mean(-2)
        return scores


class Branches(nn.Module):
    """Two branches, one of which returns a pair, and a position that is a parameter; `dropout` is a setting."""

    def __init__(self, config: ModelConfig, shape: InputShape) -> None:
        super().__init__()
        width = config.width
        self.embed = nn.Linear(shape.features, width)
        self.place = nn.Parameter(torch.randn(shape.tokens, width))
        self.wide = nn.Sequential(nn.Linear(width, 2 * width), nn.Dropout(config.dropout), nn.BatchNorm1d(shape.tokens))
        self.narrow = nn.Linear(2 * width, width)
        self.gate = Gate(width)
        self.head = nn.Linear(width, shape.outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.place
        x = x + self.narrow(self.wide(x))
        mixed, weights = self.gate(x)
        scores: Tensor = self.head((x + mixed * (1 + weights)).mean(-2))
        return scores


class Gate(nn.Module):
    """Returns values and their weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.value, self.weight = nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.value(x), self.weight(x).sigmoid()


def settings(model: ModelConfig = SMALL, **replace: Any) -> FamilySettings:
    return FamilySettings(model=model, replace={path.replace("__", "."): what for path, what in replace.items()})


def plain(model: ModelConfig, replace: dict[str, Any] | None = None) -> nn.Module:
    module = build(model, SHAPE, replace)
    values = initial_parameters(model, SHAPE, study_seed=1, dataset="d", seed=2, replace=replace)
    module.load_state_dict(values, strict=False)
    return module.eval()


def test_a_built_in_network_without_its_mlps_is_that_without_them() -> None:
    """By hand: x + attention(norm x) in each block, then the mean and the head, with the weights of the whole."""
    whole, part = plain(SMALL), plain(SMALL, WITHOUT_MLP)
    x = whole.embedded(X)  # type: ignore[operator]
    for block in whole.blocks:  # type: ignore[union-attr]
        x = x + block.attention(block.attention_norm(x))
    assert torch.equal(part(X), whole.head(x.mean(-2)))  # type: ignore[operator]
    mlps = sum(p.numel() for name, p in whole.named_parameters() if ".mlp." in name)
    sizes = [measure(SMALL, SHAPE, replace) for replace in (None, WITHOUT_MLP)]
    assert mlps == sizes[0].params - sizes[1].params == sizes[0].params_body - sizes[1].params_body
    products = 2 * 2 * SHAPE.tokens * (8 * 6 + 6 * 8)
    assert sizes[0].flops - sizes[1].flops == products


@pytest.mark.parametrize(
    "replace",
    [
        WITHOUT_MLP,
        {"blocks.*.attention": "zero"},
        {"blocks.*.attention_norm": "identity", "blocks.1": "remove"},
        {"blocks.1.attention": {"share": "blocks.0.attention"}},
        {"blocks.0": "freeze", "embedding.bias": "zero", "head.bias": "freeze"},
        {"blocks.*.attention.query": "zero"},
        {"blocks.*.mlp.hidden": "identity", "blocks.1": "identity"},
        {"position": "zero"},
    ],
    ids=str,
)
def test_rows_of_a_replaced_network_are_plain_networks_and_a_trial_continues(
    replace: dict[str, Any], tmp_path: Path
) -> None:
    model = SMALL.model_copy(update={"mlp": 8, "position": "learned"})
    rates = TrainConfig(epochs=3, batch_size=16, learning_rate=1e-2)
    config = trial(model=model, train=rates, replace=replace)
    whole = list(train(config, checkpoints=tmp_path / "whole"))
    begun = train(config, checkpoints=tmp_path / "stopped")
    list(islice(begun, 2))
    begun.close()
    rest = list(train(config, checkpoints=tmp_path / "stopped", attempt=2))
    assert numbers(rest)[1][1] == numbers(whole)[2][1]
    data = stripes()
    inputs = data.test_inputs.float() / 60 - 1.5
    module = predictor(config, tmp_path / "whole", replicate=1)
    first = plain(model, replace)
    names = {name for name, value in first.named_parameters() if value.requires_grad}
    assert sum(dict(first.named_parameters())[name].numel() for name in names) == measure(model, SHAPE, replace).params
    fixed = initial_parameters(model, SHAPE, study_seed=7, dataset="stripes", seed=4, replace=replace)
    changed = {name for name, value in module.named_parameters() if not torch.equal(value, fixed[name])}
    assert changed
    assert changed <= names
    alone = trial(model=model, train=rates, replace=replace, seeds=(4,))
    assert list(train(alone, checkpoints=tmp_path / "alone"))[-1].metrics[0] == whole[-1].metrics[1]
    assert torch.equal(predictor(alone, tmp_path / "alone")(inputs), module(inputs))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize(
    "replace",
    [
        {"wide": "zero"},
        {"gate": "zero", "place": "zero"},
        {"gate": "identity", "narrow": "freeze"},
        {"wide.1": "identity"},
    ],
    ids=str,
)
def test_a_network_of_a_builder_with_and_without_vmap(replace: dict[str, Any], dropout: float, tmp_path: Path) -> None:
    model = ModelConfig(builder=f"{__name__}:Branches", width=8, dropout=dropout)
    assert stackable(build(model, SHAPE, replace), SHAPE) == (dropout == 0 or "wide" in replace or "wide.1" in replace)
    config = trial(model=model, train=TrainConfig(epochs=3, batch_size=16, learning_rate=1e-2), replace=replace)
    whole = list(train(config, checkpoints=tmp_path / "whole"))
    begun = train(config, checkpoints=tmp_path / "stopped")
    next(begun)
    begun.close()
    assert numbers(list(train(config, checkpoints=tmp_path / "stopped", attempt=2)))[2][1] == numbers(whole)[2][1]
    assert measure(model, SHAPE, replace).params < measure(model, SHAPE).params or "wide.1" in replace
    network = plain(model)
    x = network.embed(X) + (0 if "place" in replace else network.place)  # type: ignore[operator]
    x = x + network.narrow(torch.zeros(5, 4, 16) if "wide" in replace else network.wide(x))  # type: ignore[operator]
    mixed, weights = network.gate(x)  # type: ignore[operator]
    mixed, weights = {"zero": (0 * mixed, 0 * weights), "identity": (x, 0 * weights)}.get(
        replace.get("gate", ""), (mixed, weights)
    )
    assert torch.equal(plain(model, replace)(X), network.head((x + mixed * (1 + weights)).mean(-2)))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("builder", "replace", "says"),
    [
        ("Listed", {"layers.0": "zero"}, r"replace layers\.0: the network still calls this part \(Linear\)"),
        (
            "Branches",
            {"wide": "identity"},
            r"replace wide: identity: its input is \[1, 4, 60\], the output is \[1, 4, 120\]",
        ),
        ("Branches", {"wied": "zero"}, r"no module, parameter or buffer has the path 'wied'\. Did you mean 'wide'"),
        ("Branches", {"": "zero"}, r"no module, parameter or buffer has the path ''"),
        ("Branches", {"*": "freeze", "place": "freeze"}, r"Branches has no parameter to train"),
    ],
)
def test_a_plan_refuses_what_cannot_be(builder: str, replace: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        measure(ModelConfig(builder=f"{__name__}:{builder}"), SHAPE, replace)


def test_a_part_of_a_builder_that_training_still_calls_ends_the_trial_with_its_path() -> None:
    config = trial(model=ModelConfig(builder=f"{__name__}:InTraining"), replace={"layers.0": "zero"})
    with pytest.raises(TrialError, match=r"replace layers\.0: the network still calls this part \(Linear\)"):
        list(train(config))


def test_parts_that_the_decoder_reads_by_other_methods_are_named() -> None:
    texts = InputShape.model_validate(
        SHAPE.model_dump()
        | {"inputs": "ids", "output": "token", "causal": True, "source_tokens": 4, "source_features": 3}
    )
    with pytest.raises(
        RequestError, match=r"replace decoder\.blocks\.0\.cross: zero: a CrossAttention is never called"
    ):
        measure(SMALL, texts, {"decoder.blocks.*.cross": "zero"})
    assert measure(SMALL, texts, {"decoder.blocks.*.cross.output": "zero"}).params < measure(SMALL, texts).params


def test_a_served_network_has_its_parts_replaced(tmp_path: Path) -> None:
    config = trial(model=SMALL, replace=WITHOUT_MLP)
    list(train(config, checkpoints=tmp_path / "t"))
    found = serve(config, checkpoints=tmp_path / "t", data_dir=None)
    (tmp_path / "m").mkdir()
    found.write(tmp_path / "m")
    loaded = read(tmp_path / "m")
    inputs = stripes().test_inputs[:5].numpy()
    scores = predictor(config, tmp_path / "t")(stripes().test_inputs[:5].float() / 60 - 1.5)
    np.testing.assert_allclose(loaded.predict(inputs, {"output": "scores"}), scores.detach().numpy(), atol=1e-5)
    assert not any(".mlp." in name for name in loaded.module.state_dict())


STUDY = """\
study: built
datasets: {digits: {patch: 4, train_limit: 128}}
model: {width: 8, depth: 2, mlp: 8 BUILDER}
training: {epochs: 2, batch_size: 32}
parts:
  WHAT
replicates: 2
objectives: [{metric: val_accuracy, direction: maximize}]
compare: {baseline: complete, metrics: [val_accuracy, test_accuracy, params]}
"""


@pytest.mark.services
@pytest.mark.parametrize("builder", ["", f', builder: "{NETWORKS["Tied"]}"'])
def test_a_study_leaves_parts_of_a_network_of_the_engine_out(
    builder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    what = "mlp: {replace: {blocks.*.mlp: zero}}\n  last: {replace: {blocks.1: remove}}"
    if builder:
        what = "middle: {replace: {middle: zero}}\n  tanh: {replace: {middle.weight: freeze}}"
    (tmp_path / "study.yaml").write_text(STUDY.replace(" BUILDER", builder).replace("WHAT", what))
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capfd, "plan", "study.yaml", "--format", "csv")
    assert code == 0, err
    code, _, err = run(capfd, "compare", "study.yaml", *LOCAL)
    assert code == 0, err
    trials = pl.read_parquet(tmp_path / "runs" / "built" / "trials.parquet").filter(stage="search")
    assert trials["state"].to_list() == ["COMPLETE"] * 3
    planned = pl.read_csv(out.encode())
    assert dict(trials.select("variant", "params").rows()) == dict(planned.select("variant", "params").rows())
    assert trials["params"].n_unique() == 3
