"""The user's code of a study: what its workers need, and whether it has changed since the study last ran."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

from ablate.base.errors import RequestError, StudyMismatchError
from ablate.functions.border.guarded import Guarded
from ablate.functions.command_words import split
from ablate.ledger import Ledger, StudyWriter
from ablate.registry import COMMAND_PREFIX, TRAINABLES, import_paths, own_code
from ablate.study import Study
from ablate.study.sections import Command
from ablate.trainable import Trainable, load_trainable

CODE = "code"  # the event that holds the files; of several, the last is valid


def refuse_other_code(ledger: Ledger, study: str, files: Mapping[str, str], *, accepted: bool) -> None:
    """Raise StudyMismatchError, with the files, if they are not those that the study last ran with.

    `accepted` accepts any files.
    """
    before = _recorded(ledger, study)
    if before is None or accepted:
        return
    changed = sorted(name for name in before.keys() | files.keys() if before.get(name) != files.get(name))
    if changed:
        raise StudyMismatchError(
            f"study {study!r} exists, and the code that it names has changed since: {', '.join(changed)}."
            " Its trials would not be comparable. Give the new study another name (study: …), put the files back, or"
            " type --code-changed to continue all the same"
        )


def note_code(writer: StudyWriter, ledger: Ledger, study: str, files: Mapping[str, str]) -> None:
    """Record the files that the study runs with, if they are not those that it last ran with."""
    if files and files != _recorded(ledger, study):
        writer.note(CODE, None, {"files": dict(files)})


def source_files(study: Study) -> dict[str, str]:
    """Return the SHA-256 of each Python file that the numbers of a study depend on, by path.

    These are the files of its training function, and of each network, task and part that it names by import path.
    """
    found = trainable_of(study).source_files()
    mine = {place.absolute() for place in own_code(study.trainable)}
    for place in user_code(study):
        files = [place] if place.is_file() else sorted(place.rglob("*.py"))
        for file in files if place not in mine else ():
            found[str(file.relative_to(place.parent))] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def user_code(study: Study) -> tuple[Path, ...]:
    """Return the user's packages and files that a study names by import path, which its workers need."""
    named = import_paths(study.model_dump(mode="json"))
    return tuple(dict.fromkeys(place.absolute() for text in named for place in own_code(text)))


def refuse_local_code(study: Study) -> None:
    """Raise RequestError if a study that a cluster is to run needs code of this machine that no package holds."""
    installed = packages_distributions()
    local = [place for place in user_code(study) if place.stem not in installed]
    if study.trainable.startswith(COMMAND_PREFIX):
        words = split(Command.model_validate_json(study.trainable.removeprefix(COMMAND_PREFIX)).command)
        local += [Path(word) for word in words if not Path(word).is_absolute() and Path(word).is_file()]
    if local:
        raise RequestError(
            f"the study needs {', '.join(map(str, local))}, which is on this machine alone: a cluster runs what its"
            " image or its machines have. Make the code a package, and install it here and there; in a command, write"
            " the path that the script has there"
        )


def trainable_of(study: Study) -> Trainable:
    """Return what a study tunes; a separate process runs the code that it names by import path.

    Samplers and schedulers are parts of the driver and run in it.
    """
    found = load_trainable(study.trainable)
    named = import_paths(study.model_dump(mode="json", exclude={"sampler", "scheduler"}))
    return Guarded(study.trainable) if named and study.trainable in TRAINABLES.names() else found


def _recorded(ledger: Ledger, study: str) -> dict[str, str] | None:
    """Return the files that the study last ran with, or None if none are recorded."""
    found = [event.payload["files"] for event in ledger.events(study) if event.kind == CODE]
    return dict(found[-1]) if found else None
