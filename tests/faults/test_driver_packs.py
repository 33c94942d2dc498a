"""Packs (`--pack 4`) under faults: what an interrupted study leaves is what one trial at a time leaves, bit for bit."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest

from support.faults import counting, killing, packed, small_disk
from support.faults.ledger_dump import Dump, dump, first_difference
from support.faults.lossless import attempts_begun, check_whole
from support.faults.study_runs import LOCAL, Command, StudyRun

STEPS, TRIALS, EPOCHS = 8, 8, 4
STUDY = f"""\
study: packs
seed: 5
datasets: {{digits: {{patch: 4}}}}
model: {{width: 8, depth: 1, mlp: none}}
training: {{epochs: {EPOCHS}, steps_per_epoch: {STEPS}, batch_size: 32, learning_rate: {{float: [1.0e-3, 1.0e-1], log: true}}}}
objectives: [{{metric: val_loss, direction: minimize}}]
sampler: {{name: random}}
scheduler: {{name: none}}
budget: {{trials: {TRIALS}}}
confirm: {{replicates: 3, top: 2}}
"""
PACK = ("--pack", "4")
RAY = ("--device", "cpu", "--tracker", "none")


def study(folder: Path, *, text: str = STUDY, pace: float = 0.0, ray: bool = False, cpus: int = 2) -> StudyRun:
    return StudyRun(folder=folder, text=text, options=RAY if ray else LOCAL, cpus=cpus if ray else None, pace=pace)


def search(run: StudyRun, *more: str, then: killing.Inject | None = None) -> Command:
    return run.search(*more, inject=partial(_with, then))


def _with(then: killing.Inject | None) -> None:
    packed.into()
    if then is not None:
        then()


def finish(run: StudyRun, *more: str) -> str:
    (run.data / counting.PACE).write_text("0")
    command = search(run, *more)
    assert command.wait() == 0, command.output
    return command.output


def tables(run: StudyRun) -> Dump:
    """Return what the ledger holds, by what each row is about: trials of a pack report in another order."""
    with run.ledger() as ledger:
        return dump(ledger, ordered=False)


def beside(run: StudyRun) -> int:
    """Return beside how many others a trial was trained, at most."""
    return max((line["beside"] for line in run.steps()), default=0)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> StudyRun:
    """The study one trial at a time, without packs and without a fault."""
    run = study(tmp_path_factory.mktemp("alone"))
    finish(run)
    assert beside(run) == 0
    return run


def compare(run: StudyRun, alone: StudyRun, *, repeated: int, ordered: Iterable[str] = ()) -> int:
    """Require that `run` left what `alone` left; return how many steps it repeated, at most those allowed."""
    assert not first_difference(tables(alone), tables(run))
    more = run.steps_by_trial() - alone.steps_by_trial()
    assert sum(more.values()) <= repeated, more
    assert not alone.steps_by_trial() - run.steps_by_trial()
    return sum(more.values())


def test_killed_before_and_after_a_report_and_in_an_epoch(tmp_path: Path, alone: StudyRun) -> None:
    run = study(tmp_path, pace=0.01)
    for when, report in (("before", 2), ("after", 3)):
        fault = partial(killing.at_report, when, report)  # of four reports of one turn
        assert search(run, *PACK, then=fault).wait() == -9
    command = search(run, *PACK)
    goal = len(run.steps()) + 4 * STEPS + STEPS
    command.until(lambda: len(run.steps()) >= goal)
    command.kill()
    assert "continues" in finish(run, *PACK)
    assert beside(run) == 3
    compare(run, alone, repeated=4 * STEPS)
