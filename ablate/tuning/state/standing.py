"""Progress of a data set's search and confirmation, and estimates of the remaining time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ablate.core.objectives import count_states
from ablate.core.trial import Stage, TrialState
from ablate.study import MOST_TRIALS
from ablate.tuning.state.trial_progress import TrialProgress


@dataclass(frozen=True, kw_only=True)
class StageStanding:
    """One stage of one data set: its trials by state, how many are to start, and the seconds of one trial.

    `to_start` counts trials that do not exist yet. `seconds` is None until a duration is known.
    """

    stage: Stage
    states: Mapping[str, int]
    running: tuple[TrialProgress, ...]
    to_start: int
    seconds: float | None

    @property
    def total(self) -> int:
        """Number of trials that exist or are to start."""
        return sum(self.states.values()) + self.to_start

    @property
    def is_limited(self) -> bool:
        """Whether the number of trials is known."""
        return self.total < MOST_TRIALS

    @property
    def done(self) -> int:
        """Number of trials that have ended."""
        return sum(count for state, count in self.states.items() if TrialState(state).finished)

    def seconds_left(self, slots: int) -> float | None:
        """Return the seconds until the stage ends with `slots` trials at a time, or None if unknown."""
        if self.total == self.done:
            return 0.0
        if self.seconds is None or not self.is_limited:
            return None
        rest = [max(self._expected(trial) - trial.wall_seconds, 0.0) for trial in self.running]
        new = self.total - self.done - len(self.running)
        longest = max([*rest, self.seconds if new else 0.0])
        return max((sum(rest) + new * self.seconds) / max(slots, 1), longest)

    def _expected(self, trial: TrialProgress) -> float:
        """Return the expected seconds of a running trial: the mean, where it may still stop as early as others did.

        A confirmation does not stop, and a trial that has taken longer than the mean is expected to reach its end.
        """
        assert self.seconds is not None
        may_stop = self.stage != "confirm" and trial.wall_seconds < self.seconds
        return self.seconds if may_stop else full_seconds(trial) or self.seconds


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The progress of one data set: its stages in order, and `time_left` in seconds (None without a time budget)."""

    dataset: str
    stages: tuple[StageStanding, ...]
    time_left: float | None = None

    @property
    def current(self) -> StageStanding:
        """The first stage that has not ended, or the last one."""
        return next((stage for stage in self.stages if stage.done < stage.total), self.stages[-1])

    def seconds_left(self, slots: int) -> float | None:
        """Return the seconds until all stages end with `slots` trials at a time, or None if unknown."""
        found = 0.0
        for stage in self.stages:
            left = stage.seconds_left(slots)
            if stage.stage == "search" and self.time_left is not None and stage.seconds is not None:
                until = max(self.time_left, 0.0) + stage.seconds  # trials that run then may finish
                left = until if left is None else min(left, until)
            if left is None:
                return None
            found += left
        return found


def stage_standing(
    stage: Stage, trials: Sequence[TrialProgress], *, to_start: int, otherwise: float | None = None
) -> StageStanding:
    """Return the progress of one stage; `otherwise` is the seconds per trial until one of its trials shows it."""
    own = [trial for trial in trials if trial.config.stage == stage]
    ended = [trial.wall_seconds for trial in own if trial.state.finished and trial.wall_seconds]
    running = tuple(trial for trial in own if trial.state is TrialState.RUNNING)
    known = ended or [seconds for trial in running if (seconds := full_seconds(trial))]
    return StageStanding(
        stage=stage,
        states=count_states(trial.state for trial in own),
        running=running,
        to_start=to_start,
        seconds=sum(known) / len(known) if known else otherwise,
    )


def full_seconds(trial: TrialProgress) -> float | None:
    """Return the estimated seconds of a trial's full length, or None before its second report.

    The first one has the start of the process in it, which may take longer than the training.
    """
    first, seconds = trial.began or (trial.epoch, 0.0)
    if trial.epoch == first:
        return None
    pace = (trial.wall_seconds - seconds) / (trial.epoch - first)
    return trial.wall_seconds + pace * (trial.config.epochs - trial.epoch)
