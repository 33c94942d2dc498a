"""How many trials a study will have at most, counted before it runs."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

from pydantic import ValidationError

from ablate.study import VARIANT

if TYPE_CHECKING:
    from ablate.study import Study

ENUMERATED = 200_000


def planned_trials(study: Study) -> dict[str, int]:
    """Return the number of search trials of each data set; the size of a finite space limits it.

    It is MOST_TRIALS where nothing limits it.
    """
    if study.compare is not None:
        return {name: len(study.design(name)) for name in study.labels}
    budget = study.budget.trials
    if not study.budget.counts:
        return {name: study.space_for(name).cardinality() or budget for name in study.labels}
    limits = {name: distinct(study, name, most=budget) for name in study.labels}
    if study.budget.scope == "per_dataset":
        return {name: budget if limit is None else min(budget, limit) for name, limit in limits.items()}
    counts = dict.fromkeys(limits, 0)
    for _ in range(budget):  # as the search does: the next trial goes to the data set with the fewest
        room = [name for name, limit in limits.items() if limit is None or counts[name] < limit]
        if not room:
            break
        counts[min(room, key=counts.__getitem__)] += 1
    return counts


def tuning_trials(study: Study) -> dict[str, int]:
    """Return the number of tuning trials of each data set at most, 0 without `tune`."""
    if study.tune is None:
        return dict.fromkeys(study.labels, 0)
    count = study.tuned.cardinality()
    draws = study.tune.trials if count is None else min(count, study.tune.trials)
    return {name: draws * len(study.design(name)) for name in study.labels}


def distinct(study: Study, dataset: str, *, most: int) -> int | None:
    """Return how many configurations train differently, at most `most`; None if there are infinitely many."""
    space = study.space_for(dataset)
    count = space.cardinality()
    rules = study.kind.idle_rules
    if count is None or not {rule.setting for rule in rules} & set(space.names()):
        return count
    found: set[str] = set()
    for values in itertools.islice(space.grid(), ENUMERATED):
        try:
            settings = study.settings_of(dataset, values)
        except ValidationError:
            found.add(json.dumps(values))  # the search finds out only by trying it
        else:
            found.add(f"{values.get(VARIANT)}\n{settings.effective(None).model_dump_json()}")
        if len(found) >= most:
            return min(most, count)
    return len(found)
