"""Whole networks and their training with compiled kernels, against torch without them and in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from ablate.core.trainable import Member
from ablate.core.trial import Report
from ablate.engine.models import attention, layers
from ablate.engine.models.settings import InputShape, ModelConfig
from ablate.engine.tasks import load_task
from ablate.engine.training import train
from ablate.engine.training.pack import TrialPack
from ablate.engine.training.settings import TrainConfig
from support.entries import entry
from support.kernel_cases import compiled, kernels, opened, pretend_compiled
from support.model_cases import PAIR, SET, SHAPE, TEXT, VARIANTS, ids, model, normal, text_shape
from support.model_cases import config as small
from support.small_training import numbers, trial
from support.trials import with_training

__all__ = ["kernels"]

REPLICAS, BATCH = 3, 4
ROUNDING = 1e-5  # of the largest score or gradient of the network; float32 rounds by 1e-7 at each of its operations
NAMES = ("fused_attention", "fused_norm", "fused_affine")
OTHER_SHAPES: dict[str, InputShape] = {
    "images": SHAPE,
    "causal text": TEXT,
    "list of ids": text_shape(causal=False),
    "set": SET,
    "pair": PAIR,
}

pytestmark = pytest.mark.usefixtures("kernels")


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Count the calls of the kernels."""
    found = dict.fromkeys(NAMES, 0)

    def counting(name: str, real: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*args: Any, **kwargs: Any) -> Tensor:
            found[name] += 1
            return real(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in NAMES:
            owner = attention if name == "fused_attention" else layers
            patch.setattr(owner, name, counting(name, getattr(owner, name)))
        yield found


@contextmanager
def without_kernels() -> Iterator[None]:
    """Compute as on a machine without a compiler."""
    with pytest.MonkeyPatch.context() as patch:
        pretend_compiled(None, patch)
        yield


def given(shape: InputShape) -> Any:
    """Return what networks of `shape` read; sources of pairs end in padding."""
    if shape.inputs == "vectors":
        return normal(REPLICAS, BATCH, shape.tokens, shape.features)
    texts = ids(shape.features, REPLICAS, BATCH, 5)
    if not shape.source_tokens:
        return texts
    sources = ids(shape.source_features, REPLICAS, BATCH, 6)
    return sources.masked_fill(torch.arange(6) >= torch.tensor([6, 2, 4, 5])[:, None], 0), texts


def in_type(x: Any, dtype: torch.dtype) -> Any:
    return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x


def results(module: nn.Module, x: Any, dtype: torch.dtype = torch.float32) -> tuple[Tensor, list[Tensor]]:
    """Return scores of three replicates, and the gradients of all their parameters."""
    module = module.to(dtype)
    rows = {n: torch.stack([p.detach() * (1 + 0.1 * r) for r in range(REPLICAS)]) for n, p in module.named_parameters()}
    leaves = {name: value.requires_grad_() for name, value in rows.items()}
    scores = functional_call(module, leaves, (in_type(x, dtype),))
    return scores.detach(), list(torch.autograd.grad(scores.square().sum(), list(leaves.values())))


def require_close(found: tuple[Tensor, list[Tensor]], wanted: tuple[Tensor, list[Tensor]]) -> None:
    """Assert that scores and gradients differ by rounding, of the largest score and of the largest gradient."""
    for ours, theirs in (([found[0]], [wanted[0]]), (found[1], wanted[1])):
        size = ROUNDING * max(float(one.abs().max()) for one in theirs)
        assert all(float((one - other).abs().max()) <= size for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_network_computes_the_same_with_and_without_kernels(variant: str) -> None:
    changes = VARIANTS[variant]
    module, x = model(0, **changes), given(SHAPE)
    precise = results(module, x, torch.float64)
    with counted() as calls:
        found = results(module, x)
    with without_kernels():
        plain = results(module, x)
    require_close(found, precise)
    require_close(plain, precise)
    similarities_as_they_are = changes.get("diagonal") != "normalised" and "pair_position" not in changes
    assert calls["fused_attention"] == (2 if similarities_as_they_are else 0)
    assert calls["fused_norm"] == sum(isinstance(part, layers.LayerNorm) for part in module.modules())
    assert calls["fused_affine"] > 0


@pytest.mark.parametrize("kind", OTHER_SHAPES)
def test_networks_of_texts_sets_and_pairs_compute_the_same(kind: str) -> None:
    shape = OTHER_SHAPES[kind]
    module, x = model(0, shape=shape, heads=3, mlp=10), given(shape)
    precise = results(module, x, torch.float64)
    with counted() as calls:
        found = results(module, x)
    with without_kernels():
        require_close(results(module, x), precise)
    require_close(found, precise)
    assert calls["fused_attention"] == 2  # of pairs, in the decoder: each source has a separate mask
    assert min(calls["fused_norm"], calls["fused_affine"]) > 0


def test_a_mask_of_one_row_serves_all_queries() -> None:
    module = attention.Attention(small(heads=2)).float()
    rows = {name: normal(REPLICAS, *p.shape, seed=1).float() for name, p in module.named_parameters()}
    x, mask = normal(REPLICAS, BATCH, 5, 12).float(), torch.tensor([[True, False, True, True, False]])
    found = functional_call(module, rows, (x, mask))
    torch.testing.assert_close(found, functional_call(module, rows, (x, mask.expand(5, 5))))


def test_a_replicate_of_a_network_does_not_depend_on_its_neighbours() -> None:
    module = model(0, heads=2, mlp=10, pool="cls").float()
    rows = {n: torch.stack([p.detach() * (1 + 0.1 * r) for r in range(8)]) for n, p in module.named_parameters()}
    x = normal(8, 33, SHAPE.tokens, SHAPE.features).float()

    def run(slots: list[int]) -> list[Tensor]:
        leaves = {name: value[slots].requires_grad_() for name, value in rows.items()}
        scores = functional_call(module, leaves, (x[slots],))
        return [scores.detach(), *torch.autograd.grad(scores.square().sum(), list(leaves.values()))]

    with counted() as calls:
        together = run(list(range(8)))
        for slots in ([5], [5, 0], [1, 2, 5, 6]):
            at = slots.index(5)
            assert all(torch.equal(one[at], other[5]) for one, other in zip(run(slots), together, strict=True))
    assert min(calls.values()) > 0


class TestUse:
    """Which networks the kernels compute."""

    def calls(self, dtype: torch.dtype = torch.float32, *, replicas: bool = True) -> list[int]:
        module, x = model(0, mlp=10), given(SHAPE)
        with counted() as calls:
            if replicas:
                results(module, x, dtype)
            else:
                module.to(dtype)(in_type(x[0], dtype)).sum().backward()
        return list(calls.values())

    def test_replicas_in_float32(self) -> None:
        assert min(self.calls()) > 0

    def test_not_in_float64(self) -> None:
        assert self.calls(torch.float64) == [0, 0, 0]

    def test_not_without_replicas(self) -> None:
        assert self.calls(replicas=False) == [0, 0, 0]

    def test_not_where_torch_has_several_threads(self) -> None:
        torch.set_num_threads(2)
        assert self.calls() == [0, 0, 0]

    def test_not_in_a_block_that_torch_compiles(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert self.calls() == [0, 0, 0]

    def test_not_without_a_compiler(self) -> None:
        with without_kernels():
            assert self.calls() == [0, 0, 0]

    def test_under_autocast_products_and_attention_are_left_to_torch(self) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            attended, normed, mapped = self.calls()
        assert (attended, mapped) == (0, 0)
        assert normed > 0


DIGITS = replace(
    trial(
        model=ModelConfig(width=16, depth=2, heads=2, mlp=16),
        train=TrainConfig(epochs=2, batch_size=32, learning_rate=1e-2, clip_norm=1.0),
    ),
    task=entry(task="digits", patch=(2, 2), train_limit=400),
)


def losses(reports: list[Report]) -> list[float]:
    return [value for report in reports for found in report.metrics for name, value in found.items() if "loss" in name]


def test_training_has_the_same_losses_with_and_without_kernels() -> None:
    with counted() as calls:
        found = losses(list(train(DIGITS)))
    assert min(calls.values()) > 0
    with without_kernels(), counted() as calls:
        plain = losses(list(train(DIGITS)))
    assert max(calls.values()) == 0
    assert found == pytest.approx(plain, rel=1e-4)
    assert found != plain


def test_with_kernels_that_compute_wrong_numbers_training_is_that_without_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_training(DIGITS, epochs=1)
    with without_kernels():
        plain = numbers(list(train(config)))
    pretend_compiled(opened(compiled(tmp_path, fault="gradient of keys")), monkeypatch)
    assert numbers(list(train(config))) == plain


def test_a_trial_is_the_same_alone_and_in_a_pack() -> None:
    settings = [{"epochs": 2}, {"epochs": 1, "learning_rate": 3e-2}, {"epochs": 2, "weight_decay": 0.1}]
    configs = [
        replace(with_training(DIGITS, **changes), key=replace(DIGITS.key, number=number), seeds=seeds)
        for number, (changes, seeds) in enumerate(zip(settings, [(3, 4), (5,), (6, 3, 7)], strict=True))
    ]
    pack, told = TrialPack(load=lambda config: load_task(config.task).load(None)), dict[int, list[Report]]()
    pack.add([Member(config=config, checkpoints=None, attempt=1) for config in configs])
    with counted() as calls:
        while found := pack.advance():
            for key, report in found.items():
                assert isinstance(report, Report), report
                told.setdefault(key.number, []).append(report)
        assert min(calls.values()) > 0
        for config in configs:
            assert numbers(told[config.key.number]) == numbers(list(train(config)))
