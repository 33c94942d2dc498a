"""The user's code that a study names: what its workers need, and whether it has changed since the study last ran."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import packages_distributions
from itertools import pairwise
from pathlib import Path

from ablate.base.errors import CodeDownError, RequestError, StudyMismatchError
from ablate.core.registry import OWN_FUNCTION, import_paths, own_code, trainable_kind
from ablate.functions.code.files import PYTHON, code_files
from ablate.functions.command_words import SCRIPT_SUFFIXES
from ablate.ledger import EventRecord
from ablate.study import Study
from ablate.study.command_text import split
from ablate.study.sections import command_of

WATCH_SECONDS = 5.0  # between two looks at the files while a study runs
SCRIPTS = (*PYTHON, *SCRIPT_SUFFIXES, ".yaml", ".yml", ".toml", ".ini", ".cfg")
LARGEST_SCRIPT = 10**6  # bytes
MOUNTED = ("/tmp", "/runs", "/study", "/dev/shm")  # a pod mounts its volumes here
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

    These are the files of its training function, and of each network and part that it names by import path; of a
    command the files with a suffix of SCRIPTS and at most LARGEST_SCRIPT bytes among its words and what follows `=` in
    them, the programs of this folder, and the module behind `-m` where no script is before it.
    """
    typed = command_words(study.trainable)
    words = [part for word in typed for part in (*word.split(), *word.partition("=")[2:]) if part]
    first = next((k for k, word in enumerate(words) if word.endswith(PYTHON)), len(words))
    modules = _modules(words[:first])
    named = {text: own_code(text, installed=text == study.trainable) for text in (*_import_paths(study), *modules)}
    places = dict.fromkeys(_watched(text, place) for text, found in named.items() for place in found)
    files = {name: file for place in places for file, name in code_files(place)}
    files |= {word: Path(word) for word in words if _is_script(word)}
    return {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()}


def command_words(trainable: str) -> list[str]:
    """Return the words of a command, with its placeholders; none for another trainable."""
    found = command_of(trainable)
    return [] if found is None else split(found.command)


def _modules(words: Sequence[str]) -> list[str]:
    """Return the modules that `-m` runs."""
    return [f"{name}:main" for option, name in pairwise(words) if option == "-m"]


def _is_script(word: str) -> bool:
    path = Path(word)
    try:
        program = not path.suffix and not path.is_absolute() and os.access(path, os.X_OK)
        return (program or path.suffix in SCRIPTS) and path.is_file() and path.stat().st_size <= LARGEST_SCRIPT
    except (OSError, ValueError):  # a word that is no path
        return False


def watching(study: Study, files: Mapping[str, str]) -> Callable[[], None]:
    """Return what raises CodeDownError once a file is not what it was; it looks again after WATCH_SECONDS.

    A file that is new is none of the code that was imported.
    """
    looked = time.monotonic()

    def look() -> None:
        nonlocal looked
        if time.monotonic() - looked < WATCH_SECONDS:
            return
        looked, now = time.monotonic(), source_files(study)
        if changed := sorted(name for name in files if files[name] != now.get(name)):
            raise CodeDownError(
                f"{', '.join(changed)} was edited or removed while study {study.name!r} runs: a trial that begins now"
                " might train with other code than those before. Nothing is lost: put the files back, then type"
                f" ablate resume {study.name}; or type --code-changed with it"
            )

    return look


def user_code(study: Study) -> tuple[Path, ...]:
    """Return the user's packages and files that a study names by import path, which its workers need."""
    return tuple(dict.fromkeys(place.absolute() for text in _import_paths(study) for place in own_code(text)))


def refuse_local_code(study: Study) -> None:
    """Raise RequestError if a study needs code that an image cannot have, whether or not it exists here.

    That is a module or package of this machine that is not installed, and in a command a relative path of a script or
    a program, a script below the home folder or a folder of MOUNTED, and each file of the current folder.
    """
    words, installed = command_words(study.trainable), packages_distributions()
    places = [*user_code(study), *(place for name in _modules(words) for place in own_code(name))]
    local = [str(place) for place in places if place.stem not in installed]
    local += [word for word in words[:1] if "/" in word and not word.startswith("/")]
    parts = [part for word in words[1:] for part in (word.partition("=")[2] or word).split()]
    local += filter(_is_local, parts)
    if local:
        raise RequestError(
            f"the study needs {', '.join(dict.fromkeys(local))}, which is not in the image: a pod gets no file of this"
            " machine. Make the code a package, and install it here and in the image; in a command, write the absolute"
            " path that the script has in the image"
        )


def _is_local(word: str) -> bool:
    """Return whether a word is a script that no image has, or a file of the current folder."""
    path = Path(word)
    if path.is_absolute():
        folders = (each for each in (*MOUNTED, os.path.expanduser("~")) if each != "/")
        return word.endswith(SCRIPT_SUFFIXES) and any(map(path.is_relative_to, folders))
    return not word.startswith("{") and (word.endswith(SCRIPT_SUFFIXES) or os.path.isfile(word))


def _import_paths(study: Study) -> tuple[str, ...]:
    return import_paths(study.model_dump(mode="json"))


def _watched(name: str, place: Path) -> Path:
    """Return the whole package at `place`, or of a folder without __init__.py only the module that `name` is in."""
    if place.is_file() or (place / "__init__.py").is_file():
        return place
    inner = place.joinpath(*name.partition(":")[0].split(".")[1:])
    return next((path for path in (inner.with_suffix(".py"), inner) if path.exists()), place)
