"""Further confirmation seeds: given in rounds to the networks whose place on the front is uncertain.

Every decision is a function of the finished confirmation trials and of the earlier rounds' events, so a driver that was
killed continues with the same trials. docs/searching.md states the rule and its error rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ablate.base.spending import spend
from ablate.core.objectives import is_cost, may_stand, mean, on_test, signed
from ablate.core.trial import CONFIRM_SEED_BASE, TrialState
from ablate.tuning.stages.front_probability import SeedMeans, domination_bounds, pool_seeds
from ablate.tuning.state.trial_progress import TrialProgress

if TYPE_CHECKING:
    from ablate.study import Study

RACED = "raced"
ERROR_RATE = 0.05  # of a network's decision, over all rounds together
Reason = Literal["", "certain", "budget"]


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A confirmed network: number of its search trial, seeds, and objectives [seeds, m] (smaller is better)."""

    number: int
    seeds: tuple[int, ...]
    losses: NDArray[np.float64]

    @property
    def next_seed(self) -> int:
        """The first seed of the confirmation on which it was not trained; networks share these seeds."""
        index = 0
        while CONFIRM_SEED_BASE + index in self.seeds:
            index += 1
        return CONFIRM_SEED_BASE + index


@dataclass(frozen=True, kw_only=True)
class Round:
    """One look at the finished confirmations: which networks get one more seed, and why.

    `decided` says of each network whose membership is certain by now whether it is on the front. Without `given`, the
    race has ended: `reason` is `certain` (all are decided) or `budget`.
    """

    number: int
    given: tuple[tuple[int, int], ...]  # (number of the search trial, seed)
    decided: Mapping[int, bool]
    seeds: Mapping[int, int]
    spent: int
    budget: int
    reason: Reason

    def payload(self) -> dict[str, Any]:
        """Return the event that records the round, as JSON values."""
        return {
            "round": self.number,
            "given": [list(pair) for pair in self.given],
            "decided": {str(n): on for n, on in self.decided.items()},
            "level": spend(ERROR_RATE, self.number),
            "seeds": {str(n): k for n, k in self.seeds.items()},
            "spent": self.spent,
            "budget": self.budget,
            "reason": self.reason,
        }


@dataclass(kw_only=True)
class Race:
    """The rounds of one data set so far, read from its events."""

    rounds: int = 0  # of all freezes: the error rate is shared out over all looks
    is_open: bool = False  # whether a freeze or a round asks for a further look
    last: Mapping[str, Any] = field(default_factory=dict)
    decided: dict[int, bool] = field(default_factory=dict)

    def frozen(self, payload: Mapping[str, Any]) -> None:
        """Apply the freeze of a front: its networks are compared anew."""
        self.is_open, self.last, self.decided = "budget" in payload, {}, {}

    def raced(self, payload: Mapping[str, Any]) -> None:
        """Apply a round."""
        self.rounds, self.is_open, self.last = int(payload["round"]), bool(payload["given"]), payload
        self.decided = {int(number): bool(on) for number, on in payload["decided"].items()}

    def is_over(self, study: Study, trials: Sequence[TrialProgress]) -> bool:
        """Return whether no further look is due: there is no budget, or the last round ended with what is there now."""
        budget = budget_of(study)
        if budget is None:
            return not self.is_open
        if self.is_open or not self.last:
            return False
        current = {str(c.number): len(c.seeds) for c in contenders(study, trials)}
        has_more = self.last["reason"] == "budget" and budget > int(self.last["budget"])
        return bool(current == self.last["seeds"]) and not has_more


def budget_of(study: Study) -> int | None:
    """Return how many seed-trainings the confirmation of a data set may have, or None if there are no further seeds."""
    return None if study.confirm is None else study.confirm.budget


def spent_seeds(trials: Sequence[TrialProgress]) -> int:
    """Return how many seed-trainings the confirmation of a data set has, in any state."""
    return sum(len(trial.config.seeds) for trial in trials if trial.config.stage == "confirm")


def contenders(study: Study, trials: Sequence[TrialProgress]) -> list[Contender]:
    """Return the confirmed networks that may be on the front, by number: every seed COMPLETE, constraints kept."""
    confirming = sorted((t for t in trials if t.config.stage == "confirm"), key=lambda t: (t.config.first, t.number))
    found = []
    for number, group in groupby(confirming, key=lambda t: t.config.first):
        members = list(group)
        if all(trial.state is TrialState.COMPLETE for trial in members) and _may_stand(study, members):
            rows = [[signed(o, v) for v in _values(o.metric, members)] for o in study.objectives]
            seeds = tuple(seed for trial in members for seed in trial.config.seeds)
            found.append(Contender(number=number, seeds=seeds, losses=np.array(rows).T))
    return found


def plan_round(study: Study, trials: Sequence[TrialProgress], race: Race) -> Round:
    """Return the next round, once every confirmation trial has ended."""
    those, number = contenders(study, trials), race.rounds + 1
    budget, spent = budget_of(study) or 0, spent_seeds(trials)
    decided, wanted = dict(race.decided), list[int]()
    if those:
        means = pool_seeds([c.losses for c in those], [not is_cost(o.metric) for o in study.objectives])
        for place, on in decide(means, spend(ERROR_RATE, number)).items():
            decided.setdefault(those[place].number, on)
        open_places = [i for i, c in enumerate(those) if c.number not in decided]
        wanted = most_uncertain(means, open_places)
    given = tuple((those[i].number, those[i].next_seed) for i in wanted[: max(budget - spent, 0)])
    return Round(
        number=number,
        given=given,
        decided={c.number: decided[c.number] for c in those if c.number in decided},
        seeds={c.number: len(c.seeds) for c in those},
        spent=spent,
        budget=budget,
        reason="" if given else "budget" if wanted else "certain",
    )


def decide(means: SeedMeans, error: float) -> dict[int, bool]:
    """Return the networks whose membership is certain, by place, each wrong with probability at most `error`.

    One is on the front if the probabilities that each other one dominates it sum to less than `error`. It is not if a
    single other one dominates it with probability above 1 - error / (n - 1). The probability that *any* dominates it
    would not do: among n equal networks it is near 1 - 1/n without evidence against any of them.
    """
    lower, upper = domination_bounds(means)
    others = max(len(means.seeds) - 1, 1)
    on, off = upper.sum(axis=0) < error, lower.max(axis=0) > 1 - error / others
    return {i: bool(on[i]) for i in range(len(on)) if on[i] or off[i]}


def most_uncertain(means: SeedMeans, places: Sequence[int]) -> list[int]:
    """Return `places`, the most uncertain first, each followed by its strongest rival if that has no more seeds.

    Without the rival's seeds, the error of the rival's own mean would remain in every difference.
    """
    upper = domination_bounds(means)[1]
    order = sorted(places, key=lambda i: (abs(0.5 - float(upper[:, i].max())), i))
    found: list[int] = []
    for place in order:
        rival = int(upper[:, place].argmax())
        pair = [place, rival] if means.seeds[rival] <= means.seeds[place] else [place]
        found += [each for each in pair if each not in found]
    return found


def _values(metric: str, members: Sequence[TrialProgress]) -> list[float]:
    """Return a metric on the test split, one value per seed; a cost is the same for all seeds."""
    if is_cost(metric):
        return [members[0].metric(metric) for trial in members for _ in trial.config.seeds]
    nan = float("nan")
    return [float(row.get(on_test(metric), nan)) for trial in members for row in trial.replicates]


def _may_stand(study: Study, members: Sequence[TrialProgress]) -> bool:
    """Return whether the means over the seeds are finite and keep the constraints."""
    column = lambda metric: [mean(_values(metric, members))]  # noqa: E731
    return may_stand(study.objectives, study.constraints, ["COMPLETE"], column)[0]
