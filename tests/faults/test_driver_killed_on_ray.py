"""Driver, Ray and all running trials killed at once, again and again: nothing lost, nothing done twice."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.faults.ledger_dump import raw
from support.faults.replayed import check_decisions, check_suggestions
from support.faults.study_runs import StudyRun

EPOCHS = 9
STUDY = """\
study: crowded
seed: 11
datasets: {digits: {patch: 4}}
model: {width: {choices: [8, 16]}, depth: 1, mlp: {choices: [none, 8, 16]}}
training: {epochs: 9, steps_per_epoch: 1, batch_size: 32, learning_rate: {float: [1.0e-3, 1.0e-1], log: true}}
objectives: [{metric: val_loss, direction: minimize}]
sampler: {name: tpe, startup_trials: 4}
scheduler: {name: asha, reduction: 3, min_epochs: 1}
budget: {trials: %d}
confirm: {replicates: 2, top: 1}
"""
OPTIONS = ("--device", "cpu", "--tracker", "none")


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_killed_whole_with_several_trials_at_a_time(
    tmp_path: Path, long: bool, measured: Callable[[str], None]
) -> None:
    kills, trials, at_a_time, pace = (20, 60, 4, 0.3) if long else (2, 8, 2, 0.05)
    run = StudyRun(folder=tmp_path, text=STUDY % trials, options=OPTIONS, cpus=at_a_time, pace=pace)
    draws = random.Random(44)
    seen: list[dict[str, Any]] = []
    over: dict[int, dict[str, Any]] = {}
    for kill in range(kills):
        command = run.search()
        if kill % 4 == 1:  # any time of its start-up
            time.sleep(draws.uniform(0, 6))
        else:
            goal = run.committed() + draws.randint(1, 12)
            command.until(lambda goal=goal: run.committed() >= goal)
            time.sleep(draws.uniform(0, 0.3))
        assert command.code is None, f"over before kill {kill + 1}; make the study longer:\n{command.output}"
        command.end()
        if not run.began():
            continue
        with run.ledger() as ledger:
            tables = raw(ledger)
        assert tables["ablate_report"][: len(seen)] == seen, "what was committed is kept"
        seen = tables["ablate_report"]
        now = {row["number"]: row for row in tables["ablate_trial"]}
        assert all(now[number] == row for number, row in over.items())
        over = {number: row for number, row in now.items() if row["finished_at"] is not None}
    run.finish(seconds=600)

    with run.ledger() as ledger:
        tables = raw(ledger)
        reports = ledger.reports_since(run.name, 0)
    assert tables["ablate_report"][: len(seen)] == seen
    recorded = run.trials()
    assert [trial.key.number for trial in recorded] == list(range(len(recorded))), "dense"
    assert sum(trial.config.stage == "search" for trial in recorded) == trials
    assert {str(trial.state) for trial in recorded} <= {"COMPLETE", "PRUNED"}
    for trial in recorded:
        own = Counter(report.epoch for report in reports if report.key == trial.key)
        assert own == {epoch: len(trial.config.seeds) for epoch in range(1, trial.epochs_done + 1)}
        assert (trial.epochs_done == EPOCHS) or str(trial.state) == "PRUNED"
    taken = run.steps_by_trial()
    more = {trial.key.number: taken["digits", trial.key.number] - trial.epochs_done for trial in recorded}
    assert min(more.values()) >= 0
    assert sum(more.values()) <= at_a_time * kills, more
    stops = check_decisions(run)
    assert stops, "a study in which nothing is stopped shows nothing"
    assert check_suggestions(run) == trials
    measured(f"kill -9 of driver and Ray, {at_a_time} trials at a time, {kills} kills: "
             f"{sum(more.values())} of at most {at_a_time * kills} steps repeated")  # fmt: skip
