"""Carries the user's packages and files to the workers of a cluster, whose machines have no copy of them."""

from __future__ import annotations

import atexit
import hashlib
import io
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from ablate.base.errors import ResourceError

LIMIT_BYTES = 100_000_000
LEFT_OUT = ("__pycache__",)

_unpacked: set[str] = set()
_folders = ExitStack()


def pack(places: Sequence[Path], *, limit: int = LIMIT_BYTES) -> bytes:
    """Return packages and files as a zip archive; raise ResourceError if they have more than `limit` bytes."""
    files = [(file, file.relative_to(place.parent)) for place in places for file in _files(place)]
    size = sum(file.stat().st_size for file, _ in files)
    if size > limit:
        raise ResourceError(
            f"the code {', '.join(map(str, places))} has {size / 1e6:,.0f} MB, and at most {limit / 1e6:,.0f} MB"
            " are sent to the machines of a cluster. Move data out of the package, or install it on each machine"
        )
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, name in files:
            info = zipfile.ZipInfo(str(name))  # without times: equal code, equal bytes
            archive.writestr(info, file.read_bytes(), compress_type=zipfile.ZIP_DEFLATED)
    return content.getvalue()


def unpack(content: bytes) -> None:
    """Let this process import what `pack` packed, after all that is installed; the files go with the process."""
    digest = hashlib.sha256(content).hexdigest()
    if digest in _unpacked:
        return
    from ablate.scratch import scratch_folder  # imports SQLAlchemy, which other workers do without

    if not _unpacked:
        atexit.register(_folders.close)
    folder = _folders.enter_context(scratch_folder("code"))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        archive.extractall(folder)
    sys.path.append(str(folder))
    _unpacked.add(digest)


def _files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
        return
    for path in sorted(place.rglob("*")):
        inside = path.relative_to(place).parts
        leaves = not path.resolve().is_relative_to(place.resolve())  # a link to somewhere else
        if path.is_file() and not leaves and not any(part in LEFT_OUT or part.startswith(".") for part in inside):
            yield path
