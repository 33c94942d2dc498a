"""What a process says of an error of its user's code: one line with file and line, and the traceback."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass

from ablate.base import errors
from ablate.base.errors import AblateError, RequestError, TrialError, TrialFault, lacks_memory
from ablate.base.plain_text import storable
from ablate.functions.blame import last_place, user_line

_FRAME = re.compile(r'^  File "(.+)", line (\d+) in ', re.M)  # as faulthandler writes it


@dataclass(frozen=True, kw_only=True)
class Told:
    """An error as it crosses the border: the name of its class in `ablate.base.errors`, its line and its traceback.

    It is no pickled exception: the other side would import the user's code to load one.
    """

    type: str
    text: str
    detail: str = ""
    kind: TrialFault = "trial"


def tell(error: BaseException) -> Told:
    """Return what is said of an error; any one that is not ablate's own becomes a TrialError."""
    detail = storable("".join(traceback.format_exception(error)))
    name = type(error).__name__
    if isinstance(error, AblateError) and hasattr(errors, name) and type(error) is getattr(errors, name):
        kind = error.kind if isinstance(error, TrialError) else "trial"
        return Told(type=name, text=storable(str(error)), detail=detail, kind=kind)
    if isinstance(error, RequestError):  # a subclass of another module, where `error_of` does not look
        return Told(type=RequestError.__name__, text=storable(str(error)), detail=detail)
    text = user_line(error)
    memory = isinstance(error, MemoryError) or lacks_memory(f"{name}: {text}")
    return Told(type=TrialError.__name__, text=storable(text), detail=detail, kind="memory" if memory else "trial")


def crash_place(output: str) -> str:
    """Return the place of a crash that the last output of a process names, as `mine.py:12: `; empty without one."""
    return last_place([(file, int(line)) for file, line in _FRAME.findall(output)][::-1])
