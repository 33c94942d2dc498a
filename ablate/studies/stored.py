"""Reads studies without running them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import polars as pl
from rich.console import RenderableType

from ablate.base.errors import RequestError, did_you_mean
from ablate.base.files import refuse_links
from ablate.core.objectives import ranked
from ablate.core.trial import TrialConfig, TrialState
from ablate.ledger import EventRecord, Ledger, Snapshot, StudyRecord, TrialRecord
from ablate.results.front.front import column_of, confirmed, front
from ablate.results.report import result_lines
from ablate.results.trials.pooling import pooled
from ablate.results.trials.results import Results
from ablate.results.trials.tables import reports_table, trials_table
from ablate.studies.homes import with_store
from ablate.studies.locations import Locations
from ablate.study import Study, parse_study

KNOWN_SIZES = "known_sizes"  # the event that holds which metrics a function's `size` tells, and how


@dataclass(frozen=True, kw_only=True)
class Stored:
    """One study as its ledger held it at one moment; `storage` is the ledger's URL without its password."""

    study: Study
    record: StudyRecord
    snapshot: Snapshot
    storage: str

    @cached_property
    def results(self) -> Results:
        """The results of all data sets that have trials."""
        return Results.of(cover_datasets(self.study, self.snapshot.trials), self.snapshot)

    @staticmethod
    def of(ledger: Ledger, name: str, number: int | None = None) -> Stored:
        """Read study `name` in one transaction; raise RequestError with the known names if it does not exist.

        With `number`, only trials of that number are read.
        """
        snapshot = ledger.snapshot(name, number)
        if snapshot.study is None:
            raise RequestError(_explain_unknown(name, [record.name for record in ledger.studies()], ledger.url))
        study = knowing(parse_study(snapshot.study.file_text, name, known_good=True), known_sizes(snapshot.events))
        return Stored(study=study, record=snapshot.study, snapshot=snapshot, storage=ledger.url)


def known_sizes(events: Iterable[EventRecord]) -> dict[str, Any] | None:
    """Return what the ledger holds of a function's `size`, None if it has told nothing; the last event is valid."""
    return next((event.payload for event in reversed([*events]) if event.kind == KNOWN_SIZES), None)


def knowing(study: Study, sizes: Mapping[str, Any] | None) -> Study:
    """Return the study with what `known_sizes` has found."""
    return study if sizes is None else study.knowing(sizes["metrics"], sizes["settings"], builds=sizes["builds"])


def read_study(name: str, locations: Locations, number: int | None = None) -> Stored:
    """Read study `name` from its ledger as of one moment (`Stored.of`); raise RequestError with the known names."""
    with open_ledger(name, locations) as ledger:
        found = Stored.of(ledger, name, number)
    return replace(found, snapshot=with_files(found.snapshot, locations))


def with_files(snapshot: Snapshot, locations: Locations) -> Snapshot:
    """Return a snapshot of a study that names the place of its trials' files."""
    assert snapshot.study is not None
    root = with_store(locations, snapshot.study).checkpoint_root(snapshot.study.name)
    return replace(snapshot, checkpoints=root)


@contextmanager
def open_ledger(name: str, locations: Locations) -> Iterator[Ledger]:
    """Open the ledger of study `name`, which must exist; raise RequestError with the known names."""
    home = locations.home(name)
    if locations.storage is None:
        refuse_links(home, folders=())
        if not (home / "ledger.sqlite").exists():
            if home.is_dir():
                advice = "Move it back, or name the ledger that this folder belongs to with --storage."
                raise RequestError(f"study {name!r}: there is no ledger.sqlite in {home}. {advice}")
            raise RequestError(_explain_unknown(name, known_names(locations), str(locations.runs_dir)))
    with Ledger.open(locations.storage_url(name), create=False) as ledger:
        yield ledger


def results_of(study: Study, snapshot: Snapshot) -> RenderableType:
    """Return the front or the comparison of `snapshot`, to be printed in a terminal."""
    return result_lines(Results.of(cover_datasets(study, snapshot.trials), snapshot))


def known_names(locations: Locations) -> list[str]:
    """Return the names of the studies below the runs folder, or in `storage`."""
    if locations.storage is not None:
        with Ledger.open(locations.storage, create=False) as ledger:
            return [record.name for record in ledger.studies()]
    return sorted(path.parent.name for path in locations.root.glob("*/ledger.sqlite"))


def require_compared(found: Stored) -> Study:
    """Return a comparison with all data sets that have trials; raise RequestError for a study that compares nothing."""
    if found.study.compare is None:
        raise RequestError(f"study {found.study.name!r} compares nothing: its file has no `compare`")
    return cover_datasets(found.study, found.snapshot.trials)


def select_networks(study: Study, snapshot: Snapshot) -> list[TrialConfig]:
    """Return the trials whose networks are a study's result: the confirmed ones, or the front of a search without any.

    Front and confirmations are those of the page: a configuration that failed on a further seed is not among them.
    """
    chosen = result_rows(study, trials_table(snapshot), reports_table(snapshot))
    places = set(chosen.select("dataset", "trial").rows())
    return [trial.config for trial in snapshot.trials if (trial.key.dataset, trial.key.number) in places]


def result_rows(study: Study, trials: pl.DataFrame, reports: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the confirmed networks, or of the front of a search without confirmation."""
    return search_front(study, trials) if study.confirm is None else confirmed(pooled(trials, reports)[0])


def search_front(study: Study, trials: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the front of the search."""
    searched = trials.filter(pl.col("stage") == "search", pl.col("dataset").is_in(study.labels))
    return front(searched, study.objectives, constraints=study.constraints)


def trial_of(found: Stored, number: int | None, dataset: str | None) -> TrialRecord:
    """Return trial `number`; without a number, the best complete trial (`ranked`).

    Raises RequestError if there is no such trial, or several.
    """
    study, trials = found.study, found.snapshot.trials
    if dataset is not None and dataset not in study.datasets:
        raise RequestError(f"study {study.name!r} has no data set {dataset!r}. {did_you_mean(dataset, study.datasets)}")
    places = [place for place, trial in enumerate(trials) if dataset in (None, trial.key.dataset)]
    if number is not None:
        own = [trials[place] for place in places if trials[place].key.number == number]
        if len(own) != 1:
            names = ", ".join(trial.key.dataset for trial in own)
            several = f"several data sets have one. Type --dataset to say which: {names}"
            raise RequestError(
                f"trial {number} of study {study.name!r}: {several if own else 'there is no such trial'}"
            )
        return own[0]
    complete = [p for p in places if trials[p].state is TrialState.COMPLETE and trials[p].config.stage != "tune"]
    if not complete:
        raise RequestError(f"study {study.name!r} has no complete trial yet")
    values, states = column_of(trials_table(found.snapshot)[complete], "search"), [TrialState.COMPLETE] * len(complete)
    return trials[complete[ranked(study.objectives, study.constraints, states, values)[0]]]


def cover_datasets(study: Study, trials: Iterable[TrialRecord]) -> Study:
    """Return the study with every data set that has trials, including those of earlier drivers outside `only`."""
    if study.only is None:
        return study
    there = {*study.labels, *(trial.key.dataset for trial in trials)}
    return study.model_copy(update={"only": tuple(label for label in study.datasets if label in there)})


def _explain_unknown(name: str, known: list[str], place: str) -> str:
    if not known:
        return f"study {name!r}: there is no study in {place} yet. Start one with: ablate search FILE"
    return f"study {name!r} is not in {place}. {did_you_mean(name, known)}"
