"""Standard output and error that never raise: what they cannot write is lost, and the command says so at its end."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from ablate.base.errors import OutputLostError


class TolerantFile(io.FileIO):
    """A file that remembers its first failed write and drops what it cannot write."""

    lost: OSError | None = None

    def write(self, data: Any) -> int:
        """Write `data` or drop it, and return how many bytes are dealt with."""
        try:
            while (written := super().write(data)) is None:  # a terminal in non-blocking mode
                select.select([], [self], [])
        except OSError as error:
            self.lost = self.lost or error
            return memoryview(data).nbytes
        return written


@contextmanager
def tolerant_streams() -> Iterator[None]:
    """Replace `sys.stdout` and `sys.stderr` inside the block; a stream without a file descriptor stays as it is."""
    former = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_tolerant, former)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = former


def require_printed() -> None:
    """Raise OutputLostError where standard output could not be written."""
    if (error := _lost()) is not None:
        raise OutputLostError(
            f"the output could not be printed ({error.strerror}). Run the same command again to see it; nothing else"
            " is lost"
        )


def is_reader_gone() -> bool:
    """Return whether standard output is a pipe that nobody reads any more, as in `ablate list | head -1`."""
    error = _lost()
    return error is not None and error.errno == errno.EPIPE


def _lost() -> OSError | None:
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw.lost if isinstance(raw, TolerantFile) else None


def _tolerant(stream: TextIO | None) -> Any:
    """Return a stream on the same file descriptor; Python gives None for one that was closed before it started."""
    if stream is None:
        raw = TolerantFile(os.devnull, "w")
        raw.lost = OSError(errno.EBADF, os.strerror(errno.EBADF))
        return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace")
    try:
        raw = TolerantFile(stream.fileno(), "w", closefd=False)
    except (OSError, AttributeError):
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=getattr(stream, "line_buffering", False),
    )
