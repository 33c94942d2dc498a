"""A deterministic study: the same one trial at a time, four at a time on Ray, and killed on the way."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from support.faults.ledger_dump import Dump, dump, first_difference
from support.faults.study_runs import LOCAL, StudyRun

TRIALS, WINDOW, AT_A_TIME, KILLS = 16, 4, 4, 4
STUDY = f"""\
study: fixed
seed: 21
deterministic: {WINDOW}
datasets: {{digits: {{patch: 4}}}}
model: {{width: {{choices: [8, 16]}}, depth: 1, mlp: {{choices: [none, 8, 16]}}}}
training: {{epochs: 9, steps_per_epoch: 1, batch_size: 32, learning_rate: {{float: [1.0e-3, 1.0e-1], log: true}}}}
objectives: [{{metric: val_loss, direction: minimize}}]
sampler: {{name: tpe, startup_trials: 3}}
scheduler: {{name: asha, reduction: 3, min_epochs: 1}}
budget: {{trials: {TRIALS}}}
confirm: {{replicates: 2, top: 1}}
"""
RAY = ("--device", "cpu", "--tracker", "none")


def tables(run: StudyRun) -> Dump:
    with run.ledger() as ledger:
        return dump(ledger, ordered=False)


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_the_same_study_at_any_concurrency_and_through_kills(tmp_path: Path) -> None:
    alone = StudyRun(folder=tmp_path / "alone", text=STUDY, options=LOCAL)
    alone.finish()
    expected = tables(alone)
    states = [row["state"] for row in expected["ablate_trial"]]
    assert states.count("PRUNED") >= 2, "a study in which nothing is stopped shows nothing"

    crowd = StudyRun(folder=tmp_path / "crowd", text=STUDY, options=RAY, cpus=AT_A_TIME, pace=0.1)
    crowd.finish(seconds=300)
    assert not first_difference(expected, tables(crowd))

    killed = StudyRun(folder=tmp_path / "killed", text=STUDY, options=RAY, cpus=AT_A_TIME, pace=0.2)
    draws = random.Random(5)
    for _ in range(KILLS):
        command = killed.search()
        goal = killed.committed() + draws.randint(3, 12)
        command.until(lambda goal=goal: killed.committed() >= goal)
        command.end()
    killed.finish(seconds=300)
    assert not first_difference(expected, tables(killed))
