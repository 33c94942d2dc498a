"""How long the running trials of a stage are expected to last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ablate.tuning.state.standing import StageStanding


def running(epoch: int, seconds: float, first: float = 4.0) -> Any:
    """Return a trial of 10 epochs, whose first report came after `first` seconds."""
    began = (1, first) if epoch else None
    return SimpleNamespace(epoch=epoch, wall_seconds=seconds, began=began, config=SimpleNamespace(epochs=10))


@pytest.mark.parametrize(
    ("stage", "trial", "left"),
    [
        ("search", running(2, 8.0), 12.0),  # the mean, 20 s: it may stop as the others did
        ("search", running(6, 24.0), 16.0),  # longer than the mean: 40 s in all
        ("search", running(0, 24.0), 0.0),  # nothing is known
        ("confirm", running(2, 8.0), 32.0),
        ("confirm", running(2, 8.0, first=7.0), 8.0),  # the first report waited for the start of the process
        ("confirm", running(1, 8.0, first=8.0), 12.0),  # one report tells no pace
    ],
)
def test_the_time_that_a_running_trial_needs(stage: Any, trial: Any, left: float) -> None:
    standing = StageStanding(
        stage=stage, states={"RUNNING": 1, "COMPLETE": 3}, running=(trial,), to_start=0, seconds=20.0
    )
    assert standing.seconds_left(2) == left
