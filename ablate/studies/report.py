"""Writes the report of a study, and rebuilds it from the ledger alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from ablate.base.files import DiskFolder
from ablate.ledger import Snapshot
from ablate.results.report import write_report
from ablate.results.report.paper import paper
from ablate.results.trials.results import Results
from ablate.results.trials.tables import cannot_write, write_tables
from ablate.studies.campaign_status import status_lines, status_of
from ablate.studies.homes import refuse_other_ledger
from ablate.studies.ledger_campaign import LedgerCampaign, campaign_of
from ablate.studies.locations import Locations
from ablate.studies.stored import Stored, cover_datasets, open_ledger, with_files
from ablate.study import Study


def rebuild(name: str, locations: Locations) -> tuple[Study, Path]:
    """Write tables and report of study `name` from its record; return the study and the page's path."""
    results = _read_results(name, locations)  # the records, most of the memory, are gone before the page is drawn
    return results.study, write_report(results, locations.home(name))


def writing_text(name: str) -> str:
    """Return the line for a user who waits for the report of study `name`."""
    return f"Writing the report of {name}: its tables and figures …"


def write_paper(
    name: str, locations: Locations, columns: Sequence[str] = (), names: Mapping[str, str] | None = None
) -> Path:
    """Write report/table.tex of study `name`, its table for a paper (`paper`); return the file's path."""
    text = paper(_read(name, locations).results, columns, names)
    folder = locations.make_home(name) / "report"
    try:
        DiskFolder(folder).write("table.tex", text.encode())
    except OSError as error:
        raise cannot_write(f"the table below {folder}", error) from error
    return folder / "table.tex"


def _read_results(name: str, locations: Locations) -> Results:
    found = _read(name, locations)
    return _with_tables(found.study, found.snapshot, locations.make_home(name))


def _read(name: str, locations: Locations) -> Stored:
    """Read study `name`, whose home the caller writes; refuse a home that belongs to another ledger."""
    with open_ledger(name, locations) as ledger:
        found = Stored.of(ledger, name)
        refuse_other_ledger(locations.home(name), name, ledger, locations)
    return replace(found, snapshot=with_files(found.snapshot, locations))


def write_results(study: Study, snapshot: Snapshot, home: Path) -> Path:
    """Write `trials.parquet`, `reports.parquet` and, from these, the report into `home`; return the page's path."""
    return write_report(_with_tables(study, snapshot, home), home)


def _with_tables(study: Study, snapshot: Snapshot, home: Path) -> Results:
    trials, reports = (pl.read_parquet(path, glob=False) for path in write_tables(snapshot, home))
    results = Results(cover_datasets(study, snapshot.trials), trials, reports, snapshot.events)
    return replace(results, campaign=campaign_values(study, snapshot))


def results_of_page(found: Stored) -> Results:
    """Return the results of a study with what a campaign's page shows."""
    return replace(found.results, campaign=campaign_values(found.study, found.snapshot))


def campaign_values(study: Study, snapshot: Snapshot) -> dict[str, Any] | None:
    """Return what a campaign's page shows: its state in values and words, and each candidate; None for another study.

    A candidate's row is its verdict (`Verdict.as_values`) with its `reign`, its verdict in words, the gain of each run
    over the mean of the champion's, and what has added up by then: the `champion_gain` and the `error_spent`.
    """
    if study.campaign is None:
        return None
    assert snapshot.study is not None
    found = campaign_of(Stored(study=study, record=snapshot.study, snapshot=snapshot, storage=""))
    rows, gained = [], 0.0
    for verdict in found.verdicts():
        arm, values = verdict.arm, verdict.as_values()
        assert arm is not None
        gained += values["gain"] if verdict.state == "keep" else 0.0
        spent = sum(found.campaign.rule.rate(k) for k in range(1, arm.k + 1))
        rows.append({**values, "reign": arm.reign, "line": verdict.line(), "gains": _gains(found, arm),
                     "champion_gain": gained, "error_spent": spent})  # fmt: skip
    return {"status": status_of(found), "lines": status_lines(found), "rows": rows}


def _gains(found: LedgerCampaign, arm: Any) -> list[float]:
    """Return the gain of each run of a candidate over the mean of the reference's runs that its verdict read."""
    base, count = arm.reference, max(arm.known, found.campaign.rule.reference_runs(arm.looked))
    known = [found.campaign.value(run) for run in base.ended(base.skipped)[:count]]
    values = [found.campaign.value(run) for run in arm.ended()[: arm.looked]]
    if not known or None in known:
        return []
    mean = sum(value for value in known if value is not None) / len(known)
    return [value - mean for value in values if value is not None]
