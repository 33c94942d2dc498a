"""A disk so small that a test can fill it: a tmpfs of its own (root only)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

BLOCK = 4096


@dataclass(frozen=True, kw_only=True)
class SmallDisk:
    """A mounted tmpfs at `folder`."""

    folder: Path

    def fill(self) -> None:
        """Take all the space that is left."""
        with (self.folder / "ballast").open("ab", buffering=0) as ballast, suppress(OSError):
            while ballast.write(b"\0" * BLOCK):
                continue

    def free(self) -> None:
        """Give that space back."""
        (self.folder / "ballast").unlink()


def missing() -> str | None:
    """Return why nothing can be mounted here, or None."""
    if os.getuid() != 0:
        return "mounting a tmpfs needs root"
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, check=False)
    return f"nothing can be mounted here: {done.stderr.strip()}" if done.returncode else None


@contextmanager
def small_disk(folder: Path, *, megabytes: int) -> Iterator[SmallDisk]:
    """Mount an empty tmpfs of so many megabytes at `folder`; it is gone afterwards, whoever still uses it."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], check=True)
    try:
        yield SmallDisk(folder=folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
