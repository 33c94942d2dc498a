"""The location of data sets, and the error for a missing or damaged one."""

from __future__ import annotations

import fcntl
import logging
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ablate.base.cache import cache_folder
from ablate.base.errors import DataError
from ablate.base.redaction import error_text

logger = logging.getLogger("ablate.engine.tasks")


def data_folder(explicit: Path | None = None) -> Path:
    """Return the absolute folder of all data sets: `explicit` (--data-dir), else $ABLATE_DATA, else the user's cache.

    The cache is $XDG_CACHE_HOME/ablate/data, by default ~/.cache/ablate/data. The folder need not exist.
    """
    if explicit is not None:
        return expanded(Path(explicit)).absolute()
    named = os.environ.get("ABLATE_DATA", "")
    if named:
        return expanded(Path(named)).absolute()
    return cache_folder() / "data"


def fetch_command(name: str, data_dir: Path | None) -> str:
    """Return the command that fetches data set `name` into the folder that was searched."""
    place = "" if data_dir is None else f" --data-dir {shlex.quote(str(data_dir))}"
    return f"ablate data fetch {name}{place}"


def unusable(name: str, data_dir: Path | None, faults: dict[Path, str], *, remedy: str = "") -> DataError:
    """Return the one-line error of a data set with `faults` (file: `missing` or a description of its damage).

    `remedy` says what to do if `ablate data fetch` cannot help.
    """
    folder = data_folder(data_dir)
    missing = [path for path, fault in faults.items() if fault == "missing"]
    damaged = [f"{_inside(path, folder)}: {fault}" for path, fault in faults.items() if fault != "missing"]
    parts = []
    if missing:
        state = "is not a folder" if folder.exists() else "does not exist"
        where = "" if folder.is_dir() else f", which {state}"
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        parts.append(f"data set {name} is not in {folder}{where} (looked for {_inside(missing[0], folder)}{more})")
    if damaged:
        parts.append(f"data set {name} in {folder} is damaged ({'; '.join(damaged)})")
    return DataError(
        f"{'; '.join(parts)}. {remedy or f'Get it with: {fetch_command(name, data_dir)}'}"
        " (or name its folder by --data-dir or ABLATE_DATA)"
    )


def unreadable(name: str, data_dir: Path | None, error: Exception) -> DataError:
    """Return the error of a data set that is there and cannot be read."""
    return DataError(
        f"data set {name} in {data_folder(data_dir)} cannot be read: {error_text(error)}."
        f" Get it again with: {fetch_command(name, data_dir)}"
    )


def not_downloaded(
    what: str, name: str, data_dir: Path | None, error: Exception, *, copy: Path | None = None
) -> DataError:
    """Return the error of a download that failed; `what` says of what and where to."""
    again = f"Try again with a network: {fetch_command(name, data_dir)}"
    return DataError(
        f"cannot download {what}: {error_text(error)}. {again}; or copy {copy or 'the file'} from a machine that has it"
    )


def log_progress(line: str) -> None:
    """Log how far a long computation is; what a worker logs so is out of date when a turn ends, and not repeated."""
    logger.warning("%s", line, extra={"progress": True})


def bytes_below(location: Path) -> int:
    """Return the size in bytes of a file, or of all files below a folder; 0 if it does not exist."""
    if location.is_file():
        return location.stat().st_size
    return sum(path.stat().st_size for path in location.rglob("*") if path.is_file())


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Let one process at a time enter, so that trials that start together do not repeat the same computation."""
    descriptor = os.open(folder / ".lock", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    with os.fdopen(descriptor, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # some network file systems have no locks: several processes then repeat the work
            logger.warning("%s has no locks; the same may be computed more than once", folder)
        yield


def expanded(path: Path | str) -> Path:
    """Return `path` with `~` replaced by a home folder; a `~name` of no user is an ordinary name, as in a shell."""
    return Path(os.path.expanduser(path))


def _inside(path: Path, folder: Path) -> Path:
    return path.relative_to(folder) if path.is_relative_to(folder) else path
