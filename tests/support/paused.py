"""What the tests of pausing share: a small trial, questions that are answered with yes, and what must be equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ablate.base.errors import PausedError
from ablate.base.files import Place
from ablate.core.trial import Report, TrialConfig
from ablate.engine import training
from ablate.engine.tasks import Data
from ablate.engine.training import checkpoint
from ablate.engine.training.progress import Cadence
from ablate.engine.training.train_config import TrainConfig
from support.small_training import DROPPED, trial

SHORT = TrainConfig(epochs=2, batch_size=32, learning_rate=1e-2, clip_norm=1.0)
IMAGES = trial(model=DROPPED, train=SHORT)
STEPS = 135 // 32  # of an epoch of IMAGES


EVERY_STEP = Cadence(ask_seconds=0.0)
train = partial(training.train, cadence=EVERY_STEP)


@dataclass
class Asked:
    """A question that is answered with True the n-th time it is asked, from 0."""

    at: int = -1
    times: int = 0

    def __call__(self) -> bool:
        self.times += 1
        return self.times - 1 == self.at


def paused_at(
    config: TrialConfig,
    place: Place,
    pauses: Sequence[int],
    data: Callable[[], Data] | None = None,
    cadence: Cadence = EVERY_STEP,
) -> list[Report]:
    """Return all reports of a trial that is paused at a question of each attempt, and goes on after the last."""
    taken: list[Report] = []
    for attempt, at in enumerate([*pauses, -1], start=1):
        given = data() if data else None
        reports = train(config, checkpoints=place, attempt=attempt, pause=Asked(at), data=given, cadence=cadence)
        if taken:
            assert said(next(reports)) == said(taken[-1])
        try:
            taken.extend(reports)
        except PausedError:
            assert at >= 0
        else:
            assert at < 0, "the trial ended before it was to be paused"
    return taken


def said(report: Report) -> tuple[object, ...]:
    """Return what a report says, equal for equal bits; the name of its file tells who wrote it."""
    return report.epoch, repr(report.metrics), report.diverged, report.final


def weights(place: Place, config: TrialConfig) -> dict[str, bytes]:
    """Return every tensor of the newest checkpoint."""
    found = checkpoint.newest(place, config)
    assert found is not None
    return {name: value.numpy().tobytes() for name, value in found.tensors.items()}
