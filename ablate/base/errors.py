"""Every error that `ablate` raises on purpose, as one tree."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from ablate.base.plain_text import one_printable_line

FAULTS_SHOWN = 20
NAMES_SHOWN = 50
V = TypeVar("V")
_NO_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|can't allocate memory|RESOURCE_EXHAUSTED|\bMemoryError\b", re.I
)
TrialFault = Literal["trial", "memory", "died"]
FailureKind = TrialFault | Literal["pack", "store"]
RESUMABLE = 75  # EX_TEMPFAIL of sysexits.h: nothing is lost, the same command continues


class AblateError(Exception):
    """Base of every error that `ablate` raises on purpose."""

    exit_code = 1


class RequestError(AblateError):
    """The request is wrong; nothing was started."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault in a study file: its place, the value found, and the rule that it breaks."""

    path: str
    value: object = None
    rule: str
    line: int | None = None
    hint: str = ""

    def render(self, file: str) -> str:
        """Return `file:line: path = value: rule. hint` in one line."""
        place = f"{file}:{self.line}" if self.line is not None else file
        got = "" if self.value is None else f" = {_shorten(repr(self.value))}"
        line = f"{place}: {_shorten(self.path, 200)}{got}: {self.rule}" + (f" {self.hint}" if self.hint else "")
        return one_printable_line(line)


class StudyFileError(RequestError):
    """The study file has faults; `faults` lists all of them, the message the first FAULTS_SHOWN."""

    def __init__(self, file: str, faults: Sequence[Fault]) -> None:
        self.file = file
        self.faults = tuple(faults)
        lines = [fault.render(file) for fault in self.faults[:FAULTS_SHOWN]]
        if len(self.faults) > FAULTS_SHOWN:
            lines.append(f"{file}: and {len(self.faults) - FAULTS_SHOWN:,} more faults")
        super().__init__("\n".join(lines))


class DataError(RequestError):
    """A data set is missing or damaged; the message names the command that fixes it."""


class RegistryError(RequestError):
    """A name is not registered, or an import path does not resolve."""


class ResourceError(RequestError):
    """The cluster does not have the requested resources; the message says what it has and what to type."""


class StudyMismatchError(RequestError):
    """The study exists with a file that makes past and new trials incomparable; the difference is in the message."""


class StudyFailedError(AblateError):
    """The study ended without a usable result."""


class LedgerError(AblateError):
    """The ledger cannot be opened, read or written."""


class StorageError(LedgerError):
    """The storage URL is wrong; no ledger can be there."""

    exit_code = RequestError.exit_code


class NoLedgerError(LedgerError):
    """The database answers, and there is no ledger in it."""


class LedgerDownError(LedgerError):
    """The ledger's server does not answer, or its disk is full; committed data are kept."""

    exit_code = RESUMABLE


class LedgerMovedError(LedgerDownError):
    """The ledger's file is not at its path any more: it, or a folder above it, was removed, renamed or replaced."""


class LedgerHeldError(LedgerError):
    """Another driver holds the lease of the study.

    `mark` identifies its lease as it was read: each renewal and each write changes it. A lease whose mark stays the
    same for `lease_seconds` has ended. `here` is true if the driver was started on this machine and is alive.
    """

    exit_code = RESUMABLE

    def __init__(
        self, message: str, *, mark: tuple[object, ...] = (), lease_seconds: float = 0.0, here: bool = False
    ) -> None:
        super().__init__(message)
        self.mark = mark
        self.lease_seconds = lease_seconds
        self.here = here


class StaleDriverError(LedgerError):
    """A later driver has raised the study's term; this driver's write was refused."""


class CheckpointError(AblateError):
    """A checkpoint is missing, damaged or belongs to another model."""


class CheckpointDownError(CheckpointError):
    """Checkpoints cannot be written or read now (full disk, store that does not answer); no fault of the trial."""

    exit_code = RESUMABLE


class CodeDownError(AblateError):
    """The worktree of a code version cannot be made now; the trials that need it have not begun."""

    exit_code = RESUMABLE


class ClusterLostError(AblateError):
    """The Ray cluster of a study is gone, or a local Ray does not start in time; committed data are kept."""

    exit_code = RESUMABLE


class OutputLostError(AblateError):
    """What a command printed could not be written; the command itself is done."""

    exit_code = RESUMABLE


class ResultsDownError(AblateError):
    """Tables or report cannot be written now; the ledger still has all of their data."""

    exit_code = RESUMABLE


class TrialError(AblateError):
    """One trial cannot continue; it is recorded as FAIL and the study continues.

    `kind` is "memory" for a lack of memory and "died" for a killed process, which another attempt may not meet.
    `detail` is the traceback, where the error arose in another process.
    """

    def __init__(self, message: str, kind: TrialFault = "trial", detail: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.detail = detail


class PausedError(AblateError):
    """A trial has paused as requested; it continues from the checkpoint that it has written."""


def lacks_memory(text: str) -> bool:
    """Return whether an error's type and text, or the last output of a process, tell of a lack of memory.

    They are those of CUDA and of PyTorch on a CPU, of JAX and of Python.
    """
    return bool(_NO_MEMORY.search(text))


def each_once(pairs: Iterable[tuple[str, V]]) -> dict[str, V]:
    """Return names and values that were typed; raise RequestError for a name that occurs twice."""
    found: dict[str, V] = {}
    for name, value in pairs:
        if name in found:
            raise RequestError(f"{name} is given twice: leave one of them out")
        found[name] = value
    return found


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `Did you mean 'x'? Known: a, b, c.` for a mistyped `name`, or `None is known.`"""
    names = sorted(known)
    if not names:
        return "None is known."
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    guess = f"Did you mean '{close[0]}'? " if close else ""
    more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
    return f"{guess}Known: {', '.join(names[:NAMES_SHOWN])}{more}."


def _shorten(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
