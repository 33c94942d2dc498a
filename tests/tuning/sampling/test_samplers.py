"""One contract for every sampler: in bounds, no duplicates, the same after any restart, honest about early stops."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ablate.base.errors import RequestError
from ablate.core.trial import Decision, TrialConfig, TrialKey
from ablate.engine.training.family import family
from ablate.ledger import Ledger
from ablate.study import Study
from ablate.study.space import Choices, FloatRange, IntRange, Range, Space
from ablate.tuning import Search
from ablate.tuning.sampling.search_space import (
    SearchSpace,
    decode,
    distribution_of,
    encode,
    inner_at,
    inner_at_share,
    shuffled,
    walk,
)
from support.ledgers import SHAPE, Clock
from support.searches import (
    ENDLESS,
    ONE,
    TWO,
    accuracy,
    driving,
    hold_of,
    report_at,
    run_all,
    search_of,
    size_of,
    study_of,
    url_in,
)

FAST = ["front", "tpe", "nsga2", "qmc", "random", "grid"]
EVERY = [*FAST, "gp"]
SMALL = {"width": {"int": [8, 32], "step": 8}, "mlp": {"choices": ["none", 64]}, "similarity": "separate"}
FEW = {"epochs": 9, "label_smoothing": {"float": [0.0, 0.3], "step": 0.1}}


def study_for(name: str, **changes: Any) -> Study:
    """Return a study that suits the sampler: finite for grid, two parameters for the slow gp."""
    fields: dict[str, Any] = {"sampler": {"name": name, "startup_trials": 4}}
    if name == "grid":
        fields["training"] = FEW | {"schedule": {"warmup_epochs": {"choices": [0, 1], "when": {"model.mlp": [64]}}}}
        fields["model"] = SMALL
    if name == "gp":
        fields["model"] = {"width": {"int": [8, 64], "step": 8}}
        fields["training"] = {"epochs": 9, "learning_rate": {"float": [1e-4, 1e-1], "log": True}}
        fields["budget"] = {"trials": 7}
    return study_of(**(fields | changes))


@pytest.mark.parametrize("objectives", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("name", FAST)
def test_suggestions_lie_in_the_space_and_never_repeat(tmp_path: Path, name: str, objectives: Any) -> None:
    study = study_for(name, objectives=objectives, scheduler={"name": "asha"}, budget={"trials": 30})
    with driving(study, url_in(tmp_path)) as search:
        configs = run_all(search)
    assert [c.key.number for c in configs] == list(range(30))
    for config in configs:
        assert study.space.contains(config.parameters), config.parameters
        assert config.settings == study.settings_of("digits", config.parameters)
        if "training.label_smoothing" in config.parameters:
            assert config.parameters["training.label_smoothing"] in [0.0, 0.1, 0.2, 0.3]
    assert len({json.dumps(dict(c.parameters), sort_keys=True) for c in configs}) == 30
    chosen = {name for name, spec in study.space.ranges.items() if spec.when}
    assert {name in c.parameters for c in configs for name in chosen} == {True, False}


@pytest.mark.parametrize("name", FAST)
def test_the_seed_alone_decides(tmp_path: Path, name: str) -> None:
    def chosen(seed: int, folder: str) -> list[Any]:
        study = study_for(name, seed=seed, budget={"trials": 6})
        (tmp_path / folder).mkdir()
        with driving(study, url_in(tmp_path / folder)) as search:
            return [dict(c.parameters) for c in run_all(search)]

    first = chosen(3, "a")
    assert chosen(3, "b") == first
    assert chosen(4, "c") != first


class Fleet:
    """A few trials in flight, stepped in a random order; before each step the search may be rebuilt."""

    def __init__(self, study: Study, ledger: Ledger, clock: Clock, *, rebuild: bool) -> None:
        self.study, self.ledger, self.clock, self.rebuild = study, ledger, clock, rebuild
        self.writer = hold_of(study, ledger)
        self.search = self.fresh()
        self.epochs: dict[TrialKey, int] = {}
        self.flying: list[TrialConfig] = []

    def fresh(self) -> Search:
        """Return a Search that knows nothing but the ledger."""
        return search_of(self.study, self.writer, self.ledger, ENDLESS)

    def restart(self) -> None:
        """Replace the search by a fresh one, which must hand out the unfinished trials again first."""
        self.search = self.fresh()
        again = [self.search.next_trial() for _ in self.flying]
        assert {c.key for c in again if c} == {c.key for c in self.flying}
        assert sorted(c.key for c in again if c) == [c.key for c in again if c]

    def fly(self, seed: int) -> Iterator[TrialConfig]:
        """Yield trials as they are handed out, until none is left."""
        rng = random.Random(seed)
        while True:
            if self.rebuild:
                self.restart()
            if len(self.flying) < 3 and (config := self.search.next_trial()) is not None:
                self.flying.append(config)
                yield config
                continue
            if not self.flying:
                return
            config = rng.choice(self.flying)
            epoch = self.epochs[config.key] = self.epochs.get(config.key, 0) + 1
            decision = self.search.report(config.key, report_at(config, epoch, diverging))
            if decision is Decision.STOP or epoch == config.epochs:
                self.flying.remove(config)


def diverging(config: TrialConfig, epoch: int) -> float:
    """Return `accuracy`, but NaN for the highest learning rates."""
    return math.nan if family(config).training.learning_rate > 0.05 and epoch > 2 else accuracy(config, epoch)


@pytest.mark.parametrize("objectives", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("name", EVERY)
def test_a_restart_before_every_step_changes_nothing(tmp_path: Path, name: str, objectives: Any) -> None:
    trials = 6 if name == "gp" else 22
    confirm = {"replicates": 2, "top": 2}
    study = study_for(
        name, objectives=objectives, scheduler={"name": "asha"}, budget={"trials": trials}, confirm=confirm
    )
    found = []
    for rebuild in (False, True):
        clock = Clock()
        folder = tmp_path / str(rebuild)
        folder.mkdir()
        with Ledger.open(url_in(folder), clock=clock, monotonic=clock) as ledger:
            fleet = Fleet(study, ledger, clock, rebuild=rebuild)
            flown = [c.to_json() for c in fleet.fly(seed=1)]
            assert fleet.search.finished
            decisions = [(str(r.key), r.epoch, r.decision) for r in ledger.reports("s")]
            states = [(t.state, t.sampler_state) for t in ledger.trials("s")]
            fleet.writer.release()
        found.append((flown, decisions, states))
    assert found[0] == found[1]
    assert len(found[0][0]) > trials, "confirmation took part"


def test_nsga2_keeps_its_generations_over_a_restart(tmp_path: Path) -> None:
    study = study_for("nsga2", budget={"trials": 20})
    with driving(study, url_in(tmp_path)) as search:
        run_all(search)
    with Ledger.open(url_in(tmp_path)) as ledger:
        states = [t.sampler_state for t in ledger.trials("s")]
    generations = [s["trial"]["NSGAIISampler:generation"] for s in states]
    assert generations == sorted(generations)
    assert generations[-1] >= 3
    parents = {k: v for s in states for k, v in s["study"].items()}
    assert sorted(parents) == [f"NSGAIISampler:parent:{g}" for g in range(1, generations[-1] + 1)]
    with driving(study, url_in(tmp_path)) as search:
        assert search._subsearches["digits"].suggester.history.get_study_system_attrs(0) == parents


def test_grid_visits_every_combination_once_and_ends_early(tmp_path: Path) -> None:
    study = study_for("grid", budget={"trials": 1000})
    with driving(study, url_in(tmp_path)) as search:
        configs = run_all(search)
        assert search.finished
    found = [json.dumps(dict(c.parameters), sort_keys=True) for c in configs]
    assert sorted(found) == sorted(json.dumps(values, sort_keys=True) for values in study.space.grid())
    with Ledger.open(url_in(tmp_path)) as ledger:
        notes = [(n.kind, n.dataset, n.payload) for n in ledger.events("s") if n.kind == "exhausted"]
    assert notes == [("exhausted", "digits", {"search_trials": 48, "fingerprint": study.fingerprint()})]


@pytest.mark.parametrize("name", ["tpe", "nsga2", "qmc", "random"])
def test_a_small_space_is_used_up_by_every_sampler(tmp_path: Path, name: str) -> None:
    study = study_of(model=SMALL, training={"epochs": 2}, sampler={"name": name}, budget={"trials": 50})
    with driving(study, url_in(tmp_path)) as search:
        configs = run_all(search)
        assert search.finished
    assert len(configs) == 8 == len({(family(c).model.width, family(c).model.mlp) for c in configs})


def test_a_space_of_one_configuration_is_trained_once(tmp_path: Path) -> None:
    with driving(study_of(model={}, training={"epochs": 2}, budget={"trials": 5}), url_in(tmp_path)) as search:
        assert [dict(c.parameters) for c in run_all(search)] == [{}]


def test_rows_that_become_the_same_configuration_are_trained_once(tmp_path: Path) -> None:
    model = {"width": 8, "mlp": {"choices": ["none", 0, 64]}}
    study = study_of(model=model, training={"epochs": 2}, budget={"trials": 9}, sampler={"name": "grid"})
    with driving(study, url_in(tmp_path)) as search:
        assert sorted(family(c).model.mlp for c in run_all(search)) == [0, 64]


@pytest.mark.parametrize("name", FAST)
def test_static_constraints_hold_before_anything_is_trained(tmp_path: Path, name: str) -> None:
    bound = 4_000 if name != "grid" else 3_000
    study = study_for(name, constraints=[f"params <= {bound}"], budget={"trials": 12})
    with driving(study, url_in(tmp_path)) as search:
        configs = run_all(search)
    assert len(configs) == 12
    assert max(size_of(family(c).model, SHAPE).params for c in configs) <= bound


def test_nothing_feasible_is_a_plain_refusal(tmp_path: Path) -> None:
    study = study_of(constraints=["params <= 10"])
    with (
        driving(study, url_in(tmp_path)) as search,
        pytest.raises(RequestError, match=r"'digits': none of 1020 .*because of the constraint params <= 10\. Widen"),
    ):
        search.next_trial()


def test_impossible_combinations_are_passed_over(tmp_path: Path) -> None:
    model = {"width": 60, "heads": {"choices": [1, 4]}, "similarity": {"choices": ["separate", "mirrored"]}}
    study = study_of(model=model, training={"epochs": 2}, budget={"trials": 9}, sampler={"name": "grid"})
    with driving(study, url_in(tmp_path)) as search:
        found = {(family(c).model.heads, family(c).model.similarity) for c in run_all(search)}
    assert found == {(1, "separate"), (4, "separate"), (1, "mirrored")}


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        (IntRange(bounds=(3, 10), step=3), [3, 6, 9]),
        (IntRange(bounds=(1, 4), log=True), [1, 2, 3, 4]),
        (FloatRange(bounds=(0.1, 0.5), step=0.2), [0.1, 0.3, 0.5]),
        (Choices(choices=(1, True, 1.0, "1", None)), [1, True, 1.0, "1", None]),
        (FloatRange(bounds=(2.0, 2.0)), [2.0]),
    ],
)
def test_a_dimension_has_exactly_the_values_of_its_range(spec: Range, values: list[Any]) -> None:
    found = [decode(spec, inner_at(spec, i)) for i in range(spec.count() or 0)]
    assert [(v, type(v)) for v in found] == [(v, type(v)) for v in values]
    assert [decode(spec, encode(spec, v)) for v in values] == values
    drawn = {repr(decode(spec, inner_at_share(spec, u))) for u in np.linspace(0, 1, 400, endpoint=False)}
    assert drawn == {repr(v) for v in values}
    seen = distribution_of(spec)
    assert all(seen._contains(seen.to_internal_repr(encode(spec, value))) for value in values)


def test_a_unit_interval_covers_a_log_range_evenly() -> None:
    spec = FloatRange(bounds=(1e-4, 1e-1), log=True)
    got = [math.log10(inner_at_share(spec, u)) for u in np.linspace(0, 1, 7)]
    assert got == pytest.approx([-4, -3.5, -3, -2.5, -2, -1.5, -1])


def test_the_walk_gives_each_combination_once_where_there_are_conditions() -> None:
    space = Space(
        ranges={
            "a": Choices(choices=("x", "y", "z")),
            "b": IntRange(bounds=(1, 3), when={"a": ("x", "z")}),
            "c": Choices(choices=(True, False), when={"b": (2, 3)}),
        }
    )
    dimensions = SearchSpace.of(space)
    order = shuffled(dimensions.product() or 0, study_seed=1, dataset="d", purpose="grid")
    walked = [dimensions.decode(inner) for _, inner in walk(dimensions, order, 0)]
    assert sorted(map(repr, walked)) == sorted(map(repr, space.grid()))
    assert len(walked) == 11


@pytest.mark.parametrize(
    ("sampler", "match"),
    [
        ({"name": "tpe", "options": {"multivariat": True}}, r"tpe: unknown option 'multivariat'\. Did you mean 'multi"),
        ({"name": "random", "options": {"x": 1}}, r"random: unknown option 'x'\. It takes none"),
        ({"name": "nsga2", "options": {"population_size": 1}}, r"nsga2: .*population_size.* or equal to 2"),
        ({"name": "support.searches:accuracy"}, r"accuracy\(\) missing 1 required"),
    ],
)
def test_samplers_that_cannot_work_are_refused_at_once(tmp_path: Path, sampler: Any, match: str) -> None:
    with pytest.raises(RequestError, match=match), driving(study_of(sampler=sampler), url_in(tmp_path)):
        pass


def test_a_grid_too_large_to_walk_is_refused(tmp_path: Path) -> None:
    model = {"width": {"int": [2, 2_000_000_000]}, "heads": 1}
    study = study_of(model=model, training={}, sampler={"name": "grid"})
    with pytest.raises(RequestError, match=r"1,999,999,999 comb.* at most 5,000,000"), driving(study, url_in(tmp_path)):
        pass


def test_data_sets_have_independent_streams(tmp_path: Path) -> None:
    study = study_of(datasets={"digits": {}, "mnist": {}}, budget={"trials": 4})
    with driving(study, url_in(tmp_path)) as search:
        configs = run_all(search)
    chosen = {d: [dict(c.parameters) for c in configs if c.key.dataset == d] for d in study.datasets}
    assert [c.key.dataset for c in configs] == ["digits", "mnist"] * 4
    assert not any(values in chosen["mnist"] for values in chosen["digits"])
    alone = study_of(budget={"trials": 4})
    (tmp_path / "alone").mkdir()
    with driving(alone, url_in(tmp_path / "alone")) as search:
        assert [dict(c.parameters) for c in run_all(search)] == chosen["digits"]
