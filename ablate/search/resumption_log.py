"""Trials that are handed out again, and the training that they have to repeat."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ablate.trial import Report, TrialKey

if TYPE_CHECKING:
    from ablate.search.trial_progress import TrialProgress


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """A trial handed out again when it had reports up to epoch `committed`.

    It went on from the end of epoch `continued`; None: it has not reported since.
    """

    key: TrialKey
    attempt: int
    committed: int
    continued: int | None = None

    @property
    def repeated(self) -> int:
        """Return how many reported epochs were trained a second time, because checkpoints were damaged or missing."""
        return 0 if self.continued is None else self.committed - self.continued


@dataclass(kw_only=True)
class ResumptionLog:
    """The returns of one driver, in the order of their handing out."""

    found: list[Resumption] = field(default_factory=list)
    _silent: dict[TrialKey, int] = field(default_factory=dict)  # place in `found` of those that did not report yet

    def handed_out(self, trial: TrialProgress) -> None:
        """Take in a trial that was just handed out."""
        if trial.attempt > 1:
            self._silent[trial.key] = len(self.found)
            self.found.append(Resumption(key=trial.key, attempt=trial.attempt, committed=trial.epoch))

    def reported(self, trial: TrialProgress, report: Report) -> None:
        """Take in a report, before `trial` does; the first one of an attempt says where the attempt began."""
        place = self._silent.pop(trial.key, None)
        if place is not None:
            self.found[place] = replace(self.found[place], continued=_continue(trial, report))


def _continue(trial: TrialProgress, report: Report) -> int:
    """Return the epoch whose end an attempt went on from, by its first report.

    Training yields the report of its checkpoint again before it goes on; without a checkpoint it begins anew, and the
    first epoch of all, trained once more, takes another time.
    """
    if report.epoch > trial.epoch:
        return trial.epoch
    first = min(trial.seconds)
    anew = report.epoch == first and trial.seconds[first] != report.wall_seconds
    return 0 if anew else report.epoch
