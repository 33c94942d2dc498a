"""How many trials of a study can run at a time, so that machines can be requested for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ablate.tuning.dataset_search import DatasetSearch

if TYPE_CHECKING:
    from ablate.study import Study


def most_at_once(study: Study, subsearches: Sequence[DatasetSearch], *, room: Callable[[DatasetSearch], bool]) -> int:
    """Return how many trials have not ended, plus those that searches with `room` can begin before one ends."""
    unfinished = sum(not trial.state.finished for subsearch in subsearches for trial in subsearch.trials.values())
    new = sum(_most_new(study, subsearch) for subsearch in subsearches if room(subsearch))
    if study.budget.scope == "total":
        new = min(new, study.budget.trials - sum(len(subsearch.search_trials()) for subsearch in subsearches))
    return unfinished + new


def _most_new(study: Study, subsearch: DatasetSearch) -> int:
    """Return at most how many search trials of a data set can begin before another of its trials ends."""
    begun = subsearch.search_trials()
    if subsearch.campaign is not None:
        return len(subsearch.campaign.wanted())
    if study.tune is not None:
        return subsearch.tuning_to_start() if subsearch.is_tuning else subsearch.to_start(0)
    if subsearch.suggester.only:
        return subsearch.to_start(0)
    if subsearch.lacks_seeds:
        return len(begun)
    limits = [study.budget.trials]
    if study.compare is not None:
        limits.append(len(study.design(subsearch.dataset)))
    elif (distinct := study.space_for(subsearch.dataset).cardinality()) is not None:
        limits.append(distinct)
    new = min(limits) - len(begun)
    if study.deterministic is not None:
        new = min(new, study.deterministic - sum(not trial.state.finished for trial in begun))
    return max(new, 0)
