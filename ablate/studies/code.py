"""The user's code that a study names: what its workers need, and whether it has changed since the study last ran."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from ablate.base.code_files import code_files
from ablate.base.errors import StudyMismatchError
from ablate.core.registry import OWN_FUNCTION, import_paths, own_code, trainable_kind
from ablate.ledger import EventRecord
from ablate.study import Study

CODE = "code"  # the event that holds the files; of several, the last is valid
CONTINUE = (
    " Its trials would not be comparable. Give the new study another name (study: …), put the files back, or"
    " type --code-changed to continue all the same"
)
USE = " Its networks would be others. Put the files back, or continue the study with --code-changed"


def refuse_other_code(study: Study, events: Iterable[EventRecord], *, advice: str = CONTINUE) -> None:
    """Raise StudyMismatchError, with the files, if the code of a study is not what it last ran with.

    Nothing is imported. A study that has not run yet takes any code; a function that is nowhere is left to its import.
    """
    before, files = recorded_files(events), source_files(study)
    gone = trainable_kind(study.trainable) == OWN_FUNCTION and not own_code(study.trainable, installed=True)
    if before is None or gone:
        return
    changed = sorted(name for name in before.keys() | files.keys() if before.get(name) != files.get(name))
    if changed:
        raise StudyMismatchError(
            f"study {study.name!r} exists, and the code that it names has changed since: {', '.join(changed)}.{advice}"
        )


def recorded_files(events: Iterable[EventRecord]) -> Mapping[str, str] | None:
    """Return the files that a study last ran with, or None if none are recorded."""
    found = [event.payload["files"] for event in events if event.kind == CODE]
    return dict(found[-1]) if found else None


def source_files(study: Study) -> dict[str, str]:
    """Return the SHA-256 of each file of code that the numbers of a study depend on, by path.

    These are the files of its training function, and of each network, task and part that it names by import path.
    """
    named = {text: own_code(text, installed=text == study.trainable) for text in _import_paths(study)}
    places = dict.fromkeys(_watched(text, place) for text, found in named.items() for place in found)
    return {name: hashlib.sha256(file.read_bytes()).hexdigest() for place in places for file, name in code_files(place)}


def user_code(study: Study) -> tuple[Path, ...]:
    """Return the user's packages and files that a study names by import path, which its workers need."""
    return tuple(dict.fromkeys(place.absolute() for text in _import_paths(study) for place in own_code(text)))


def _import_paths(study: Study) -> tuple[str, ...]:
    return import_paths(study.model_dump(mode="json"))


def _watched(name: str, place: Path) -> Path:
    """Return the whole package at `place`, or of a folder without __init__.py only the module that `name` is in."""
    if place.is_file() or (place / "__init__.py").is_file():
        return place
    inner = place.joinpath(*name.partition(":")[0].split(".")[1:])
    return next((path for path in (inner.with_suffix(".py"), inner) if path.exists()), place)
