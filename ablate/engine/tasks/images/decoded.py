"""A cache of decoded images: one process decodes a folder and the others read an array."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ablate.base.cache import cache_folder
from ablate.base.files import new_file
from ablate.base.redaction import error_text
from ablate.engine.tasks.folders import alone, log_progress

CACHED_FROM = 1000  # images; a smaller folder is decoded in negligible time
TELL_SECONDS = 2.0
DIGEST = 16  # bytes
PIXELS = "pixels.npy"
logger = logging.getLogger("ablate.engine.tasks")

Decode = Callable[[Path, np.ndarray], str]
"""Fills an array [H, W, C] with the image in a file; returns what is wrong with the file, or an empty text."""


def load_decoded(
    folder: Path, files: Sequence[Path], shape: tuple[int, int, int], decode: Decode
) -> tuple[np.ndarray, list[str]]:
    """Return the images in `files` as uint8 [n, *shape], and one fault per file, empty if it was read.

    The array of a large folder is kept in `cache_folder`, identified by name, size and time of every file. A damaged
    array is made again. If the cache cannot be written, every process decodes the files itself.
    """
    if len(files) < CACHED_FROM:
        return decode_all(folder, files, shape, decode)
    place = cache_folder() / "decoded" / _hex(f"{folder.resolve()}\n{shape}")
    try:
        stamp = _stamp(files, shape)
        place.mkdir(parents=True, exist_ok=True)
        with alone(place):
            pixels = _kept(place / PIXELS, stamp)
            if pixels is not None:
                return pixels, [""] * len(files)
            pixels, faults = decode_all(folder, files, shape, decode)
            if not any(faults):
                _keep(place / PIXELS, pixels, stamp)
            return pixels, faults
    except OSError as error:
        logger.warning("image_folder %s: decoded images cannot be kept in %s: %s", folder, place, error_text(error))
    return decode_all(folder, files, shape, decode)


def decode_all(
    folder: Path, files: Sequence[Path], shape: tuple[int, int, int], decode: Decode, *, tell: float = TELL_SECONDS
) -> tuple[np.ndarray, list[str]]:
    """Return the result of `load_decoded` without the cache; log the progress every `tell` seconds."""
    pixels = np.empty((len(files), *shape), dtype=np.uint8)
    with ThreadPoolExecutor() as pool:
        return pixels, list(_told(folder, len(files), pool.map(decode, files, pixels), tell))


def _told(folder: Path, total: int, faults: Iterator[str], tell: float) -> Iterator[str]:
    begun = last = time.monotonic()
    for done, fault in enumerate(faults, start=1):
        yield fault
        if (now := time.monotonic()) - last >= tell:
            last, left = now, (now - begun) / done * (total - done)
            log_progress(f"image_folder {folder}: decoded {done:,} of {total:,} images, {left:.0f} s left")


def _keep(path: Path, pixels: np.ndarray, stamp: bytes) -> None:
    """Write an array, a description of its files and its checksum atomically."""
    descriptor, scratch = new_file(path.parent, path.name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            np.save(file, pixels, allow_pickle=False)
            file.write(stamp + _digest(pixels))
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def _kept(path: Path, stamp: bytes) -> np.ndarray | None:
    """Return what `_keep` wrote, or None if it is missing, damaged (which is logged) or made of other files."""
    try:
        with path.open("rb") as file:
            file.seek(-2 * DIGEST, os.SEEK_END)
            if file.read(DIGEST) != stamp:
                return None
            checksum = file.read(DIGEST)
            file.seek(0)
            pixels: np.ndarray = np.load(file, allow_pickle=False)
            if pixels.dtype == np.uint8 and _digest(pixels) == checksum:
                return pixels
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError, MemoryError) as error:
        logger.warning("decoded images in %s cannot be read and are made again: %s", path, error_text(error))
        return None
    logger.warning("decoded images in %s are damaged and are made again", path)
    return None


def _stamp(files: Sequence[Path], shape: tuple[int, int, int]) -> bytes:
    digest = hashlib.blake2b(repr(shape).encode(), digest_size=DIGEST)
    for path in files:
        found = path.stat()
        digest.update(f"{path}\0{found.st_size}\0{found.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
    return digest.digest()


def _digest(pixels: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=DIGEST).digest()


def _hex(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=DIGEST).hexdigest()
