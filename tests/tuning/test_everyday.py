"""The everyday benchmark on a made-up table: who is told what, and scores and differences in closed form."""

from __future__ import annotations

import sys

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution

from support.paths import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))
import everyday
import problems
import searchers

SETTINGS = [{"rate": rate, "kind": kind} for rate, kind in [(0.0, "a"), (0.4, "a"), (0.6, "b"), (1.0, "b"), (0.5, "a")]]
LAST = np.array([0.9, 0.5, 0.3, 0.1, 0.7])


def table(sizes: list[float] | None = None) -> problems.Curves:
    """Return five rows of three reports that fall to LAST; with `sizes`, these are the second loss."""
    losses = (LAST[:, None] + np.array([0.2, 0.1, 0.0]))[:, :, None]
    if sizes is not None:
        losses = np.concatenate([losses, np.repeat(np.array(sizes)[:, None, None], 3, axis=1)], axis=2)
    space = {"rate": FloatDistribution(0, 1), "kind": CategoricalDistribution(["a", "b"])}
    free = np.ones(5, dtype=bool)
    return problems.Curves(name="made up", space=space, settings=SETTINGS, losses=losses, start=SETTINGS[0], free=free)


class Scripted:
    """Asks for what it is given, and interrupts a trial after some of its reports."""

    def __init__(self, asked: list[searchers.Settings | int], stops: set[tuple[int, int]]) -> None:
        self.asked, self.stops = iter(asked), stops
        self.told: list[tuple[int, int, float]] = []
        self.taken: list[searchers.Settings] = []

    def ask(self, number: int) -> searchers.Settings | int:
        return next(self.asked)

    def take(self, number: int, settings: searchers.Settings) -> None:
        assert number == len(self.taken)
        self.taken.append(settings)

    def report(self, number: int, step: int, losses: tuple[float, ...]) -> bool:
        self.told.append((number, step, round(losses[0], 6)))
        return (number, step) not in self.stops


def test_a_search_is_told_the_nearest_free_row_and_an_interrupted_trial_goes_on() -> None:
    asked = Scripted([{"rate": 0.45, "kind": "a"}, {"rate": 0.45, "kind": "a"}, 0], {(0, 1)})
    assert everyday.search(table(), asked, 2) == [(4, (0.7,)), (6, (0.5,))]
    assert asked.taken == [SETTINGS[1], SETTINGS[4]]
    assert asked.told == [(0, 1, 0.7), (1, 1, 0.9), (1, 2, 0.8), (1, 3, 0.7), (0, 2, 0.6), (0, 3, 0.5)]


def test_the_regret_is_that_of_complete_trials_by_their_last_loss() -> None:
    """The least last loss is .1, the median .5: rows 0 to 3 have the regrets 2, 1, .5 and 0."""
    made = table()
    found = everyday.search(made, Scripted([*SETTINGS, 3], {(3, 2)}), 5)
    assert [spent for spent, _ in found] == [3, 6, 9, 14, 15]
    assert [made.score(found[:n]) for n in range(6)] == pytest.approx([2, 2, 1, 0.5, 0.5, 0])


def test_the_hypervolume_is_a_share_of_that_of_the_table() -> None:
    """Below (.58, 5): the front is (.5, 2) and (.1, 4), its volume .08 * 3 + .4 * 1."""
    made = table([5.0, 2.0, 4.5, 4.0, 3.0])
    assert made.references == pytest.approx((0.58, 5.0))
    assert made.score([]) == 0
    assert made.score([(3, (0.5, 2.0))]) == pytest.approx(0.24 / 0.64)
    assert made.score([(3, (0.5, 2.0)), (6, (0.1, 4.0)), (9, (0.9, 5.0))]) == pytest.approx(1)


@pytest.mark.parametrize(
    "name", ["ablate", "ablate, no start", "random", "Optuna TPE + Hyperband", "Optuna TPE, start"]
)
def test_a_searcher_takes_the_settings_of_the_rows(name: str) -> None:
    made = table()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    asked = everyday.ONE[name][0](made, 0)
    everyday.search(made, asked, 2)
    first = SETTINGS[0] if name in ("ablate", "Optuna TPE, start") else None
    seen = taken(asked)
    assert all(each in SETTINGS for each in seen)
    assert first is None or seen[0] == first
    assert made.free.sum() == 5 - len(seen)


def taken(asked: searchers.Searcher) -> list[searchers.Settings]:
    if isinstance(asked, searchers.Optuna):
        return [trial.params for trial in asked._study.trials]
    return [dict(trial.config.settings.config) for trial in asked._trials.values()]


def rows(searcher: str, scores: list[float], table: str = "one") -> list[dict[str, str]]:
    origin = {"commit": "c", "machine": "m", "versions": "v"}
    return [
        {"part": "small", "table": table, "searcher": searcher, "seed": str(seed), "budget": "5", "score": str(score)}
        | origin
        for seed, score in enumerate(scores)
    ]


def test_differences_are_paired_by_seed_and_means_are_over_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Differences -.1 and -.3: mean -.2, standard error .1, t quantile 12.706 with one degree of freedom."""
    part = everyday.Part(tables=("one", "two"), makers={}, budgets=(5,))
    monkeypatch.setattr(everyday, "PARTS", {"small": part})
    found = [*rows("ablate", [0.2, 0.3]), *rows("other", [0.3, 0.6, 0.9]), *rows("ablate", [0.4, 0.5], "two")]
    lines = {(line["table"], line["searcher"]): line for line in everyday.summary(found)}
    other = lines["one", "other"]
    assert (other["score"], other["seeds"], other["paired"]) == ("0.6000", 3, 2)
    assert [other[key] for key in ("ablate_minus", "low", "high")] == ["-0.2000", "-1.4706", "1.0706"]
    assert lines["one", "ablate"]["ablate_minus"] == ""
    assert lines["mean", "ablate"]["score"] == "0.3500"
    assert ("mean", "other") not in lines
