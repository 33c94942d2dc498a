"""Names the line of a user's code where an error comes from."""

from __future__ import annotations

import os
import re
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import FrameType, GeneratorType

from ablate.base.errors import AblateError
from ablate.base.plain_text import one_printable_line
from ablate.base.redaction import error_text

ABLATE = Path(__file__).parents[1]
_FRAME = re.compile(r'File "(.+?)", line (\d+)')


def user_line(error: BaseException, when: str = "", *, place: str = "") -> str:
    """Return what happened in one line, with file and line of the user's code, as `mine.py:12: KeyError: 'lr'`.

    `when` ends the line of what is no Exception, such as a call of sys.exit. `place` is used if the traceback has no
    line of the user's.
    """
    said = _happened(error, when)
    place = user_place(error) or place
    return one_printable_line(said if said.startswith(place) else f"{place}{said}")


def user_place(error: BaseException) -> str:
    """Return `mine.py:12: `: the last line of the user's code that was running; empty if there is none."""
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno or 0))
    frames += [(file, int(line)) for file, line in _FRAME.findall(_of_worker(error))]
    if place := last_place(frames):
        return place
    return "" if error.__cause__ is None else user_place(error.__cause__)


def place_of_frame(frame: FrameType | None) -> str:
    """Return the line of the user's code that runs in `frame` or has called it, as `user_place` does."""
    return last_place([(each.f_code.co_filename, line) for each, line in traceback.walk_stack(frame)][::-1])


def place_of_generator(generator: object) -> str:
    """Return the line of the user's code at which a generator waits, as `user_place` does."""
    frames = []
    while isinstance(generator, GeneratorType) and generator.gi_frame is not None:
        frames.append((generator.gi_code.co_filename, generator.gi_frame.f_lineno))
        generator = generator.gi_yieldfrom
    return last_place(frames)


def last_place(frames: Iterable[tuple[str, int]]) -> str:
    own = [frame for frame in frames if is_own_file(frame[0])]
    return f"{shown_place(*own[-1])}: " if own else ""


def _of_worker(error: BaseException) -> str:
    """Return the traceback of another process that the text of an error holds, as a DataLoader writes it; or ''."""
    return str(error).partition("Original Traceback (most recent call last)")[2]


def shown_place(file: str, line: int) -> str:
    """Return `mine.py:12`, the file relative to the folder on Python's path, or the current one, that holds it."""
    folders = [Path(place) for place in sys.path if os.path.isabs(place)]
    with suppress(FileNotFoundError):  # a working directory that was deleted
        folders.append(Path.cwd())
    path = Path(file)
    inside = [folder for folder in folders if path.is_relative_to(folder)]
    nearest = max(inside, key=lambda folder: len(folder.parts), default=None)
    return f"{path if nearest is None else path.relative_to(nearest)}:{line}"


@lru_cache(maxsize=1024)
def is_own_file(file: str) -> bool:
    """Return whether a file is a user's: no part of Python, of an installed package or of ablate."""
    if file.startswith("<"):
        return False
    path = Path(file)
    return not any(path.is_relative_to(folder) for folder in _installed())


@lru_cache(maxsize=1)
def _installed() -> tuple[Path, ...]:
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders = [*paths, *site.getsitepackages(), site.getusersitepackages()]
    return (ABLATE, *(Path(folder).absolute() for folder in folders))


def _happened(error: BaseException, when: str) -> str:
    """Return what an error says: its type and message, or which call ended the process."""
    if isinstance(error, SystemExit):
        code = "" if error.code is None else repr(error.code)
        return f"the code called sys.exit({code}){when}"
    if worker := _of_worker(error).strip():
        return worker.splitlines()[-1]
    text, name = error_text(error, first_line=True), type(error).__name__
    if text == name and not isinstance(error, Exception):
        return f"the code raised {name}{when}"
    return text if text == name or isinstance(error, AblateError) else f"{name}: {text}"
