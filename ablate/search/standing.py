"""How far a data set's search and confirmation are, and how long they will take, for those who wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ablate.objectives import count_states
from ablate.search.trial_progress import TrialProgress
from ablate.trial import Stage, TrialState


@dataclass(frozen=True, kw_only=True)
class StageStanding:
    """One stage of one data set: its trials by state, how many it will have, and seconds of training for one.

    `to_start` are trials that do not exist yet and will. `seconds` is None before anything is known of it.
    """

    stage: Stage
    states: Mapping[str, int]
    running: tuple[TrialProgress, ...]
    to_start: int
    seconds: float | None

    @property
    def total(self) -> int:
        """Trials that exist or will."""
        return sum(self.states.values()) + self.to_start

    @property
    def done(self) -> int:
        """Trials that ended."""
        return sum(count for state, count in self.states.items() if TrialState(state).finished)

    def seconds_left(self, slots: int) -> float | None:
        """Return the seconds until the stage ends with `slots` trials at a time, None where they are not known."""
        if self.total == self.done:
            return 0.0
        if self.seconds is None:
            return None
        rest = [max(self._expected(trial) - trial.wall_seconds, 0.0) for trial in self.running]
        new = self.total - self.done - len(self.running)
        longest = max([*rest, self.seconds if new else 0.0])
        return max((sum(rest) + new * self.seconds) / max(slots, 1), longest)

    def _expected(self, trial: TrialProgress) -> float:
        """Return the seconds of a running trial: confirmation is never stopped early, a search trial may be."""
        assert self.seconds is not None
        return full_seconds(trial) or self.seconds if self.stage == "confirm" else self.seconds


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One data set: its stages in order; `time_left` are seconds of the study's budget of time, None without one."""

    dataset: str
    stages: tuple[StageStanding, ...]
    time_left: float | None = None

    @property
    def current(self) -> StageStanding:
        """The first stage that has not ended, or the last one."""
        return next((stage for stage in self.stages if stage.done < stage.total), self.stages[-1])

    def seconds_left(self, slots: int) -> float | None:
        """Return the seconds until all stages end with `slots` trials at a time, None where they are not known."""
        found = 0.0
        for stage in self.stages:
            left = stage.seconds_left(slots)
            if left is None:
                return None
            if stage.stage == "search" and self.time_left is not None and stage.seconds is not None:
                left = min(left, max(self.time_left, 0.0) + stage.seconds)  # trials that run then may end
            found += left
        return found


def stage_standing(
    stage: Stage, trials: Sequence[TrialProgress], *, to_start: int, otherwise: float | None = None
) -> StageStanding:
    """Return the standing of the trials of one stage; `otherwise` are its seconds while none of them says any."""
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
    """Return the seconds that all epochs of a trial take, from those that it has reported."""
    return trial.wall_seconds / trial.epoch * trial.config.train.epochs if trial.epoch else None
