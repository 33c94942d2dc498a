"""Sizes: paper A's 21 derived counts on built modules, weights per axis, FLOPs in closed form, nothing allocated."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from ablate.config import InputShape, ModelConfig
from ablate.errors import RegistryError
from ablate.models import build, measure

MNIST = InputShape(tokens=16, features=49, outputs=10, train_samples=60_000)
CIFAR = InputShape(tokens=16, features=192, outputs=10, train_samples=50_000)
WIDTH, HIDDEN = 60, 256

UNCHANGED: dict[str, Any] = {}
FOUR_HEADS: dict[str, Any] = {"heads": 4, "pool": "cls"}
WQK: dict[str, Any] = {"similarity": "collapsed"}
WQK_NO_MLP: dict[str, Any] = {"similarity": "collapsed", "bias": ("value", "output")}
MINIMUM: dict[str, Any] = {"similarity": "collapsed", "value": "none", "bias": "none"}
SYMMETRY: dict[str, Any] = {"similarity": "shared", "bias": "none", "pool": "cls"}
SYMMETRY_4: dict[str, Any] = SYMMETRY | {"heads": 4}

# Paper A, Tables 2 and 3: data set, depth, MLP width, variant, parameters derived from the paper's own rules.
DERIVED: list[tuple[InputShape, int, int, dict[str, Any], int]] = [
    (MNIST, 6, 256, UNCHANGED, 279_106),
    (MNIST, 6, 256, FOUR_HEADS, 279_166),
    (MNIST, 6, 256, WQK, 257_506),
    (MNIST, 6, 256, MINIMUM, 212_866),
    (MNIST, 6, 0, UNCHANGED, 92_890),
    (MNIST, 6, 0, FOUR_HEADS, 92_950),
    (MNIST, 6, 0, SYMMETRY, 69_910),
    (MNIST, 6, 0, SYMMETRY_4, 69_910),
    (MNIST, 6, 0, WQK_NO_MLP, 70_570),
    (MNIST, 6, 0, MINIMUM, 26_650),
    (CIFAR, 6, 256, UNCHANGED, 287_686),
    (CIFAR, 6, 256, FOUR_HEADS, 287_746),
    (CIFAR, 6, 256, MINIMUM, 221_446),
    (CIFAR, 6, 0, UNCHANGED, 101_470),
    (CIFAR, 6, 0, FOUR_HEADS, 101_530),
    (CIFAR, 6, 0, SYMMETRY, 78_490),
    (CIFAR, 6, 0, SYMMETRY_4, 78_490),
    (CIFAR, 6, 0, WQK_NO_MLP, 79_150),
    (CIFAR, 6, 0, MINIMUM, 35_230),
    (CIFAR, 12, 256, FOUR_HEADS, 563_242),
    (CIFAR, 12, 0, FOUR_HEADS, 190_810),
]


@pytest.mark.parametrize(("shape", "depth", "mlp", "variant", "params"), DERIVED)
def test_paper_counts(shape: InputShape, depth: int, mlp: int, variant: dict[str, Any], params: int) -> None:
    config = ModelConfig(width=WIDTH, depth=depth, mlp=mlp, **variant)
    size = measure(config, shape)
    assert size.params == params
    outside = (shape.features + 1) * WIDTH + (WIDTH + 1) * shape.outputs
    assert size.params_body == params - outside


def test_measure_agrees_with_the_real_module() -> None:
    config = ModelConfig(depth=2, similarity="cholesky", pair_position=7, pool="cls", position="learned")
    module = build(config, MNIST)
    assert measure(config, MNIST).params == sum(p.numel() for p in module.parameters())


def test_overdetermination_of_table_2() -> None:
    """Eq. 12: Q = K M / P, 2.15 for the unchanged network and 22.51 for the minimum."""
    unchanged, minimum = ModelConfig(), ModelConfig(mlp=0, **MINIMUM)
    assert measure(unchanged, MNIST).overdetermination(MNIST) == pytest.approx(2.15, abs=0.005)
    assert measure(minimum, MNIST).overdetermination(MNIST) == pytest.approx(22.51, abs=0.005)


N2, TRIANGLE = WIDTH**2, WIDTH * (WIDTH + 1) // 2


@pytest.mark.parametrize(
    ("change", "weights"),
    [
        ({"similarity": "separate", "value": "none"}, 2 * N2),
        ({"similarity": "collapsed", "value": "none"}, N2),
        ({"similarity": "shared", "value": "none"}, N2),
        ({"similarity": "mirrored", "value": "none"}, TRIANGLE),
        ({"similarity": "cholesky", "value": "none"}, TRIANGLE),
        ({"similarity": "shared", "value": "separate"}, N2 + 2 * N2),
        ({"similarity": "shared", "value": "collapsed"}, N2 + N2),
        ({"similarity": "shared", "value": "key"}, N2 + N2),
        ({"similarity": "shared", "value": "stacked"}, N2),
        ({"similarity": "shared", "value": "none", "pair_position": 50}, N2 + 50),
        ({"similarity": "shared", "value": "none", "diagonal": "normalised"}, N2),
        ({"similarity": "separate", "bias": "all"}, 4 * N2 + 4 * WIDTH),
        ({"similarity": "separate", "bias": ("query", "output")}, 4 * N2 + 2 * WIDTH),
        ({"similarity": "collapsed", "bias": "all"}, 3 * N2 + 4 * WIDTH),
        ({"similarity": "shared", "value": "key", "bias": "all"}, 2 * N2 + 2 * WIDTH),
        ({"similarity": "shared", "value": "none", "norm": "none"}, N2 - 4 * WIDTH),
        ({"similarity": "shared", "value": "none", "mlp": 256}, N2 + 2 * HIDDEN * WIDTH + HIDDEN + WIDTH),
    ],
)
def test_weights_per_block(change: dict[str, Any], weights: int) -> None:
    """A second block adds its matrices, biases and two LayerNorms (4N), and the MLP's 2hN + h + N."""
    settings = {"mlp": 0, "bias": "none"} | change
    one, two = (measure(ModelConfig(depth=depth, **settings), MNIST).params for depth in (1, 2))
    assert two - one == weights + 4 * WIDTH


def test_stacked_is_one_matrix_for_the_whole_stack() -> None:
    for depth in (1, 4):
        settings: dict[str, Any] = {"mlp": 0, "bias": "none", "depth": depth, "similarity": "collapsed"}
        stacked, none = (measure(ModelConfig(value=v, **settings), MNIST).params for v in ("stacked", "none"))
        assert stacked - none == N2


@pytest.mark.parametrize(
    ("change", "matrices", "channels"),
    [
        ({}, 4, 0),
        ({"heads": 4}, 4, 0),
        ({"similarity": "collapsed"}, 3, 0),
        ({"similarity": "cholesky", "value": "none"}, 1, 0),
        ({"similarity": "shared", "value": "key", "pair_position": 50}, 2, 50),
    ],
)
@pytest.mark.parametrize("pool", ["mean", "cls"])
def test_flops_in_closed_form(change: dict[str, Any], matrices: int, channels: int, pool: str) -> None:
    """Two per multiply-add: T N^2 per matrix, T^2 N for s and for A v each, 2 T N h for the MLP, T^2 m for +Pos."""
    tokens = MNIST.tokens + (pool == "cls")
    block = matrices * tokens * WIDTH**2 + 2 * tokens**2 * WIDTH + 2 * tokens * WIDTH * HIDDEN + tokens**2 * channels
    expected = 2 * (MNIST.tokens * MNIST.features * WIDTH + 6 * block + WIDTH * MNIST.outputs)
    assert measure(ModelConfig(pool=pool, **change), MNIST).flops == expected


def test_measure_allocates_nothing() -> None:
    """The weights of this module would take 6.9 TB."""
    size = measure(ModelConfig(width=120_000, depth=30), MNIST)
    assert size.params > 30 * 4 * 120_000**2


def test_measure_leaves_the_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    measure(ModelConfig(builder="test_models_size:build_own"), MNIST)
    measure(ModelConfig(depth=3), MNIST)
    assert torch.equal(before, torch.random.get_rng_state())


class Own(nn.Module):
    """A user's module that cannot run on the meta device."""

    def __init__(self, shape: InputShape, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Linear(shape.features, hidden)
        self.frozen = nn.Parameter(torch.zeros(5), requires_grad=False)
        self.body = nn.Linear(hidden, hidden, bias=False)
        self.head = nn.Linear(hidden, shape.outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = 1.0 + x.abs().max().item()
        scores: torch.Tensor = self.head(self.body(self.embedding(x).mean(-2) / scale))
        return scores


def build_own(config: ModelConfig, shape: InputShape) -> nn.Module:
    return Own(shape, config.options.get("hidden", 8))


def test_a_users_builder_is_measured_too() -> None:
    size = measure(ModelConfig(builder="test_models_size:build_own", options={"hidden": 6}), MNIST)
    assert size.params == 50 * 6 + 36 + 7 * 10
    assert size.params_body == 36
    assert size.flops == 2 * (16 * 49 * 6 + 36 + 60)


def test_an_unknown_builder_is_refused() -> None:
    with pytest.raises(RegistryError, match="Did you mean 'transformer'"):
        build(ModelConfig(builder="transfomer"), MNIST)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 7}, "width=60 is not a multiple of heads=7"),
        ({"heads": 4, "similarity": "collapsed"}, "similarity=collapsed needs heads=1"),
        ({"heads": 4, "similarity": "mirrored"}, "similarity=mirrored needs heads=1"),
        ({"heads": 4, "similarity": "cholesky"}, "similarity=cholesky needs heads=1"),
        ({"heads": 2, "value": "collapsed"}, "value=collapsed needs heads=1"),
        ({"heads": 2, "value": "stacked"}, "value=stacked needs heads=1"),
        ({"similarity": "collapsed", "value": "key"}, "value=key needs key vectors, and similarity=collapsed"),
        ({"similarity": "mirrored", "value": "key"}, "value=key needs key vectors, and similarity=mirrored"),
        ({"similarity": "cholesky", "value": "key"}, "value=key needs key vectors, and similarity=cholesky"),
        ({"similarity": "shared", "bias": ("query",)}, "bias=query does not exist"),
    ],
)
def test_impossible_combinations_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ModelConfig(**change)
