"""The generator of Reports: what it reads, what it repeats, what it leaves alone."""

from __future__ import annotations

import math
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ablate.core.trial import TrialConfig
from ablate.engine.models.model_config import ModelConfig
from ablate.engine.tasks import Data
from ablate.engine.training import predictor, train
from ablate.engine.training.family import family
from ablate.engine.training.order import epoch_order
from ablate.engine.training.splits import split
from ablate.engine.training.train_config import TrainConfig
from support.entries import entry
from support.small_training import DROPPED, SAMPLES, TEST_SAMPLES, numbers, poison, stripes, trial
from support.trials import with_training


@pytest.mark.services
@pytest.mark.parametrize("model", [family(trial()).model, DROPPED], ids=["plain", "dropout"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_trial_stopped_after_any_epoch_goes_on_bit_for_bit(
    tmp_path: Path, model: ModelConfig, precision: str
) -> None:
    config = with_training(trial(model=model), precision=precision)
    whole = list(train(config, checkpoints=tmp_path / "whole"))
    assert [r.epoch for r in whole] == [1, 2, 3, 4]
    for done in (1, 2, 3, 4):
        folder = tmp_path / str(done)
        started = list(islice(train(config, checkpoints=folder), done))
        torch.randn(done)  # the global generator is elsewhere in another process
        resumed = list(train(config, checkpoints=folder))
        assert numbers(started) == numbers(whole[:done])
        assert numbers(resumed) == numbers(whole[done - 1 :])
        assert resumed[0] == started[-1]
        assert resumed[-1].wall_seconds >= started[-1].wall_seconds
        last = [load_file(path / "epoch-000004-attempt-001.safetensors") for path in (folder, tmp_path / "whole")]
        assert last[0].keys() == last[1].keys()
        assert all(torch.equal(last[0][name], last[1][name]) for name in last[0])


@pytest.mark.parametrize("model", [family(trial()).model, ModelConfig(width=8, depth=1, mlp=0, similarity="shared")])
def test_a_replicate_alone_is_the_replicate_in_company(model: ModelConfig) -> None:
    together = list(train(trial(model=model, seeds=(3, 4, 5, 6))))
    for r, seed in ((0, 3), (2, 5)):
        alone = list(train(trial(model=model, seeds=(seed,))))
        assert [report.metrics[0] for report in alone] == [report.metrics[r] for report in together]
    assert together[-1].metrics[0] != together[-1].metrics[1]


def test_reports_come_every_few_epochs_and_after_the_last() -> None:
    config = trial(train=TrainConfig(epochs=5, report_every=2, batch_size=16))
    reports = list(train(config))
    assert [(r.epoch, r.final) for r in reports] == [(2, False), (4, False), (5, True)]
    assert all(r.checkpoint is None and r.diverged == (False, False) for r in reports)
    expected = {"train_loss", "train_accuracy", "val_loss", "val_accuracy", "learning_rate"}
    assert all(set(m) == expected for r in reports for m in r.metrics)
    steps = 5 * (135 // 16)
    last = 1e-3 * (1 + math.cos(math.pi * (steps - 1) / steps)) / 2
    assert reports[-1].metrics[0]["learning_rate"] == pytest.approx(last)


class Sealed(SimpleNamespace):
    """The stripes with a test part that must not be opened."""

    @property
    def test_inputs(self) -> Tensor:
        raise PermissionError("the test part was opened")

    test_targets = test_inputs


def sealed() -> Any:
    return Sealed(**{name: value for name, value in vars(stripes()).items() if not name.startswith("test_")})


def test_the_search_never_opens_the_test_part() -> None:
    assert list(train(trial(), data=sealed()))[-1].final


def test_the_confirmation_opens_the_test_part_once_at_its_end() -> None:
    reports = train(trial(stage="confirm"), data=sealed())
    assert [r.epoch for r in islice(reports, 3)] == [1, 2, 3]
    with pytest.raises(PermissionError, match="test part was opened"):
        next(reports)


def accuracy(config: TrialConfig, folder: Path, replicate: int) -> tuple[float, float]:
    """Test loss and accuracy by the plain module and torch's own cross-entropy."""
    data = stripes()
    scores = predictor(config, folder, replicate)(data.tokens(data.test_inputs))
    loss = nn.functional.cross_entropy(scores, data.test_targets)
    return loss.item(), (scores.argmax(-1) == data.test_targets).double().mean().item()


@pytest.mark.parametrize("model", [family(trial()).model, DROPPED], ids=["plain", "dropout"])
def test_the_last_report_of_a_confirmation_is_what_the_saved_module_scores(tmp_path: Path, model: ModelConfig) -> None:
    config = trial(stage="confirm", model=model)
    reports = list(train(config, checkpoints=tmp_path))
    assert all("test_loss" not in m for r in reports[:-1] for m in r.metrics)
    for replicate, metrics in enumerate(reports[-1].metrics):
        found = (metrics["test_loss"], metrics["test_accuracy"])
        assert found == pytest.approx(accuracy(config, tmp_path, replicate), abs=1e-6)


def test_protocol_paper_validates_on_the_test_part_and_trains_on_all(tmp_path: Path) -> None:
    config = trial(protocol="paper", train=TrainConfig(epochs=2, batch_size=16, learning_rate=1e-2))
    last = list(train(config, checkpoints=tmp_path))[-1].metrics[1]
    assert (last["val_loss"], last["val_accuracy"]) == pytest.approx(accuracy(config, tmp_path, 1), abs=1e-6)
    parts = split(stripes(), config, device=torch.device("cpu"), dtype=torch.float32)
    assert parts.train.index.shape == (2, SAMPLES)
    assert len(parts.validation.targets) == TEST_SAMPLES


def test_the_split_is_keyed_by_seed_and_leaves_nothing_out() -> None:
    config = trial(seeds=(3, 4, 3))
    parts = split(stripes(), config, device=torch.device("cpu"), dtype=torch.float32)
    assert parts.validation.index.shape == (3, 15)
    for r in range(3):
        joined = torch.cat([parts.train.index[r], parts.validation.index[r]])
        assert joined.sort().values.tolist() == list(range(SAMPLES))
    assert torch.equal(parts.train.index[0], parts.train.index[2])
    assert not torch.equal(parts.train.index[0], parts.train.index[1])
    limited = trial(seeds=(3,), task=config.task.model_copy(update={"train_limit": 20}))
    fewer = split(stripes(), limited, device=torch.device("cpu"), dtype=torch.float32)
    assert torch.equal(fewer.train.index[0], parts.train.index[0, :20])
    assert torch.equal(fewer.validation.index[0], parts.validation.index[0])


def test_a_shipped_validation_part_is_used_as_it_is() -> None:
    data = stripes()
    shipped = Data(**vars(data) | {"validation_inputs": data.test_inputs, "validation_targets": data.test_targets})
    parts = split(shipped, trial(), device=torch.device("cpu"), dtype=torch.float32)
    assert parts.train.index.shape == (2, SAMPLES)
    assert parts.validation.index.tolist() == [list(range(TEST_SAMPLES))] * 2


def test_orders_are_permutations_keyed_by_seed_and_epoch() -> None:
    first, second = (epoch_order(trial(seeds=(3, 4, 3)), samples=50, epoch=epoch) for epoch in (1, 2))
    assert first.sort(dim=1).values.tolist() == [list(range(50))] * 3
    assert torch.equal(first[0], first[2])
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], second[0])


def test_fewer_samples_than_a_batch_make_one_small_batch() -> None:
    small = entry(task="support.small_training:build_stripes", train_limit=20)
    reports = list(train(trial(task=small, train=TrainConfig(epochs=3, batch_size=64, learning_rate=1e-2))))
    assert reports[-1].metrics[0]["train_loss"] < reports[0].metrics[0]["train_loss"]


def test_a_diverged_replicate_is_reported_and_leaves_the_other_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = list(train(trial(seeds=(3,))))
    poison(monkeypatch, 4)
    reports = list(train(trial()))
    assert [r.diverged for r in reports] == [(False, True)] * 4
    assert [r.metrics[0] for r in reports] == [r.metrics[0] for r in healthy]
    assert all(math.isnan(value) for r in reports for value in r.metrics[1].values())


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_trial_that_diverges_altogether_says_when(optimizer: str) -> None:
    settings = TrainConfig(optimizer=optimizer, learning_rate=1e35, batch_size=16)
    reports = list(train(trial(train=settings)))
    assert [(r.epoch, r.final, r.diverged, r.checkpoint) for r in reports] == [(1, True, (True, True), None)]
    assert all(math.isnan(value) for metrics in reports[0].metrics for value in metrics.values())


def test_bfloat16_stays_near_float32_and_keeps_wide_weights(tmp_path: Path) -> None:
    wide = list(train(trial()))[-1]
    narrow = list(train(with_training(trial(), precision="bfloat16"), checkpoints=tmp_path))
    assert narrow[-1].mean("val_loss") == pytest.approx(wide.mean("val_loss"), rel=0.05)
    assert narrow[-1].mean("val_loss") != wide.mean("val_loss")
    tensors = load_file(tmp_path / "epoch-000004-attempt-001.safetensors")
    assert {t.dtype for name, t in tensors.items() if "." in name} == {torch.float32}


def test_global_state_is_left_alone() -> None:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    list(train(trial(model=DROPPED)))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


@pytest.mark.services
def test_digits_are_learned() -> None:
    config = trial(
        model=ModelConfig(width=32, depth=2, mlp=64),
        task=entry(task="digits", patch=(2, 4)),
        train=TrainConfig(epochs=10, batch_size=32, learning_rate=3e-3),
        seeds=(0,),
    )
    reports = list(train(config))
    assert reports[-1].mean("val_accuracy") > 0.8
    assert reports[-1].mean("train_loss") < reports[0].mean("train_loss") / 3
