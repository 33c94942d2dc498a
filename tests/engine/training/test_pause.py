"""Pausing: a trial that was stopped between any two steps ends, bit for bit, as one that was never stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from ablate.base.errors import CheckpointError, PausedError
from ablate.base.files import Place, open_folder
from ablate.core.config import TaskConfig
from ablate.core.trial import TrialConfig
from ablate.engine.models.model_config import InputShape
from ablate.engine.tasks import Data
from ablate.engine.tasks.images.image_stream import Files, ImageStream
from ablate.engine.tasks.sets.anomaly_sets import SET, AnomalySets, members
from ablate.engine.training import ReplicaGroup, checkpoint
from ablate.engine.training.progress import Cadence
from support.entries import entry
from support.paused import IMAGES, SHORT, STEPS, Asked, paused_at, said, train, weights
from support.small_training import DROPPED, SHAPE, Stripes, stripes
from support.small_training import trial as image_trial
from support.text_cases import texts, translation
from support.text_cases import trial as text_trial
from support.trials import with_training


@dataclass(frozen=True, kw_only=True)
class Noisy:
    """A stream of images with noise drawn from (key, sample), which counts the samples that it is asked for."""

    images: Tensor
    asked: list[int] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.images.shape)

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, index: Tensor, batch: int, keys: Sequence[int] | None) -> Iterator[Tensor]:
        for part in torch.split(index, batch, dim=1):
            self.asked.append(part.shape[1])
            noise = [
                [self._noise(key, int(sample)) for sample in row] for key, row in zip(keys or (), part, strict=True)
            ]
            yield self.images[part] + torch.stack([torch.stack(row) for row in noise])

    def _noise(self, key: int, sample: int) -> Tensor:
        generator = torch.Generator().manual_seed((key ^ sample) % 2**62)
        return torch.randint(20, tuple(self.images.shape[1:]), generator=generator, dtype=torch.uint8)


def noisy() -> Data:
    data = stripes()
    assert isinstance(data.train_inputs, Tensor)
    images = {"validation_inputs": data.test_inputs, "validation_targets": data.test_targets}
    return replace(data, train_inputs=Noisy(images=data.train_inputs), **images)


class Sets(Stripes):
    """Which of ten is the odd one."""

    def shape(self, data_dir: Path | None) -> InputShape:
        return SHAPE.model_copy(update={"tokens": SET, "outputs": SET})


def build_sets(config: TaskConfig) -> Sets:
    return Sets()


def sets() -> Data:
    features = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    drawn = AnomalySets(features=features, members=members(torch.arange(60) % 3, name="train"), name="train")
    return Data(train_inputs=drawn, train_targets=drawn.places, test_inputs=drawn, test_targets=drawn.places)


CASES: dict[str, tuple[TrialConfig, Callable[[], Data] | None]] = {
    "images": (image_trial(train=SHORT), None),
    "dropout": (IMAGES, None),
    "bfloat16 and momentum": (with_training(IMAGES, precision="bfloat16", optimizer="sgd", momentum=0.9), None),
    "one replicate, confirmed": (replace(IMAGES, stage="confirm", seeds=(5,)), None),
    "steps per epoch": (with_training(IMAGES, epochs=3, steps_per_epoch=2), None),
    "a report every three epochs": (with_training(IMAGES, epochs=7, batch_size=64, report_every=3), None),
    "fewer samples than a batch": (replace(IMAGES, task=IMAGES.task.model_copy(update={"train_limit": 20})), None),
    "a stream with augmentation": (IMAGES, noisy),
    "sets": (replace(with_training(IMAGES, batch_size=16), task=entry(task=f"{__name__}:build_sets")), sets),
    "texts": (text_trial("build_texts", model=DROPPED), texts),
    "windows": (text_trial("build_windows", model=DROPPED, train=SHORT), None),
    "pairs by length, judged": (text_trial("build_pairs", model=DROPPED), translation),
    "all diverge": (with_training(IMAGES, learning_rate=1e35), None),
}


@pytest.mark.services
@pytest.mark.parametrize("case", CASES)
def test_a_trial_paused_at_any_step_ends_as_if_it_had_not_been(case: str, tmp_path: Path) -> None:
    config, data = CASES[case]
    asked = Asked()
    whole = list(train(config, checkpoints=tmp_path / "whole", pause=asked, data=data() if data else None))
    assert whole[-1].final
    assert asked.times > config.epochs
    for at in range(asked.times):
        paused = paused_at(config, tmp_path / str(at), [at], data)
        assert [said(report) for report in paused] == [said(report) for report in whole]
        if whole[-1].checkpoint is not None:
            assert weights(tmp_path / str(at), config) == weights(tmp_path / "whole", config)


@pytest.mark.services
def test_a_trial_is_paused_again_and_again(tmp_path: Path) -> None:
    whole = list(train(IMAGES, checkpoints=tmp_path / "whole"))
    for n, pauses in enumerate([(1, 1, 1), (2, 0, 0, 1), (0, 0, 3, 4), (STEPS, 0, 1), (1,) * 20]):
        paused = paused_at(IMAGES, tmp_path / str(n), pauses)
        assert [said(report) for report in paused] == [said(report) for report in whole]
        assert weights(tmp_path / str(n), IMAGES) == weights(tmp_path / "whole", IMAGES)
        assert len(open_folder(tmp_path / str(n)).names()) == 2


def test_a_trial_is_paused_on_an_object_store(s3_store: str, tmp_path: Path) -> None:
    whole = list(train(IMAGES, checkpoints=tmp_path))
    paused = paused_at(IMAGES, s3_store, (2, 5, 3))
    assert [said(report) for report in paused] == [said(report) for report in whole]
    assert weights(s3_store, IMAGES) == weights(tmp_path, IMAGES)


@pytest.mark.services
@pytest.mark.parametrize("workers", [0, 2])
def test_a_trial_on_image_files_is_paused(tmp_path: Path, workers: int) -> None:
    data = image_files(tmp_path, workers=workers)
    whole = list(train(IMAGES, checkpoints=tmp_path / "whole", data=data))
    assert said(whole[0]) != said(next(train(IMAGES, data=replace(data, train_inputs=unchanged(data)))))
    for at in (1, 2) if workers else (1, 2, 3, 5, 6):
        paused = paused_at(IMAGES, tmp_path / str(at), [at], lambda: data)
        assert [said(report) for report in paused] == [said(report) for report in whole]
        assert weights(tmp_path / str(at), IMAGES) == weights(tmp_path / "whole", IMAGES)


def image_files(folder: Path, *, workers: int) -> Data:
    """Return made-up images in files, cropped at random when they are trained on."""
    rng = np.random.default_rng(0)
    targets = torch.from_numpy(rng.integers(3, size=150))
    names = [f"{n}.png" for n in range(len(targets))]
    for name, target in zip(names, targets, strict=True):
        pixels = rng.integers(0, 120, size=(8, 8, 3))
        pixels[..., target] += 100
        Image.fromarray(pixels.astype(np.uint8)).save(folder / name)
    place = np.zeros(len(names), dtype=np.int32)
    files = Files(folders=(str(folder),), place=place, names=np.array(names, dtype="S"))
    images = ImageStream(files=files, size=(2, 2), shorter=2, patch=(1, 1), workers=workers)
    return Data(train_inputs=images, train_targets=targets, test_inputs=images, test_targets=targets, scale=1 / 60)


def unchanged(data: Data) -> ImageStream:
    assert isinstance(data.train_inputs, ImageStream)
    return replace(data.train_inputs, augment=False)


@pytest.mark.services
def test_a_replicate_that_diverges_does_so_at_the_same_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = ReplicaGroup.step

    def diverging(group: ReplicaGroup, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        group.state.alive.logical_and_(group.state.step != torch.tensor([[-1], [STEPS + 1]]))
        return step(group, x, targets)

    monkeypatch.setattr(ReplicaGroup, "step", diverging)
    asked = Asked()
    whole = list(train(IMAGES, checkpoints=tmp_path / "whole", pause=asked))
    assert [report.diverged for report in whole] == [(False, False), (False, True)]
    for at in range(asked.times):
        paused = paused_at(IMAGES, tmp_path / str(at), [at])
        assert [said(report) for report in paused] == [said(report) for report in whole]
        assert weights(tmp_path / str(at), IMAGES) == weights(tmp_path / "whole", IMAGES)


def test_what_was_trained_on_is_not_read_again(tmp_path: Path) -> None:
    for at in range(STEPS + 1):
        with pytest.raises(PausedError, match=rf"trial s/stripes/0 has paused after 0 epochs and {at} steps"):
            list(train(IMAGES, checkpoints=tmp_path / str(at), pause=Asked(at), data=noisy()))
        data = noisy()
        assert isinstance(data.train_inputs, Noisy)
        next(train(IMAGES, checkpoints=tmp_path / str(at), attempt=2, data=data))
        full = 150 // 32  # the data ship a validation part
        assert data.train_inputs.asked == [32] * (full - at)


def test_a_trial_that_is_paused_at_once_leaves_nothing_behind_and_none_without_a_place(tmp_path: Path) -> None:
    for place in (tmp_path / "trial", None):
        for at in (0, 2) if place is None else (0,):
            with pytest.raises(PausedError, match=f"after 0 epochs and {at} steps"):
                next(train(IMAGES, checkpoints=place, pause=Asked(at)))
    assert not list(tmp_path.iterdir())


def test_global_state_is_left_alone_by_a_pause(tmp_path: Path) -> None:
    config = image_trial(model=DROPPED, train=SHORT)
    state = torch.get_rng_state()
    asked = Asked()
    reports = train(config, checkpoints=tmp_path, pause=asked)
    next(reports)
    asked.at = asked.times + 1
    with pytest.raises(PausedError, match="after 1 epochs and 1 steps"):
        next(reports)
    assert torch.equal(torch.get_rng_state(), state)
    next(train(config, checkpoints=tmp_path, attempt=2))
    assert torch.equal(torch.get_rng_state(), state)


class Ticking:
    """A clock that stands still but for training steps, of ten seconds each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        step = ReplicaGroup.step

        def slow(group: ReplicaGroup, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            self.now += 10.0
            return step(group, x, targets)

        monkeypatch.setattr(ReplicaGroup, "step", slow)

    def cadence(self, *, ask_seconds: float = 0.0, checkpoint_seconds: float = 300.0) -> Cadence:
        """Return a cadence by this clock."""
        return Cadence(ask_seconds=ask_seconds, checkpoint_seconds=checkpoint_seconds, now=lambda: self.now)


def test_training_time_adds_up_over_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = paused_at(IMAGES, tmp_path, (2, 3, 1), cadence=Ticking(monkeypatch).cadence())
    assert [report.wall_seconds for report in reports] == [10.0 * STEPS, 20.0 * STEPS]


def test_whether_to_pause_is_asked_at_once_and_then_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Ticking(monkeypatch)
    asked: list[float] = []
    cadence = clock.cadence(ask_seconds=25.0)
    list(train(with_training(IMAGES, epochs=4), pause=lambda: bool(asked.append(clock.now)), cadence=cadence))
    assert asked == [1000.0 + 30 * n for n in range(6)]  # 16 steps of 10 s


@pytest.mark.services
def test_a_kill_costs_at_most_the_time_between_two_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cadence = Ticking(monkeypatch).cadence(checkpoint_seconds=30.0)
    config = with_training(IMAGES, epochs=3, report_every=3)
    written: list[tuple[int, int]] = []
    write = checkpoint.write

    def noted(place: Place, found: checkpoint.Checkpoint) -> None:
        written.append((found.checkpoint_id.epoch, found.checkpoint_id.step))
        write(place, found)

    monkeypatch.setattr(checkpoint, "write", noted)
    whole = list(train(config, checkpoints=tmp_path / "whole", cadence=cadence))
    assert written == [(0, 3), (1, 2), (2, 1), (2, 4), (3, 0)]
    asked = Asked()
    list(train(config, pause=asked, cadence=cadence))
    for at in range(asked.times):

        def killed(asked: Asked = Asked(at)) -> bool:  # noqa: B008 (one for each)
            if asked():
                raise KeyboardInterrupt
            return False

        with pytest.raises(KeyboardInterrupt):
            list(train(config, checkpoints=tmp_path / str(at), pause=killed, cadence=cadence))
        written.clear()
        went_on = list(train(config, checkpoints=tmp_path / str(at), attempt=2, cadence=cadence))
        steps = [STEPS * epoch + step for epoch, step in written]
        assert all(later - earlier <= 3 for earlier, later in pairwise(steps)), "30 s at most, in this life as well"
        assert [(said(r), r.wall_seconds) for r in went_on] == [(said(r), r.wall_seconds) for r in whole]
        assert weights(tmp_path / str(at), config) == weights(tmp_path / "whole", config)


def test_a_kill_costs_five_minutes_of_training_at_most() -> None:
    assert Cadence().checkpoint_seconds == 300


def test_half_an_epoch_without_its_means_or_generators_is_said(tmp_path: Path) -> None:
    with pytest.raises(PausedError, match="2 steps"):
        next(train(IMAGES, checkpoints=tmp_path, pause=Asked(2)))
    found = checkpoint.newest(tmp_path, IMAGES)
    assert found is not None
    assert found.report is None
    for midway in ({}, {**found.midway, "sums": found.midway["sums"][:1]}):
        checkpoint.write(tmp_path, replace(found, midway=midway))
        with pytest.raises(CheckpointError, match=r"^checkpoint epoch-000000-step-000002-.* does not say how"):
            next(train(IMAGES, checkpoints=tmp_path))
