"""Selects the reports that a scheduler sees: all as they arrive, or those of a fixed set of trials."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

from ablate.core.registry import SCHEDULERS
from ablate.core.trial import Decision
from ablate.tuning.state.curves import Curves
from ablate.tuning.stopping.schedulers import Scheduler, SchedulerRequest

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
    """The scheduler of one data set, or one per trial in a deterministic study, and the reports it has seen."""

    build: Callable[[], Scheduler]
    common: Scheduler
    _seen: dict[int, list[RungReport]] = field(default_factory=lambda: defaultdict(list))
    _own: dict[int, Scheduler] = field(default_factory=dict)

    @staticmethod
    def of(study: Study, curves: Curves) -> Rungs:
        """Return empty rungs; raise RequestError if the scheduler does not suit the study."""
        request = SchedulerRequest(
            name=study.scheduler.name,
            curves=curves,
            reduction=study.scheduler.reduction,
            min_epochs=study.scheduler.min_epochs,
            options=study.scheduler.options,
        )
        make = SCHEDULERS.load(study.scheduler.name)
        return Rungs(build=lambda: make(request), common=make(request))

    def observe(self, rung_report: RungReport, *, shared: bool) -> None:
        """Record a report whose decision has been made; `shared` passes it to the common scheduler."""
        if shared:
            self.common.observe(**rung_report)
        else:
            self._seen[rung_report["number"]].append(rung_report)

    def decide(self, rung_report: RungReport, *, rivals: Sequence[int] | None) -> Decision:
        """Record a report and return whether its trial continues.

        `rivals` are the trials that it is compared with, all of which must have ended. Their reports are passed in
        order of number and epoch. None compares it with all earlier reports.
        """
        if rivals is None:
            return self.common.decide(**rung_report)
        number = rung_report["number"]
        if number not in self._own:
            self._own[number] = self._shown([*rivals, number])
        self._seen[number].append(rung_report)
        return self._own[number].decide(**rung_report)

    def end(self, number: int) -> None:
        """Discard the scheduler of a trial that has ended."""
        self._own.pop(number, None)

    def _shown(self, numbers: Sequence[int]) -> Scheduler:
        scheduler = self.build()
        for number in numbers:
            for rung_report in sorted(self._seen[number], key=lambda seen: seen["epoch"]):
                scheduler.observe(**rung_report)
        return scheduler
