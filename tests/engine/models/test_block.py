"""Blocks and stacks against paper A's equations."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ablate.engine.models import build
from ablate.engine.models.block import Block
from support.model_cases import SHAPE, config, filled, model, normal

EXACT = {"rtol": 0.0, "atol": 1e-12}
WIDTH = 12


def block(**changes: object) -> Block:
    layer = filled(Block(config(**changes)), seed=2)
    assert isinstance(layer, Block)
    return layer


def norm_of(z: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    return F.layer_norm(z, (WIDTH,), layer.weight, layer.bias)


@pytest.mark.parametrize("norm", ["pre", "post", "none"])
@pytest.mark.parametrize("residual", [True, False])
def test_without_mlp_the_identity_stands_in_its_place(norm: str, residual: bool) -> None:
    own, x = block(norm=norm, residual=residual), normal(4, 5, WIDTH)
    kept = 1.0 if residual else 0.0
    if norm == "pre":
        z = kept * x + own.attention(norm_of(x, own.attention_norm))
        expected = kept * z + norm_of(z, own.mlp_norm)
    elif norm == "post":
        expected = norm_of(norm_of(kept * x + own.attention(x), own.attention_norm), own.mlp_norm)
    else:
        expected = kept * x + own.attention(x)
    torch.testing.assert_close(own(x), expected, **EXACT)


def test_stacked_equals_the_product_of_the_collapsed() -> None:
    """Eq. 8 and 9: y_S = A_S ... A_1 x Wvo_1 ... Wvo_S, where block s compares tokens through Wvo_1 ... Wvo_(s-1)."""
    bare = {"depth": 3, "norm": "none", "residual": False, "bias": "none", "similarity": "collapsed"}
    collapsed, stacked = model(value="collapsed", **bare), model(value="stacked", **bare)
    product = torch.eye(WIDTH, dtype=torch.float64)
    with torch.no_grad():
        for each, one in zip(collapsed.blocks, stacked.blocks, strict=True):
            one.attention.query_key.weight.copy_(product @ each.attention.query_key.weight @ product.T)
            product = product @ each.attention.value_output.weight
        stacked.value_output.weight.copy_(product)
        for part in ("embedding", "head"):
            getattr(stacked, part).load_state_dict(getattr(collapsed, part).state_dict())
    x = normal(4, SHAPE.tokens, SHAPE.features)
    torch.testing.assert_close(stacked(x), collapsed(x), **EXACT)


def test_a_bare_stack_without_values_averages_the_embeddings() -> None:
    """Eq. 10: the last outputs are the first inputs weighted by the product of all attention matrices."""
    bare = model(depth=3, norm="none", residual=False, bias="none", value="none")
    x = normal(4, SHAPE.tokens, SHAPE.features)
    scores, maps = bare(x, return_weights=True)
    tokens = bare.embedding(x) + bare.fixed_position
    for weights in maps:
        tokens = weights[:, 0] @ tokens
    torch.testing.assert_close(scores, bare.head(tokens.mean(-2)), **EXACT)


@pytest.mark.parametrize("pool", ["mean", "cls"])
@pytest.mark.parametrize("position", ["sinusoidal", "learned", "none"])
def test_scores_equal_the_parts_put_together(pool: str, position: str) -> None:
    own, x = model(pool=pool, position=position), normal(4, SHAPE.tokens, SHAPE.features)
    tokens = own.embedding(x)
    if pool == "cls":
        tokens = torch.cat([own.class_token.expand(4, 1, WIDTH), tokens], dim=1)
    code = {"sinusoidal": own.fixed_position, "learned": own.position, "none": torch.zeros(())}[position]
    tokens = tokens + code
    for layer in own.blocks:
        tokens = layer(tokens)
    pooled = tokens[:, 0] if pool == "cls" else tokens.mean(1)
    torch.testing.assert_close(own(x), pooled @ own.head.weight + own.head.bias, **EXACT)


def test_without_positions_the_order_of_patches_does_not_matter() -> None:
    x, order = normal(4, SHAPE.tokens, SHAPE.features), torch.tensor([3, 0, 4, 1, 2])
    blind, placed = model(position="none"), model(position="sinusoidal")
    torch.testing.assert_close(blind(x[:, order]), blind(x), **EXACT)
    assert (placed(x[:, order]) - placed(x)).abs().max() > 1e-3


def test_bfloat16_weights_give_bfloat16_scores() -> None:
    own = build(config(pair_position=4, diagonal="normalised", similarity="shared"), SHAPE).to(torch.bfloat16)
    assert own(normal(2, SHAPE.tokens, SHAPE.features).to(torch.bfloat16)).dtype == torch.bfloat16
