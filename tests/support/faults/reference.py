"""The small study that most faults are put into, and what an uninterrupted run of it leaves."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from support.faults.ledger_dump import ATTEMPT, MAY_DIFFER, Dump, dump, first_difference
from support.faults.study_runs import LOCAL, StudyRun

STUDY = """\
study: small
seed: 3
datasets: {digits: {patch: 4}}
model: {width: 8, depth: 1, mlp: {choices: [none, 8, 16]}}
training: {epochs: 3, learning_rate: {float: [1.0e-3, 1.0e-2], log: true}}
objectives: [{metric: val_loss, direction: minimize}]
sampler: {name: tpe, startup_trials: 2}
scheduler: {name: asha, reduction: 3, min_epochs: 1}
budget: {trials: 7}
confirm: {replicates: 2, top: 1}
"""
# With this seed every other trial is stopped: a rung that was forgotten anywhere leads to another study.
STEPS = 20  # optimiser steps of one epoch: 1,294 images in batches of 64, the last one dropped or short


@dataclass(frozen=True, kw_only=True)
class Reference:
    """An uninterrupted run: its ledger, the steps it took, and how long it was."""

    run: StudyRun
    ledger: Dump
    steps: Counter[tuple[str, int]]
    seconds: float

    def compare(self, run: StudyRun, *, repeated: int) -> int:
        """Require that `run` left what this one left, with at most so many steps repeated; return how many were."""
        found = dumped(run)
        assert not first_difference(self.ledger, found)
        for name in ("trials.parquet", "reports.parquet"):
            assert table(run.home / name).equals(table(self.run.home / name), null_equal=True), name
        assert (run.home / "report" / "front.csv").read_text() == (self.run.home / "report" / "front.csv").read_text()
        taken = run.steps_by_trial()
        assert taken.keys() == self.steps.keys()
        more = sum((taken - self.steps).values())
        assert sum((self.steps - taken).values()) <= 1, "steps that were never taken"
        assert more <= repeated, f"{more} steps repeated, {repeated} allowed"
        return more


def run_uninterrupted(folder: Path, *, options: Sequence[str] = LOCAL, fresh: bool = False) -> Reference:
    """Run the small study to its end."""
    run = StudyRun(folder=folder, text=STUDY, options=options)
    began = time.monotonic()
    run.finish(fresh=fresh)
    seconds = time.monotonic() - began
    found = dumped(run)
    steps = run.steps_by_trial()
    epochs = sum(row["epochs_done"] for row in found["ablate_trial"])
    assert sum(steps.values()) == epochs * STEPS
    return Reference(run=run, ledger=found, steps=steps, seconds=seconds)


def dumped(run: StudyRun) -> Dump:
    """Return the canonical dump of a run's ledger."""
    with run.ledger() as ledger:
        return dump(ledger)


def table(file: Path) -> pl.DataFrame:
    """Return a table of a study's home without the columns that may differ."""
    frame = pl.read_parquet(file)
    frame = frame.drop(MAY_DIFFER["ablate_trial"] | MAY_DIFFER["ablate_report"], strict=False)
    return frame.with_columns(pl.col("checkpoint").str.replace(ATTEMPT.pattern, ""))
