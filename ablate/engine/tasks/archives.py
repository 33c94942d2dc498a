"""Zip archives that are downloaded, checked against their published checksum and extracted."""

from __future__ import annotations

import hashlib
import http.client
import logging
import shutil
import tempfile
import time
import urllib.request
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from ablate.base.errors import DataError

FAILURES = (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, http.client.HTTPException)
SILENCE_SECONDS = 60.0  # a download fails when it receives no data for this long
BLOCK_BYTES = 2**20
TELL_SECONDS = 5.0

logger = logging.getLogger("ablate.engine.tasks")


def fetch_zip(url: str, folder: Path, *, top: str, md5: str) -> Path:
    """Download a zip archive of one folder `top`, extract it and return `folder/top`.

    An existing folder is completed, and the archive's files replace those in it. A failure leaves no files behind.
    Raises DataError if the archive is not the published one or one of its paths leaves `top`, and the errors in
    `FAILURES`.
    """
    with tempfile.TemporaryDirectory(prefix=f".{top}-", dir=folder) as scratch:
        archive = Path(scratch) / "archive.zip"
        got = download(url, archive)
        if got != md5:
            raise DataError(f"{url} is not the published archive: its MD5 sum is {got}, not {md5}")
        extract(archive, Path(scratch), top=top)
        _move(Path(scratch) / top, folder / top)
    return folder / top


def download(url: str, path: Path, *, silence: float = SILENCE_SECONDS) -> str:
    """Download `url` to `path` and return the MD5 checksum; log the progress."""
    digest, done, told = hashlib.md5(usedforsecurity=False), 0, time.monotonic()
    with urllib.request.urlopen(url, timeout=silence) as answer, path.open("wb") as file:
        length = int(answer.headers.get("Content-Length") or 0)
        while block := answer.read(BLOCK_BYTES):
            file.write(block)
            digest.update(block)
            done += len(block)
            if time.monotonic() - told > TELL_SECONDS:
                told = time.monotonic()
                logger.info("%s: %.0f of %.0f MB", url, done / 1e6, max(length, done) / 1e6)
    if done < length:
        raise EOFError(f"{url} broke off after {done:,} of {length:,} bytes")
    return digest.hexdigest()


def extract(archive: Path, folder: Path, *, top: str) -> None:
    """Extract `archive` into `folder`; raise DataError, before anything is written, if a path leaves `top`."""
    with zipfile.ZipFile(archive) as opened:
        for name in opened.namelist():
            parts = PurePosixPath(name.replace("\\", "/")).parts
            if not parts or parts[0] != top or ".." in parts:
                raise DataError(f"the archive holds the path {name!r}, which is not below {top}: nothing was extracted")
        opened.extractall(folder)


def _move(source: Path, target: Path) -> None:
    if target.exists():
        shutil.copytree(source, target, dirs_exist_ok=True, copy_function=shutil.move)
    else:
        source.rename(target)
