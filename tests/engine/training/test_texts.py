"""Training on texts and pairs of texts: means over what counts, dropout per replicate, what a replicate writes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.base.errors import TrialError
from ablate.engine.models import build, initial_parameters
from ablate.engine.models.model_config import InputShape, ModelConfig
from ablate.engine.tasks import Data
from ablate.engine.training import ReplicaGroup, multipliers, pack_state, predictor, train
from ablate.engine.training.family import family
from ablate.engine.training.train_config import TrainConfig
from support import text_cases
from support.small_training import DROPPED, poison
from support.text_cases import (
    END,
    LONGEST,
    PAD,
    PAIR_SHAPE,
    START,
    TEXT_SHAPE,
    VOCABULARY,
    Judged,
    Texts,
    texts,
    translation,
    trial,
)


def inputs(shape: InputShape, targets: Tensor) -> Tensor | tuple[Tensor, Tensor]:
    """Return what a model of `shape` reads for `targets`: sources are the targets backwards, as full of gaps."""
    return (targets.flip(-1), shifted(targets)) if shape.source_tokens else shifted(targets)


def shifted(targets: Tensor) -> Tensor:
    return F.pad(targets[..., :-1], (1, 0), value=START)


def random_targets(replicates: int, batch: int) -> Tensor:
    """Draw targets whose count differs from sample to sample and from replicate to replicate."""
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randint(2, VOCABULARY, (replicates, batch, LONGEST), generator=generator)
    keep = torch.randint(1, LONGEST + 1, (replicates, batch, 1), generator=generator)
    return drawn.masked_fill(torch.arange(LONGEST) >= keep, PAD)


@pytest.mark.parametrize("shape", [TEXT_SHAPE, PAIR_SHAPE], ids=["texts", "pairs"])
def test_a_step_takes_torchs_mean_over_the_targets_that_are_not_padding(shape: InputShape) -> None:
    config, settings = ModelConfig(width=8, depth=1, mlp=8), TrainConfig(precision="float64", beta1=0.9)
    start = [initial_parameters(config, shape, study_seed=1, dataset="d", seed=seed) for seed in range(3)]
    schedules = [multipliers(settings.schedule, epochs=1, steps_per_epoch=2)] * 3
    loss = Texts(shape, texts()).loss
    group = ReplicaGroup(build(config, shape), start, [settings] * 3, schedules, loss=loss, pad=PAD)
    targets = random_targets(3, 5)
    _, losses = group.step(inputs(shape, targets), targets)
    first = group.layout.tensors(group.state)["first.head.weight"]
    module = build(config, shape).double()
    for r in range(3):
        module.load_state_dict(start[r])
        scores = module(inputs(shape, targets[r]))
        expected = F.cross_entropy(scores.flatten(0, 1), targets[r].flatten(), ignore_index=PAD)
        torch.testing.assert_close(losses[r], expected.detach(), rtol=0, atol=1e-13)
        (gradient,) = torch.autograd.grad(expected, module.get_submodule("head").weight)
        torch.testing.assert_close(first[r], 0.1 * gradient, rtol=0, atol=1e-13)


def test_a_batch_of_nothing_but_padding_leaves_a_row_alive() -> None:
    config, settings = ModelConfig(width=8, depth=1, mlp=8), TrainConfig()
    start = [initial_parameters(config, TEXT_SHAPE, study_seed=1, dataset="d", seed=seed) for seed in range(2)]
    schedules = [multipliers(settings.schedule, epochs=1, steps_per_epoch=2)] * 2
    loss = Texts(TEXT_SHAPE, texts()).loss
    group = ReplicaGroup(build(config, TEXT_SHAPE), start, [settings] * 2, schedules, loss=loss, pad=PAD)
    targets = random_targets(2, 5)
    targets[1] = PAD
    _, losses = group.step(shifted(targets), targets)
    assert losses[1] == 0
    assert group.alive.tolist() == [True, True]


def frozen_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no step change a weight, so that a mean over an epoch is a mean over its targets."""
    monkeypatch.setattr(ReplicaGroup, "update", lambda self, grads, losses: None)


@pytest.mark.parametrize("task", ["build_texts", "build_pairs"])
def test_reported_means_are_over_all_targets_of_the_epoch_or_part(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen_scores(monkeypatch)
    config = trial(task, protocol="paper", stage="confirm", train=TrainConfig(epochs=1, batch_size=15))
    data = texts(60) if task == "build_texts" else translation(60)
    report = list(train(config, checkpoints=tmp_path, data=data))[-1]
    for replicate, metrics in enumerate(report.metrics):
        module = predictor(config, tmp_path, replicate)
        for split, part in (("train", "train"), ("val", "test"), ("test", "test")):
            x, targets = getattr(data, f"{part}_inputs").long(), getattr(data, f"{part}_targets").long()
            scores = module((x, shifted(targets)) if task == "build_pairs" else x)
            loss = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), ignore_index=PAD).item()
            accuracy = (scores.argmax(-1) == targets)[targets != PAD].double().mean().item()
            found = metrics[f"{split}_loss"], metrics[f"{split}_accuracy"]
            assert found == pytest.approx((loss, accuracy), abs=1e-6)


@pytest.mark.parametrize("model", [family(trial("build_texts")).model, DROPPED], ids=["plain", "dropout"])
@pytest.mark.parametrize("task", ["build_texts", "build_pairs"])
def test_a_replicate_is_bitwise_the_same_in_any_company(task: str, model: ModelConfig) -> None:
    four = list(train(trial(task, model=model, seeds=(3, 4, 5, 6))))
    for seeds in ((3,), (5,), (6, 4)):
        fewer = list(train(trial(task, model=model, seeds=seeds)))
        for place, seed in enumerate(seeds):
            assert [r.metrics[place] for r in fewer] == [r.metrics[seed - 3] for r in four]


def test_dropout_draws_anew_in_every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen_scores(monkeypatch)
    constant = TrainConfig(epochs=2, batch_size=54)
    first, second = train(trial("build_texts", model=DROPPED, train=constant))
    assert first.metrics[0]["val_loss"] == second.metrics[0]["val_loss"]
    assert first.metrics[0]["train_loss"] != pytest.approx(second.metrics[0]["train_loss"], rel=1e-6)


class Writer(nn.Module):
    """Scores that depend on nothing but a bias, and writing that a replicate's first weight decides."""

    def __init__(self, config: ModelConfig, shape: InputShape) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(shape.outputs))

    def forward(self, x: tuple[Tensor, Tensor]) -> Tensor:
        target = x[1]
        return self.bias[..., None, None, :].expand(*target.shape, -1)

    def greedy(self, source: Tensor, *, start: int, end: int, steps: int) -> Tensor:
        """Write the right answer in replicate 0 and nothing in all others, to the last of `steps`."""
        assert (start, end, steps) == (START, END, LONGEST)
        assert not self.training
        assert not torch.is_grad_enabled()
        assert bool((source[..., -1] != PAD).any())
        right = F.pad(torch.where(source == PAD, PAD, source + 1), (0, 1), value=PAD)
        right.scatter_(-1, (source != PAD).sum(-1, keepdim=True), END)
        return torch.cat([right[:1], torch.full_like(right[1:], END)])


@pytest.mark.parametrize("shipped", [True, False])
def test_what_replicates_write_is_judged_in_validation_and_at_the_end_of_a_confirmation(
    shipped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ablate.engine.training.modules.build", Writer)
    monkeypatch.setattr(pack_state, "initial_weights", lambda *_, **__: {"bias": torch.zeros(VOCABULARY)})
    config = trial("build_pairs", stage="confirm")
    config = replace(config, task=config.task.model_copy(update={"share": 0.5}))
    first, last = train(config, data=translation(shipped=shipped))
    size = 12.0 if shipped else 4.0
    assert [(m["val_exact"], m["val_size"]) for m in first.metrics] == [(1.0, size), (0.0, size)]
    assert "test_exact" not in first.metrics[0]
    assert [(m["val_exact"], m["val_size"]) for m in last.metrics] == [(1.0, size), (0.0, size)]
    assert [(m["test_exact"], m["test_size"]) for m in last.metrics] == [(1.0, 10.0), (0.0, 10.0)]


@pytest.mark.services
def test_a_small_translator_learns_to_write() -> None:
    settings = TrainConfig(epochs=12, batch_size=16, learning_rate=2e-2)
    model = ModelConfig(width=32, depth=1, mlp=32)
    reports = list(train(trial("build_pairs", model=model, seeds=(0,), train=settings), data=translation(600)))
    assert reports[-1].metrics[0]["val_exact"] > 0.8
    assert reports[0].metrics[0]["val_exact"] < 0.2


def test_a_diverged_replicate_writes_nan_and_leaves_the_other_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = list(train(trial("build_pairs", seeds=(3,))))
    poison(monkeypatch, 4)
    reports = list(train(trial("build_pairs")))
    assert [r.metrics[0] for r in reports] == [r.metrics[0] for r in healthy]
    assert all(math.isnan(r.metrics[1]["val_exact"]) for r in reports)


def test_a_judge_must_have_a_verdict_for_every_replicate(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(self: Judged, decode: Callable[[Tensor], Tensor], data: Data, part: str) -> dict[str, list[float]]:
        return {"exact": [0.0]}

    monkeypatch.setattr(text_cases.Judged, "corpus_metrics", short)
    with pytest.raises(TrialError, match="corpus_metrics gave 1 values of exact for 2 replicates"):
        next(train(trial("build_pairs")))


def test_the_schedule_is_laid_out_over_the_steps_that_count() -> None:
    settings = TrainConfig(epochs=3, batch_size=10, steps_per_epoch=2)
    reports = list(train(trial("build_texts", train=settings)))
    rates = [r.metrics[0]["learning_rate"] for r in reports]
    schedule = multipliers(settings.schedule, epochs=3, steps_per_epoch=2)
    assert rates == pytest.approx((1e-3 * schedule[1::2]).tolist())
