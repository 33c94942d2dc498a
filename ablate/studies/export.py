"""Writes a study for other tools: an Optuna storage, or its two tables as CSV or Parquet."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Literal

import polars as pl

from ablate.base.errors import RequestError
from ablate.base.files import DiskFolder, make_folder
from ablate.results.trials.tables import cannot_write, csv_text, parquet_bytes, reports_table, trials_table
from ablate.studies.locations import Locations
from ablate.studies.stored import Stored, read_study

Form = Literal["optuna", "csv", "parquet"]
OPTUNA_FILE = "optuna.db"
TABLES = "export"  # folder in a study's home
OWN_COLUMNS = ["study", "dataset", "trial", "stage"]  # the first columns of both tables


def export_study(name: str, locations: Locations, *, form: Form, to: Path | None) -> tuple[Path, list[str]]:
    """Write study `name` and return the path of the file or folder, and the names of what is in it.

    `to` is a file for `optuna` and a folder for tables; by default both are in the study's home. Raises RequestError
    for a URL and if a file of another origin is there, and ResultsDownError if the disk cannot be written.
    """
    found = read_study(name, locations)
    if to is not None and to.parts[:1] == ("sqlite:",):
        raise RequestError(f"{to}: write the path of a file, such as {name}.db, and no URL")
    place = to if to is not None else locations.make_home(name) / (OPTUNA_FILE if form == "optuna" else TABLES)
    place = place.absolute()
    make_folder(place.parent if form == "optuna" else place)
    try:
        if form == "optuna":
            from ablate.studies.optuna_file import write_optuna

            return place, write_optuna(found, place)
        return place, _write_tables(found, place, form)
    except OSError as error:
        raise cannot_write(str(place), error) from error


def _write_tables(found: Stored, folder: Path, form: Form) -> list[str]:
    tables = {"trials": trials_table(found.snapshot), "reports": reports_table(found.snapshot)}
    names = {f"{name}.{form}": table for name, table in tables.items()}
    for name in names:
        _refuse_foreign(folder / name, found.study.name)
    for name, table in names.items():
        DiskFolder(folder).write(name, parquet_bytes(table) if form == "parquet" else csv_text(table).encode())
    return list(names)


def _refuse_foreign(file: Path, study: str) -> None:
    """Raise RequestError unless `file` is absent or a table of `study`."""
    if not file.exists() and not file.is_symlink():
        return
    try:
        if not stat.S_ISREG(file.lstat().st_mode):  # a link, or a pipe, which would be waited for
            raise pl.exceptions.ComputeError("no regular file")
        is_csv = file.suffix == ".csv"
        table = pl.read_csv(file.read_bytes(), infer_schema=False) if is_csv else pl.read_parquet(file, glob=False)
        is_own = table.columns[: len(OWN_COLUMNS)] == OWN_COLUMNS and set(table["study"]) <= {study}
    except (pl.exceptions.PolarsError, UnicodeDecodeError):
        is_own = False
    if not is_own:
        raise RequestError(
            f"{file}: there is a file that is no table of study {study!r}, and it is kept. Name another folder, or"
            " move it away."
        )
