"""The arms of a campaign: the champion of the opening, and the candidates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ablate.base.judging import Effort, Judgement, Pool
from ablate.core.code_version import Code
from ablate.core.trial import CAMPAIGN_SEED_BASE
from ablate.tuning.state.trial_progress import TrialProgress


@dataclass(kw_only=True)
class Arm:
    """The champion of the opening (number 0) or a candidate: settings over those of the file, code, and runs by seed.

    `k` counts the candidates since the last restart of the error rate, `reign` the champions. `known` is how many runs
    the reference had when the candidate was submitted, `pool` the spread of the arms that had ended. The runs of a
    reference begin after its first `skipped` ones.
    """

    number: int
    settings: Mapping[str, Any]
    submitted: Mapping[str, Any] = field(default_factory=dict)  # the event of its submission
    identity: str
    runs: dict[int, TrialProgress]
    most: int
    effort: Effort = "normal"
    code: Code | None = None
    k: int = 0
    reign: int = 0
    known: int = 0
    reference: Arm | None = None
    champion: Arm | None = None
    order: Sequence[int] = ()
    pool: Pool = field(default_factory=Pool)
    skipped: int = 0
    looked: int = 0
    state: Literal["open", "keep", "discard", "undecided", "superseded"] = "open"
    judged: Mapping[str, Any] = field(default_factory=dict)  # the event of its decision
    latest: Judgement | None = None

    def seed(self, place: int) -> int:
        """Return the seed of a run by its place: the reference's known seeds in the arm's own order, then its next."""
        if self.reference is None:
            return CAMPAIGN_SEED_BASE + place
        inside = self.order[place] if place < len(self.order) else place
        return self.reference.seed(self.reference.skipped + inside)

    def ended(self, first: int = 0) -> list[TrialProgress]:
        """Return the runs from place `first` up to the first one that has not ended."""
        found: list[TrialProgress] = []
        while (run := self.runs.get(self.seed(first + len(found)))) is not None and run.state.finished:
            found.append(run)
        return found

    def judged_by(self) -> list[TrialProgress]:
        """Return the ended runs that candidates are judged by."""
        return self.ended(self.skipped)


def event_of(arm: Arm, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the event of a decision, without what it does not have: a number that is not finite, a `need`."""
    kept = {name: value for name, value in found.items() if value is not None and value not in (math.inf, -math.inf)}
    return {"candidate": arm.number, **kept}
