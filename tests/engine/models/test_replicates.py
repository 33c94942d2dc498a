"""R replicas at once against R plain runs and torch's vmap, outputs and gradients, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from ablate.engine.models.layers import affine, norm_at_once, norm_by_replicate, softmax
from ablate.engine.models.model_config import InputShape
from support.model_cases import PAIR, SET, SHAPE, TEXT, VARIANTS, ids, model, normal, text_shape

REPLICAS, BATCH = 3, 4
ROUNDING = 1e-5  # of the largest number of a network; float32 rounds by 1e-7 at each of its operations
NEAR: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}


def check_replicates(modules: list[torch.nn.Module], x: Any) -> None:
    """Assert that scores and gradients at once are those of plain runs, and of torch's vmap."""
    weights = {
        n: torch.stack([dict(m.named_parameters())[n].detach() for m in modules]) for n in modules[0].state_dict()
    }
    leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
    scores = functional_call(modules[0], leaves, (x,))
    scores.square().sum().backward()

    def loss(weights: dict[str, torch.Tensor], own: Any) -> torch.Tensor:
        squared: torch.Tensor = functional_call(modules[0], weights, (own,)).square().sum()
        return squared

    mapped_scores = vmap(lambda weights, own: functional_call(modules[0], weights, (own,)))(weights, x)
    mapped = vmap(grad(loss))(weights, x)
    torch.testing.assert_close(scores, mapped_scores, **NEAR)
    for replica, module in enumerate(modules):
        plain = module(chosen(x, replica))
        plain.square().sum().backward()
        torch.testing.assert_close(scores[replica], plain, **NEAR)
        for name, parameter in module.named_parameters():
            size = 1e-12 * max(1.0, float(parameter.grad.abs().max()))
            torch.testing.assert_close(leaves[name].grad[replica], parameter.grad, rtol=0, atol=size)
            torch.testing.assert_close(mapped[name][replica], parameter.grad, rtol=0, atol=size)


def chosen(x: Any, places: int | list[int]) -> Any:
    """Return the inputs of some replicates."""
    return tuple(part[places] for part in x) if isinstance(x, tuple) else x[places]


@pytest.mark.parametrize("variant", VARIANTS)
def test_replicates_equal_plain_runs_and_vmap(variant: str) -> None:
    modules = [model(seed, **VARIANTS[variant]) for seed in range(REPLICAS)]
    check_replicates(modules, normal(REPLICAS, BATCH, SHAPE.tokens, SHAPE.features))


def weights_of(module: torch.nn.Module, count: int) -> dict[str, torch.Tensor]:
    """Return the parameters of `count` different replicates, in the type of `module`."""
    return {n: torch.stack([p.detach() * (1 + 0.1 * r) for r in range(count)]) for n, p in module.named_parameters()}


def scores_and_gradients(module: torch.nn.Module, weights: dict[str, torch.Tensor], x: Any) -> list[torch.Tensor]:
    leaves = {n: v.detach().clone().requires_grad_() for n, v in weights.items()}
    scores = functional_call(module, leaves, (x,))
    return [scores.detach(), *torch.autograd.grad(scores.square().sum(), list(leaves.values()))]


@pytest.mark.parametrize("variant", VARIANTS)
def test_float32_is_float64_rounded_in_scores_and_gradients(variant: str) -> None:
    module, x = model(0, **VARIANTS[variant]), normal(REPLICAS, BATCH, SHAPE.tokens, SHAPE.features)
    precise = scores_and_gradients(module, weights_of(module, REPLICAS), x)
    weights = {n: v.float() for n, v in weights_of(module, REPLICAS).items()}
    found = scores_and_gradients(module.float(), weights, x.float())
    largest = max(float(one.abs().max()) for one in precise)
    assert all(float((one - other).abs().max()) < ROUNDING * largest for one, other in zip(found, precise, strict=True))


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_one_of_sixteen_replicas_is_that_replica_alone(variant: str) -> None:
    """Bit for bit, in scores and in gradients."""
    module = model(0, **VARIANTS[variant]).float()
    weights, x = weights_of(module, 16), normal(16, BATCH, SHAPE.tokens, SHAPE.features).float()
    together = scores_and_gradients(module, weights, x)
    for place in range(16):
        alone = scores_and_gradients(
            module, {n: v[place : place + 1] for n, v in weights.items()}, x[place : place + 1]
        )
        assert all(torch.equal(one[0], other[place]) for one, other in zip(alone, together, strict=True))


@pytest.mark.parametrize("outputs", [1, 2, 10])
@pytest.mark.parametrize("inputs", [1, 2, 16, 60])
@pytest.mark.parametrize("samples", [1, 7, 32, 64])
def test_a_product_with_a_vector_is_the_same_alone_and_among_others(samples: int, inputs: int, outputs: int) -> None:
    given = [normal(16, *shape).float() for shape in ((samples, inputs), (inputs, outputs), (outputs,))]

    def run(places: list[int]) -> list[torch.Tensor]:
        leaves = [one[places].requires_grad_() for one in given]
        y = affine(*leaves)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), leaves)]

    together = run(list(range(16)))
    for places in ([3], [3, 0], [1, 5, 3]):
        at = places.index(3)
        assert all(torch.equal(one[at], other[3]) for one, other in zip(run(places), together, strict=True))


def test_both_ways_to_normalise_replicates_agree_with_plain_layer_norm() -> None:
    x, scale, shift = normal(REPLICAS, BATCH, 5, 12), normal(REPLICAS, 12, seed=1), normal(REPLICAS, 12, seed=2)
    expected = torch.stack([F.layer_norm(x[r], (12,), scale[r], shift[r]) for r in range(REPLICAS)])
    for way in (norm_by_replicate, norm_at_once):
        torch.testing.assert_close(way(x, scale, shift), expected, **NEAR)


@pytest.mark.parametrize("replicas", [1, REPLICAS])
def test_half_precision_is_normalised_in_float32_and_rounded_once(replicas: int) -> None:
    x, scale, shift = (normal(replicas, *shape).bfloat16() for shape in ((BATCH, 5, 12), (12,), (12,)))
    each = zip(x.float(), scale.float(), shift.float(), strict=True)
    exact = torch.stack([F.layer_norm(one, (12,), w, b) for one, w, b in each])
    for scales in (scale, scale.float()):  # of a network in half precision, and under autocast
        assert torch.equal(norm_by_replicate(x, scales, shift.to(scales.dtype)), exact.bfloat16())
    assert torch.equal(softmax(x), torch.softmax(x.float(), dim=-1).bfloat16())


def test_under_autocast_the_cpu_multiplies_in_bfloat16_and_normalises_in_float32() -> None:
    class Kernels(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if args and isinstance(args[0], torch.Tensor):
                found.setdefault(func.overloadpacket.__name__, set()).add(args[0].dtype)
            return func(*args, **(kwargs or {}))

    found: dict[str, set[torch.dtype]] = {}
    module = model(0, heads=3, mlp=8)
    weights = {n: p.detach().expand(2, *p.shape).float() for n, p in module.named_parameters()}
    x = normal(2, BATCH, SHAPE.tokens, SHAPE.features).float()
    with torch.autocast("cpu", dtype=torch.bfloat16), Kernels():
        functional_call(module, weights, (x,))
    assert found["native_layer_norm"] == found["_softmax"] == {torch.float32}
    assert found["bmm"] == {torch.bfloat16}


def test_attention_weights_come_with_the_replicate_axis() -> None:
    module = model(0, heads=3, pool="cls")
    weights = {n: p.detach().expand(2, *p.shape) for n, p in module.named_parameters()}
    x = normal(2, BATCH, SHAPE.tokens, SHAPE.features)
    _, maps = functional_call(module, weights, (x,), {"return_weights": True})
    _, plain = module(x[1], return_weights=True)
    assert [m.shape for m in maps] == [(2, BATCH, 3, SHAPE.tokens + 1, SHAPE.tokens + 1)] * 2
    for one, expected in zip(maps, plain, strict=True):
        torch.testing.assert_close(one[1], expected, **NEAR)
        torch.testing.assert_close(one.sum(-1), torch.ones(one.shape[:-1], dtype=torch.float64), **NEAR)


OTHER_SHAPES: dict[str, InputShape] = {
    "causal text": TEXT,
    "list of ids": text_shape(causal=False),
    "set": SET,
    "sample of ids": text_shape(causal=False, output="sample"),
    "pair": PAIR,
}
OTHER_VARIANTS: dict[str, dict[str, Any]] = {
    "separate, MLP, learned positions": {"mlp": 10, "heads": 3, "position": "learned"},
    "K+Pos, normalised, post-norm": {
        "similarity": "shared",
        "value": "key",
        "heads": 2,
        "pair_position": 4,
        "diagonal": "normalised",
        "norm": "post",
    },
    "collapsed, stacked": {"similarity": "collapsed", "value": "stacked"},
    "mirrored, normalised": {"similarity": "mirrored", "diagonal": "normalised"},
}


def given(shape: InputShape, *replicates: int) -> Any:
    """Return what a model of `shape` reads; texts are shorter than the longest, sources end in padding."""
    if shape.inputs == "vectors":
        return normal(*replicates, BATCH, shape.tokens, shape.features)
    texts = ids(shape.features, *replicates, BATCH, 5)
    if not shape.source_tokens:
        return texts
    lengths = torch.tensor([6, 2, 4, 5])
    return ids(shape.source_features, *replicates, BATCH, 6).masked_fill(torch.arange(6) >= lengths[:, None], 0), texts


@pytest.mark.parametrize("variant", OTHER_VARIANTS)
@pytest.mark.parametrize("kind", OTHER_SHAPES)
def test_replicates_of_texts_and_sets_equal_plain_runs_and_vmap(kind: str, variant: str) -> None:
    shape = OTHER_SHAPES[kind]
    modules = [model(seed, shape=shape, **OTHER_VARIANTS[variant]) for seed in range(REPLICAS)]
    check_replicates(modules, given(shape, REPLICAS))


@pytest.mark.parametrize("kind", OTHER_SHAPES)
def test_a_replica_of_texts_or_sets_does_not_depend_on_its_neighbours(kind: str) -> None:
    """Bit for bit, in scores and in gradients: alone, and in another place."""
    shape = OTHER_SHAPES[kind]
    module = model(0, shape=shape, diagonal="normalised", pair_position=3, mlp=10).float()
    weights, x = weights_of(module, 4), given(shape, 4)
    x = x.float() if shape is SET else x

    def run(places: list[int]) -> list[torch.Tensor]:
        return scores_and_gradients(module, {n: v[places] for n, v in weights.items()}, chosen(x, places))

    together, alone, moved = run([0, 1, 2, 3]), run([2]), run([2, 0])
    assert all(torch.equal(all_of[2], one[0]) for all_of, one in zip(together, alone, strict=True))
    assert all(torch.equal(all_of[2], one[0]) for all_of, one in zip(together, moved, strict=True))


@pytest.mark.parametrize("variant", OTHER_VARIANTS)
def test_greedy_replicates_equal_plain_runs(variant: str) -> None:
    modules = [model(seed, shape=PAIR, **OTHER_VARIANTS[variant]).eval() for seed in range(REPLICAS)]
    source, _ = given(PAIR, REPLICAS)
    expected = [module.greedy(source[r], start=1, end=-1, steps=5) for r, module in enumerate(modules)]
    weights = {
        n: torch.stack([dict(m.named_parameters())[n].detach() for m in modules]) for n in modules[0].state_dict()
    }
    for path, value in weights.items():
        owner, _, name = path.rpartition(".")
        modules[0].get_submodule(owner).register_parameter(name, torch.nn.Parameter(value))
    assert torch.equal(modules[0].greedy(source, start=1, end=-1, steps=5), torch.stack(expected))
