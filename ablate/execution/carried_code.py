"""Carries the user's packages and files to the workers of a cluster, whose machines have no copy of them."""

from __future__ import annotations

import atexit
import hashlib
import io
import sys
import zipfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from ablate.base.code_files import code_files
from ablate.base.errors import ResourceError

LIMIT_BYTES = 100_000_000

_unpacked: set[str] = set()
_folders = ExitStack()


def pack(places: Sequence[Path], *, limit: int = LIMIT_BYTES) -> bytes:
    """Return the code of packages and modules as a zip archive; raise ResourceError for more than `limit` bytes."""
    files = [each for place in places for each in code_files(place)]
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
            archive.writestr(info, file.read_bytes(), compress_type=zipfile.ZIP_DEFLATED)
    return content.getvalue()


def unpack(content: bytes) -> None:
    """Let this process import what `pack` packed, after all that is installed; the files go with the process."""
    digest = hashlib.sha256(content).hexdigest()
    if digest in _unpacked:
        return
    from ablate.base.scratch import scratch_folder  # imports SQLAlchemy, which other workers do without

    if not _unpacked:
        atexit.register(_folders.close)
    folder = _folders.enter_context(scratch_folder("code"))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        archive.extractall(folder)
    sys.path.append(str(folder))
    _unpacked.add(digest)
