"""Writes a study as an Optuna storage."""

from __future__ import annotations

from pathlib import Path

from ablate.base.errors import RequestError
from ablate.base.files import make_folder
from ablate.results.trials.tables import cannot_write
from ablate.studies.locations import Locations
from ablate.studies.optuna_file import write_optuna
from ablate.studies.stored import read_study

OPTUNA_FILE = "optuna.db"


def export_optuna(name: str, locations: Locations, *, to: Path | None) -> tuple[Path, list[str]]:
    """Write study `name` and return the path of the file, and the names of the Optuna studies in it.

    `to` is by default in the study's home. Raises RequestError for a URL and if a file of another origin is there, and
    ResultsDownError if the disk cannot be written.
    """
    found = read_study(name, locations)
    if to is not None and to.parts[:1] == ("sqlite:",):
        raise RequestError(f"{to}: write the path of a file, such as {name}.db, and no URL")
    place = (to if to is not None else locations.make_home(name) / OPTUNA_FILE).absolute()
    make_folder(place.parent)
    try:
        return place, write_optuna(found, place)
    except OSError as error:
        raise cannot_write(str(place), error) from error
