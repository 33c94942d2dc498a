"""Rows on importance: a planted world in which only the width matters, searched by random draws, TPE and `front`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from statistics import median
from typing import Any, ClassVar

import numpy as np
import optuna
from calibration_rows import Row, generator, rate, repetitions
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import TrialState

from ablate.core.trainable import load_trainable
from ablate.core.trial import Decision, Report
from ablate.core.trial import TrialState as State
from ablate.results.importance.importance import importances
from ablate.study import Study
from ablate.study.space import Choices, FloatRange, IntRange, Space
from ablate.tuning.dataset_search import DatasetSearch
from ablate.tuning.sampling.search_space import SearchSpace
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
GAIN = {8: 0.0, 16: 1.0, 32: 1.6, 64: 2.0}  # in standard deviations of a seed
EPOCHS, RUNGS = 9, (1, 3)
SAMPLERS = {"random": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}


def importance_rows(share: float) -> Iterator[Row]:
    """How often the right setting is first, in the forest of the reports and in PED-ANOVA, and false alarms."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for sampler, trials, stops in (
        ("random", 60, True), ("tpe", 60, True), ("tpe", 60, False), ("tpe", 200, True), ("front", 60, True),
    ):  # fmt: skip
        first, compared, false = [], [], []
        for seed in range(repetitions(40, share)):
            search = Front(seed, trials) if sampler == "front" else Optuna(sampler, seed)
            settings, losses = searched(search, sampler, trials, seed, gain=1.0, stops=stops)
            found = importances("loss", losses, settings, SPACE.space, study_seed=seed, dataset="planted")
            first.append(found.order[0] == "width")
            false += [row.is_told for row in found.rows if row.parameter != "width"]
            if isinstance(search, Optuna):
                compared.append(ped_anova(search.study) == "width")
        setting = f"{sampler}, {trials} trials, {'' if stops else 'no '}early stopping"
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
    search: Optuna | Front, sampler: str, trials: int, seed: int, *, gain: float, stops: bool = True
) -> tuple[list[dict[str, Any]], list[float]]:
    """Return settings and losses of a search, which `stops` trials early; the losses of stopped trials are forecast."""
    random = generator("importance", sampler, trials, seed, str(gain))
    curves: list[tuple[dict[str, Any], list[float]]] = []
    rungs: dict[int, list[float]] = {rung: [] for rung in RUNGS}
    for _ in range(trials):
        values = search.ask()
        curve = learning_curve(gain * GAIN[values["width"]], random)
        length = next((rung for rung in RUNGS if stops and stopped(rungs[rung], curve[rung - 1])), EPOCHS)
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
