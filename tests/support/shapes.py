"""The shapes of scripts below `tests/shapes`: their studies, run in a copy of their folder and killed twice."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ablate.ledger import ReportRecord, TrialRecord
from support.faults import killing
from support.faults.study_runs import LOCAL, StudyRun
from support.paths import TESTS
from support.warm import fork_from_here

SHAPES = TESTS / "shapes"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A study of a shape: `file` in the folder `name`, run by a command of ablate; `needs` are optional packages."""

    name: str
    file: str = "study"
    command: str = "search"
    needs: Sequence[str] = ()

    def __str__(self) -> str:
        return self.name if self.file == "study" else f"{self.name}-{self.file}"

    @property
    def folder(self) -> Path:
        """The folder of the shape."""
        return SHAPES / self.name

    @property
    def text(self) -> str:
        """The study file."""
        return (self.folder / f"{self.file}.yaml").read_text()

    def copied(self, folder: Path) -> StudyRun:
        """Return the study in a copy of its folder; skip the test if a package is missing."""
        for package in self.needs:
            if importlib.util.find_spec(package) is None:
                pytest.skip(f"{package} is an optional package")
        shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns("*.yaml", "__pycache__"))
        return StudyRun(folder=folder, text=self.text, options=LOCAL)

    def run(self, run: StudyRun, fault: Callable[[], object] | None = None) -> int:
        """Run the study to its end, or to the end that a fault gives it, and return the exit code."""
        options = ("--runs-dir", str(run.runs), "--data-dir", str(run.data), *run.options)
        inject = partial(_begin, str(run.folder), fault)
        command = run.start(self.command, str(run.file), *options, inject=inject)
        code = command.wait()
        assert code == (0 if fault is None else -signal.SIGKILL), command.output
        return code

    def run_killed(self, run: StudyRun) -> None:
        """Run the study to its end; the driver dies before a report is committed, and a search once more after one."""
        self.run(run, partial(killing.at_report, "before", 3))
        if self.command == "search":
            self.run(run, partial(killing.at_report, "after", 2))
        self.run(run)


def _begin(folder: str, fault: Callable[[], object] | None) -> None:
    """Work in a folder, with the programs of this Python first."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ.pop("PYTEST_CURRENT_TEST", None)  # of the test that ran when the process that is forked was started
    fork_from_here()
    killing.in_folder(folder, fault)


SHAPE_LIST = (
    Shape(name="mnist_cnn"),
    Shape(name="word_language_model"),
    Shape(name="nanogpt"),
    Shape(name="mingpt"),
    Shape(name="mingpt", file="parts", command="compare"),
    Shape(name="simple_vit"),
    Shape(name="simple_vit", file="parts", command="compare"),
    Shape(name="bert_trainer", needs=("transformers", "accelerate")),
    Shape(name="bert_trainer", file="parts", command="compare", needs=("transformers", "accelerate")),
    Shape(name="lightning_module", needs=("lightning", "torchmetrics")),
    Shape(name="vit_ema"),
    Shape(name="cnn_jax", needs=("jax",)),
    Shape(name="boosting_early", needs=("xgboost",)),
    Shape(name="sklearn_pipeline"),
    Shape(name="hydra_overrides"),
    Shape(name="checkpoint_reporter"),
    Shape(name="define_by_run"),
    Shape(name="ddp"),
)

Row = tuple[str, int, int, int]  # stage, trial, epoch, replicate


def rows(run: StudyRun) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Return each trial's settings and end, and each report's metrics and decision."""
    trials, found = read(run)
    stages = {trial.key.number: trial.config.stage for trial in trials}
    ends = {(t.config.stage, t.key.number): (t.config.settings, str(t.state), t.epochs_done, t.error) for t in trials}
    reports = {
        (stages[r.key.number], r.key.number, r.epoch, r.replicate): (
            dict(r.metrics),
            str(r.decision),
            r.final,
            r.diverged,
        )
        for r in found
    }
    assert len(reports) == len(found), "a row is doubled"
    return ends, reports


def read(run: StudyRun) -> tuple[list[TrialRecord], list[ReportRecord]]:
    """Return the trials and the reports of a study."""
    with run.ledger() as ledger:
        return ledger.trials(run.name), ledger.reports_since(run.name, 0)


def last(run: StudyRun, metric: str, *, stage: str) -> Mapping[int, list[float]]:
    """Return the values of a metric in the last report of each complete trial of a stage, one for each seed."""
    trials, reports = read(run)
    chosen = {t.key.number: t.epochs_done for t in trials if t.config.stage == stage and str(t.state) == "COMPLETE"}
    return {
        number: [r.metrics[metric] for r in reports if (r.key.number, r.epoch) == (number, epoch)]
        for number, epoch in chosen.items()
    }
