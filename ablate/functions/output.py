"""What a trial prints, kept as a file beside its checkpoints; and the durable folder of each of its seeds."""

from __future__ import annotations

import atexit
import logging
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
DISK_SECONDS, STORE_SECONDS = 1.0, 30.0  # between two writes of the file

logger = logging.getLogger("ablate.functions")


def ended_early_text(epochs: int, length: int) -> str:
    """Return what a trial's output says where its code has ended by itself before its last report."""
    return f"ended by itself after {epochs} of {length} epochs: its last report is that of the whole training"


class OutputLog:
    """Keeps the newest output of a trial in memory and in a file of its checkpoint folder; safe for threads.

    The file begins with what earlier attempts have written. It is written at most once a second on a disk, and every
    30 seconds in an object store. A place that cannot be read or written is logged once and never ends a trial. With
    `place=None` the output stays in memory.
    """

    def __init__(self, place: Place | None) -> None:
        self._place = place
        self._interval = STORE_SECONDS if place is not None and disk_path(place) is None else DISK_SECONDS
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None
        self._written = time.monotonic()
        self._changed = self._warned = False
        self._kept = bytearray(self._earlier())

    def write(self, content: bytes) -> None:
        """Append `content`; the file gets it within the interval of the place, without a wait of the caller."""
        with self._lock:
            self._kept += content
            if len(self._kept) > 2 * KEPT_BYTES:  # cut rarely, so that every byte is moved once
                del self._kept[:-KEPT_BYTES]
            self._changed = self._changed or bool(content)
            if self._place is not None and self._changed and self._timer is None:
                due = self._written + self._interval - time.monotonic()
                self._timer = threading.Timer(max(due, 0.0), self.flush)
                self._timer.daemon = True
                self._timer.start()

    def flush(self) -> None:
        """Write the file now if it lacks output."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._place is None or not self._changed:
                return
            try:
                open_trial(self._place).write(OUTPUT, bytes(self._kept[-KEPT_BYTES:]))
                self._changed = False
            except FileNotFoundError:
                pass  # the study's folder is gone, which ends the study
            except OSError as error:
                self._warn("written", error)
            self._written = time.monotonic()

    def close(self) -> None:
        """Write the file a last time."""
        self.flush()

    def _earlier(self) -> bytes:
        if self._place is None:
            return b""
        try:
            return open_folder(self._place).read(OUTPUT)[-KEPT_BYTES:]
        except FileNotFoundError:
            return b""
        except OSError as error:
            self._warn("read", error)
            return b""

    def _warn(self, what: str, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            assert self._place is not None
            where = f"{redact_url(self._place)}/{OUTPUT}"
            logger.warning("%s: output cannot be %s: %s", where, what, error_text(error, self._place))


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

    It is `seed-SEED` in the trial's checkpoint folder if that is on a disk. For an object store, or without
    checkpoints, it is a folder of this machine that is removed with the process: nothing in it outlives a restart.
    Raises OSError if it cannot be created.
    """
    home = None
    if checkpoints is None:
        place = Path(tempfile.mkdtemp(dir=private_folder("seeds")))
    elif (durable := disk_path(checkpoints)) is not None:
        place, home = durable, home_of(durable)
    else:
        place = private_folder("seeds") / sha256(str(checkpoints).encode()).hexdigest()[:16]
    folder = place.absolute() / f"{SEED_FOLDER}{seed}"
    DiskFolder(folder, home=home).make()
    return folder


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
