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
from ledgers import SHAPE, Clock
from searches import (
    ONE,
    TWO,
    accuracy,
    driving,
    hold_of,
    report_at,
    run_all,
    run_trial,
    search_of,
    size_of,
    study_of,
    url_in,
)

from ablate.config import Size
from ablate.errors import RequestError
from ablate.ledger import Ledger
from ablate.search import Search
from ablate.search import search as search_module
from ablate.search.dimensions import Dimension, Dimensions, shuffled, walk
from ablate.search.outcomes import UNSEEN, Outcomes
from ablate.search.progress import Progress
from ablate.search.suggester import Suggester
from ablate.space import Parameter, Space
from ablate.study import Study
from ablate.trial import Decision, TrialConfig, TrialKey, TrialState

FAST = ["tpe", "nsga2", "qmc", "random", "grid"]
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
        model, _, train = study.configs("digits", config.parameters)
        assert (config.model, config.train) == (model, train)
        if "training.label_smoothing" in config.parameters:
            assert config.parameters["training.label_smoothing"] in [0.0, 0.1, 0.2, 0.1 * 3]
    assert len({json.dumps(dict(c.parameters), sort_keys=True) for c in configs}) == 30
    chosen = {p.name for p in study.space.parameters if p.when}
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
        self.hold = hold_of(study, ledger)
        self.search = self.fresh()
        self.epochs: dict[TrialKey, int] = {}
        self.flying: list[TrialConfig] = []

    def fresh(self) -> Search:
        """Return a Search that knows nothing but the ledger."""
        return search_of(self.study, self.hold, self.ledger, clock=self.clock)

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
            if decision is Decision.STOP or epoch == config.train.epochs:
                self.flying.remove(config)


def diverging(config: TrialConfig, epoch: int) -> float:
    """Return `accuracy`, but NaN for the highest learning rates."""
    return math.nan if config.train.learning_rate > 0.05 and epoch > 2 else accuracy(config, epoch)


@pytest.mark.parametrize("objectives", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("name", EVERY)
def test_a_restart_before_every_step_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, objectives: Any
) -> None:
    monkeypatch.setattr(search_module, "RESUMPTIONS", 1000)
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
        with Ledger.open(url_in(folder), clock=clock) as ledger:
            fleet = Fleet(study, ledger, clock, rebuild=rebuild)
            flown = [c.to_json() for c in fleet.fly(seed=1)]
            assert fleet.search.finished
            decisions = [(str(r.key), r.epoch, r.decision) for r in ledger.reports("s")]
            states = [(t.state, t.sampler_state) for t in ledger.trials("s")]
            fleet.hold.release()
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
        assert search._lanes["digits"].suggester.history.get_study_system_attrs(0) == parents


def test_grid_visits_every_combination_once_and_ends_early(tmp_path: Path) -> None:
    study = study_for("grid", budget={"trials": 1000})
    with driving(study, url_in(tmp_path)) as search:
        configs = run_all(search)
        assert search.finished
    found = [json.dumps(dict(c.parameters), sort_keys=True) for c in configs]
    assert sorted(found) == sorted(json.dumps(values, sort_keys=True) for values in study.space.grid())
    with Ledger.open(url_in(tmp_path)) as ledger:
        notes = [(n.kind, n.dataset, n.payload) for n in ledger.notes("s") if n.kind == "exhausted"]
    assert notes == [("exhausted", "digits", {"search_trials": 48})]


@pytest.mark.parametrize("name", ["tpe", "nsga2", "qmc", "random"])
def test_a_small_space_is_used_up_by_every_sampler(tmp_path: Path, name: str) -> None:
    study = study_of(model=SMALL, training={"epochs": 2}, sampler={"name": name}, budget={"trials": 50})
    with driving(study, url_in(tmp_path)) as search:
        configs = run_all(search)
        assert search.finished
    assert len(configs) == 8 == len({(c.model.width, c.model.mlp) for c in configs})


def test_a_space_of_one_configuration_is_trained_once(tmp_path: Path) -> None:
    with driving(study_of(model={}, training={"epochs": 2}, budget={"trials": 5}), url_in(tmp_path)) as search:
        assert [dict(c.parameters) for c in run_all(search)] == [{}]


def test_rows_that_become_the_same_configuration_are_trained_once(tmp_path: Path) -> None:
    model = {"width": 8, "mlp": {"choices": ["none", 0, 64]}}
    study = study_of(model=model, training={"epochs": 2}, budget={"trials": 9}, sampler={"name": "grid"})
    with driving(study, url_in(tmp_path)) as search:
        assert sorted(c.model.mlp for c in run_all(search)) == [0, 64]


@pytest.mark.parametrize("name", FAST)
def test_static_constraints_hold_before_anything_is_trained(tmp_path: Path, name: str) -> None:
    bound = 4_000 if name != "grid" else 3_000
    study = study_for(name, constraints=[f"params <= {bound}"], budget={"trials": 12})
    with driving(study, url_in(tmp_path)) as search:
        configs = run_all(search)
    assert len(configs) == 12
    assert max(size_of(c.model, SHAPE).params for c in configs) <= bound


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
        found = {(c.model.heads, c.model.similarity) for c in run_all(search)}
    assert found == {(1, "separate"), (4, "separate"), (1, "mirrored")}


@pytest.mark.parametrize(
    ("parameter", "values"),
    [
        (Parameter(name="a", kind="int", low=3, high=10, step=3), [3, 6, 9]),
        (Parameter(name="a", kind="int", low=1, high=4, log=True), [1, 2, 3, 4]),
        (Parameter(name="a", kind="float", low=0.1, high=0.5, step=0.2), [0.1, 0.1 + 0.2, 0.1 + 2 * 0.2]),
        (Parameter(name="a", kind="categorical", choices=(1, True, 1.0, "1", None)), [1, True, 1.0, "1", None]),
        (Parameter(name="a", kind="float", low=2.0, high=2.0), [2.0]),
    ],
)
def test_a_dimension_has_exactly_the_values_of_its_parameter(parameter: Parameter, values: list[Any]) -> None:
    dimension = Dimension.of(parameter)
    found = [dimension.decode(dimension.at(i)) for i in range(dimension.size or 0)]
    assert [(v, type(v)) for v in found] == [(v, type(v)) for v in values]
    assert [dimension.decode(dimension.encode(v)) for v in values] == values
    drawn = {repr(dimension.decode(dimension.from_unit(u))) for u in np.linspace(0, 1, 400, endpoint=False)}
    assert drawn == {repr(v) for v in values}


def test_a_unit_interval_covers_a_log_range_evenly() -> None:
    dimension = Dimension.of(Parameter(name="a", kind="float", low=1e-4, high=1e-1, log=True))
    got = [math.log10(dimension.from_unit(u)) for u in np.linspace(0, 1, 7)]
    assert got == pytest.approx([-4, -3.5, -3, -2.5, -2, -1.5, -1])


def test_the_walk_gives_each_combination_once_where_there_are_conditions() -> None:
    space = Space(
        parameters=(
            Parameter(name="a", kind="categorical", choices=("x", "y", "z")),
            Parameter(name="b", kind="int", low=1, high=3, when={"a": ("x", "z")}),
            Parameter(name="c", kind="categorical", choices=(True, False), when={"b": (2, 3)}),
        )
    )
    dimensions = Dimensions.of(space)
    order = shuffled(dimensions.product() or 0, study_seed=1, dataset="d", purpose="grid")
    walked = [
        {name: dimensions.by_name[name].decode(value) for name, value in inner.items()}
        for _, inner in walk(dimensions, order, 0)
    ]
    assert sorted(map(repr, walked)) == sorted(map(repr, space.grid()))
    assert len(walked) == 11


def best(name: str, seed: int, trials: int, folder: Path, **fields: Any) -> float:
    """Return the best final accuracy that a sampler finds."""
    folder.mkdir()
    study = study_of(objectives=ONE, sampler={"name": name, "startup_trials": 6}, seed=seed,
                     budget={"trials": trials}, **fields)  # fmt: skip
    with driving(study, url_in(folder)) as search:
        run_all(search, peak)
        return search.front("digits")[0].values[0]


def peak(config: TrialConfig, epoch: int) -> float:
    """Return a planted optimum: 1 at a learning rate of 1e-2 and a weight decay of 0.03, falling off around it."""
    a = (math.log10(config.train.learning_rate) + 2) / 3
    b = (config.train.weight_decay - 0.03) / 0.1
    return math.exp(-8 * (a * a + b * b))


@pytest.mark.parametrize(("name", "trials", "seeds"), [("tpe", 40, 4), ("gp", 12, 1)])
def test_model_based_samplers_come_closer_to_a_planted_optimum_than_random(
    tmp_path: Path, name: str, trials: int, seeds: int
) -> None:
    training = {
        "epochs": 1,
        "learning_rate": {"float": [1e-4, 1e-1], "log": True},
        "weight_decay": {"float": [0.0, 0.1]},
    }
    miss = {
        sampler: np.mean(
            [
                1 - best(sampler, s, trials, tmp_path / f"{sampler}{s}", model={}, training=training)
                for s in range(seeds)
            ]
        )
        for sampler in (name, "random")
    }
    assert miss[name] < 0.5 * miss["random"]


def halves(name: str, *, stopped: bool, objectives: Any) -> list[float]:
    """Return what a sampler suggests after bright values on x < 0.05 (stopped or finished) and dull ones above.

    Two decoys beside x, for NSGA-II mutates one of three parameters.
    """
    decoys = {} if name == "gp" else {"beta1": {"float": [0.0, 0.9]}, "beta2": {"float": [0.0, 0.9]}}
    training = {"epochs": 10, "weight_decay": {"float": [0.0, 0.1]}, **decoys}
    study = study_of(
        model={},
        training=training,
        objectives=objectives,
        sampler={"name": name, "startup_trials": 10},
        scheduler={"name": "asha"},
    )
    suggester = Suggester(study=study, dataset="digits", measure=size_of, shape=lambda: SHAPE)
    rng = np.random.default_rng(0)
    for number in range(24):
        low = number % 2 == 0
        x = float(rng.uniform(0.0, 0.05) if low else rng.uniform(0.05, 0.1))
        parameters = {"training.weight_decay": x} | {f"training.{d}": float(rng.uniform(0, 0.9)) for d in decoys}
        model, task, train = study.configs("digits", parameters)
        early = stopped and low
        trial = Progress(
            config=TrialConfig(
                key=TrialKey(study="s", dataset="digits", number=number),
                stage="search",
                model=model,
                task=task,
                train=train,
                seeds=(0,),
                study_seed=3,
                parameters=parameters,
            ),
            size=Size(params=100 + number, params_body=1, flops=1),
            sampler_state={"trial": {"NSGAIISampler:generation": number // 12}, "study": {}},
            state=TrialState.PRUNED if early else TrialState.COMPLETE,
            epoch=1 if early else 10,
            means={"val_accuracy": (0.9 if low else 0.5) + 0.001 * number},
        )
        suggester.put(trial)
    found = (suggester.suggest(n) for n in range(24, 25 if name == "gp" else 64))
    return [s.parameters["training.weight_decay"] for s in found if s is not None]


@pytest.mark.parametrize("objectives", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("name", ["tpe", "nsga2", "gp"])
def test_bright_values_of_stopped_trials_do_not_draw_a_sampler(name: str, objectives: Any) -> None:
    finished = np.mean([x < 0.045 for x in halves(name, stopped=False, objectives=objectives)])
    stopped = np.mean([x < 0.045 for x in halves(name, stopped=True, objectives=objectives)])
    assert stopped <= 0.3 < 0.6 <= finished


def told(trial: Progress, **changes: Any) -> Any:
    """Return what an Optuna sampler reads of `trial`."""
    study = study_of(scheduler={"name": "asha"}, **changes)
    return Outcomes.of(study, Dimensions.of(study.space_for("digits"))).told(trial)


def ended(state: TrialState, *, value: float = 0.5, epoch: int = 3, diverged: bool = False) -> Progress:
    """Return a trial of 9 epochs that ended so."""
    parameters = {"training.learning_rate": 1e-3}
    study = study_of()
    model, task, train = study.configs("digits", {"model.width": 8, **parameters})
    config = TrialConfig(
        key=TrialKey(study="s", dataset="digits", number=0), stage="search", model=model, task=task, train=train,
        seeds=(0,), study_seed=3, parameters=parameters,
    )  # fmt: skip
    return Progress(
        config=config, size=Size(params=1000, params_body=1, flops=1), sampler_state={}, state=state, epoch=epoch,
        means={"val_accuracy": value}, diverged=diverged,
    )  # fmt: skip


def test_each_end_reaches_the_sampler_as_what_it_is() -> None:
    two = told(ended(TrialState.PRUNED))
    assert (two.state.name, two.values, two.constraints) == ("COMPLETE", [-0.5, 3.0], {UNSEEN: pytest.approx(6 / 9)})
    done = told(ended(TrialState.COMPLETE, epoch=9))
    assert (done.state.name, done.values, done.constraints) == ("COMPLETE", [-0.5, 3.0], {UNSEEN: -1.0})
    one = told(ended(TrialState.PRUNED), objectives=ONE, sampler={"name": "tpe"})
    assert (one.state.name, one.intermediate_values, one.constraints) == ("PRUNED", {3: -0.5}, {})
    blind = told(ended(TrialState.PRUNED), objectives=ONE, sampler={"name": "gp"})
    assert (blind.state.name, blind.constraints) == ("COMPLETE", {UNSEEN: pytest.approx(6 / 9)})
    lost = told(ended(TrialState.FAIL, value=math.nan, diverged=True))
    assert (lost.state.name, lost.values, lost.constraints) == ("PRUNED", None, {UNSEEN: 1.0})
    assert told(ended(TrialState.FAIL)).state.name == "FAIL"
    assert told(ended(TrialState.RUNNING)).state.name == "RUNNING"


def test_a_broken_metric_constraint_is_told_as_a_share_of_its_bound() -> None:
    rules = {"constraints": ["val_accuracy >= 0.8", "params <= 5000"], "objectives": TWO}
    trial = told(ended(TrialState.COMPLETE, epoch=9, value=0.6), **rules)
    assert trial.constraints == {"val_accuracy >= 0.8": pytest.approx(0.25), UNSEEN: -1.0}
    kept = told(ended(TrialState.COMPLETE, epoch=9, value=0.9), **rules)
    assert kept.constraints["val_accuracy >= 0.8"] == pytest.approx(-0.125)


@pytest.mark.parametrize(
    ("sampler", "match"),
    [
        ({"name": "tpe", "options": {"multivariat": True}}, r"tpe: unknown option 'multivariat'\. Did you mean 'multi"),
        ({"name": "random", "options": {"x": 1}}, r"random: unknown option 'x'\. It takes none"),
        (
            {"name": "nsga2", "options": {"population_size": 1}},
            r"nsga2: .*population_size.* greater than or equal to 2",
        ),
        ({"name": "grid"}, r"grid needs finitely many values: give training\.learning_rate, training\.weight_decay a"),
        ({"name": "searches:accuracy"}, r"accuracy\(\) missing 1 required"),
    ],
)
def test_samplers_that_cannot_work_are_refused_at_once(tmp_path: Path, sampler: Any, match: str) -> None:
    with pytest.raises(RequestError, match=match), driving(study_of(sampler=sampler), url_in(tmp_path)):
        pass


def test_a_grid_too_large_to_walk_is_refused(tmp_path: Path) -> None:
    model = {"width": {"int": [2, 2_000_000_000]}, "heads": 1}
    study = study_of(model=model, training={}, sampler={"name": "grid"})
    with (
        pytest.raises(RequestError, match=r"has 1,999,999,999 combinations, at most 5,000,000"),
        driving(study, url_in(tmp_path)),
    ):
        pass


def test_a_sampler_of_ones_own_goes_through_the_same_door(tmp_path: Path) -> None:
    study = study_of(sampler={"name": "optuna_sampler:build"}, budget={"trials": 3})
    with driving(study, url_in(tmp_path)) as search:
        config = search.next_trial()
        run_trial(search, config)
    assert config.parameters["model.width"] == 64


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
