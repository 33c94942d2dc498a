"""The searchers that everyday.py, outside.py and search.py compare, as their documentations say, with their defaults.

A searcher is asked for settings, told which settings are trained instead (the nearest recorded ones), and told of each
report. All losses are to be minimised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import optuna
from everyday_training import Losses, Settings
from optuna.distributions import CategoricalDistribution, FloatDistribution
from problems import Asked, Problem

from ablate.core.config import DatasetFacts, Size
from ablate.core.trial import Decision, Report, TrialState
from ablate.ledger import NewTrial
from ablate.study import Study
from ablate.tuning.dataset_search import DatasetSearch
from ablate.tuning.state.trial_progress import ReportSummary, TrialProgress


class Searcher(Protocol):
    """Proposes settings and says after each report whether the trial continues."""

    def ask(self, number: int) -> Settings | int:
        """Return the settings of the next trial, or the number of a trial that was interrupted and continues."""

    def take(self, number: int, settings: Settings) -> None:
        """Take notice of the settings that are trained."""

    def report(self, number: int, step: int, losses: Losses) -> bool:
        """Take a report and return whether the trial continues; after the last one it does not."""


class Ablate:
    """`DatasetSearch` of a study without `scheduler` and, unless it is given, `sampler`: without the ledger.

    It asks as `ablate search` does; with `known` it sees the size of each configuration beforehand.
    """

    def __init__(
        self, problem: Problem, seed: int, *, start: bool = True, known: bool = False, sampler: str | None = None
    ) -> None:
        names = ("val_loss", "params" if known else "val_size")[: problem.objectives]
        objectives: list[dict[str, Any]] = [{"metric": name, "direction": "minimize"} for name in names]
        if len(names) > 1:
            for each, reference in zip(objectives, problem.references, strict=True):
                each["reference"] = reference
            if known:
                objectives[1] |= {"log": True, "reference": 10 ** problem.references[1]}
        self._names = {name.replace(".", "_"): name for name in problem.space}
        ranges = {name.replace(".", "_"): _of_ablate(own) for name, own in problem.space.items()}
        fields = {"study": "everyday", "seed": seed, "trainable": "searchers:train", "config": ranges}
        fields |= {"epochs": problem.steps, "budget": {"trials": 100_000}, "confirm": None, "objectives": objectives}
        fields |= {"sampler": {"name": sampler}} if sampler else {}
        study, facts = Study.model_validate(fields), DatasetFacts()
        if known:  # as the function `size` beside `train` tells it
            study = study.knowing(["params"], [f"config.{name}" for name in ranges], builds=False)

        def measure(many: Sequence[Any], facts: DatasetFacts) -> list[Size]:
            own = ({name: each.config[key] for key, name in self._names.items()} for each in many)
            return [{"params": problem.size(each)} if known else {} for each in own]

        self._search = DatasetSearch.of(study, study.labels[0], measure=measure, facts_of=lambda _: facts)
        self._start = problem.start if start else None
        self._metrics, self._steps = names, problem.steps
        self._trials: dict[int, TrialProgress] = {}
        self._new: NewTrial | None = None

    def ask(self, number: int) -> Settings:
        """Return the sampler's suggestion; first of all the settings that the user has."""
        if number == 0 and self._start is not None:
            return self._start
        self._new = self._search.suggest()
        assert self._new is not None
        given = self._new.config.parameters
        return {self._names[name.removeprefix("config.")]: value for name, value in given.items()}

    def take(self, number: int, settings: Settings) -> None:
        """Begin the trial."""
        given = {f"config.{name}": settings[own] for name, own in self._names.items()}
        is_suggested = self._new is not None and self._new.config.parameters == given
        new = self._new if is_suggested else self._search.suggest_given(given)
        if isinstance(new, str):
            raise SystemExit(new)
        self._trials[number] = self._search.add(new)
        self._trials[number].state = TrialState.RUNNING

    def report(self, number: int, step: int, losses: Losses) -> bool:
        """Decide about a report as `Search.report` does."""
        values = {name: loss for name, loss in zip(self._metrics, losses, strict=True) if name != "params"}
        report = Report(epoch=step, metrics=(values,), wall_seconds=float(step), final=step == self._steps)
        is_users = number == 0 and self._start is not None
        return told(self._search, self._trials[number], report, may_stop=not is_users)


def told(search: DatasetSearch, trial: TrialProgress, report: Report, *, may_stop: bool = True) -> bool:
    """Decide about a report as `Search.report` does, and return whether the trial continues."""
    summary = ReportSummary.of(trial.key, report, Decision.CONTINUE)
    asked = Decision.CONTINUE if report.final else search.decide(trial, summary)
    stopped = asked is Decision.STOP and may_stop
    search.take(trial, summary)
    if report.final or stopped:
        trial.state = TrialState.PRUNED if stopped else TrialState.COMPLETE
        search.tell(trial)
    return not (report.final or stopped)


def train(config: Mapping[str, Any]) -> None:
    """Stand for a function that is never called."""


def _of_ablate(own: Any) -> dict[str, Any]:
    if isinstance(own, CategoricalDistribution):
        return {"choices": list(own.choices)}
    ends = [own.low, own.high]
    if isinstance(own, FloatDistribution):
        return {"float": ends, "log": own.log}
    return {"int": ends, "log": True} if own.log else {"int": ends, "step": own.step}


class Optuna:
    """An Optuna study with a sampler and, for one objective, a pruner."""

    def __init__(self, problem: Asked, seed: int, sampler: str, pruner: str = "Nop", *, start: bool = False) -> None:
        own = {"max_resource": problem.steps} if pruner == "Hyperband" else {}
        self._study = optuna.create_study(
            study_name=f"everyday-{seed}",  # brackets of Hyperband depend on it
            directions=["minimize"] * problem.objectives,
            sampler=getattr(optuna.samplers, f"{sampler}Sampler")(seed=seed),
            pruner=getattr(optuna.pruners, f"{pruner}Pruner")(**own),
        )
        if start and problem.start is not None:
            self._study.enqueue_trial(dict(problem.start))
        self._space, self._steps, self._one = dict(problem.space), problem.steps, problem.objectives == 1
        self._trials: dict[int, optuna.Trial] = {}

    def ask(self, number: int) -> Settings:
        """Return the sampler's suggestion."""
        self._trials[number] = self._study.ask(self._space)
        return self._trials[number].params

    def take(self, number: int, settings: Settings) -> None:
        """Write the settings into the running trial."""
        _write(self._trials[number], self._space, settings)

    def report(self, number: int, step: int, losses: Losses) -> bool:
        """Report to the pruner, and end the trial if that says so."""
        trial = self._trials[number]
        if self._one:
            trial.report(losses[0], step)
        if step == self._steps:
            self._study.tell(trial, losses)
        elif self._one and trial.should_prune():
            self._study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            return False
        return step < self._steps


def _write(trial: optuna.Trial, space: Mapping[str, Any], settings: Settings) -> None:
    for name, own in space.items():
        trial.storage.set_trial_param(trial._trial_id, name, own.to_internal_repr(settings[name]), own)


class RayTune:
    """Ray Tune's OptunaSearch and, for one objective, its ASHAScheduler, in the order in which Tune calls them.

    It sees the first of the `objectives`; `rungs` are options of the scheduler.
    """

    def __init__(self, problem: Asked, seed: int, *, objectives: int = 2, **rungs: Any) -> None:
        from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
        from ray.tune.search.optuna import OptunaSearch

        self._names = ["loss", "size"][: min(objectives, problem.objectives)]
        one, self._steps = len(self._names) == 1, problem.steps
        asked = {"metric": "loss", "mode": "min"} if one else {"metric": self._names, "mode": ["min", "min"]}
        self._search = OptunaSearch(dict(problem.space), seed=seed + 1, **asked)  # it takes 0 for none
        stops = one and problem.steps > 1
        self._scheduler = ASHAScheduler(max_t=problem.steps, **rungs, **asked) if stops else FIFOScheduler()
        self._space = dict(problem.space)

    def ask(self, number: int) -> Settings:
        """Return OptunaSearch's suggestion."""
        return self._search.suggest(str(number)) or {}

    def take(self, number: int, settings: Settings) -> None:
        """Write the settings into OptunaSearch's running trial, and add the trial to the scheduler."""
        _write(self._search._ot_trials[str(number)], self._space, settings)
        self._scheduler.on_trial_add(None, SimpleNamespace(trial_id=str(number)))

    def report(self, number: int, step: int, losses: Losses) -> bool:
        """Pass the result to both, and the trial's end."""
        result = dict(zip(self._names, losses, strict=False)) | {"training_iteration": step}
        answer = self._scheduler.on_trial_result(None, SimpleNamespace(trial_id=str(number)), result)
        goes_on = answer == "CONTINUE" and step < self._steps
        self._search.on_trial_result(str(number), result)
        if not goes_on:
            self._search.on_trial_complete(str(number), result)
        return goes_on


class SyneTune:
    """A scheduler of Syne Tune: ASHA with a searcher, MOASHA on several losses, or evolution of a population of 10.

    REA, the evolution by one loss, sees the first one. `rungs` are options of MOASHA.
    """

    def __init__(self, problem: Asked, seed: int, method: str, **rungs: Any) -> None:
        from syne_tune.optimizer import baselines
        from syne_tune.optimizer.schedulers.multiobjective.moasha import MOASHA
        from syne_tune.optimizer.schedulers.multiobjective.multi_objective_regularized_evolution import (
            MultiObjectiveRegularizedEvolution,
        )
        from syne_tune.optimizer.schedulers.searchers.regularized_evolution import RegularizedEvolution
        from syne_tune.optimizer.schedulers.single_fidelity_scheduler import SingleFidelityScheduler

        np.random.seed(seed)  # MOASHA draws from the global generator
        space = {name: _of_syne_tune(own) for name, own in problem.space.items()}
        asked: dict[str, Any] = {"time_attr": "epoch", "max_t": problem.steps, "random_seed": seed}
        self._names = ["loss", "size"][: 1 if method == "REA" else problem.objectives]
        if method == "MOASHA":
            self._scheduler: Any = MOASHA(space, metrics=self._names, **asked, **rungs)
        elif method.endswith("REA"):
            kind = RegularizedEvolution if method == "REA" else MultiObjectiveRegularizedEvolution
            evolution = kind(space, population_size=10, sample_size=3, random_seed=seed)
            self._scheduler = SingleFidelityScheduler(space, self._names, searcher=evolution, random_seed=seed)
        else:
            self._scheduler = getattr(baselines, method)(space, metric="loss", **asked)
        self._trials: dict[int, Any] = {}
        self._steps = problem.steps

    def ask(self, number: int) -> Settings:
        """Return the scheduler's suggestion."""
        return dict(self._scheduler.suggest().config)

    def take(self, number: int, settings: Settings) -> None:
        """Add the trial to the scheduler."""
        from syne_tune.backend.trial_status import Trial

        self._trials[number] = Trial(trial_id=number, config=dict(settings), creation_time=datetime.now())
        self._scheduler.on_trial_add(self._trials[number])

    def report(self, number: int, step: int, losses: Losses) -> bool:
        """Pass the result."""
        result = dict(zip(self._names, losses, strict=False)) | {"epoch": step}
        goes_on = self._scheduler.on_trial_result(self._trials[number], result) == "CONTINUE"
        if goes_on and step == self._steps:
            self._scheduler.on_trial_complete(self._trials[number], result)
        return goes_on and step < self._steps


def _of_syne_tune(own: Any) -> Any:
    from syne_tune.config_space import choice, lograndint, loguniform, ordinal, randint, uniform

    if isinstance(own, CategoricalDistribution):
        return choice(list(own.choices))
    if isinstance(own, FloatDistribution):
        return (loguniform if own.log else uniform)(own.low, own.high)
    if own.step > 1:
        return ordinal(list(range(own.low, own.high + 1, own.step)))
    return (lograndint if own.log else randint)(own.low, own.high)


class Neps:
    """A method of NePS by its AskAndTell; it interrupts trials and continues some of them from where they were.

    PriMO starts with MOASHA and has the settings that the user has for its prior, if `prior`.
    """

    def __init__(self, problem: Problem, seed: int, method: str, *, prior: bool = False) -> None:
        import neps
        import torch
        from neps.space import SearchSpace
        from neps.space.parameters import HPOInteger

        np.random.seed(seed)
        torch.manual_seed(seed)
        self._stepped = {
            name: own for name, own in problem.space.items() if getattr(own, "step", None) not in (None, 1)
        }
        space: dict[str, Any] = {name: _of_neps(own) for name, own in problem.space.items()}
        if problem.steps > 1:
            space["epochs"] = HPOInteger(1, problem.steps, is_fidelity=True)
        self._steps = problem.steps
        center = {"loss": dict(problem.start)} if prior and problem.start is not None else {}
        confidence = {"loss": dict.fromkeys(problem.space, 0.5)} if center else None
        own = {"prior_centers": center, "prior_confidences": confidence} if method == "primo" else {}
        self._optimizer = neps.AskAndTell(getattr(neps.algorithms, method)(SearchSpace(space), **own))
        self._asked: Any = None
        self._numbers: dict[str, int] = {}  # of NePS's configurations

    def ask(self, number: int) -> Settings | int:
        """Return NePS's suggestion, which is a new configuration or a longer training of an old one."""
        self._asked = self._optimizer.ask()
        first = self._asked.metadata.previous_trial_id
        known = self._numbers.get(first) if first else None
        if known is not None:
            self._numbers[self._asked.id] = known
            return known
        self._numbers[self._asked.id] = number
        values = {name: value for name, value in self._asked.config.items() if name != "epochs"}
        for name, own in self._stepped.items():
            values[name] = own.low + own.step * round((values[name] - own.low) / own.step)
        return values

    def take(self, number: int, settings: Settings) -> None:
        """Write the settings into the trial."""
        self._asked.config = {**self._asked.config, **settings}

    def report(self, number: int, step: int, losses: Losses) -> bool:
        """Tell NePS the losses when the trial has as many epochs as it asked for."""
        if step < self._asked.config.get("epochs", self._steps):
            return True
        self._optimizer.tell(self._asked, list(losses))
        return False


def _of_neps(own: Any) -> Any:
    from neps.space.parameters import HPOCategorical, HPOFloat, HPOInteger

    if isinstance(own, CategoricalDistribution):
        return HPOCategorical(list(own.choices))
    return (HPOFloat if isinstance(own, FloatDistribution) else HPOInteger)(own.low, own.high, log=own.log)
