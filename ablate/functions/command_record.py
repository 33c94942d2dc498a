"""What is known of one seed of a command across attempts: its reports, kept beside the folder of its own files."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from pydantic import BaseModel, ValidationError

from ablate.base.errors import CheckpointDownError, TrialError
from ablate.base.files import SEED_FOLDER, Place, foreign, open_trial
from ablate.base.redaction import error_text, redact_url
from ablate.core.config import FROZEN
from ablate.functions.command_output import SeedReport

RECORD = f"{SEED_FOLDER}{{}}.reports.json"

logger = logging.getLogger("ablate.functions")


class Record(BaseModel):
    """The reports of one seed, its values of the test split, and whether its command has ended by itself.

    `printed` holds all values of the test split, each with its epoch; without a pattern of it, with its number from 1.
    `owner` is that of its trial, and `counted` the epoch of the report that counts once the trial is complete
    (None: the last).
    """

    model_config = FROZEN | {"allow_inf_nan": True, "ser_json_inf_nan": "constants"}

    owner: str = ""
    reports: tuple[SeedReport, ...] = ()
    tests: dict[str, float] = {}
    printed: dict[str, tuple[tuple[float, float], ...]] = {}
    seconds: float = 0.0
    ended: bool = False
    counted: int | None = None

    def report(self, place: int) -> SeedReport:
        """Return a report by its place, -1 for the last, which stays if the command has ended before."""
        return self.reports[min(place, len(self.reports) - 1)]

    def tests_of(self, place: int) -> dict[str, float]:
        """Return the values of the test split that belong to a report, by its place; for -1 the last ones.

        A value that was printed once is of the network that the command has chosen. Raises TrialError if several were
        printed, and which is that of the report is not known.
        """
        return self.tests if place == -1 else {name: self._test_of(place, name) for name in self.tests}

    def _test_of(self, place: int, name: str) -> float:
        values, epoch = dict(self.printed.get(name, ())), self.report(place).epoch
        if len(values) < 2:
            return self.tests[name]
        known = epoch is not None or len(values) == len(self.reports)
        key = min(place + 1, len(self.reports)) if epoch is None else epoch
        if not known or key not in values:
            raise TrialError(
                f"the command printed {name} {len(values)} times, and none is known to be of its best report (number"
                f" {place + 1}): print it with each report, or once for the network that counts"
            )
        return values[key]


def read_record(place: Place | None, seed: int, owner: str) -> Record:
    """Return what is known of a seed; an empty record if there is none, or a damaged one, which is logged.

    Raises CheckpointDownError if `place` cannot be read, or the record has another owner.
    """
    none = Record(owner=owner)
    if place is None:
        return none
    name = RECORD.format(seed)
    try:
        found = Record.model_validate_json(open_trial(place).read(name))
    except FileNotFoundError:
        return none
    except ValidationError as error:
        logger.warning("%s/%s is damaged, so the trial begins again: %s", redact_url(place), name, error_text(error))
        return none
    except OSError as error:
        raise _down(place, "read", error) from error
    if found.owner != owner:
        raise foreign(f"{redact_url(place)}/{name}")
    return found


def write_record(place: Place | None, seed: int, record: Record) -> None:
    """Keep what is known of a seed; it is durable when this returns. Raises CheckpointDownError."""
    if place is None:
        return
    try:
        open_trial(place).write(RECORD.format(seed), record.model_dump_json().encode())
    except OSError as error:
        raise _down(place, "written", error) from error


def forget_records(place: Place) -> None:
    """Remove the records of a trial, so that its next attempt begins again; raise CheckpointDownError."""
    prefix, suffix = RECORD.split("{}")
    try:
        folder = open_trial(place)
        for name in folder.names():
            if name.startswith(prefix) and name.endswith(suffix):
                folder.remove(name)
    except OSError as error:
        raise _down(place, "written", error) from error


def empty(folder: Path) -> None:
    """Remove everything inside a seed's folder, without following links; raise CheckpointDownError."""
    try:
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    except OSError as error:
        raise _down(folder, "emptied", error) from error


def _down(place: Place, what: str, error: OSError) -> CheckpointDownError:
    told = f"{redact_url(place)}: cannot be {what}: {error_text(error, place)}"
    return CheckpointDownError(f"{told}; fix that and run the same command again")
