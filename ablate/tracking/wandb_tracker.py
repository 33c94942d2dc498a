"""The W&B tracker: one offline run for each finished trial below the study's home; `wandb sync` sends them."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from ablate.base.errors import RequestError
from ablate.core.trial import TrialConfig, TrialState
from ablate.ledger import Ledger, ReportRecord, StudyRecord, TrialRecord
from ablate.study import Study
from ablate.tracking import contents
from ablate.tracking.tracker import WriteFiles

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # W&B's own reports of its errors go out to the network
try:
    import wandb
except ImportError as error:
    raise RequestError(
        f"--tracker wandb needs the package wandb, which is not installed ({error}). Type: pip install"
        " 'ablate-search[wandb]'"
    ) from None

logging.getLogger("wandb").setLevel(logging.WARNING)

FOLDER = "wandb"  # in a study's home; W&B makes it
SHOWN = "shown"  # folder with a file for each trial whose run is complete
PROJECT = "ablate"
INIT_SECONDS = 20.0


class WandbTracker:
    """Writes a run for each trial that has ended, once; Tracker states the guarantees.

    A run is written as a whole, because an offline run cannot be continued. What a killed driver left of one is
    removed, and the run is written again. Nothing is sent: no network and no account are needed.
    """

    def __init__(self, _name: str = "wandb", *, study: Study, ledger: Ledger, home: Path, **_: object) -> None:
        self._study, self._ledger, self.home = study, ledger, home.absolute()
        self.label = f"W&B {self.home}"
        self._revision = -1

    def sync(self) -> None:
        """Write the run of every trial that has ended since the last call."""
        record = self._ledger.study(self._study.name)
        if record is None:
            return
        changed = self._ledger.trials_since(record.name, self._revision)
        ended = [trial for trial in changed if trial.state.finished and not self._mark(trial, record).exists()]
        new = sorted(ended, key=lambda trial: trial.key)
        written: list[TrialRecord] = []
        try:
            for trial in new:
                self._show(trial, record)
                written.append(trial)
        finally:
            if new:
                wandb.teardown()  # only then is a run's file whole: `finish` returns before
            for trial in written:
                self._mark(trial, record).touch()
        self._revision = max((trial.revision for trial in changed), default=self._revision)

    def log_models(self, configs: Sequence[TrialConfig], *, write: WriteFiles) -> None:
        """Do nothing: these runs hold no files."""

    def log_artifacts(self, paths: Sequence[Path]) -> None:
        """Do nothing: these runs hold no files."""

    def close(self) -> Sequence[str]:
        """Write what is missing."""
        self.sync()
        return ()

    def _mark(self, trial: TrialRecord, record: StudyRecord) -> Path:
        """Return the file that says that a trial's run is whole."""
        return self.home / FOLDER / SHOWN / _run_id(trial, record)

    def _show(self, trial: TrialRecord, record: StudyRecord) -> None:
        run_id = _run_id(trial, record)
        for fragment in (self.home / FOLDER).glob(f"offline-run-????????_??????-{run_id}"):
            shutil.rmtree(fragment)
        reports = self._ledger.reports(trial.key.study, trial.key.dataset, trial.key.number)
        self._mark(trial, record).parent.mkdir(parents=True, exist_ok=True)
        _write(self._study, trial, reports, run_id=run_id, home=self.home)


def _run_id(trial: TrialRecord, record: StudyRecord) -> str:
    return f"{contents.study_id(record)}-{trial.key.dataset}-{trial.key.number}"


def _write(study: Study, trial: TrialRecord, reports: Sequence[ReportRecord], *, run_id: str, home: Path) -> None:
    """Write one complete run; W&B makes its folder below `home`."""
    config = trial.config
    run = wandb.init(
        id=run_id,
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        group=study.name,
        job_type=config.stage,
        name=contents.run_name(config, several=len(study.datasets) > 1),
        notes=contents.state_text(trial),
        tags=[config.key.dataset, str(trial.state)],
        config=_config(config),
        reinit="create_new",
        settings=_settings(home),
    )
    run.define_metric("*", step_metric="epoch")
    for step, points in groupby(contents.report_points(reports), key=lambda point: point.step):
        run.log({"epoch": step, **{point.key: point.value for point in points}}, step=step)
    shown = [*contents.size_points(trial), *contents.counted_points(trial, reports)]
    run.summary.update({point.key: point.value for point in shown})
    run.summary.update({f"final/{name}": value for name, value in contents.final_objectives(study, trial, reports)})
    run.summary.update({"state": str(trial.state), "attempt": trial.attempt})
    run.finish(exit_code=int(trial.state is TrialState.FAIL))


def _config(config: TrialConfig) -> dict[str, Any]:
    """Return the settings of a trial by dotted name; empty ones are left out."""
    fixed = {"dataset": config.key.dataset, "trial": config.key.number, "stage": config.stage, "seeds": [*config.seeds]}
    read = {**config.settings.described(config.parameters.keys()), **config.parameters}
    named = {**fixed, "variant": config.variant, "source": config.source, **read}
    return {name: value for name, value in named.items() if value not in (None, {})}


def _settings(home: Path) -> wandb.Settings:
    """Return settings by which W&B writes a run and nothing else: no network, console, command line or machine."""
    return wandb.Settings(
        mode="offline", root_dir=str(home), silent=True, console="off", init_timeout=INIT_SECONDS, save_code=False,
        disable_code=True, disable_git=True, x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True,
        x_save_requirements=False,
    )  # fmt: skip
