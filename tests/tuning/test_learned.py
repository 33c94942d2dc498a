"""What samplers learn: closer to a planted optimum than by chance, and misled by no trial that was stopped."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ablate.core.trial import TrialConfig, TrialKey, TrialState
from ablate.engine.training.family import family
from ablate.tuning.sampling.search_space import SearchSpace
from ablate.tuning.sampling.suggester import Suggester
from ablate.tuning.sampling.trial_converter import UNSEEN, TrialConverter
from ablate.tuning.state.curves import Curves
from ablate.tuning.state.trial_progress import TrialProgress
from support.ledgers import SHAPE
from support.searches import ONE, TWO, driving, run_all, size_of, study_of, url_in
from support.trials import configs, family_trial, measure_by


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
    a = (math.log10(family(config).training.learning_rate) + 2) / 3
    b = (family(config).training.weight_decay - 0.03) / 0.1
    return math.exp(-8 * (a * a + b * b))


@pytest.mark.services
@pytest.mark.parametrize(("name", "trials", "seeds"), [("front", 40, 2), ("tpe", 40, 4), ("gp", 12, 1)])
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
    suggester = Suggester(study=study, dataset="digits", measure=measure_by(size_of), facts=lambda: SHAPE)
    rng = np.random.default_rng(0)
    for number in range(24):
        low = number % 2 == 0
        x = float(rng.uniform(0.0, 0.05) if low else rng.uniform(0.05, 0.1))
        parameters = {"training.weight_decay": x} | {f"training.{d}": float(rng.uniform(0, 0.9)) for d in decoys}
        model, task, train = configs(study, "digits", parameters)
        early = stopped and low
        trial = TrialProgress(
            config=family_trial(
                key=TrialKey(study="s", dataset="digits", number=number),
                stage="search",
                model=model,
                task=task,
                train=train,
                seeds=(0,),
                study_seed=3,
                parameters=parameters,
            ),
            size={"params": 100 + number, "params_body": 1, "flops": 1},
            sampler_state={"trial": {"NSGAIISampler:generation": number // 12}, "study": {}},
            state=TrialState.PRUNED if early else TrialState.COMPLETE,
            epoch=1 if early else 10,
            means={"val_accuracy": (0.9 if low else 0.5) + 0.001 * number},
        )
        suggester.curves.observe(trial, {**trial.size, **trial.means})
        suggester.put(trial)
    found = (suggester.suggest(n) for n in range(24, 25 if name == "gp" else 64))
    return [s.config.parameters["training.weight_decay"] for s in found if s is not None]


@pytest.mark.services
@pytest.mark.parametrize("objectives", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("name", ["tpe", "nsga2", "gp"])
def test_bright_values_of_stopped_trials_do_not_draw_a_sampler(name: str, objectives: Any) -> None:
    finished = np.mean([x < 0.045 for x in halves(name, stopped=False, objectives=objectives)])
    stopped = np.mean([x < 0.045 for x in halves(name, stopped=True, objectives=objectives)])
    assert stopped <= 0.3 < 0.6 <= finished


def told(trial: TrialProgress, **changes: Any) -> Any:
    """Return what an Optuna sampler reads of `trial`."""
    study = study_of(scheduler={"name": "asha"}, **changes)
    curves = Curves(study=study)
    if trial.means:
        curves.observe(trial, {**trial.size, **trial.means, "wall_seconds": trial.wall_seconds})
    return TrialConverter.of(study, SearchSpace.of(study.space_for("digits"))).to_frozen_trial(trial, curves)


def ended(state: TrialState, *, value: float = 0.5, epoch: int = 3, diverged: bool = False) -> TrialProgress:
    """Return a trial of 9 epochs that ended so."""
    parameters = {"training.learning_rate": 1e-3}
    study = study_of()
    model, task, train = configs(study, "digits", {"model.width": 8, **parameters})
    config = family_trial(
        key=TrialKey(study="s", dataset="digits", number=0), stage="search", model=model, task=task, train=train,
        seeds=(0,), study_seed=3, parameters=parameters,
    )  # fmt: skip
    return TrialProgress(
        config=config, size={"params": 1000, "params_body": 1, "flops": 1}, sampler_state={}, state=state, epoch=epoch,
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
