"""Look at studies without running them: their states, and their report rebuilt from the ledger alone."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import RenderableType

from ablate.errors import AblateError, RequestError, did_you_mean
from ablate.ledger import Ledger, StudyRecord, TrialRecord
from ablate.report import result_lines, write_report
from ablate.results import reports_table, trials_table, write_tables
from ablate.settings import Settings
from ablate.study import Study
from ablate.study_file import parse_study
from ablate.trial import TrialState

logger = logging.getLogger("ablate")


@contextmanager
def opened(name: str, settings: Settings) -> Iterator[tuple[Ledger, StudyRecord]]:
    """Open the ledger that holds study `name`; raise RequestError naming the studies there are."""
    home = settings.home(name)
    if settings.storage is None and not (home / "ledger.sqlite").is_file():
        raise RequestError(_unknown(name, known_names(settings), str(settings.runs_dir)))
    with Ledger.open(settings.storage_url(name), create=False) as ledger:
        record = ledger.study(name)
        if record is None:
            raise RequestError(_unknown(name, [r.name for r in ledger.studies()], ledger.url))
        yield ledger, record


def status(name: str, settings: Settings) -> dict[str, Any]:
    """Return how study `name` stands, as plain values: states and leaders per data set, and who drives it."""
    with opened(name, settings) as (ledger, record):
        trials = ledger.trials(name)
        study = _covered(parse_study(record.file_text, name, known_good=True), trials_table(ledger, name))
        counts = ledger.counts(name)
        driver = None
        if record.holder and record.held_until and record.held_until > time.time():
            driver = {"holder": record.holder, "since": record.held_since, "until": record.held_until}
        return {
            "study": name,
            "home": str(settings.home(name)),
            "storage": ledger.url,
            "driver_epoch": record.epoch,
            "driver": driver,
            "trials": {d: {s.value: counts.get(d, {}).get(s, 0) for s in TrialState} for d in study.labels},
            "wall_seconds": sum(t.wall_seconds for t in trials),
            "failed": [{"trial": str(t.key), "error": t.error} for t in trials if t.state is TrialState.FAIL],
            "test_opened": [note.dataset for note in ledger.notes(name) if note.kind == "test_opened"],
        }


def front_of(name: str, settings: Settings) -> RenderableType:
    """Return the front, or the comparison, of study `name` as it stands, for a terminal."""
    with opened(name, settings) as (ledger, record):
        return results_of(ledger, parse_study(record.file_text, name, known_good=True))


def results_of(ledger: Ledger, study: Study) -> RenderableType:
    """Return what an open study found so far, for a terminal."""
    trials, reports = trials_table(ledger, study.name), reports_table(ledger, study.name)
    return result_lines(_covered(study, trials), trials, reports)


def known_names(settings: Settings) -> list[str]:
    """Return the names of the studies below the runs folder, or in `storage`."""
    if settings.storage is not None:
        with Ledger.open(settings.storage, create=False) as ledger:
            return [record.name for record in ledger.studies()]
    return sorted(path.parent.name for path in settings.runs_dir.glob("*/ledger.sqlite"))


def overview(settings: Settings) -> list[Mapping[str, Any]]:
    """Return the status of every study that can be read, in order of name; say which cannot and why."""
    found: list[Mapping[str, Any]] = []
    for name in known_names(settings):
        try:
            found.append(status(name, settings))
        except AblateError as error:
            logger.warning("%s is left out: %s", name, error)
    return found


def rebuild(name: str, settings: Settings) -> tuple[Study, Path]:
    """Write tables and report of study `name` from its ledger alone; return the study and the page's path."""
    with opened(name, settings) as (ledger, record):
        study = parse_study(record.file_text, name, known_good=True)
        home = settings.make_home(name)
        return study, write_results(ledger, study, home)


def write_results(ledger: Ledger, study: Study, home: Path) -> Path:
    """Write `trials.parquet`, `reports.parquet` and, from these, the report into `home`; return the page's path."""
    trials, reports = (pl.read_parquet(path) for path in write_tables(ledger, study.name, home))
    return write_report(_covered(study, trials), trials, reports, home, notes=ledger.notes(study.name))


def trial_of(ledger: Ledger, record: StudyRecord, number: int | None, dataset: str | None) -> TrialRecord:
    """Return the trial that is meant: without a number the leader on the first objective.

    Raises RequestError where there is none, or several.
    """
    study = parse_study(record.file_text, record.name, known_good=True)
    place = _place(study, trials_table(ledger, study.name), number, dataset)
    return next(t for t in ledger.trials(study.name, place[0]) if t.key.number == place[1])


def _place(study: Study, trials: pl.DataFrame, number: int | None, dataset: str | None) -> tuple[str, int]:
    if dataset is not None and dataset not in study.datasets:
        raise RequestError(f"study {study.name!r} has no data set {dataset!r}. {did_you_mean(dataset, study.datasets)}")
    rows = trials if dataset is None else trials.filter(pl.col("dataset") == dataset)
    if number is not None:
        rows = rows.filter(pl.col("trial") == number)
        if rows.height != 1:
            several = f"several data sets have one. Type --dataset to say which: {', '.join(rows['dataset'])}"
            raise RequestError(
                f"trial {number} of study {study.name!r}: {several if rows.height else 'there is no such trial'}"
            )
        return rows["dataset"][0], number
    objective = study.objectives[0]
    complete = rows.filter(pl.col("state") == TrialState.COMPLETE)
    if not complete.height:
        raise RequestError(f"study {study.name!r} has no complete trial yet")
    ranked = complete.sort(objective.metric, descending=objective.direction == "maximize", nulls_last=True)
    return ranked["dataset"][0], ranked["trial"][0]


def _covered(study: Study, trials: pl.DataFrame) -> Study:
    """Return the study with every data set that has trials: those of earlier drivers are shown with `only`'s."""
    if study.only is None:
        return study
    there = {*study.labels, *trials["dataset"]}
    return study.model_copy(update={"only": tuple(label for label in study.datasets if label in there)})


def _unknown(name: str, known: list[str], place: str) -> str:
    if not known:
        return f"study {name!r}: there is no study in {place} yet. Start one with: ablate search FILE"
    return f"study {name!r} is not in {place}. {did_you_mean(name, known)}"
