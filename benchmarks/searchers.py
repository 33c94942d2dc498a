"""The searchers that benchmarks/search.py compares, each asked for configurations and told of reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import optuna
import polars as pl
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search.optuna import OptunaSearch
from simulated_search import Array, Curves

from ablate.core.trainable import load_trainable
from ablate.core.trial import Decision, Report, TrialState
from ablate.ledger import NewTrial
from ablate.study import Study
from ablate.tuning.dataset_search import DatasetSearch
from ablate.tuning.sampling.search_space import SearchSpace, decode, encode
from ablate.tuning.state.trial_progress import ReportSummary, TrialProgress


class Searcher(Protocol):
    """Proposes configurations as Optuna values, by name, and says after each report whether a trial continues."""

    def propose(self, number: int) -> Mapping[str, Any]:
        """Return the configuration of the next trial."""

    def start(self, number: int, network: int) -> None:
        """Take notice of the network that stands for the configuration."""

    def report(self, number: int, network: int, epoch: int) -> bool:
        """Take the report of an epoch and return whether the trial continues."""


class Table:
    """A recorded table in which the nearest network stands for a configuration; each network is used once.

    The distance is Euclidean, with numbers scaled to [0, 1] on their range (in logarithms where the range has them)
    and 1 between two different choices.
    """

    def __init__(self, study: Study, networks: pl.DataFrame, curves: Curves) -> None:
        self.curves = curves
        self.space = SearchSpace.of(study.space_for(study.labels[0]))
        rows = networks.select(list(self.space.distributions)).to_dicts()
        self._places = np.array([self._place(self._encoded(row)) for row in rows])
        self.free = np.ones(len(rows), dtype=bool)

    def _encoded(self, row: Mapping[str, Any]) -> dict[str, Any]:
        ranges = self.space.space.ranges
        texts = {
            name: [str(decode(spec, i)) for i in getattr(self._of(name), "choices", ())]
            for name, spec in ranges.items()
        }
        return {
            name: texts[name].index(str(row[name])) if texts[name] else encode(spec, row[name])
            for name, spec in ranges.items()
        }

    def _of(self, name: str) -> BaseDistribution:
        return self.space.distributions[name]

    def _place(self, values: Mapping[str, Any]) -> Array:
        parts: list[float] = []
        for name, own in self.space.distributions.items():
            if isinstance(own, CategoricalDistribution):
                parts += [math.sqrt(0.5) * (values[name] == choice) for choice in own.choices]
                continue
            low, high, value = (math.log(x) if own.log else x for x in (own.low, own.high, values[name]))  # type: ignore[attr-defined]
            parts.append((value - low) / (high - low))
        return np.array(parts)

    def nearest(self, values: Mapping[str, Any]) -> int | None:
        """Return the nearest network that was not used and mark it as used, or None if all were."""
        if not self.free.any():
            return None
        distance = np.where(self.free, ((self._places - self._place(values)) ** 2).sum(axis=1), np.inf)
        network = int(distance.argmin())
        self.free[network] = False
        return network


def proposals(asked: Searcher, rows: Table) -> Callable[[int], int | None]:
    """Return what `simulate` asks for a network: the nearest one to the searcher's proposal, which starts with it."""

    def propose(number: int) -> int | None:
        network = rows.nearest(asked.propose(number))
        if network is not None:
            asked.start(number, network)
        return network

    return propose


class Ablate:
    """`DatasetSearch`, which `ablate search` asks for suggestions and decisions, without its ledger."""

    def __init__(self, study: Study, curves: Curves) -> None:
        trainable = load_trainable(study.trainable)
        facts = {name: trainable.find_facts(study.task(name), None) for name in study.labels}
        self.curves = curves
        self._search = DatasetSearch.of(study, study.labels[0], measure=trainable.measure, facts_of=facts.__getitem__)
        self._next: NewTrial | None = None
        self._trials: dict[int, TrialProgress] = {}

    def propose(self, number: int) -> Mapping[str, Any]:
        """Return the sampler's suggestion."""
        self._next = self._search.suggest()
        assert self._next is not None
        return self._search.suggester.dimensions.encode(self._next.config.parameters)

    def start(self, number: int, network: int) -> None:
        """Add the trial with the size of the network that stands for it."""
        assert self._next is not None
        params = round(10 ** self.curves.cost[network])
        size = {"params": params, "params_body": params, "flops": 2 * params}
        self._trials[number] = self._search.add(replace(self._next, size=size))
        self._trials[number].state = TrialState.RUNNING

    def report(self, number: int, network: int, epoch: int) -> bool:
        """Decide about a report as `Search.report` does."""
        trial, last = self._trials[number], epoch == self.curves.epochs
        accuracy = 1 - float(self.curves.errors[network, epoch - 1])
        seconds = float(self.curves.seconds[network, :epoch].sum())
        report = Report(epoch=epoch, metrics=({"val_accuracy": accuracy},), wall_seconds=seconds, final=last)
        step = ReportSummary.of(trial.key, report, Decision.CONTINUE)
        stopped = not last and self._search.decide(trial, step) is Decision.STOP
        self._search.take(trial, step)
        if last or stopped:
            trial.state = TrialState.PRUNED if stopped else TrialState.COMPLETE
            self._search.tell(trial)
        return not stopped


class RayTune:
    """Ray Tune's OptunaSearch and ASHAScheduler on val_accuracy, called as Tune's controller calls them.

    Without `first`, OptunaSearch on val_accuracy and the size, and no scheduler.
    """

    def __init__(self, space: SearchSpace, curves: Curves, *, seed: int, first: int | None) -> None:
        self.curves = curves
        metric, mode = ("val_accuracy", "max") if first is not None else (["val_accuracy", "cost"], ["max", "min"])
        self._search = OptunaSearch(dict(space.distributions), metric=metric, mode=mode, seed=seed)
        self._scheduler = FIFOScheduler()
        if first is not None:
            self._scheduler = ASHAScheduler(
                time_attr="training_iteration",
                metric="val_accuracy",
                mode="max",
                max_t=curves.epochs,
                grace_period=first,
                reduction_factor=3,
            )

    def propose(self, number: int) -> Mapping[str, Any]:
        """Return OptunaSearch's suggestion."""
        values = self._search.suggest(str(number))
        assert values is not None
        return values

    def start(self, number: int, network: int) -> None:
        """Add the trial to the scheduler."""
        self._scheduler.on_trial_add(None, SimpleNamespace(trial_id=str(number)))

    def report(self, number: int, network: int, epoch: int) -> bool:
        """Pass the result to both, and the trial's end to OptunaSearch."""
        trial = SimpleNamespace(trial_id=str(number))
        values = {"val_accuracy": 1 - float(self.curves.errors[network, epoch - 1])}
        result = values | {"cost": float(self.curves.cost[network]), "training_iteration": epoch}
        goes_on = self._scheduler.on_trial_result(None, trial, result) == TrialScheduler.CONTINUE
        goes_on = goes_on and epoch < self.curves.epochs
        self._search.on_trial_result(str(number), result)
        if not goes_on:
            self._search.on_trial_complete(str(number), result)
        return bool(goes_on)


class MoAsha:
    """Syne Tune's MOASHA on error and size: random configurations, stopped by non-dominated rank at each rung.

    It draws from NumPy's global generator, which is seeded here.
    """

    def __init__(self, space: SearchSpace, curves: Curves, *, seed: int, first: int) -> None:
        from syne_tune.optimizer.schedulers.multiobjective.moasha import MOASHA

        np.random.seed(seed)
        self.curves = curves
        self._scheduler = MOASHA(
            {name: _of_syne_tune(own) for name, own in space.distributions.items()},
            metrics=["error", "cost"],
            max_t=curves.epochs,
            grace_period=first,
            reduction_factor=3,
            random_seed=seed,
        )

    def propose(self, number: int) -> Mapping[str, Any]:
        """Return the scheduler's suggestion."""
        return dict(self._scheduler.suggest().config)

    def start(self, number: int, network: int) -> None:
        """Add the trial to the scheduler."""
        self._scheduler.on_trial_add(SimpleNamespace(trial_id=number))

    def report(self, number: int, network: int, epoch: int) -> bool:
        """Pass the result."""
        losses = {"error": float(self.curves.errors[network, epoch - 1]), "cost": float(self.curves.cost[network])}
        result = losses | {"training_iteration": epoch}
        return bool(self._scheduler.on_trial_result(SimpleNamespace(trial_id=number), result) == "CONTINUE")


def _of_syne_tune(own: BaseDistribution) -> Any:
    from syne_tune.config_space import choice, lograndint, loguniform, uniform

    if isinstance(own, CategoricalDistribution):
        return choice(list(own.choices))
    if isinstance(own, IntDistribution):
        return lograndint(own.low, own.high) if own.log else choice(list(range(own.low, own.high + 1, own.step)))
    assert isinstance(own, FloatDistribution)
    return (loguniform if own.log else uniform)(own.low, own.high)


class Optuna:
    """An Optuna study of both objectives without pruning, which Optuna does not have for several objectives."""

    def __init__(self, space: SearchSpace, curves: Curves, sampler: optuna.samplers.BaseSampler) -> None:
        self.curves = curves
        self._space = dict(space.distributions)
        self._study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)
        self._trials: dict[int, optuna.Trial] = {}

    def propose(self, number: int) -> Mapping[str, Any]:
        """Return the sampler's suggestion."""
        self._trials[number] = self._study.ask(self._space)
        return self._trials[number].params

    def start(self, number: int, network: int) -> None:
        """Do nothing: the trial was asked for."""

    def report(self, number: int, network: int, epoch: int) -> bool:
        """Tell the study the last error and the size."""
        if epoch == self.curves.epochs:
            self._study.tell(
                self._trials[number], [float(self.curves.errors[network, -1]), float(self.curves.cost[network])]
            )
        return True
