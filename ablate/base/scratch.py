"""Temporary folders that name their owner, so that a later process can remove those of a killed one."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ablate.base.processes import is_gone, this_process

PREFIX, OWNER, CONTENT = "ablate-", "owner.json", "d"
UNOWNED_SECONDS = 3600.0  # an older folder without an owner is not just being created
NAME = re.compile(rf"{PREFIX}[a-z]+-[a-z0-9_]{{8}}")  # as tempfile makes it


@contextmanager
def scratch_folder(kind: str, *, base: Path | None = None) -> Iterator[Path]:
    """Yield an empty folder of mode 0700 below `base` (default: the system's temporary folder), removed afterwards.

    Folders of dead processes of the same user in the same base are removed first.
    """
    place = Path(tempfile.gettempdir()) if base is None else base
    remove_abandoned(place)
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{kind}-", dir=place, ignore_cleanup_errors=True) as folder:
        owner = this_process()
        text = json.dumps({"place": owner.place, "pid": owner.pid, "started": owner.started})
        (Path(folder) / OWNER).write_text(text)
        content = Path(folder) / CONTENT
        content.mkdir(mode=0o700)
        yield content


def remove_abandoned(base: Path) -> None:
    """Remove the scratch folders in `base` whose owner is dead; keep links, other users' folders and all others.

    A process that is killed before it has written its name leaves an empty folder, which is removed when it is old.
    """
    with os.scandir(base) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and _is_abandoned(Path(entry.path)):
                shutil.rmtree(entry.path, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Return whether a folder belongs to this user and the process that it names is dead."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(folder, flags | os.O_DIRECTORY)
    except OSError:  # a link, a file, another user's folder, or removed meanwhile
        return False
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            return False
        if _is_unowned(folder.name, descriptor):
            return True
        with os.fdopen(os.open(OWNER, flags | os.O_NONBLOCK, dir_fd=descriptor)) as file:
            owner = json.loads(file.read(1000))
        return is_gone(place=owner["place"], pid=int(owner["pid"]), started=owner["started"])
    except (OSError, ValueError, KeyError, TypeError):  # not a scratch folder, or its owner is just creating it
        return False
    finally:
        os.close(descriptor)


def _is_unowned(name: str, descriptor: int) -> bool:
    """Return whether a folder is old, has a scratch folder's name, and holds nothing or an empty owner file."""
    if not NAME.fullmatch(name) or time.time() - os.fstat(descriptor).st_mtime < UNOWNED_SECONDS:
        return False
    inside = os.listdir(descriptor)
    return not inside or (inside == [OWNER] and os.stat(OWNER, dir_fd=descriptor, follow_symlinks=False).st_size == 0)
