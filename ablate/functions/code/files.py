"""Which files below a user's module or package are its code: what is watched and sent to workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

PYTHON = (".py", ".pyi", ".pyx", ".pxd")
COMPILED = (".so", ".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".cu", ".cuh")


def code_files(place: Path) -> Iterator[tuple[Path, str]]:
    """Yield each file of a module or package that is code, and its path below the folder of `place`, in order of path.

    Code has a suffix of PYTHON or COMPILED. Left out are names that begin with a dot, `__pycache__`, links below
    `place`, and all that is not code, such as data, configuration and keys: others may read what gets the code.
    """
    if place.is_file():
        yield place, place.name
        return
    for folder, below, files in os.walk(place):
        below[:] = sorted(name for name in below if _is_open(name) and not Path(folder, name).is_symlink())
        for path in (Path(folder, name) for name in sorted(files)):
            if path.suffix in PYTHON + COMPILED and _is_open(path.name) and not path.is_symlink() and path.is_file():
                yield path, str(path.relative_to(place.parent))


def _is_open(name: str) -> bool:
    return name.isprintable() and not name.startswith(".") and name != "__pycache__"
