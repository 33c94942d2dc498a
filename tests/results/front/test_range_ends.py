"""The ends of ranges that the best trials are at: planted ones are named, and those of chance are not."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import polars as pl
import pytest

from ablate.results.front.range_ends import LEVEL, NEAR, RangeEnds, _chance, range_ends
from ablate.results.trials.tables import TRIAL_COLUMNS
from ablate.study import Study
from ablate.study.space import FloatRange, IntRange, Range
from ablate.tuning.sampling.search_space import decode, inner_at_share

SPACE: dict[str, Any] = {
    "eta": {"float": [1e-3, 0.4], "log": True},
    "depth": {"int": [2, 12]},
    "units": {"int": [8, 512], "log": True},
    "share": {"float": [0.0, 0.9], "step": 0.1},
    "booster": {"choices": ["tree", "forest"]},
    "rate": {"float": [0.1, 1.0], "when": {"config.booster": "forest"}},
}
ONE = [{"metric": "val_loss", "direction": "minimize"}]


def study(space: dict[str, Any] = SPACE, **changes: Any) -> Study:
    return Study.model_validate({"study": "s", "trainable": "m:t", "config": space, "objectives": ONE} | changes)


def drawn(of: Study, count: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return settings drawn evenly on each range's scale, as samplers do."""
    space, found = of.space_for("data"), []
    for _ in range(count):
        shares = {name: float(rng.random()) for name in space.names()}
        values = {n: decode(spec, inner_at_share(spec, shares[n])) for n, spec in space.ranges.items()}
        found.append(space.active(values))
    return found


def table(settings: list[dict[str, Any]], losses: list[float], **columns: list[Any]) -> pl.DataFrame:
    rows = [
        {"dataset": "data", "trial": n, "stage": "search", "state": "COMPLETE", "parameters": json.dumps(each)}
        for n, each in enumerate(settings)
    ]
    metrics = [pl.Series("val_loss", losses), *(pl.Series(name, values) for name, values in columns.items())]
    return pl.DataFrame(rows, schema=TRIAL_COLUMNS).with_columns(metrics)


def found_in(settings: list[dict[str, Any]], losses: list[float], of: Study | None = None) -> RangeEnds:
    of = of or study()
    return range_ends(of, table(settings, losses), "data")


def test_trials_at_the_end_of_a_range_are_counted_and_the_range_is_named() -> None:
    settings = drawn(study(), 96, np.random.default_rng(0))
    for place, each in enumerate(settings[:24]):
        each["config.eta"] = 0.4 if place != 11 else 0.1
        each["config.depth"], each["config.units"], each["config.share"] = 3 + place % 8, 40, 0.4
        each.pop("config.rate", None)
        each["config.booster"] = "tree"
    settings[0] |= {"config.depth": 12, "config.units": 500}
    found = found_in(settings, [float(n) for n in range(96)])
    assert found.text == (
        "23 of the best 24 trials and 3 of 4 settings of the best are within a twentieth of the end of their range: "
        "widen `eta` upwards"
    )


def test_several_ends_are_named_with_their_counts_and_in_their_direction() -> None:
    settings = drawn(study(), 40, np.random.default_rng(1))
    for each in settings[:10]:
        each |= {"config.eta": 0.001, "config.depth": 12, "config.units": 60, "config.share": 0.4}
    settings[3]["config.eta"] = 0.1
    text = found_in(settings, [float(n) for n in range(40)]).text
    assert text.startswith("10 of the best 10 trials and 2 of ")
    assert text.endswith("widen `depth` upwards (10), `eta` downwards (9)")


def test_an_end_that_may_be_a_limit_is_named_with_that_doubt() -> None:
    of = study({"drop": {"float": [0.0, 1.0]}})
    settings = drawn(of, 40, np.random.default_rng(2))
    for place, each in enumerate(settings[:10]):
        each["config.drop"] = 0.01 * place / 3
    losses = [float(n) for n in range(40)]
    assert found_in(settings, losses, of).text.endswith("widen `drop` downwards, if it may be below 0")
    for each in settings[:10]:
        each["config.drop"] = 1.0
    assert found_in(settings, losses, of).text.endswith("widen `drop` upwards, if it may be above 1")


def test_only_complete_trials_that_keep_the_constraints_are_the_best() -> None:
    of = study({"eta": {"float": [1.0, 2.0]}}, constraints=["val_time <= 1"])
    settings = [{"config.eta": 2.0}] * 30 + [{"config.eta": 1.1 + 0.02 * n} for n in range(30)]
    losses = [float(n) for n in range(60)]
    plain = table(settings, losses, val_time=[0.5] * 60)
    assert range_ends(of, plain, "data").ends
    broken = table(settings, losses, val_time=[2.0] * 30 + [0.5] * 30)
    stopped = plain.with_columns(state=pl.Series(["PRUNED"] * 30 + ["COMPLETE"] * 30))
    assert not range_ends(of, broken, "data").ends
    assert not range_ends(of, stopped, "data").ends


def test_with_several_objectives_the_best_are_those_of_the_first_fronts() -> None:
    both = [*ONE, {"metric": "val_cost", "direction": "minimize"}]
    of = study({"eta": {"float": [1.0, 2.0]}}, objectives=both)
    at_end = [{"config.eta": 2.0}] * 10
    inside = [{"config.eta": 1.2 + 0.02 * n} for n in range(30)]
    losses, costs = [float(n) for n in range(10)] + [20.0] * 30, [float(10 - n) for n in range(10)] + [20.0] * 30
    (end,) = range_ends(of, table(at_end + inside, losses, val_cost=costs), "data").ends
    assert (end.setting, end.direction, end.trials, end.best) == ("eta", "upwards", 10, 10)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_trials_say_nothing(count: int) -> None:
    assert found_in([{"config.eta": 0.4, "config.booster": "tree"}] * count, [0.0] * count).text == ""


RANGES: list[Range] = [
    FloatRange(float=(1e-4, 1e-1), log=True),
    FloatRange(float=(-3, 5)),
    FloatRange(float=(0, 1), step=0.03),
    IntRange(int=(1, 3)),
    IntRange(int=(0, 100)),
    IntRange(int=(3, 47), step=4),
    IntRange(int=(8, 64), log=True),
    IntRange(int=(1, 3000), log=True),
]


@pytest.mark.parametrize("spec", RANGES, ids=str)
def test_the_share_of_an_end_is_that_of_an_even_draw(spec: FloatRange | IntRange) -> None:
    """Over 40,000 evenly spaced shares of the range, as its sampler reads them."""
    shares = (np.arange(40_000) + 0.5) / 40_000
    values = [float(decode(spec, inner_at_share(spec, share))) for share in shares.tolist()]
    scale = math.log if spec.log else float
    low, high = (scale(end) for end in spec.ends)
    places = np.array([(scale(value) - low) / (high - low) for value in values])
    assert _chance(spec, upper=False) == pytest.approx(float((places <= NEAR + 1e-9).mean()), abs=2e-3)
    assert _chance(spec, upper=True) == pytest.approx(float((places >= 1 - NEAR - 1e-9).mean()), abs=2e-3)


@pytest.mark.parametrize("count", [24, 100])
def test_even_draws_that_do_not_matter_are_seldom_named(count: int) -> None:
    """At most LEVEL by construction, Bonferroni over ends; 400 searches may exceed it by three standard errors."""
    rng = np.random.default_rng(count)
    of = study()
    named = sum(bool(found_in(drawn(of, count, rng), rng.random(count).tolist()).ends) for _ in range(400))
    assert named <= 400 * LEVEL + 3 * math.sqrt(400 * LEVEL * (1 - LEVEL))
