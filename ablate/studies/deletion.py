"""Deletes a study: its rows in the ledger, its folder and its checkpoints in a store; what it says about MLflow."""

from __future__ import annotations

import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from ablate.base.errors import CheckpointDownError, RequestError
from ablate.base.files import Place, disk_path, remove_folder, sqlite_file
from ablate.base.plain_text import counted
from ablate.base.redaction import error_text, redact_url
from ablate.ledger import Ledger, StudyRecord
from ablate.studies.homes import continue_from, is_of_ledger
from ablate.studies.locations import Locations
from ablate.studies.stored import open_ledger
from ablate.tracking.address import default_uri

LEDGER_FILES = "ledger.*"  # SQLite's files in a home, and the mark that names the ledger


@dataclass(frozen=True, kw_only=True)
class Doomed:
    """What the deletion of a study removes, and in words what stays."""

    name: str
    trials: int
    reports: int
    storage: str
    folders: tuple[Place, ...]
    stays: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return what goes and what stays, a line each."""
        rows = f"{counted(self.trials, 'trial')} and {counted(self.reports, 'report')} in {self.storage}"
        goes = [rows, *(f"{redact_url(place)}{_size(place)}" for place in self.folders)]
        return [
            f"Study {self.name!r}.",
            *(f"  goes:  {what}" for what in goes),
            *(f"  stays: {what}" for what in self.stays),
        ]


def look_at(name: str, locations: Locations) -> Doomed:
    """Return what `delete` removes of a study; raise RequestError with the known names, or for no name of a study."""
    _refuse_path(name)
    with open_ledger(name, locations) as ledger:
        record = _record(ledger, name)
        places = continue_from(locations, record, begun=False)
        found = dict.fromkeys([locations.home(name).absolute(), places.checkpoint_root(name)])
        if locations.home(name).is_symlink():
            raise RequestError(f"{locations.home(name)} is a symbolic link, which is not followed: remove it first")
        owned = tuple(place for place in found if is_of_ledger(place, ledger))
        others = [place for place in found if place not in owned and isinstance(place, Path) and place.exists()]
        stays = [f"{place}: it does not say that it belongs to this ledger" for place in others]
        if record.tracking is not None:
            uri = redact_url(places.tracking_uri or default_uri(places.root))
            stays.append(f"the runs of experiment {name!r} in MLflow at {uri}: delete them there")
        stays.append("what other trackers show, your code and your data")
        return Doomed(
            name=name, trials=len(ledger.trials(name)), reports=len(ledger.reports(name)), storage=ledger.url,
            folders=owned, stays=tuple(stays),
        )  # fmt: skip


def delete(doomed: Doomed, locations: Locations, *, takeover: bool = False) -> None:
    """Delete a study as its only driver: its folders, then its rows; what is left of a killed deletion goes by another.

    No link is followed. Raises LedgerHeldError, with nothing deleted, while a driver holds the lease, unless
    `takeover`; CheckpointDownError if a folder cannot be removed.
    """
    name, home = doomed.name, locations.home(doomed.name).absolute()
    with open_ledger(name, locations) as ledger:
        record = _record(ledger, name)
        holder = f"{socket.gethostname()} (process {os.getpid()}, ablate delete)"
        with ledger.acquire(
            name, file_text=record.file_text, fingerprint=record.fingerprint, seed=record.seed, holder=holder,
            takeover=takeover,
        ) as writer:  # fmt: skip
            for place in doomed.folders:
                _remove(place, keep=LEDGER_FILES if place == home else "")
            writer.delete_study()
        alone = sqlite_file(locations.storage_url(name)) == home / "ledger.sqlite" and not ledger.studies()
        inside = (home / "ledger.sqlite").exists()
    if home in doomed.folders and (alone or not inside):
        _remove(home)


def _refuse_path(name: str) -> None:
    if Path(name).name != name or name in ("", ".", ".."):
        raise RequestError(f"{name!r} is no name of a study; `ablate list` prints all names")


def _record(ledger: Ledger, name: str) -> StudyRecord:
    record = ledger.study(name)
    if record is None:
        known = ", ".join(found.name for found in ledger.studies()) or "none"
        raise RequestError(f"study {name!r} is not in {ledger.url}. Known: {known}")
    return record


def _remove(place: Place, keep: str = "") -> None:
    """Remove a folder, or all of it but the files that match `keep`; links in it are removed and not followed."""
    try:
        if not keep or not isinstance(place, Path):
            remove_folder(place)
            return
        kept = set(place.glob(keep))
        for path in [each for each in place.iterdir() if each not in kept]:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    except OSError as error:
        raise CheckpointDownError(
            f"{redact_url(place)}: cannot be removed ({error_text(error, place)}). Remove what is in the way, then type"
            " ablate delete again"
        ) from error


def _size(place: Place) -> str:
    """Return the size of a folder on a disk in words."""
    disk = disk_path(place)
    if disk is None:
        return ""
    sizes = [path.lstat().st_size for path in disk.rglob("*") if not path.is_dir() or path.is_symlink()]
    return f" ({sum(sizes) / 1e6:,.1f} MB in {counted(len(sizes), 'file')})"
