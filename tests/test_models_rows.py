"""R replicas at once against R plain runs and torch's vmap, outputs and gradients, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from model_cases import SHAPE, VARIANTS, model, normal
from torch.func import functional_call, grad, vmap

from ablate.models.layers import norm_at_once, norm_by_replicate

REPLICAS, BATCH = 3, 4
NEAR: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_equal_plain_runs_and_vmap(variant: str) -> None:
    modules = [model(seed, **VARIANTS[variant]) for seed in range(REPLICAS)]
    rows = {n: torch.stack([dict(m.named_parameters())[n].detach() for m in modules]) for n in modules[0].state_dict()}
    x, targets = normal(REPLICAS, BATCH, SHAPE.tokens, SHAPE.features), normal(REPLICAS, BATCH, SHAPE.outputs, seed=1)
    leaves = {name: value.clone().requires_grad_() for name, value in rows.items()}
    scores = functional_call(modules[0], leaves, (x,))
    ((scores - targets) ** 2).sum().backward()

    def loss(weights: dict[str, torch.Tensor], x_btf: torch.Tensor, t_bm: torch.Tensor) -> torch.Tensor:
        squared: torch.Tensor = ((functional_call(modules[0], weights, (x_btf,)) - t_bm) ** 2).sum()
        return squared

    mapped_scores = vmap(lambda w, x_btf: functional_call(modules[0], w, (x_btf,)))(rows, x)
    mapped = vmap(grad(loss))(rows, x, targets)
    torch.testing.assert_close(scores, mapped_scores, **NEAR)
    for replica, module in enumerate(modules):
        plain = module(x[replica])
        ((plain - targets[replica]) ** 2).sum().backward()
        torch.testing.assert_close(scores[replica], plain, **NEAR)
        for name, parameter in module.named_parameters():
            size = 1e-12 * max(1.0, float(parameter.grad.abs().max()))
            torch.testing.assert_close(leaves[name].grad[replica], parameter.grad, rtol=0, atol=size)
            torch.testing.assert_close(mapped[name][replica], parameter.grad, rtol=0, atol=size)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_replica_does_not_depend_on_its_neighbours(variant: str) -> None:
    """Bit for bit: alone, among others, and in another slot."""
    module = model(0, **VARIANTS[variant]).float()
    rows = {n: torch.stack([p.detach() * (1 + 0.1 * r) for r in range(4)]) for n, p in module.named_parameters()}
    x = normal(4, BATCH, SHAPE.tokens, SHAPE.features).float()
    with torch.no_grad():
        together = functional_call(module, rows, (x,))
        alone = functional_call(module, {n: v[2:3] for n, v in rows.items()}, (x[2:3],))
        moved = functional_call(module, {n: v[[2, 0]] for n, v in rows.items()}, (x[[2, 0]],))
    assert torch.equal(together[2], alone[0])
    assert torch.equal(together[2], moved[0])


def test_both_ways_to_normalise_rows_agree_with_plain_layer_norm() -> None:
    x, scale, shift = normal(REPLICAS, BATCH, 5, 12), normal(REPLICAS, 12, seed=1), normal(REPLICAS, 12, seed=2)
    expected = torch.stack([F.layer_norm(x[r], (12,), scale[r], shift[r]) for r in range(REPLICAS)])
    for way in (norm_by_replicate, norm_at_once):
        torch.testing.assert_close(way(x, scale, shift), expected, **NEAR)


def test_attention_weights_come_with_the_replicate_axis() -> None:
    module = model(0, heads=3, pool="cls")
    rows = {n: p.detach().expand(2, *p.shape) for n, p in module.named_parameters()}
    x = normal(2, BATCH, SHAPE.tokens, SHAPE.features)
    _, maps = functional_call(module, rows, (x,), {"return_weights": True})
    _, plain = module(x[1], return_weights=True)
    assert [m.shape for m in maps] == [(2, BATCH, 3, SHAPE.tokens + 1, SHAPE.tokens + 1)] * 2
    for one, expected in zip(maps, plain, strict=True):
        torch.testing.assert_close(one[1], expected, **NEAR)
        torch.testing.assert_close(one.sum(-1), torch.ones(one.shape[:-1], dtype=torch.float64), **NEAR)
