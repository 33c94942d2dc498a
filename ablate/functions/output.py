"""What a trial prints, which is a file beside its checkpoints; and the durable folder of each of its seeds."""

from __future__ import annotations

import atexit
import errno
import fcntl
import logging
import os
import stat
import tempfile
import threading
import time
from contextlib import ExitStack
from functools import cache
from hashlib import sha256
from pathlib import Path

from ablate.base.errors import RequestError
from ablate.base.files import SEED_FOLDER, DiskFolder, Place, disk_path, home_of, open_folder, open_trial
from ablate.base.plain_text import printable
from ablate.base.redaction import error_text, redact_url
from ablate.core.trial import OUTPUT as OUTPUT
from ablate.functions.terminal import terminal_line

KEPT_BYTES = 2**20  # of the newest output
STORE_SECONDS = 30.0  # between two writes to an object store
APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

logger = logging.getLogger("ablate.functions")


def ended_early_text(epochs: int, length: int) -> str:
    """Return what a trial's output says where its code has ended by itself before its last report."""
    return f"ended by itself after {epochs} of {length} epochs: its last report is that of the whole training"


class Output:
    """The output of a trial: `descriptor` is the standard output and error of the processes that train it.

    On a disk it is the file itself in the trial's checkpoint folder, which goes on after what earlier attempts have
    written. Whoever waits for the trial calls `trim`, which keeps the newest megabyte. For an object store, for
    `place=None`, or where the file cannot be written, which is logged and ends no trial, it is in memory.
    """

    def __init__(self, place: Place | None) -> None:
        self._place, self._uploaded = place, time.monotonic()
        self._stored = place is not None and disk_path(place) is None
        self._lock = threading.Lock()
        self.descriptor = self._file()

    def write(self, content: bytes) -> None:
        """Append `content`."""
        view = memoryview(content)
        while view:
            view = view[os.write(self.descriptor, view) :]

    def tail(self, count: int) -> bytes:
        """Return the last bytes, at most `count`."""
        size = os.fstat(self.descriptor).st_size
        return os.pread(self.descriptor, count, max(size - count, 0))

    def trim(self, *, least: int = 2 * KEPT_BYTES) -> None:
        """Cut the output to its newest part if it has `least` bytes or more; send it to an object store when due."""
        with self._lock:
            if os.fstat(self.descriptor).st_size >= least:
                kept = self.tail(KEPT_BYTES)
                os.ftruncate(self.descriptor, 0)  # what is written goes to the end, wherever that is
                self.write(kept)
            if self._stored and time.monotonic() - self._uploaded > STORE_SECONDS:
                self._upload()

    def close(self) -> None:
        """Cut the output to its newest part, and close it."""
        self.trim(least=KEPT_BYTES + 1)
        if self._stored:
            self._upload()
        os.close(self.descriptor)

    def _file(self) -> int:
        disk = None if self._place is None else disk_path(self._place)
        if disk is not None:
            try:
                DiskFolder(disk, home=home_of(disk)).make()
                if stat.S_ISREG(os.fstat(number := os.open(disk / OUTPUT, APPEND, 0o666)).st_mode):
                    return number
                raise OSError(errno.EINVAL, "not a regular file", str(disk / OUTPUT))
            except OSError as error:
                self._warn(error)
        memory = os.memfd_create(OUTPUT)
        os.write(memory, self._earlier() if self._stored else b"")
        fcntl.fcntl(memory, fcntl.F_SETFL, os.O_APPEND)
        return memory

    def _earlier(self) -> bytes:
        assert self._place is not None
        try:
            return open_folder(self._place).read(OUTPUT)[-KEPT_BYTES:]
        except FileNotFoundError:
            return b""
        except OSError as error:
            self._warn(error)
            return b""

    def _upload(self) -> None:
        assert self._place is not None
        content, self._uploaded = self.tail(KEPT_BYTES), time.monotonic()
        if not content:
            return
        try:
            open_trial(self._place).write(OUTPUT, content)
        except OSError as error:
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        assert self._place is not None
        where = f"{redact_url(self._place)}/{OUTPUT}"
        logger.warning("%s: output cannot be kept: %s", where, error_text(error, self._place))


def read_output(place: Place) -> str:
    """Return what the trial of a checkpoint folder has printed, safe for a terminal; '' if nothing is kept.

    Raises RequestError if the place does not answer.
    """
    try:
        return _shown(open_folder(place).read(OUTPUT))
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise RequestError(f"{redact_url(place)}/{OUTPUT}: cannot be read ({error_text(error, place)})") from error


def seed_folder(checkpoints: Place | None, seed: int) -> Path:
    """Return the folder of a trial's seed for files of the user's code, and create it.

    It is `seed-SEED` in `files_of(checkpoints)`. Raises OSError if it cannot be created.
    """
    place = disk_path(files_of(checkpoints))
    assert place is not None
    folder = place.absolute() / f"{SEED_FOLDER}{seed}"
    DiskFolder(folder, home=home_of(place) if checkpoints is not None and disk_path(checkpoints) else None).make()
    return folder


def files_of(checkpoints: Place | None) -> Place:
    """Return the folder of a trial's files: that of its checkpoints if it is on a disk.

    For an object store, or without checkpoints, it is a folder of this machine that is removed with the process:
    nothing in it outlives a restart.
    """
    if checkpoints is None:
        return Path(tempfile.mkdtemp(dir=private_folder("seeds")))
    if disk_path(checkpoints) is not None:
        return checkpoints
    return private_folder("seeds") / sha256(str(checkpoints).encode()).hexdigest()[:16]


def _shown(content: bytes) -> str:
    text = printable("\n".join(map(terminal_line, content.decode("utf-8", "replace").split("\n"))))
    return text if text.strip() else ""  # a bar that was wiped leaves spaces


@cache
def private_folder(kind: str) -> Path:
    """Return a folder that only this user can enter and that goes with the process."""
    from ablate.base.scratch import scratch_folder  # imports SQLAlchemy, which other processes do without

    folders = ExitStack()
    atexit.register(folders.close)
    return folders.enter_context(scratch_folder(kind))
