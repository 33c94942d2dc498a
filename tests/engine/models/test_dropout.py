"""Dropout: the identity in evaluation, the mean in training, and masks that are a replica's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from ablate.base.errors import RequestError
from ablate.engine.models import build
from ablate.engine.models.layers import Dropout
from support.model_cases import PAIR, SHAPE, TEXT, config, ids, model, normal


def generators(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


@pytest.mark.parametrize("keyed", [False, True])
def test_evaluation_is_the_identity_and_training_keeps_the_mean(keyed: bool) -> None:
    """Of 120,000 ones about a share p becomes 0 and the rest 1 / (1 - p): a mean of 1 within five standard errors."""
    layer, x = Dropout(0.3), torch.ones(2, 20, 30, 100)
    layer.generators = generators(1, 2) if keyed else None
    assert layer.eval()(x) is x
    torch.manual_seed(0)
    y = layer.train()(x)
    assert y.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
    assert y.mean().item() == pytest.approx(1.0, abs=5 * (0.3 / 0.7 / x.numel()) ** 0.5)
    assert not torch.equal(y[0], y[1])


def test_a_replica_draws_the_same_in_any_company_and_beside_longer_texts() -> None:
    x = normal(3, 4, 6, 5)
    alone, together, longer = Dropout(0.5, tokens=9), Dropout(0.5, tokens=9), Dropout(0.5, tokens=9)
    alone.generators, together.generators, longer.generators = generators(7), generators(5, 7, 6), generators(7)
    for _ in range(3):
        one = alone(x[1:2])
        assert torch.equal(together(x)[1], one[0])
        extended = longer(torch.cat([x, normal(3, 4, 2, 5)], dim=2)[1:2])
        assert torch.equal(extended[:, :, :6], one)


def test_successive_draws_differ_and_the_gradient_goes_where_values_went() -> None:
    layer, x = Dropout(0.5), torch.ones(1, 4, 6, 5, requires_grad=True)
    layer.generators = generators(0)
    first, second = layer(x), layer(x)
    assert not torch.equal(first, second)
    assert torch.equal(torch.autograd.grad(first.sum(), x)[0], first.detach())


def test_generators_that_do_not_fit_are_refused() -> None:
    layer = Dropout(0.5)
    layer.generators = generators(0, 1)
    with pytest.raises(RequestError, match=r"Dropout.generators has 2 generators: x has 3 replicates"):
        layer(normal(3, 4, 6, 5))


def test_without_dropout_there_is_no_module_for_it_and_with_it_one() -> None:
    for shape in (SHAPE, TEXT, PAIR):
        counts = [sum(isinstance(m, Dropout) for m in build(config(dropout=p), shape).modules()) for p in (0.0, 0.1)]
        assert counts == [0, 1]
        assert model(shape=shape, dropout=0.1).state_dict().keys() == model(shape=shape).state_dict().keys()


def given(shape: Any, *replicates: int) -> Any:
    if shape is SHAPE:
        return normal(*replicates, 4, SHAPE.tokens, SHAPE.features)
    target = ids(8, *replicates, 4, 5)
    return (ids(9, *replicates, 4, 6), target) if shape is PAIR else target


@pytest.mark.parametrize("shape", [SHAPE, TEXT, PAIR], ids=["patches", "text", "pair"])
def test_a_model_in_evaluation_ignores_it_and_in_training_a_row_is_its_own(shape: Any) -> None:
    """In float32, as the engine trains: torch rounds a GELU in float64 by an element's place in its array."""
    module, plain = model(shape=shape, mlp=10, dropout=0.2).float(), model(shape=shape, mlp=10).float()
    x = given(shape, 3)
    x = x.float() if shape is SHAPE else x
    weights = {n: torch.stack([p.detach() * (1 + 0.1 * r) for r in range(3)]) for n, p in module.named_parameters()}
    second = {n: v[1:2] for n, v in weights.items()}
    x_second = tuple(part[1:2] for part in x) if shape is PAIR else x[1:2]
    dropout = next(m for m in module.modules() if isinstance(m, Dropout))
    dropout.generators = generators(5, 7, 6)
    together = functional_call(module, weights, (x,))
    dropout.generators = generators(7)
    assert torch.equal(functional_call(module, second, (x_second,))[0], together[1])
    expected = functional_call(plain, weights, (x,))
    assert not torch.allclose(together, expected)
    assert torch.equal(functional_call(module.eval(), weights, (x,)), expected)


class Nothing(nn.Module):
    """Stands in for a dropout that leaves nothing, and counts what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.zeros_like(x)


@pytest.mark.parametrize(("mlp", "branches"), [(10, 2), (0, 1)])
def test_a_block_without_its_branches_is_the_residual(mlp: int, branches: int) -> None:
    """What is dropped is what attention and the MLP add, and not the identity in the MLP's place."""
    block, x = model(mlp=mlp, dropout=0.1).blocks[0], normal(2, 5, 12)
    block.dropout = Nothing()
    assert torch.equal(block(x), x if mlp else x + block.mlp_norm(x))
    assert block.dropout.calls == branches


def test_a_decoder_block_drops_what_each_of_three_branches_adds() -> None:
    block, x, source = model(shape=PAIR, mlp=10, dropout=0.1).decoder.blocks[0], normal(2, 5, 12), normal(2, 6, 12)
    block.dropout = Nothing()
    assert torch.equal(block.attend(x, None, block.cross.memory(source, None))[0], x)
    assert block.dropout.calls == 3


def test_dropout_stands_behind_embedding_and_places() -> None:
    module = model(shape=TEXT, dropout=0.1)
    module.dropout = Nothing()
    assert module.embedded(ids(8, 3, 6)).eq(0).all()
