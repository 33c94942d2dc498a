"""Names the line of a user's code where an error comes from."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import traceback
from functools import lru_cache
from pathlib import Path

from ablate.redaction import error_text

ABLATE = Path(__file__).parents[1]


def user_line(error: BaseException) -> str:
    """Return what happened in one line, with file and line of the user's code, as `mine.py:12: KeyError: 'lr'`."""
    return f"{user_place(error)}{_happened(error)}"


def user_place(error: BaseException) -> str:
    """Return `mine.py:12: `: the last line of the user's code that was running; empty if there is none."""
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno or 0))
    own = [frame for frame in frames if is_own_file(frame[0])]
    if own:
        return f"{shown_place(*own[-1])}: "
    return "" if error.__cause__ is None else user_place(error.__cause__)


def shown_place(file: str, line: int) -> str:
    """Return `mine.py:12`, the file relative to the folder on Python's path, or the current one, that holds it."""
    folders = [Path(place or ".").absolute() for place in (*sys.path, ".")]
    path = Path(file)
    inside = [folder for folder in folders if path.is_relative_to(folder)]
    nearest = max(inside, key=lambda folder: len(folder.parts), default=None)
    return f"{path if nearest is None else path.relative_to(nearest)}:{line}"


@lru_cache(maxsize=1024)
def is_own_file(file: str) -> bool:
    """Return whether a file is a user's: no part of Python, of an installed package or of ablate."""
    if file.startswith("<"):
        return False
    path = Path(os.path.abspath(file))
    return not any(path.is_relative_to(folder) for folder in _installed())


@lru_cache(maxsize=1)
def _installed() -> tuple[Path, ...]:
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders = [*paths, *site.getsitepackages(), site.getusersitepackages()]
    return (ABLATE, *(Path(folder).absolute() for folder in folders))


def _happened(error: BaseException) -> str:
    """Return what an error says: its type and message, or which call ended the process."""
    if isinstance(error, SystemExit):
        code = "" if error.code is None else repr(error.code)
        return f"the code called sys.exit({code})"
    if isinstance(error, KeyboardInterrupt):
        return "the code raised KeyboardInterrupt"
    text, name = error_text(error, first_line=True), type(error).__name__
    return text if text == name else f"{name}: {text}"
