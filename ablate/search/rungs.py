"""Which reports a scheduler sees before it decides: all of them as they come, or those of a fixed set of trials."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

from ablate.registry import SCHEDULERS
from ablate.search.schedulers import Scheduler, SchedulerRequest
from ablate.trial import Decision

if TYPE_CHECKING:
    from ablate.study import Study


class RungReport(TypedDict):
    """One report as a scheduler sees it (see Scheduler)."""

    number: int
    epoch: int
    losses: tuple[float, ...]
    epochs: int


@dataclass(kw_only=True)
class Rungs:
    """The scheduler of one data set, or in a deterministic study one for each trial, and what it has been shown."""

    build: Callable[[], Scheduler]
    common: Scheduler
    _seen: dict[int, list[RungReport]] = field(default_factory=lambda: defaultdict(list))
    _own: dict[int, Scheduler] = field(default_factory=dict)

    @staticmethod
    def of(study: Study) -> Rungs:
        """Return empty rungs; raise RequestError where the scheduler does not suit the study."""
        request = SchedulerRequest(
            name=study.scheduler.name,
            objectives=len(study.objectives),
            reduction=study.scheduler.reduction,
            min_epochs=study.scheduler.min_epochs,
            options=study.scheduler.options,
        )
        make = SCHEDULERS.load(study.scheduler.name)
        return Rungs(build=lambda: make(request), common=make(request))

    def observe(self, rung_report: RungReport, *, shared: bool) -> None:
        """Take in a report whose decision has been made; `shared`: by the scheduler that sees all."""
        if shared:
            self.common.observe(**rung_report)
        else:
            self._seen[rung_report["number"]].append(rung_report)

    def decide(self, rung_report: RungReport, *, rivals: Sequence[int] | None) -> Decision:
        """Take in a report and say whether its trial goes on.

        `rivals`, all of which must have ended, are the trials that it is compared with, their reports in the order
        of number and epoch; None: whatever was reported before.
        """
        if rivals is None:
            return self.common.decide(**rung_report)
        number = rung_report["number"]
        if number not in self._own:
            self._own[number] = self._shown([*rivals, number])
        self._seen[number].append(rung_report)
        return self._own[number].decide(**rung_report)

    def end(self, number: int) -> None:
        """Let go of what only a trial that goes on needs."""
        self._own.pop(number, None)

    def _shown(self, numbers: Sequence[int]) -> Scheduler:
        scheduler = self.build()
        for number in numbers:
            for rung_report in sorted(self._seen[number], key=lambda seen: seen["epoch"]):
                scheduler.observe(**rung_report)
        return scheduler
