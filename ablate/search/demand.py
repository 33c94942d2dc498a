"""How many trials of a study could run at a time, for those who order machines for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ablate.search.lane import Lane

if TYPE_CHECKING:
    from ablate.study import Study


def most_at_once(study: Study, lanes: Sequence[Lane], *, room: Callable[[Lane], bool]) -> int:
    """Return how many trials of `lanes` have not ended, plus those that lanes with `room` can begin before one ends."""
    unfinished = sum(not trial.state.finished for lane in lanes for trial in lane.trials.values())
    new = sum(_most_new(study, lane) for lane in lanes if room(lane))
    if study.budget.scope == "total":
        new = min(new, study.budget.trials - sum(len(lane.search_trials()) for lane in lanes))
    return unfinished + new


def _most_new(study: Study, lane: Lane) -> int:
    """Return at most how many search trials a lane can begin before another of its trials ends."""
    begun = lane.search_trials()
    if lane.lacks_seeds() is not None:
        return len(begun)
    limits = [study.budget.trials]
    if study.compare is not None:
        limits.append(len(study.design(lane.dataset)))
    elif (distinct := study.space_for(lane.dataset).cardinality()) is not None:
        limits.append(distinct)
    new = min(limits) - len(begun)
    if study.deterministic is not None:
        new = min(new, study.deterministic - sum(not trial.state.finished for trial in begun))
    return max(new, 0)
