"""Initial weights: keyed per seed and path, paired between variants, and good enough that every variant learns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor

from ablate.engine.models import build, initial_parameters
from ablate.engine.models.model_config import InputShape, ModelConfig
from support.model_cases import SHAPE, config, normal


def initial(seed: int = 0, study_seed: int = 7, dataset: str = "digits", **changes: Any) -> dict[str, Tensor]:
    return initial_parameters(config(**changes), SHAPE, study_seed=study_seed, dataset=dataset, seed=seed)


def test_shared_paths_start_equal_in_all_variants() -> None:
    """All but the embedding's bias, which answers to the positions."""
    full = initial(mlp=10, pool="cls", position="learned")
    others = [initial(similarity="shared"), initial(value="none", depth=5), initial(pair_position=3, heads=3)]
    for other in others:
        shared = {n for n in full if n in other and full[n].shape == other[n].shape} - {"embedding.bias"}
        assert {"embedding.weight", "head.weight", "blocks.1.attention.value.weight"} <= shared or other is others[1]
        doubled = {n for n in shared if n.endswith("key.weight") and other is others[0]}  # it is the query too
        assert all(torch.equal(full[n], other[n]) for n in shared - doubled)
        head_width = config().width // config().heads
        for name in doubled:
            torch.testing.assert_close(other[name], full[name] * head_width**-0.25)


@pytest.mark.parametrize("heads", [1, 4])
def test_a_symmetric_similarity_starts_with_diagonal_terms_near_one(heads: int) -> None:
    """Tokens of unit mean square have |k|^2 = d g^2 on average, so s_ii = sqrt(d) g^2 = 1 with g = d^(-1/4)."""
    wide = ModelConfig(width=256, depth=1, heads=heads, similarity="shared", mlp=0)
    module = build(wide, SHAPE).double()
    module.load_state_dict(initial_parameters(wide, SHAPE, study_seed=0, dataset="d", seed=0))
    s = module.blocks[0].attention.similarity(normal(64, SHAPE.tokens, 256))
    assert s.diagonal(dim1=-2, dim2=-1).mean().item() == pytest.approx(1.0, rel=0.05)


def test_every_seed_study_dataset_and_path_differs() -> None:
    name = "blocks.0.attention.query.weight"
    draws = [initial(), initial(seed=1), initial(study_seed=8), initial(dataset="mnist")]
    matrices = [d[name] for d in draws] + [draws[0]["blocks.1.attention.query.weight"]]
    matrices += [draws[0]["blocks.0.attention.key.weight"]]
    for i, one in enumerate(matrices):
        assert not any(torch.equal(one, other) for other in matrices[i + 1 :])
    assert all(torch.equal(a, b) for a, b in zip(initial().values(), draws[0].values(), strict=True))


def scores(values: dict[str, Tensor], **changes: Any) -> Tensor:
    module = build(config(**changes), SHAPE).double()
    module.load_state_dict(values)
    result: Tensor = module(normal(4, SHAPE.tokens, SHAPE.features))
    return result


@pytest.mark.parametrize(
    ("full", "reduced"),
    [
        ({}, {"similarity": "collapsed"}),
        ({}, {"value": "collapsed"}),
        ({}, {"similarity": "collapsed", "value": "collapsed"}),
        ({"similarity": "shared"}, {"similarity": "mirrored"}),
        ({"similarity": "shared"}, {"similarity": "cholesky"}),
    ],
)
def test_a_reduced_form_starts_as_the_function_it_reduces(full: dict[str, Any], reduced: dict[str, Any]) -> None:
    expected = scores(initial(**full), **full)
    torch.testing.assert_close(scores(initial(**reduced), **reduced), expected, rtol=1e-5, atol=1e-6)


def test_scales_are_those_declared() -> None:
    """Variance is 1 / inputs, branches end at 0.4 of that root, norms are the identity, +Pos sums to one."""
    wide = ModelConfig(width=200, depth=1, similarity="shared", pair_position=8, mlp=400)
    values = initial_parameters(wide, SHAPE, study_seed=0, dataset="d", seed=0)
    assert values["blocks.0.attention.key.weight"].std().item() == pytest.approx(200**-0.75, rel=0.02)
    assert values["blocks.0.mlp.output.weight"].std().item() == pytest.approx(0.4 * 400**-0.5, rel=0.02)
    assert values["blocks.0.attention.pair_position"].sum().item() == pytest.approx(1.0)
    assert all(v.eq(0).all() for n, v in values.items() if n.endswith("bias") and n != "embedding.bias")
    assert values["blocks.0.mlp_norm.weight"].eq(1).all()
    assert all(v.dtype == torch.float32 and v.is_contiguous() for v in values.values())


@pytest.mark.parametrize("pool", ["mean", "cls"])
def test_blank_patches_start_centred(pool: str) -> None:
    """Without content, the vectors of the patches sum to zero: what all places share is taken out."""
    module = build(config(pool=pool), SHAPE)
    module.load_state_dict(initial(pool=pool))
    blank = torch.zeros(1, SHAPE.tokens, SHAPE.features)
    patches = module.embedded(blank)[:, -SHAPE.tokens :].detach()
    assert patches.std() > 0.1
    torch.testing.assert_close(patches.mean(1), torch.zeros(1, 12), rtol=0, atol=1e-6)


def test_names_and_shapes_are_those_of_the_module() -> None:
    for changes in ({"mlp": 10}, {"similarity": "cholesky", "value": "stacked"}, {"pool": "cls", "bias": "none"}):
        module = build(config(**changes), SHAPE)
        expected = {n: p.shape for n, p in module.named_parameters()}
        assert {n: v.shape for n, v in initial(**changes).items()} == expected


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small products on many threads wait for each other longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


LEARNERS: dict[str, dict[str, Any]] = {
    "unchanged with MLP": {"mlp": 64},
    "minimum": {"similarity": "collapsed", "value": "none", "bias": "none"},
    "symmetric, class token": {"similarity": "shared", "bias": "none", "pool": "cls"},
    "mirrored": {"similarity": "mirrored"},
    "cholesky": {"similarity": "cholesky"},
    "cholesky, value none": {"similarity": "cholesky", "value": "none"},
    "collapsed": {"similarity": "collapsed", "value": "collapsed"},
    "stacked": {"similarity": "collapsed", "value": "stacked"},
    "K+Pos": {"similarity": "shared", "value": "key", "pair_position": 10},
    "normalised": {"diagonal": "normalised"},
    "post-norm": {"norm": "post"},
}


@pytest.mark.parametrize("variant", LEARNERS)
def test_every_variant_learns_from_the_start(variant: str, one_thread: None) -> None:
    """120 steps on scikit-learn's digits: chance is 10%, the first loss is about log 10."""
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().view(-1, 2, 4, 2, 4).transpose(2, 3).reshape(-1, 4, 16)
    x, y = (images - images.mean()) / images.std(), torch.from_numpy(digits.target)
    shape = InputShape(tokens=4, features=16, outputs=10, train_samples=1500)
    settings = ModelConfig(**({"width": 24, "depth": 4, "mlp": 0} | LEARNERS[variant]))
    module = build(settings, shape)
    module.load_state_dict(initial_parameters(settings, shape, study_seed=0, dataset="digits", seed=0))
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    first = F.cross_entropy(module(x[:1500]), y[:1500]).item()
    assert first < 3.0
    order = torch.randperm(1500, generator=torch.Generator().manual_seed(0)).repeat(4)
    for batch in order[: 120 * 50].split(50):
        optimizer.zero_grad()
        F.cross_entropy(module(x[batch]), y[batch]).backward()
        optimizer.step()
    with torch.no_grad():
        assert (module(x[1500:]).argmax(-1) == y[1500:]).double().mean() > 0.5
