"""The user's cache of this program: bytes by name, in folders that nobody else can enter."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from ablate.base.files import DiskFolder, ensure_home


def cache_folder() -> Path:
    """Return the user's cache of this program: $XDG_CACHE_HOME/ablate, by default ~/.cache/ablate."""
    ensure_home()
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification requires that a relative path is ignored.
    return (cache if cache.is_absolute() else Path("~/.cache").expanduser().absolute()) / "ablate"


def cached_bytes(kind: str, name: str, make: Callable[[], bytes]) -> bytes:
    """Return what the folder `kind` of the user's cache keeps as `name`; else make it, and keep it.

    What it keeps is shown in a page: the folder is `open_private`, and only a file of this user that is whole and
    writable by nobody else is used. `name` must change whenever the content may.
    """
    with ExitStack() as opened:
        try:
            folder = DiskFolder(opened.enter_context(open_private(cache_folder() / kind)))
        except (OSError, RuntimeError):  # RuntimeError: there is no home folder
            return make()
        with suppress(OSError):
            digest, _, kept = folder.read(name, own=True).partition(b"\n")
            if digest == sha256(kept).hexdigest().encode():
                return kept
        content = make()
        with suppress(OSError):
            folder.write(name, sha256(content).hexdigest().encode() + b"\n" + content)
            (folder.path / name).chmod(0o600)  # whatever the umask
        return content


@contextmanager
def open_private(folder: Path) -> Iterator[Path]:
    """Create a folder that nobody else can enter, open it, and give a path by which only this folder is reached.

    Inside the block the path leads to the folder that was opened, also if somebody renames it or puts another one in
    its place. Raises OSError if it is a symbolic link, belongs to another user, or others can enter it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        about = os.fstat(descriptor)
        if about.st_uid != os.geteuid() or about.st_mode & 0o077:
            raise OSError(errno.EPERM, "others can enter it", str(folder))
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
