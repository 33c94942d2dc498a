"""The best report of a trial counts: its checkpoint is kept beside the newest, survives, and `test` reads it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from ablate.base.errors import CheckpointError, PausedError
from ablate.core.objectives import mean
from ablate.core.trainable import Member
from ablate.core.trial import BestReport, Report, TrialConfig, counted_place
from ablate.engine.tasks import load_task
from ablate.engine.training import checkpoint, predictor, train
from ablate.engine.training.checkpoint import CheckpointId
from ablate.engine.training.family import family
from ablate.engine.training.pack import TrialPack
from ablate.engine.training.progress import Cadence
from ablate.engine.training.train_config import Schedule, TrainConfig
from support.damage import truncate
from support.small_training import numbers, stripes, trial

EPOCHS = 6
RATES = (0.2, 0.25, 0.1, 0.15, 0.5, 0.4, 0.3, 1.0)  # too high, so that the loss goes up and down
BEST = BestReport(metric="val_loss", direction="minimize")


@cache
def schedule() -> TrainConfig:
    """Return a training whose best report is neither the first nor one of the last two, on this processor."""
    for rate in RATES:
        found = TrainConfig(epochs=EPOCHS, batch_size=16, learning_rate=rate, schedule=Schedule(name="constant"))
        values = losses(list(train(trial(train=found))))
        if 0 < values.index(min(values)) < EPOCHS - 2:
            return found
    raise AssertionError(f"no rate of {RATES} has its best report in the middle")


def hot(**changes: Any) -> TrialConfig:
    return trial(**{"train": schedule(), "best": BEST} | changes)


def losses(reports: Sequence[Report]) -> list[float]:
    return [mean(metrics["val_loss"] for metrics in report.metrics) for report in reports]


def place_of_best(config: TrialConfig) -> int:
    """Return the number of the best report by a loop of its own, and require that it is neither first nor last."""
    found = losses(list(train(replace(config, best=None, stage="search"))))
    best = min(range(len(found)), key=found.__getitem__)
    assert 0 < best < EPOCHS - 2, found
    return best


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def named(*epochs: int, attempt: int = 1) -> list[str]:
    return [CheckpointId(attempt=attempt, epoch=epoch).name for epoch in epochs]


def test_the_best_checkpoint_stays_beside_the_two_newest_and_is_removed_when_a_better_one_comes(tmp_path: Path) -> None:
    seen: list[Report] = []
    for report in train(hot(), checkpoints=tmp_path):
        seen.append(report)
        best = counted_place(BEST, [{"val_loss": value} for value in losses(seen)]) + 1
        wanted = {best, report.epoch, report.epoch - 1} - {0}
        assert files(tmp_path) == named(*sorted(wanted))
    assert losses(seen)[place_of_best(hot())] == min(losses(seen))


@pytest.mark.parametrize("stage", ["search", "confirm"])
@pytest.mark.parametrize("attempt", [1, 2])
def test_a_trial_that_goes_on_keeps_the_same_best_report(tmp_path: Path, stage: str, attempt: int) -> None:
    config = hot(stage=stage)
    whole = list(train(config, checkpoints=tmp_path / "whole"))
    best = place_of_best(config) + 1
    for done in range(1, EPOCHS + 1):
        folder = tmp_path / f"{done}"
        list(islice(train(config, checkpoints=folder), done))
        resumed = list(train(config, checkpoints=folder, attempt=attempt))
        assert [r.metrics for r in resumed] == [r.metrics for r in whole[done - 1 :]]
        assert set(named(best, EPOCHS, attempt=attempt)) <= set(files(folder))
        newest = checkpoint.newest(folder, config)
        assert newest is not None
        kept = checkpoint.find_counted(folder, newest)
        expected = checkpoint.read(tmp_path / "whole", named(best)[0])
        assert kept is not None
        assert kept.tensors.keys() == expected.tensors.keys()
        assert all(torch.equal(kept.tensors[name], expected.tensors[name]) for name in kept.tensors)


def values_after(config: TrialConfig, epochs: int) -> list[dict[str, float]]:
    """Return the metrics on the test split of a training that ends after some epochs, of a constant schedule."""
    short = family(config).training.model_copy(update={"epochs": epochs})
    ended = trial(train=short, stage="confirm", seeds=config.seeds)
    last = list(train(ended))[-1]
    return [{name: value for name, value in each.items() if name.startswith("test_")} for each in last.metrics]


@pytest.mark.parametrize("kept", [True, False], ids=["checkpoints", "no checkpoints"])
def test_a_confirmation_tests_the_network_of_its_best_report(tmp_path: Path, kept: bool) -> None:
    config = hot(stage="confirm")
    place = tmp_path if kept else None
    plain = list(train(replace(config, best=None)))
    reports = list(train(config, checkpoints=place))
    best = place_of_best(config)
    assert [numbers([r])[0][:2] for r in reports[:-1]] == [numbers([r])[0][:2] for r in plain[:-1]]
    tests = [{k: v for k, v in each.items() if k.startswith("test_")} for each in reports[-1].metrics]
    assert tests == values_after(config, best + 1)
    assert tests != values_after(config, EPOCHS)
    rest = [{k: v for k, v in each.items() if not k.startswith("test_")} for each in reports[-1].metrics]
    assert rest == [{k: v for k, v in each.items() if not k.startswith("test_")} for each in plain[-1].metrics]
    if kept:  # the newest checkpoint is still that of the last epoch
        newest, end = checkpoint.newest(tmp_path, config), tmp_path / "end"
        list(train(replace(config, best=None), checkpoints=end))
        last = checkpoint.read(end, named(EPOCHS)[0])
        assert newest is not None
        assert all(torch.equal(newest.tensors[name], last.tensors[name]) for name in last.tensors)


def test_a_confirmation_that_pauses_at_any_moment_ends_with_the_same_numbers(tmp_path: Path) -> None:
    """Also while the network of the best report is in the place of the last one, to be tested."""
    config = hot(stage="confirm", train=schedule().model_copy(update={"steps_per_epoch": 1}))
    whole, paused = list(train(config)), 0
    asked = Cadence(ask_seconds=0.0)
    for moment in itertools.count(1):
        asks, folder = iter([*[False] * (moment - 1), True, *[False] * 999]), tmp_path / str(moment)
        try:
            list(train(config, checkpoints=folder, pause=partial(next, asks), cadence=asked))
        except PausedError:
            paused += 1
        else:
            break
        ended = list(train(config, checkpoints=folder, attempt=2))[-1]
        assert ended.metrics == whole[-1].metrics, moment
    assert paused > EPOCHS * 2


def test_an_evaluation_reads_the_network_of_the_best_report(tmp_path: Path) -> None:
    config = hot()
    reports = list(train(config, checkpoints=tmp_path))
    best = place_of_best(config)
    evaluating = replace(
        config, key=replace(config.key, number=1), stage="confirm", source=0, evaluates=config.key.number
    )
    (found,) = train(evaluating, checkpoints=tmp_path)
    assert (found.epoch, found.final) == (best + 1, True)
    tests = values_after(config, best + 1)
    assert list(found.metrics) == [{**a, **b} for a, b in zip(reports[best].metrics, tests, strict=True)]


def test_the_served_network_predicts_what_the_best_report_measured(tmp_path: Path) -> None:
    config = hot(stage="confirm")
    reports = list(train(config, checkpoints=tmp_path))
    data = stripes()
    tokens = data.tokens(data.test_inputs, torch.float32)
    for replicate, metrics in enumerate(reports[-1].metrics):
        scores = predictor(config, tmp_path, replicate)(tokens)
        right = (scores.argmax(-1) == data.test_targets).double().mean().item()
        assert right == pytest.approx(metrics["test_accuracy"], abs=1e-6)


def test_a_lost_best_checkpoint_makes_the_trial_begin_again_with_the_same_numbers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = hot()
    whole = list(train(config, checkpoints=tmp_path))
    best = place_of_best(config) + 1
    truncate(tmp_path / named(best)[0])
    assert checkpoint.newest(tmp_path, config) is None
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        predictor(config, tmp_path)
    again = list(train(config, checkpoints=tmp_path, attempt=2))
    assert [r.metrics for r in again] == [r.metrics for r in whole]
    assert "the checkpoint of the best report of s/stripes/0 is lost: it begins again" in caplog.text


def test_packed_confirmations_test_their_own_best_networks(tmp_path: Path) -> None:
    configs = [hot(stage="confirm", key=replace(trial().key, number=n), seeds=(n, n + 9)) for n in range(3)]
    alone = {c.key: list(train(c))[-1].metrics for c in configs}
    pack = TrialPack(load=lambda config: load_task(config.task).load(None))
    pack.add([Member(config=c, checkpoints=tmp_path / str(c.key.number), attempt=1) for c in configs])
    ended: dict[Any, Any] = {}
    while said := pack.advance():
        ended |= {key: one.metrics for key, one in said.items() if isinstance(one, Report) and one.final}
    assert ended == alone


def test_equal_reports_count_once_the_first_and_nan_never() -> None:
    nan = float("nan")
    up = BestReport(metric="m", direction="maximize")
    for values, place in (
        ([1.0, 2.0, 2.0, 1.0], 1),
        ([nan, 1.0, nan, 0.5], 1),
        ([nan, nan], 1),
        ([3.0], 0),
        ([1.0, float("inf"), 0.5], 0),
    ):
        assert counted_place(up, [{"m": value} for value in values]) == place, values
    assert counted_place(up, [{}, {"other": 1.0}]) == 1
    assert counted_place(None, [{"m": 1.0}, {"m": 0.0}]) == -1
