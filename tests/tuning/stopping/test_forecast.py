"""The default scheduler: against a second implementation, on planted curves, with bounds, and after a restart."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ablate.core.config import DatasetFacts
from ablate.core.trial import Decision, Report, TrialConfig, TrialState
from ablate.ledger import Ledger, NewTrial
from ablate.study import Study
from ablate.tuning.dataset_search import DatasetSearch
from ablate.tuning.state.curves import Curve, Curves
from ablate.tuning.state.trial_progress import ReportSummary, TrialProgress
from support.ledgers import Clock
from support.literal_forecast import Stream, literal_forecast
from support.searches import ONE, TWO, hold_of, report_at, search_of, study_of, url_in

LOSS = {"metric": "val_loss", "direction": "minimize"}
COST = {"metric": "val_leaves", "direction": "minimize"}


def function_study(objectives: list[dict[str, Any]], *, epochs: int = 16, **changes: Any) -> Study:
    """Return a study of a function with one setting."""
    fields: dict[str, Any] = {"study": "s", "trainable": "a.b:c", "epochs": epochs, "confirm": None}
    fields |= {"config": {"x": {"float": [0.0, 1.0]}}, "objectives": objectives, "sampler": {"name": "random"}}
    return Study.model_validate(fields | changes)


class Driven:
    """A search of one data set that is told of curves by hand."""

    def __init__(self, study: Study) -> None:
        self.search = DatasetSearch.of(
            study, "data", measure=lambda many, _: [{}] * len(many), facts_of=lambda _: DatasetFacts()
        )
        self.trials: dict[int, TrialProgress] = {}

    def report(self, number: int, epoch: int, **metrics: float) -> bool:
        """Report of a trial, which begins with its first report; return whether it goes on."""
        while number not in self.trials:
            new = self.search.suggest()
            assert isinstance(new, NewTrial)
            trial = self.search.add(new)
            trial.state = TrialState.RUNNING
            self.trials[trial.number] = trial
        trial = self.trials[number]
        final = epoch == trial.config.epochs
        report = Report(epoch=epoch, metrics=(metrics,), wall_seconds=float(epoch), final=final)
        step = ReportSummary.of(trial.key, report, Decision.CONTINUE)
        stopped = not final and self.search.decide(trial, step) is Decision.STOP
        self.search.take(trial, step)
        if final or stopped:
            trial.state = TrialState.PRUNED if stopped else TrialState.COMPLETE
            self.search.tell(trial)
        return not stopped

    def run(self, number: int, curve: Callable[[int], float], **more: Callable[[int], float]) -> int:
        """Report a whole curve; return the epoch at which the trial ended."""
        for epoch in range(1, self.search.study.settings_of("data", {"config.x": 0.5}).length + 1):
            values = {name: each(epoch) for name, each in more.items()}
            if not self.report(number, epoch, val_loss=curve(epoch), **values):
                return epoch
        return epoch


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("names", "bounded"), [(["val_loss"], False), (["val_loss"], True), (["val_loss", "val_leaves"], True)]
)
def test_it_decides_as_its_words_say(names: list[str], bounded: bool, seed: int) -> None:
    """Random curves in random interleaving, some with fewer reports, some that rise."""
    rng = random.Random(f"{names} {bounded} {seed}")
    objectives = [{"metric": name, "direction": "minimize"} for name in names]
    changes = {"constraints": ["train_memory <= 0.5"]} if bounded else {}
    driven = Driven(function_study(objectives, **changes))
    metrics = [*names, *(["train_memory"] if bounded else [])]
    running: dict[int, tuple[int, int, list[tuple[float, float]]]] = {}
    stream: Stream = []
    got = []
    begun = 0
    while begun < 40 or running:
        if begun < 40 and len(running) < 4:
            shapes = [(rng.uniform(0.1, 1), rng.choice([0.3, 1.0, 2.0, -0.5])) for _ in metrics]
            running[begun] = (0, rng.choice([1, 1, 2, 3]), shapes)
            begun += 1
            continue
        number = rng.choice(list(running))
        epoch, every, shapes = running[number]
        epoch = min(epoch + every, 16)
        values = [scale * epoch**-power + rng.gauss(0, 0.02) for scale, power in shapes]
        goes_on = driven.report(number, epoch, **dict(zip(metrics, values, strict=True)))
        row = [*values[: len(names)], *([(values[-1] - 0.5) / 0.5] if bounded else [])]
        stream.append((number, epoch, tuple(row)))
        if epoch < 16:
            got.append(goes_on)
        running[number] = (epoch, every, shapes)
        if epoch == 16 or not goes_on:
            del running[number]
    expected = literal_forecast(stream, epochs=16, objectives=len(names), several=len(names) > 1)
    assert got == expected
    assert 0 < sum(got) < len(got)


def test_a_slow_learner_goes_on_and_a_flat_one_is_stopped() -> None:
    """The slow one is the worst of all at a quarter of the training and the best at its end."""
    driven = Driven(function_study([LOSS]))
    for number in range(4):
        driven.run(number, lambda epoch, number=number: 0.5 + 0.02 * number + 0.1 * 0.5**epoch)
    assert driven.run(4, lambda epoch: 1.0 - 0.24 * math.log2(epoch)) == 16
    assert driven.run(5, lambda epoch: 0.9) == 2, "an eighth of the training"
    short = Driven(function_study([LOSS], epochs=8))
    assert [short.run(number, lambda _: 0.1) for number in range(3)] == [8] * 3
    assert [short.report(3, epoch, val_loss=100.0) for epoch in (1, 2)] == [True, False], "the first stops nobody"


def test_what_finished_trials_teach_stops_a_member_of_no_front_but_not_a_single_objective() -> None:
    for objectives, trained in (([LOSS], 8), ([LOSS, COST], 2)):  # all learn until a quarter of the training
        driven, curve = Driven(function_study(objectives)), lambda epoch: 1.0 - 0.2 * min(math.log2(epoch), 2.0)
        assert [driven.run(number, curve, val_leaves=lambda _: 1.0) for number in range(8)] == [16] * 8
        assert driven.run(8, lambda epoch: 0.15 + curve(epoch), val_leaves=lambda _: 2.0) == trained  # noqa: B023


def test_the_best_report_counts_of_a_curve_that_overfits() -> None:
    """Its last report is far behind. The rival of later trials is its best one."""
    driven = Driven(function_study([LOSS]))
    for number in range(3):
        driven.run(number, lambda epoch: 0.3 + 0.05 * abs(epoch - 8))
    assert driven.search.suggester.curves.by_number[0].end()[0] == pytest.approx(0.3)
    assert driven.run(3, lambda _: 0.6) == 2


def test_what_breaks_a_bound_stops_nobody_and_is_stopped_itself() -> None:
    study = function_study([LOSS], constraints=["train_memory <= 1"])
    driven = Driven(study)
    for number in range(3):
        assert driven.run(number, lambda _: 0.1, train_memory=lambda _: 2.0) == 16, (
            "nothing that keeps the bound is known"
        )
    assert driven.run(3, lambda _: 0.5, train_memory=lambda _: 0.5) == 16
    assert driven.run(4, lambda _: 0.05, train_memory=lambda _: 2.0) == 2
    assert driven.run(5, lambda epoch: 0.6 - 0.03 * epoch, train_memory=lambda _: 0.5) == 16


def test_a_cost_that_grows_with_training_counts_with_its_last_report() -> None:
    driven = Driven(function_study([LOSS, COST]))
    driven.run(0, lambda epoch: 1 / epoch, val_leaves=lambda epoch: 10.0 * epoch)
    assert driven.search.suggester.curves.by_number[0].end().tolist() == [1 / 16, 160.0]
    single = Driven(function_study([LOSS, {"metric": "wall_seconds", "direction": "minimize"}]))
    single.run(0, lambda epoch: 1 / epoch)
    assert single.search.suggester.curves.by_number[0].end().tolist() == [1 / 16, 16.0]


def test_trials_without_a_number_are_stopped_once_another_one_has_ended() -> None:
    driven = Driven(function_study([LOSS]))
    assert driven.report(0, 1, val_loss=math.nan)
    assert driven.report(0, 2, val_loss=math.nan)
    driven.run(1, lambda _: 0.5)
    assert not driven.report(0, 4, val_loss=math.nan)


@pytest.mark.parametrize("objectives", [ONE, TWO])
def test_a_restart_before_each_report_changes_no_decision(tmp_path: Path, objectives: list[dict[str, object]]) -> None:
    study = study_of(objectives=objectives, scheduler={}, sampler={}, budget={"trials": 14})
    found = [played(study, tmp_path / str(often), often) for often in (False, True)]
    assert found[0] == found[1]
    assert Decision.STOP in {decision for _, _, decision in found[0]}


def played(study: Study, folder: Path, restarts: bool) -> list[tuple[int, int, Decision]]:
    """Return what is decided of four trials at a time, whose reports arrive in a keyed order."""
    folder.mkdir(exist_ok=True)
    clock, rng = Clock(), random.Random(2)
    flying: dict[int, tuple[TrialConfig, int]] = {}
    answers = []
    with Ledger.open(url_in(folder), clock=clock, monotonic=clock) as ledger, hold_of(study, ledger) as writer:
        search = search_of(study, writer, ledger)
        while True:
            while len(flying) < 4 and (config := search.next_trial()) is not None:
                flying[config.key.number] = (config, 0)
            if not flying:
                return answers
            if restarts:
                search._restore()
            number = rng.choice(sorted(flying))
            config, epoch = flying[number]
            decision = search.report(config.key, report_at(config, epoch + 1))
            answers.append((number, epoch + 1, decision))
            flying[number] = (config, epoch + 1)
            if decision is Decision.STOP or epoch + 1 == config.epochs:
                del flying[number]


def test_levels_and_bends_by_hand() -> None:
    def curve(values: list[float], read: Any = "best") -> Curve:
        made = Curve(length=8, reads=(read,))
        for epoch, value in enumerate(values, start=1):
            made.add(epoch, (value,))
        return made

    assert curve([9, 6, 5, 2]).level(4)[:, 0].tolist() == [2, 4, 2, 4]
    assert curve([9, 6, 5, 7]).level(4)[:, 0].tolist() == [5, 1, 5, 1]
    assert curve([9, 2, 5, 7]).level(4)[:, 0].tolist() == [2, 0, 2, 0]
    assert curve([9, 6, 5, 7], "last").level(4)[:, 0].tolist() == [7, 0, 5, 1], "it rises: the highest"
    assert curve([1, 2, 3, 4], "last").level(4)[:, 0].tolist() == [4, -2, 3, 0]
    assert curve([9, math.nan, 5, math.nan]).level(4)[:, 0].tolist() == [5, 4, 5, 4]
    assert np.isnan(curve([math.nan] * 4).level(4)).all()
    assert curve([9, 6, math.inf, 2]).rows[2, 0] == 1e300
    assert curve([9, 6]).bend(2) is None
    assert curve([9, 6, 5, 2]).bend(2) == pytest.approx([(6 - 7) / math.sqrt(1.5)])
    assert curve([9, 6, 5, 2]).bend(4) == pytest.approx([(5 - 4) / math.sqrt(1.5)])


def test_the_noise_of_straight_curves_is_that_of_a_report() -> None:
    rng = np.random.default_rng(2)
    curve = Curve(length=30_000, reads=("best",))
    for epoch in range(1, 30_001):
        curve.add(epoch, (0.5 - 0.1 * epoch + rng.normal(0, 0.02),))
    values = [curve.bend(epoch)[0] for epoch in range(3, 30_001, 3)]  # type: ignore[index]
    assert np.std(values) == pytest.approx(0.02, rel=0.02)


def test_a_forecast_is_learnt_from_trials_that_ended() -> None:
    """All finished trials improved by the last doubling's gain once more, so the stopped one is forecast to do so."""
    curves = Curves(study=function_study([LOSS], epochs=8))
    for number, scale in enumerate([0.1] * 40 + [0.2]):
        curve = curves.by_number[number] = Curve(length=8, reads=curves.reads)
        for epoch in range(1, 9 if number < 40 else 5):
            curve.add(epoch, (1.0 - scale * math.log2(epoch),))
    assert curves.outlooks([40], [])[0, 0] == pytest.approx(0.6 - 0.5 * 0.2), "half of it before any has ended"
    assert curves.outlooks([40], range(40))[0, 0] == pytest.approx(0.6 - (2 * 0.5 + 20) / 22 * 0.2)
