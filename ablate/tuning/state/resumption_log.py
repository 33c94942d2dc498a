"""Records the trials that are handed out again, and the epochs that they repeat."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ablate.core.trial import Report, TrialKey

if TYPE_CHECKING:
    from ablate.tuning.state.trial_progress import TrialProgress


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How often a trial may stop at the same epoch before it is recorded as FAIL."""

    attempts: int = 3  # attempts that ended with an error which a retry may avoid
    resumptions: int = 10  # by drivers that ended before a further report
    together: int = 2  # such resumptions after which the trial trains alone: it may be what ends its process


PATIENCE = Patience()


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """A trial that was handed out again after it had reported up to epoch `committed`.

    It continued from the end of epoch `continued`, which is None until it reports again.
    """

    key: TrialKey
    attempt: int
    committed: int
    continued: int | None = None

    @property
    def repeated(self) -> int:
        """Return how many reported epochs were trained again because checkpoints were damaged or missing."""
        return 0 if self.continued is None else self.committed - self.continued


@dataclass(kw_only=True)
class ResumptionLog:
    """The resumptions of one driver, in the order in which the trials were handed out."""

    found: list[Resumption] = field(default_factory=list)
    _silent: dict[TrialKey, int] = field(default_factory=dict)  # index in `found` of trials that have not reported yet

    def handed_out(self, trial: TrialProgress) -> None:
        """Record a trial that was just handed out."""
        if trial.attempt > 1:
            self._silent[trial.key] = len(self.found)
            self.found.append(Resumption(key=trial.key, attempt=trial.attempt, committed=trial.epoch))

    def reported(self, trial: TrialProgress, report: Report) -> None:
        """Record a report before `trial` is updated; the first report of an attempt shows where it began."""
        place = self._silent.pop(trial.key, None)
        if place is not None:
            self.found[place] = replace(self.found[place], continued=_continue(trial, report))


def _continue(trial: TrialProgress, report: Report) -> int:
    """Return the epoch from whose end an attempt continued, judged by its first report.

    Training that resumes from a checkpoint first yields the checkpoint's report again. Without a checkpoint it starts
    over, and its first report has another wall time than before.
    """
    if report.epoch > trial.epoch:
        return trial.epoch
    first = min(trial.seconds)
    anew = report.epoch == first and trial.seconds[first] != report.wall_seconds
    return 0 if anew else report.epoch
