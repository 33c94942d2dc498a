"""Which ledger a study's folders belong to, and where the ledger says that its checkpoints and tracking are."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ablate.base.errors import CheckpointDownError, NoLedgerError, RequestError
from ablate.base.files import LEDGER_MARK, STUDY_FOLDERS, Place, open_folder, sqlite_file, sqlite_url
from ablate.base.redaction import error_text, has_password, redact_url
from ablate.core.registry import AT_HOME
from ablate.ledger import Ledger, StudyRecord
from ablate.studies.locations import VARIABLES, Locations
from ablate.tracking.address import DATABASES, dialect

L = TypeVar("L", bound=Locations)
ABSENT = ", where there is none"
DEFAULT = "default"  # checkpoints in the study's home, tracking beside it


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The ledger that a folder of a study belongs to: its id and its URL without credentials."""

    ledger_id: str
    storage: str


@contextmanager
def open_study(study: str, locations: Locations) -> Iterator[Ledger]:
    """Open the ledger for a driver of `study`; create its home, and the ledger if there is none yet.

    Raises RequestError, with nothing created, if the home belongs to another ledger or lacks the checkpoints of trials
    in training, or if a new SQLite file is requested in a folder that does not exist.
    """
    url, home = locations.storage_url(study), locations.home(study)
    try:
        with Ledger.open(url, create=False) as ledger:
            refuse_other_ledger(home, study, ledger, locations)
            _refuse_bare_home(home, study, ledger, locations)
    except NoLedgerError:
        _refuse_new_ledger(home, study, locations)
    locations.make_home(study)
    with Ledger.open(url) as ledger:
        yield ledger


def refuse_other_ledger(place: Place, study: str, ledger: Ledger, locations: Locations) -> None:
    """Raise RequestError if `place`, a folder of `study`, belongs to another ledger than `ledger`."""
    owner = _owner(place, study, locations)
    if owner is not None:
        if ledger.id != owner.ledger_id:
            raise RequestError(_belongs(place, owner, ledger.url, locations))
    elif _holds_checkpoints(place) and not ledger.trials(study):
        raise RequestError(
            f"{redact_url(place)} holds checkpoints of a study {study!r} that the ledger {ledger.url} does not know."
            " Name their ledger with --storage, or move that folder away."
        )


def mark(place: Place, ledger: Ledger) -> None:
    """Record in `place` that it belongs to `ledger`; raise CheckpointDownError if it cannot be written."""
    now = Owner(ledger_id=ledger.id, storage=ledger.url)
    try:
        if _read(place) != now:
            text = json.dumps(vars(now), indent=1)
            open_folder(place).write(LEDGER_MARK, f"{text}\n".encode())
    except OSError as error:
        raise CheckpointDownError(f"{redact_url(place)}: cannot be written ({error_text(error, place)})") from error


def is_of_ledger(place: Place, ledger: Ledger) -> bool:
    """Return whether a folder of a study says that it belongs to `ledger`, or holds it."""
    inside = isinstance(place, Path) and sqlite_file(ledger.url) == place.absolute() / "ledger.sqlite"
    owner = _read(place)
    return inside or (owner is not None and owner.ledger_id == ledger.id)


def _refuse_bare_home(home: Path, study: str, ledger: Ledger, locations: Locations) -> None:
    """Raise RequestError if trials in training have their checkpoints in another home, unless `relocate` is set."""
    record = ledger.study(study)
    if locations.relocate or locations.store or locations.storage is None or record is None or record.store != DEFAULT:
        return
    lost = sum(bool(trial.epochs_done) and not trial.state.finished for trial in ledger.trials(study))
    if lost and _read(home) is None and not _holds_checkpoints(home):
        raise RequestError(
            f"{home} holds no checkpoints of study {study!r}, which keeps them in its home; host {record.host} ran it"
            f" last. {lost} trial{'s'[: lost > 1]} in training would begin again. Continue with the --runs-dir of that"
            " home, copy the home here, or type --relocate to begin them again."
        )


def continue_from(locations: L, record: StudyRecord | None, *, begun: bool) -> L:
    """Return `locations`, with the store and tracking that the study began with if they name none.

    Raises RequestError if they name other ones and the study has `begun`, unless `relocate` is set.
    """
    if record is None or locations.relocate:
        return locations
    if begun:
        _refuse_another("--store", locations.store, record.store, f"study {record.name!r} keeps its checkpoints in")
        if _has_address(locations):
            _refuse_another(
                "--tracking-uri", locations.tracking_uri, record.tracking, f"study {record.name!r} is shown in"
            )
    tracking = locations.tracking_uri or _place_named(record.tracking)
    return replace(with_store(locations, record), tracking_uri=tracking)


def with_store(locations: L, record: StudyRecord) -> L:
    """Return `locations`, with the store of the study's checkpoints if they name none."""
    return replace(locations, store=locations.store or _place_named(record.store))


def noted(locations: Locations) -> tuple[str, str | None]:
    """Return the store and tracking that the ledger stores, without credentials; None for no tracking."""
    tracking = lasting(locations.tracking_uri or DEFAULT) if _has_address(locations) else None
    return lasting(locations.store or DEFAULT), tracking


def _has_address(locations: Locations) -> bool:
    """Return whether a tracker shows the study elsewhere than below its home."""
    return any(name not in AT_HOME for name in locations.trackers)


def lasting(url: str) -> str:
    """Return `url` in the form that is stored: without credentials except a database's user, file paths absolute."""
    file = sqlite_file(url)
    if file is not None:
        return sqlite_url(file.absolute())
    return redact_url(url, usable=True, keep_user=dialect(url) in DATABASES)


def command_to_continue(arguments: Sequence[str]) -> str:
    """Return the command that continues `ablate` with `arguments`, quoted for a shell and without secrets.

    A URL with a secret is omitted; the variable that takes it is named in front.
    """
    kept: list[str] = []
    variables: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if name in VARIABLES:
            value = value if equals else next(words, "")
            if has_password(value):
                variables.append(f"{VARIABLES[name]}=URL")
            else:
                kept += [name, value]
        elif word != "--takeover":
            kept.append(word)
    return " ".join([*variables, shlex.join(["ablate", *kept])])


def _refuse_another(option: str, asked: str | None, noted: str | None, says: str) -> None:
    if asked is None or noted is None or _same(asked) == _same(noted):
        return
    there = "the runs folder" if noted == DEFAULT else redact_url(noted)
    raise RequestError(
        f"{option} {redact_url(lasting(asked))}: {says} {there}. Leave {option} out to continue there. To change"
        " the place, copy what is there and type --relocate."
    )


def _same(place: str) -> str:
    return redact_url(lasting(place)).removeprefix("file://")


def _place_named(noted: str | None) -> str | None:
    return None if noted == DEFAULT else noted


def _refuse_new_ledger(home: Path, study: str, locations: Locations) -> None:
    url = locations.storage_url(study)
    owner = _owner(home, study, locations)
    if owner is not None:
        raise RequestError(_belongs(home, owner, f"{lasting(url)}{ABSENT}", locations))
    if _holds_checkpoints(home):
        raise RequestError(
            f"{home} holds checkpoints of a study {study!r}, and there is no ledger at {lasting(url)}."
            " Name their ledger with --storage, or move that folder away."
        )
    file = sqlite_file(url)
    if locations.storage is not None and file is not None and not file.absolute().parent.is_dir():
        raise RequestError(
            f"--storage {lasting(url)}: the folder {file.absolute().parent} does not exist. Make it first,"
            " or correct the URL."
        )


def _belongs(place: Place, owner: Owner, asked: str, locations: Locations) -> str:
    if asked == owner.storage:
        return (
            f"{redact_url(place)} belongs to a former ledger {owner.storage}; the one that is there now was made anew."
            " Put the former one back, or move that folder away."
        )
    if asked == f"{owner.storage}{ABSENT}":
        return (
            f"{redact_url(place)} belongs to the ledger {owner.storage}, which is not there any more. Put it back, or"
            " move that folder away."
        )
    own = f"{locations.root}/"
    default = sqlite_file(owner.storage)
    inside = default is not None and default.name == "ledger.sqlite" and str(default).startswith(own)
    advice = "Leave --storage out (and ABLATE_STORAGE)" if inside else f"Type --storage {owner.storage}"
    if inside and locations.storage is None:
        advice = "Put that ledger back"
    return (
        f"{redact_url(place)} belongs to the ledger {owner.storage}, not to {asked}. {advice}, or choose another"
        " --runs-dir for a study of that name, or move that folder away."
    )


def _owner(place: Place, study: str, locations: Locations) -> Owner | None:
    """Return the owner of `place` by its mark or, in a home without one, by the ledger inside it."""
    found = _read(place)
    if found is not None or locations.storage is None or not isinstance(place, Path):
        return found
    inside, asked = (place / "ledger.sqlite").absolute(), sqlite_file(locations.storage)
    if not inside.is_file() or (asked is not None and asked.exists() and asked.samefile(inside)):
        return None
    with Ledger.open(sqlite_url(inside), create=False) as ledger:
        return Owner(ledger_id=ledger.id, storage=ledger.url) if ledger.study(study) is not None else None


def _read(place: Place) -> Owner | None:
    try:
        text = open_folder(place).read(LEDGER_MARK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CheckpointDownError(f"{redact_url(place)}: cannot be read ({error_text(error, place)})") from error
    try:
        value = json.loads(text)
        return Owner(ledger_id=str(value["ledger_id"]), storage=str(value["storage"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RequestError(
            f"{redact_url(place)}/{LEDGER_MARK} is damaged ({error!r}). Remove it if the ledger is right."
        ) from None


def _holds_checkpoints(place: Place) -> bool:
    """Return whether a home on a disk has files of trials: checkpoints, reports, what they printed or wrote."""
    return isinstance(place, Path) and any(path.is_file() for path in (place / STUDY_FOLDERS[0]).rglob("*"))
