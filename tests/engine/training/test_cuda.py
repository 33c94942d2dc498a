"""Training on a GPU beside training on a CPU and beside itself: `pytest -m cuda`.

Only ablate's engine and pytest are imported, so that a machine with torch alone can run these tests.
ABLATE_CUDA_TESTS_ON=cpu runs those that make sense on a CPU, to see that the tests themselves are in order.
"""

from __future__ import annotations

import gc
import os
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ablate.base.errors import DataError
from ablate.core.registry import read_task
from ablate.core.trainable import Member
from ablate.core.trial import Report, TrialConfig, TrialKey
from ablate.engine.tasks import Data, load_task
from ablate.engine.training import FamilySettings, train
from ablate.engine.training.evaluate import Means
from ablate.engine.training.graph import COMPILE_FROM, DRAWING_FROM, GraphedStep, training_step
from ablate.engine.training.pack import TrialPack
from ablate.engine.training.pack_state import Common, Trained
from ablate.engine.training.samples import Samples
from ablate.execution.executor import Crowded
from ablate.execution.pack_run import Assignment, PackRun

DEVICE = os.environ.get("ABLATE_CUDA_TESTS_ON", "cuda")
HAS_GPU = torch.cuda.is_available()
REASON = "torch finds no CUDA device here"
pytestmark = [pytest.mark.cuda, pytest.mark.skipif(DEVICE == "cuda" and not HAS_GPU, reason=REASON)]
gpu_only = pytest.mark.skipif(DEVICE != "cuda", reason="measures the GPU itself")

TASK = read_task({"task": "digits", "patch": (2, 4)})
EXACT = 1e-8  # float64: other orders of summation, carried through some dozens of steps of Adam
CLOSE = 5e-3  # float32, the same
SEEDS = tuple(range(6))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def patches(samples: int = 320) -> Data:
    """Return data in the shape of digits that can be learned: each class has a bright patch."""
    draws = torch.Generator().manual_seed(0)
    parts: dict[str, Tensor] = {}
    for part, count in (("train", samples), ("test", 64)):
        targets = torch.randint(10, (count,), generator=draws)
        pixels = torch.randint(0, 8, (count, 8, 8), generator=draws)
        pixels[torch.arange(count), targets % 8] += 4 + 4 * (targets[:, None] >= 8)
        parts |= {f"{part}_inputs": pixels.to(torch.uint8), f"{part}_targets": targets}
    return Data(**parts, scale=1 / 8, shift=-1.0)


def trial(
    number: int = 0, *, model: dict[str, Any] | None = None, seeds: tuple[int, ...] = (1, 2), **training: Any
) -> TrialConfig:
    settings = {"epochs": 3, "batch_size": 32, "learning_rate": 3e-3, "clip_norm": 1.0, "label_smoothing": 0.1}
    return TrialConfig(
        key=TrialKey(study="cuda", dataset="digits", number=number),
        stage="search",
        settings=FamilySettings.model_validate(
            {"model": {"width": 16, "depth": 2, "mlp": 32} | (model or {}), "training": settings | training}
        ),
        task=TASK,
        seeds=seeds,
        study_seed=0,
        protocol="paper",
    )


def losses(reports: list[Report]) -> list[float]:
    return [metrics[name] for report in reports for metrics in report.metrics for name in ("train_loss", "val_loss")]


def alone(config: TrialConfig, device: str = DEVICE, **more: Any) -> list[Report]:
    return list(train(config, device=device, data=patches(), **more))


def close(got: list[float], wanted: list[float], tolerance: float) -> None:
    assert len(got) == len(wanted) > 0
    assert max(abs(a - b) for a, b in zip(got, wanted, strict=True)) < tolerance


def opened(device: str = DEVICE) -> TrialPack:
    return TrialPack(load=lambda _: patches(), device=device)


def member(config: TrialConfig, place: Path | None = None, attempt: int = 1) -> Member:
    return Member(config=config, checkpoints=place, attempt=attempt)


def told(pack: TrialPack) -> dict[int, list[Report]]:
    """Return what each trial of a pack reports until the pack is empty."""
    found: dict[int, list[Report]] = {}
    while said := pack.advance():
        for key, report in said.items():
            assert isinstance(report, Report), report
            found.setdefault(key.number, []).append(report)
    return found


MODELS: dict[str, dict[str, Any]] = {
    "with an MLP": {},
    "minimum": {"mlp": 0, "similarity": "collapsed", "value": "none", "bias": "none"},
    "symmetric, class token, heads": {"mlp": 0, "similarity": "shared", "heads": 2, "pool": "cls", "bias": "none"},
    "+Pos and normalised diagonal": {"pair_position": 4, "diagonal": "normalised"},
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_the_device_trains_as_the_cpu_does(name: str, optimizer: str) -> None:
    config = trial(model=MODELS[name], optimizer=optimizer, precision="float64")
    close(losses(alone(config)), losses(alone(config, "cpu")), EXACT)


def test_single_precision_stays_near_the_cpu() -> None:
    close(losses(alone(trial())), losses(alone(trial(), "cpu")), CLOSE)


@pytest.mark.parametrize(("precision", "tolerance"), [("float64", EXACT), ("float32", CLOSE)])
def test_a_trial_in_a_pack_has_the_losses_it_has_alone(precision: str, tolerance: float) -> None:
    shared = {"precision": precision, "model": {"dropout": 0.1}}
    configs = [trial(n, seeds=(n, n + 10), learning_rate=1e-3 * (n + 1), **shared) for n in range(4)]
    pack = opened()
    pack.add([member(config) for config in configs])
    found = told(pack)
    for config in configs:
        close(losses(found[config.key.number]), losses(alone(config)), tolerance)


def test_a_trial_that_fills_the_rows_of_another_has_the_losses_it_has_alone() -> None:
    first, second, third = (trial(n, epochs=epochs, precision="float64") for n, epochs in ((0, 1), (1, 4), (2, 2)))
    pack = opened()
    pack.add([member(first), member(second)])
    reports: dict[int, list[Report]] = {}
    joined = False
    while said := pack.advance():
        for key, report in said.items():
            assert isinstance(report, Report)
            reports.setdefault(key.number, []).append(report)
        if not joined:
            assert reports[0][-1].final
            pack.add([member(third)])
            joined = True
    for config in (first, second, third):
        close(losses(reports[config.key.number]), losses(alone(config)), EXACT)


def test_a_row_that_diverges_does_not_touch_the_others() -> None:
    good, bad = trial(0), trial(1, learning_rate=1e30, clip_norm=None)
    pack = opened()
    pack.add([member(good), member(bad)])
    found = told(pack)
    assert all(found[1][-1].diverged)
    close(losses(found[0]), losses(alone(good)), CLOSE)


def test_half_precision_is_within_seed_noise_on_digits() -> None:
    try:
        data = load_task(TASK).load(None)
    except DataError:
        pytest.skip("scikit-learn, which ships the digits, is not installed")
    found: dict[str, list[float]] = {}
    for precision in ("float32", "bfloat16"):
        config = trial(seeds=SEEDS, epochs=10, precision=precision, learning_rate=1e-2, model={"depth": 1})
        last = list(train(config, device=DEVICE, data=data))[-1]
        found[precision] = [metrics["val_accuracy"] for metrics in last.metrics]
    single, half = (statistics.fmean(values) for values in found.values())
    noise = statistics.fmean(statistics.variance(values) for values in found.values()) * 2 / len(SEEDS)
    assert single > 0.7
    assert abs(single - half) < max(4 * noise**0.5, 0.01)


def prepared(config: TrialConfig) -> tuple[Common, Trained, Samples]:
    common = Common.of(config, data_dir=None, device=DEVICE, load=lambda _: patches(), judged=False)
    one = common.prepared(member(config))
    common.line_up([one])
    return common, one, one.parts.train


def test_data_are_on_the_device_as_stored() -> None:
    _, _, samples = prepared(trial())
    assert isinstance(samples.inputs, Tensor)
    assert samples.inputs.dtype == torch.uint8
    assert samples.inputs.device.type == samples.targets.device.type == DEVICE


@gpu_only
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_waits_for_nothing(name: str, precision: str) -> None:
    """Gathering a batch, the step and the running means: none of them copies to the host or waits for the device."""
    config = trial(model=MODELS[name] | {"dropout": 0.1}, precision=precision)
    common, one, samples = prepared(config)
    group, means = common.group, Means(None)
    group.module.train()
    group.give_generators([torch.Generator(group.device).manual_seed(key) for key in range(group.replicates)])
    batches = samples.batches(one.parts.train.index, 32)

    def step() -> None:
        x, targets = next(batches)
        scores, found = group.step(x, targets)
        means.add(common.task.metrics(scores, targets), targets, losses=found)

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert bool(torch.isfinite(means.values()["loss"]).all())


REPLAYED = {
    **{name: (model, 0) for name, model in MODELS.items()},
    "dropout": ({"dropout": 0.1}, 0),
    "compiled": ({}, COMPILE_FROM),  # ten seconds or more
}


@gpu_only
@pytest.mark.parametrize("precision", ["float64", "bfloat16"])
@pytest.mark.parametrize("name", REPLAYED)
def test_a_replayed_step_is_the_ordinary_one(precision: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Two epochs, each with new keys of dropout, which every replay must follow."""
    model, steps = REPLAYED[name]
    if model.get("dropout") and torch.__version__ < DRAWING_FROM:
        pytest.skip("a network with dropout makes ordinary steps before torch 2.14")
    found = []
    for kind in ("ordinary", "replayed"):
        common, one, samples = prepared(trial(model=model, precision=precision))
        group, values = common.group, []
        step = group.step if kind == "ordinary" else training_step(group, steps=steps)
        assert isinstance(step, GraphedStep) == (kind == "replayed")
        group.module.train()
        group.give_generators([torch.Generator(group.device).manual_seed(key) for key in [0, 0]])
        for epoch in range(2):
            for place, generator in enumerate(group.generators):
                generator.manual_seed(10 * place + epoch)
            values += [step(x, y)[1].clone() for x, y in samples.batches(one.parts.train.index, 32)]
        drawn = torch.stack([each.get_state() for each in group.generators])
        found.append((torch.stack(values), drawn))
    assert "ablate.engine.training" not in {record.name for record in caplog.records}  # it says if recording has failed
    torch.testing.assert_close(found[0][0], found[1][0], rtol=0, atol=EXACT if precision == "float64" else 0.05)
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize(("before", "after"), [(DEVICE, "cpu"), ("cpu", DEVICE)])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_checkpoint_continues_on_the_other_device(before: str, after: str, dropout: float, tmp_path: Path) -> None:
    config = trial(epochs=4, precision="float64", model={"dropout": dropout})
    for report in train(config, device=before, data=patches(), checkpoints=tmp_path):
        if report.epoch == 2:
            break
    again = alone(config, after, checkpoints=tmp_path, attempt=2)
    assert [report.epoch for report in again] == [2, 3, 4]
    if dropout:  # the two devices draw other masks
        assert all(value < 10 for value in losses(again))
    else:
        close(losses(again), losses(alone(config))[-len(losses(again)) :], EXACT)


WIDE = {"model": {"width": 64, "depth": 4, "mlp": 256}, "batch_size": 256, "epochs": 1, "steps_per_epoch": 2}


@gpu_only
def test_a_pack_that_does_not_fit_is_told_so_and_its_half_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ablate.engine.training.transformer._load", lambda task, data_dir: patches(512))
    outcomes, used = outcomes_of(4)
    assert all(isinstance(each, Report) for each in outcomes), outcomes
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.3 * used / total, 1.0))
    try:
        assert outcomes_of(8)[0] == [Crowded()] * 8
        outcomes, _ = outcomes_of(4)
        assert all(isinstance(each, Report) for each in outcomes), outcomes
        pack = TrialPack(load=lambda _: patches(512), device=DEVICE)
        pack.add([member(trial(n, **WIDE)) for n in range(8)])
        with pytest.raises(torch.OutOfMemoryError):
            pack.advance()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def outcomes_of(trials: int) -> tuple[list[Any], int]:
    """Return what a worker's first turn with a pack tells of its trials, and the bytes it took at most."""
    members = tuple(member(trial(n, **WIDE)) for n in range(trials))
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    given = Assignment(members=members, data_dir=None, device=DEVICE, trainer=None, threads=1, grouped=True)
    pack = PackRun(given, lambda: False)
    try:
        return list(pack.turn().outcomes.values()), torch.cuda.max_memory_reserved()
    finally:
        pack.close()
