"""Rows on importance: a planted world in which only the width matters, searched by random draws, TPE and `front`.

And importance for the number of parameters in the digits' space: draws and a forest against all networks.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import optuna
from calibration_rows import Row, average, generator, rate, repetitions
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import TrialState

from ablate.core.trainable import load_trainable
from ablate.core.trial import Decision, Report
from ablate.core.trial import TrialState as State
from ablate.driver import space_sizes
from ablate.driver.space_sizes import SpaceSizes
from ablate.results.importance.importance import importances
from ablate.study import Study, read_study
from ablate.study.space import Choices, FloatRange, IntRange, Space
from ablate.tuning.dataset_search import DatasetSearch
from ablate.tuning.sampling.search_space import SearchSpace, decode, inner_at_share
from ablate.tuning.state.trial_progress import ReportSummary

SPACE = SearchSpace.of(
    Space(
        ranges={
            "rate": FloatRange(float=(1e-4, 1e-1), log=True),
            "depth": IntRange(int=(1, 4)),
            "width": Choices(choices=(8, 16, 32, 64)),
            "mlp": Choices(choices=(False, True)),
            "heads": Choices(choices=(1, 2, 4)),
        }
    )
)
DIGITS = Path(__file__).parents[1] / "search_spaces" / "digits.yaml"
GAIN = {8: 0.0, 16: 1.0, 32: 1.6, 64: 2.0}  # in standard deviations of a seed
EPOCHS, RUNGS = 9, (1, 3)
SAMPLERS = {"random": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}


def importance_rows(share: float) -> Iterator[Row]:
    """How often the right setting is first, in the forest of the reports and in PED-ANOVA, and false alarms."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for sampler, trials in (("random", 60), ("tpe", 60), ("tpe", 200), ("front", 60)):
        first, compared, false = [], [], []
        for seed in range(repetitions(40, share)):
            search = Front(seed, trials) if sampler == "front" else Optuna(sampler, seed)
            settings, losses = searched(search, sampler, trials, seed, gain=1.0)
            found = importances("loss", losses, settings, SPACE.space, study_seed=seed, dataset="planted")
            first.append(found.order[0] == "width")
            false += [row.is_told for row in found.rows if row.parameter != "width"]
            if isinstance(search, Optuna):
                compared.append(ped_anova(search.study) == "width")
        setting = f"{sampler}, {trials} trials, early stopping"
        yield rate("importance: the setting that matters is first", setting, first, (0.8, 1.0))
        if compared:
            yield rate("importance by PED-ANOVA (not used): it is first", setting, compared, (0.0, 0.6))
        yield rate("importance: told of a setting without influence", setting, false, (0.0, 0.01))
    for sampler in ("tpe", "front"):
        false = []
        for seed in range(repetitions(40, share)):
            search = Front(seed, 60) if sampler == "front" else Optuna(sampler, seed)
            settings, losses = searched(search, sampler, 60, seed, gain=0.0)
            found = importances("loss", losses, settings, SPACE.space, study_seed=seed, dataset="planted")
            false += [row.is_told for row in found.rows]
        setting = f"{sampler}, 60 trials, early stopping"
        yield rate("importance: told of a setting where none has influence", setting, false, (0, 0.05))


def size_rows(share: float) -> Iterator[Row]:
    """How far the total shares for a size are from the exact ones, from draws of the space and from 60 trials."""
    study, _ = read_study(DIGITS)
    trainable = load_trainable(study.trainable)
    facts = trainable.find_facts(study.datasets["digits"], None)
    space = study.space_for("digits")
    settings = {"dataset": "digits", "metrics": ["params"], "trainable": trainable, "facts": facts}
    settings |= {"say": print, "clock": lambda: 0.0, "seconds": 1.0}
    exact = SpaceSizes(study=study, **settings).shares([])["shares"]["params"]
    truth = {name: exact.get(name, (0.0, 0.0))[1] for name in space.names()}
    covered, drawn, listed, forest, told = [], [], [], [], []
    for seed in range(repetitions(24, share)):
        with patch.object(space_sizes, "CELLS", 0):
            found = SpaceSizes(study=study.model_copy(update={"seed": seed}), **settings).shares([])
        totals = {name: total for name, (_, total) in found["shares"]["params"].items()}
        drawn.append(max(abs(totals.get(name, 0.0) - truth[name]) for name in truth))
        covered.append(drawn[-1] <= 2 * found["error"])
        listed += [name in totals for name in truth if truth[name] == 0]
        points = _random_points(space, 60, seed)
        sizes = [s["params"] for s in trainable.measure([study.settings_of("digits", p) for p in points], facts)]
        rows = importances("params", np.log10(sizes).tolist(), points, space, study_seed=seed, dataset="digits").rows
        forest.append(max(abs(row.total - truth[row.parameter]) for row in rows))
        told += [row.is_told for row in rows if truth[row.parameter] == 0]
    setting = "digits, parameters"
    yield rate("importance of a size: draws are within two standard errors", setting, covered, (0.9, 1.0))
    yield average("importance of a size: largest error of a share, from draws", setting, np.array(drawn), (0.0, 0.05))
    yield rate("importance of a size: a setting that cannot enter is listed", setting, listed, (0.0, 0.0))
    name = "importance of a size by the forest of 60 trials (not used)"
    yield average(f"{name}: largest error of a share", setting, np.array(forest), (0.0, 0.5))
    yield rate(f"{name}: told of a setting that cannot enter", setting, told, (0.0, 0.05))


def _random_points(space: Space, number: int, seed: int) -> list[dict[str, Any]]:
    """Return random configurations of a space."""
    units = generator("importance", "sizes", seed).random((number, len(space.ranges)))
    specs = space.ranges.items()
    return [
        space.active({name: decode(spec, inner_at_share(spec, u)) for (name, spec), u in zip(specs, row, strict=True)})
        for row in units
    ]


class Optuna:
    """A search of the loss by an Optuna sampler."""

    def __init__(self, sampler: str, seed: int) -> None:
        self.study = optuna.create_study(direction="minimize", sampler=SAMPLERS[sampler](seed=seed))

    def ask(self) -> dict[str, Any]:
        """Return the next configuration."""
        self._trial = self.study.ask(dict(SPACE.distributions))
        return SPACE.decode(self._trial.params)

    def tell(self, curve: list[float]) -> None:
        """End the trial after the epochs of a curve."""
        for epoch, loss in enumerate(curve, 1):
            self._trial.report(loss, epoch)
        if len(curve) == EPOCHS:
            self.study.tell(self._trial, curve[-1])
        else:
            self.study.tell(self._trial, state=TrialState.PRUNED)


class Front:
    """A search of the accuracy and the number of parameters of digits' transformers by `sampler: front`."""

    NAMES: ClassVar = {f"model.{name}": name for name in ("width", "depth", "mlp", "heads")} | {
        "training.learning_rate": "rate"
    }

    def __init__(self, seed: int, trials: int) -> None:
        specs = {
            name: spec.model_dump(by_alias=True, exclude_defaults=True) for name, spec in SPACE.space.ranges.items()
        }
        fields = {"study": "planted", "seed": seed, "datasets": {"digits": {}}, "scheduler": {"name": "none"}}
        fields["training"] = {"epochs": EPOCHS, "learning_rate": specs.pop("rate")}
        fields["model"] = specs | {"mlp": {"choices": ["none", 64]}}
        study = Study.model_validate(fields | {"confirm": None, "budget": {"trials": trials}})
        assert study.sampler.name == "front"
        trainable = load_trainable(study.trainable)
        facts = trainable.find_facts(study.task("digits"), None)
        self._search = DatasetSearch.of(study, "digits", measure=trainable.measure, facts_of=lambda label: facts)

    def ask(self) -> dict[str, Any]:
        """Return the next configuration."""
        new = self._search.suggest()
        assert new is not None
        self._trial = self._search.add(new)
        self._trial.state = State.RUNNING
        values = {self.NAMES[name]: value for name, value in new.config.parameters.items()}
        return values | {"mlp": values["mlp"] != "none"}

    def tell(self, curve: list[float]) -> None:
        """End the trial after the epochs of a curve."""
        whole = len(curve) == EPOCHS
        for epoch, loss in enumerate(curve, 1):
            last = whole and epoch == EPOCHS
            report = Report(epoch=epoch, metrics=({"val_accuracy": 0.5 - loss / 100},), wall_seconds=1.0, final=last)
            self._search.take(self._trial, ReportSummary.of(self._trial.key, report, Decision.CONTINUE))
        self._trial.state = State.COMPLETE if whole else State.PRUNED
        self._search.tell(self._trial)


def searched(
    search: Optuna | Front, sampler: str, trials: int, seed: int, *, gain: float
) -> tuple[list[dict[str, Any]], list[float]]:
    """Return settings and losses of a search with early stopping, the losses of stopped trials forecast."""
    random = generator("importance", sampler, trials, seed, str(gain))
    curves: list[tuple[dict[str, Any], list[float]]] = []
    rungs: dict[int, list[float]] = {rung: [] for rung in RUNGS}
    for _ in range(trials):
        values = search.ask()
        curve = learning_curve(gain * GAIN[values["width"]], random)
        length = next((rung for rung in RUNGS if stopped(rungs[rung], curve[rung - 1])), EPOCHS)
        search.tell(curve[:length])
        curves.append((values, curve[:length]))
    whole = [curve for _, curve in curves if len(curve) == EPOCHS]
    gains = {rung: median(curve[-1] - curve[rung - 1] for curve in whole) for rung in (*RUNGS, EPOCHS)}
    return [values for values, _ in curves], [curve[-1] + gains[len(curve)] for _, curve in curves]


def learning_curve(quality: float, random: np.random.Generator) -> list[float]:
    """Return the loss after each epoch of a network, in standard deviations of a seed."""
    last = -quality + random.standard_normal()
    return [last + 3 * math.exp(-epoch / 3) + 0.3 * random.standard_normal() for epoch in range(1, EPOCHS + 1)]


def stopped(rung: list[float], loss: float) -> bool:
    """Return whether a trial is not in the best third of those that came to a rung, and add it to them."""
    rung.append(loss)
    return len(rung) >= 3 and loss > sorted(rung)[max(len(rung) // 3 - 1, 0)]


def ped_anova(study: optuna.Study) -> str:
    """Return the setting that PED-ANOVA ranks first among the complete trials."""
    done = [trial for trial in study.get_trials() if trial.state is TrialState.COMPLETE]
    if len(done) < 6:
        return ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = PedAnovaImportanceEvaluator(target_quantile=max(0.1, 5 / len(done))).evaluate(study)
    return max(found, key=lambda name: found[name])
