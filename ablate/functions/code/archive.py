"""Carries the user's packages and files to the workers of a cluster, whose machines have no copy of them."""

from __future__ import annotations

import atexit
import hashlib
import io
import os
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from ablate.base.errors import ResourceError
from ablate.functions.code.files import code_files

LIMIT_BYTES = 100_000_000

_extracted: dict[str, Path] = {}  # folders by the digest of their content
_folders = ExitStack()


def zip_code(places: Sequence[Path], *, limit: int = LIMIT_BYTES, every: bool = False) -> bytes:
    """Return the code of packages and modules as a zip archive; raise ResourceError for more than `limit` bytes.

    With `every` these are all files below `places`, except links, `__pycache__` and a worktree's `.git` file.
    """
    files = [each for place in places for each in (_all_files(place) if every else code_files(place))]
    size = sum(file.stat().st_size for file, _ in files)
    if size > limit:
        raise ResourceError(
            f"the code {', '.join(map(str, places))} has {size / 1e6:,.0f} MB, and at most {limit / 1e6:,.0f} MB"
            " are sent to the machines of a cluster. Install it on each machine"
        )
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, name in files:
            info = zipfile.ZipInfo(name)  # without times: equal code, equal bytes
            info.external_attr = (file.stat().st_mode & 0o777) << 16
            archive.writestr(info, file.read_bytes(), compress_type=zipfile.ZIP_DEFLATED)
    return content.getvalue()


def _all_files(place: Path) -> Iterator[tuple[Path, str]]:
    for folder, below, files in os.walk(place):
        below[:] = sorted(name for name in below if name != "__pycache__")
        for path in (Path(folder, name) for name in sorted(files) if name != ".git"):
            if path.is_file() and not path.is_symlink():
                yield path, str(path.relative_to(place.parent))


def extract(content: bytes) -> Path:
    """Extract the result of `zip_code` into a folder at the end of `sys.path`; return it. It is removed at exit."""
    digest = hashlib.sha256(content).hexdigest()
    if digest in _extracted:
        return _extracted[digest]
    from ablate.base.scratch import scratch_folder  # imports SQLAlchemy, which other workers do without

    if not _extracted:
        atexit.register(_folders.close)
    folder = _folders.enter_context(scratch_folder("code"))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for info in archive.infolist():
            Path(archive.extract(info, folder)).chmod(info.external_attr >> 16)
    sys.path.append(str(folder))
    _extracted[digest] = folder
    return folder
