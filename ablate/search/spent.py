"""How long drivers have worked on a study: what a budget of time must not forget over restarts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ablate.ledger import NoteRecord, ReportRecord, TrialRecord

DRIVER_STARTED = "driver_started"


@dataclass(kw_only=True)
class Spent:
    """Seconds that drivers worked: each from its first act to the last thing it committed.

    `before` sums up the others, `since` is when this driver acted first (UTC epoch seconds), None before that.
    """

    before: float
    since: float | None

    @staticmethod
    def of(
        trials: Iterable[TrialRecord], reports: Iterable[ReportRecord], notes: Iterable[NoteRecord], *, epoch: int
    ) -> Spent:
        """Return what the ledger says; `epoch` is this driver's."""
        moments = [
            *((n.driver_epoch, n.created_at) for n in notes),
            *((r.driver_epoch, r.created_at) for r in reports),
            *((t.driver_epoch, t.finished_at) for t in trials if t.finished_at is not None),
        ]
        last: dict[int, float] = {}
        for driver, moment in moments:
            last[driver] = max(last.get(driver, moment), moment)
        began: dict[int, float] = {}
        for note in notes:
            if note.kind == DRIVER_STARTED:
                began.setdefault(note.driver_epoch, note.created_at)
        before = sum(last[driver] - start for driver, start in began.items() if driver != epoch)
        return Spent(before=before, since=began.get(epoch))

    def seconds(self, now: float) -> float:
        """Return what has been spent in all, at `now` (UTC epoch seconds)."""
        return self.before + (now - self.since if self.since is not None else 0.0)
