"""The unfinished trials that wait for a worker, in their order, their group keys, and how often one is tried again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ablate.core.trial import TrialConfig, TrialKey
from ablate.tuning.state.trial_progress import TrialProgress

GroupKey = Callable[[TrialConfig], str | None]


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How often a trial may stop at the same epoch before it is recorded as FAIL."""

    attempts: int = 3  # attempts that ended with an error which a retry may avoid
    resumptions: int = 10  # by drivers that ended before a further report
    together: int = 2  # such resumptions after which the trial trains alone: it may be what ends its process


PATIENCE = Patience()


def alone(config: TrialConfig) -> None:
    """Return None: every trial trains alone."""


class TrialQueue:
    """Trials in the order in which they are handed out; one that a user has pruned meanwhile is left out.

    `group_key` tells which trials can share a pack (`Trainable.group_key`); it is asked once for each trial.
    """

    def __init__(self, group_key: GroupKey) -> None:
        self._group_key = group_key
        self._keys: dict[TrialKey, str | None] = {}
        self._waiting = deque[TrialProgress]()

    def __len__(self) -> int:
        return len(self._waiting)

    def restart(self, trials: Iterable[TrialProgress]) -> None:
        """Hold `trials` and no others."""
        self._waiting = deque(trials)

    def put(self, trial: TrialProgress) -> None:
        """Add a trial at the end."""
        self._waiting.append(trial)

    def take(self, fits: Callable[[TrialProgress], bool] = lambda trial: True) -> TrialProgress | None:
        """Remove and return the first trial that `fits`, or None."""
        for _ in range(len(self._waiting)):
            if not self._waiting[0].state.finished:
                break
            self._waiting.popleft()
        place = next((i for i, trial in enumerate(self._waiting) if not trial.state.finished and fits(trial)), None)
        if place is None:
            return None
        trial = self._waiting[place]
        del self._waiting[place]
        return trial

    def group_key(self, config: TrialConfig) -> str | None:
        """Return the group key of a trial."""
        if config.key not in self._keys:
            self._keys[config.key] = self._group_key(config)
        return self._keys[config.key]
