"""Says in one line what a user's code did, and in which line of which file."""

from __future__ import annotations

import os
import re
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from types import FrameType, GeneratorType

from ablate.errors import TrialError
from ablate.plain_text import one_printable_line

OWN = str(Path(__file__).resolve().parents[1])  # of this package
FROM_ANOTHER_PROCESS = "Original Traceback (most recent call last)"  # how a DataLoader hands on a worker's error
NO_MEMORY = "DefaultCPUAllocator: can't allocate memory"  # torch's message in a RuntimeError on a CPU
Place = tuple[str, int]  # file and line


class OutOfMemoryError(TrialError):
    """The machine or the device lacks memory for a trial; another attempt may not meet that."""


def user_place(error: BaseException) -> str:
    """Return `mine.py:12`, the innermost line of a traceback that is the user's code, or '' if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(error.filename)}:{error.lineno}"
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    told = [(file, int(line)) for file, line in re.findall(r'File "(.+?)", line (\d+)', _of_worker(error))]
    return _innermost([*frames, *told])


def place_of_frame(frame: FrameType | None) -> str:
    """Return the line of the user's code that runs in `frame` or called it, or ''."""
    return _innermost(reversed([(each.f_code.co_filename, line) for each, line in traceback.walk_stack(frame)]))


def place_of_generator(generator: object) -> str:
    """Return the line of the user's code at which a generator waits, or ''."""
    frames = []
    while isinstance(generator, GeneratorType) and generator.gi_frame is not None:
        frames.append((generator.gi_code.co_filename, generator.gi_frame.f_lineno))
        generator = generator.gi_yieldfrom
    return _innermost(frames)


def in_one_line(error: BaseException, when: str = "", *, place: str = "") -> str:
    """Return place, kind and text of an error that the user's code raised; `when` is added to what is no Exception.

    `place` is used where the traceback has no line of the user's.
    """
    text = _of_worker(error).strip().splitlines()[-1:] or str(error).strip().splitlines()[:1]
    name = type(error).__name__
    if isinstance(error, TrialError):
        what = str(error)
    elif isinstance(error, SystemExit):
        what = f"called sys.exit({'' if error.code is None else repr(error.code)}){when}"
    elif not isinstance(error, Exception):
        what = f"raised {name}{f': {text[0]}' if text else ''}{when}"
    elif _of_worker(error):
        what = text[0]
    else:
        what = f"{name}: {text[0]}" if text else name
    place = user_place(error) or place
    return one_printable_line(f"{place}: {what}" if place and not what.startswith(f"{place}: ") else what)


def as_trial_error(error: BaseException, when: str = "", *, place: str = "") -> TrialError:
    """Return what ends the trial of a function that raised `error`."""
    lacks = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or NO_MEMORY in str(error)
    return (OutOfMemoryError if lacks else TrialError)(in_one_line(error, when, place=place))


def _of_worker(error: BaseException) -> str:
    """Return the traceback of another process that the text of an error holds, or ''."""
    return str(error).partition(FROM_ANOTHER_PROCESS)[2]


def _innermost(frames: Iterable[Place]) -> str:
    own = [(file, line) for file, line in frames if not file.startswith((*_foreign(), "<frozen"))]
    return f"{_shown(own[-1][0])}:{own[-1][1]}" if own else ""


@lru_cache(maxsize=1)
def _foreign() -> tuple[str, ...]:
    """Return the folders whose code is not the user's: this package, Python itself, and installed packages."""
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths |= {*site.getsitepackages(), site.getusersitepackages(), OWN}
    return tuple(f"{place}{os.sep}" for path in paths for place in {path, os.path.realpath(path)})


def _shown(file: str) -> str:
    """Return a file's path in the working directory or in a folder of sys.path."""
    try:
        folders = [os.getcwd(), *sys.path]
    except FileNotFoundError:  # the working directory was deleted
        folders = sys.path
    for folder in filter(os.path.isabs, folders):
        if file.startswith(folder.rstrip(os.sep) + os.sep):
            return os.path.relpath(file, folder)
    return file
