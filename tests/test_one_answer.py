"""Planted studies in which the places that show an average or a front could disagree: all of them give one answer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from ablate.core.trial import Report, TrialConfig, TrialState
from ablate.driver.prometheus import StudyCollector
from ablate.ledger import Ledger, ReportRecord
from ablate.results.front.findings import Findings
from ablate.results.front.front import front
from ablate.results.front.learning import learning_curves
from ablate.results.report import front_lines
from ablate.results.trials.pooling import pooled
from ablate.results.trials.results import Results
from ablate.results.trials.tables import reports_table, trials_table
from ablate.studies.locations import Locations
from ablate.studies.status import results_as_values
from ablate.studies.stored import Stored, select_networks
from ablate.studies.trial import details_lines, trial_details
from ablate.study import Study
from ablate.tracking.contents import report_points
from ablate.tuning import Search
from ablate.tuning.recorded import recorded_searches
from support.page_reader import printed
from support.searches import TWO, hold_of, search_of

LOSSES = [{"metric": "val_loss", "direction": "minimize", "log": True}, TWO[1]]
FIELDS: dict[str, Any] = {
    "study": "s",
    "datasets": {"digits": {}},
    "model": {"width": 8, "depth": 1},
    "training": {"epochs": 9, "learning_rate": {"float": [0.0001, 0.1], "log": True}},
    "objectives": TWO,
    "sampler": {"name": "random"},
    "scheduler": {"name": "none"},
    "replicates": 3,
    "budget": {"trials": 3},
    "confirm": None,
}
Metrics = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class World:
    """A study in a runs folder, its search and its ledger."""

    study: Study
    search: Search
    ledger: Ledger
    settings: Locations

    def train(self, *replicates: Metrics) -> TrialConfig:
        """Run the next trial: an unspectacular first epoch, then these metrics, one mapping per replicate."""
        config = self.search.next_trial()
        assert config is not None
        self.finish(config, replicates)
        return config

    def finish(self, config: TrialConfig, replicates: Sequence[Metrics]) -> None:
        """Report a trial's first and last epoch."""
        first = tuple({"val_accuracy": 0.1, "val_loss": 3.0} for _ in replicates)
        last = config.epochs
        self.search.report(config.key, Report(epoch=1, metrics=first, wall_seconds=1.0))
        ended = Report(epoch=last, metrics=tuple(replicates), wall_seconds=2.0, final=True)
        self.search.report(config.key, ended)

    def stored(self) -> Stored:
        """Return the study as `status` reads it."""
        return Stored.of(self.ledger, "s")


@contextmanager
def planted(folder: Path, **changes: Any) -> Iterator[World]:
    """Yield a study of which every trial has equally many parameters, so that a planted metric alone decides."""
    fields = FIELDS | changes
    study = Study.model_validate(fields)
    settings = Locations(runs_dir=folder)
    settings.make_home("s")
    text, url = yaml.safe_dump(fields), settings.storage_url("s")
    with Ledger.open(url) as ledger, hold_of(study, ledger, file_text=text) as writer:
        yield World(study=study, search=search_of(study, writer, ledger), ledger=ledger, settings=settings)


def metrics(accuracy: float, loss: float) -> Metrics:
    return {"val_accuracy": accuracy, "val_loss": loss}


def by_hand(reports: list[ReportRecord], metric: str) -> float:
    """Return the mean over the replicates of the last epoch: NaN where one of them has no number."""
    last = [report for report in reports if report.epoch == max(r.epoch for r in reports)]
    numbers = [report.metrics.get(metric, math.nan) for report in last]
    return math.fsum(numbers) / len(numbers)


def fronts_shown(world: World) -> dict[str, list[int]]:
    """Return the numbers of the trials on the front, by the place that shows them."""
    snapshot = world.ledger.snapshot("s")
    trials, reports = trials_table(snapshot), reports_table(snapshot)
    recorded = recorded_searches(world.study, snapshot)["digits"]
    found = Findings(Results(world.study, trials, reports), "digits")
    return {
        "search": [member.config.key.number for member in world.search.front("digits")],
        "a later driver": [member.config.key.number for member in recorded.front()],
        "table": front(trials, world.study.objectives, constraints=world.study.constraints)["trial"].to_list(),
        "page": found.front["trial"].to_list(),
        "published": [config.key.number for config in select_networks(unconfirmed(world.study), snapshot)],
        "status": [row["trial"] for row in results_as_values(world.stored())["front"]["digits"]],
    }


def unconfirmed(study: Study) -> Study:
    """Return the study as it would be without a confirmation stage."""
    return study.model_copy(update={"confirm": None})


def gauges(search: Search) -> dict[str, float]:
    """Return what Prometheus is told of the front and of the best values."""
    samples = [sample for family in StudyCollector(search).collect() for sample in family.samples]
    return {s.labels.get("metric", s.name): s.value for s in samples if s.name in ("ablate_front_size", "ablate_best")}


def test_a_metric_that_a_replicate_lacks_has_no_mean_anywhere(tmp_path: Path) -> None:
    with planted(tmp_path, constraints=["val_loss <= 1"]) as world:
        whole = world.train(metrics(0.5, 0.5), metrics(0.25, 0.25), metrics(0.75, 0.75))
        lacks_loss = world.train(metrics(0.875, 0.125), {"val_accuracy": 0.875}, metrics(0.875, 0.125))
        lacks_accuracy = world.train({"val_loss": 0.125}, metrics(0.9375, 0.125), metrics(0.9375, 0.125))
        snapshot = world.ledger.snapshot("s")
        states = {trial.key.number: trial.state for trial in snapshot.trials}
        assert states == {0: TrialState.COMPLETE, 1: TrialState.COMPLETE, 2: TrialState.FAIL}
        assert "no finite value of val_accuracy" in str(snapshot.trials[2].error)
        trials, reports = trials_table(snapshot), reports_table(snapshot)
        together = pooled(trials, reports)[0]
        recorded = recorded_searches(world.study, snapshot)["digits"]
        for config in (whole, lacks_loss, lacks_accuracy):
            number, own = config.key.number, [r for r in snapshot.reports if r.key == config.key]
            shown = {point.key: point.value for point in report_points(own)}  # of the last epoch, MLflow keeps the last
            for metric in ("val_accuracy", "val_loss"):
                expected = by_hand(own, metric)
                answers = {
                    "search": world.search._subsearches["digits"].trials[number].metric(metric),
                    "a later driver": recorded.trials[number].metric(metric),
                    "trials.parquet": trials.row(number, named=True)[metric],
                    "pooled": together.row(number, named=True)[metric],
                    "MLflow": shown[metric],
                }
                wrong = {place: v for place, v in answers.items() if not _equal(v, expected)}
                assert not wrong, f"{metric} of trial {number}: {wrong}, expected {expected}"
        assert shown["val_accuracy/replicate_1"] == 0.9375  # what a replicate has is shown beside it


def test_a_curve_and_a_trial_s_lines_leave_out_the_mean_that_a_replicate_lacks(tmp_path: Path) -> None:
    with planted(tmp_path) as world:
        world.train(metrics(0.5, 0.5), {"val_accuracy": 0.75}, metrics(0.5, 0.5))
        snapshot = world.ledger.snapshot("s")
        trials, reports = trials_table(snapshot), reports_table(snapshot)
        found = Findings(Results(world.study, trials, reports), "digits")
        points, _, _ = learning_curves(found, "val_loss")
        assert [point["epoch"] for point in points] == [1]
        assert [p["epoch"] for p in learning_curves(found, "val_accuracy")[0]] == [1, 9]
        lines = [
            line.split() for line in printed(*details_lines(trial_details("s", world.settings, number=0))).splitlines()
        ]
        rows = [line for line in lines if line[-1:] == ["CONTINUE"]]
        assert rows == [["1", "10.00%", "3", "CONTINUE"], ["9", "58.33%", "–", "CONTINUE"]]


def test_one_front_is_shown_told_and_confirmed_where_a_replicate_lacks_a_metric(tmp_path: Path) -> None:
    confirm = {"replicates": 2}
    with planted(tmp_path, constraints=["val_loss <= 1"], confirm=confirm) as world:
        world.train(*[metrics(0.5, 0.5)] * 3)
        world.train(metrics(0.875, 0.125), {"val_accuracy": 0.875}, metrics(0.875, 0.125))
        world.train({"val_loss": 0.125}, metrics(0.9375, 0.125), metrics(0.9375, 0.125))
        assert fronts_shown(world) == {place: [0] for place in fronts_shown(world)}
        assert gauges(world.search) == {"ablate_front_size": 1.0, "val_accuracy": 0.5, "params": 144.0}
        confirmed = world.search.next_trial()
        assert confirmed is not None
        assert (confirmed.stage, confirmed.source) == ("confirm", 0)
        frozen = [note.payload for note in world.ledger.events("s") if note.kind == "frozen"]
        assert frozen == [{"search_trials": 3, "confirmed": [0]}]


def test_a_confirmation_that_lacks_a_test_metric_in_one_replicate_is_seen_and_has_no_mean(tmp_path: Path) -> None:
    with planted(tmp_path, replicates=1, confirm={"replicates": 2}, budget={"trials": 1}) as world:
        world.train(metrics(0.5, 0.5))
        config = world.train(metrics(0.5, 0.5), {**metrics(0.75, 0.5), "test_accuracy": 0.75})
        snapshot = world.ledger.snapshot("s")
        assert [note.payload for note in snapshot.events if note.kind == "test_opened"] == [{"trial": 1}]
        own = [report for report in snapshot.reports if report.key == config.key]
        table = trials_table(snapshot)
        assert math.isnan(table["test_accuracy"][1])
        assert math.isnan({point.key: point.value for point in report_points(own)}["test_accuracy"])
        assert table["state"].to_list() == ["COMPLETE", "FAIL"]
        assert "no finite value of test_accuracy" in table["error"][1]
        assert front(table, world.study.objectives)["stage"].to_list() == ["search"], "nothing is confirmed"
        assert "On the test split: test accuracy –" in printed(
            *details_lines(trial_details("s", world.settings, number=1))
        )


@pytest.mark.parametrize(
    ("planted_losses", "on_it"),
    [
        ((0.001, math.nextafter(0.001, 0.0), 0.75), [1]),  # their logarithms are equal
        ((0.0, -1.0, 0.5), [0]),  # a negative value ends its trial
        ((0.5, 0.5, 0.75), [0, 1]),
    ],
)
def test_one_front_where_logarithms_cannot_tell_two_trials_apart(
    tmp_path: Path, planted_losses: tuple[float, ...], on_it: list[int]
) -> None:
    with planted(tmp_path, objectives=LOSSES, replicates=1, confirm={"replicates": 1}) as world:
        for value in planted_losses:
            world.train(metrics(0.5, value))
        snapshot = world.ledger.snapshot("s")
        trials = trials_table(snapshot)
        assert front(trials, world.study.objectives)["trial"].to_list() == on_it
        recorded = recorded_searches(world.study, snapshot)["digits"]
        assert [member.config.key.number for member in recorded.front()] == on_it
        assert [member.config.key.number for member in world.search.front("digits")] == on_it
        assert sorted(trial.number for trial, _ in recorded.unconfirmed()) == on_it


def test_one_answer_on_page_terminal_and_status(tmp_path: Path) -> None:
    changes = {"replicates": 1, "confirm": {"replicates": 3, "margin": {"val_accuracy": 0.2}}, "budget": {"trials": 2}}
    both = [{"metric": "val_accuracy", "direction": "maximize"}, {"metric": "val_loss", "direction": "minimize"}]
    with planted(tmp_path, objectives=both, **changes) as world:
        for cost in (1, 2):
            world.train(metrics(0.25 * cost, 0.1 * cost))
        while (config := world.search.next_trial()) is not None:
            cost = 1 + (config.source or 0)
            tested = [0.6 + 0.1 * cost + shift for shift in (0.0, 0.01, 0.02 * cost)]
            world.finish(config, [{**metrics(0.5, 0.5), "test_accuracy": t, "test_loss": 0.1 * cost} for t in tested])
        snapshot = world.ledger.snapshot("s")
        trials, reports = trials_table(snapshot), reports_table(snapshot)
        page = Findings(Results(world.study, trials, reports, snapshot.events), "digits")
        status = results_as_values(world.stored())
        assert page.confirmed
        assert status["answer"]["digits"] == page.answer_text
        assert page.answer_text in " ".join(
            printed(front_lines(Results(world.study, trials, reports, snapshot.events)), width=200).split()
        )


def _equal(value: float | None, expected: float) -> bool:
    return value is not None and (value == expected or (math.isnan(value) and math.isnan(expected)))
