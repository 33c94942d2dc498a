"""`image_folder`: any folder of images with one subfolder per class."""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from ablate.base.errors import DataError, RequestError
from ablate.base.redaction import error_text
from ablate.engine.models.model_config import InputShape
from ablate.engine.tasks.base import Classification, Data
from ablate.engine.tasks.folders import data_folder, expanded
from ablate.engine.tasks.images.class_folders import Listing, list_images
from ablate.engine.tasks.images.decoded import load_decoded
from ablate.engine.tasks.images.patches import ImageSet, Split, input_shape, patch_data
from ablate.engine.tasks.repeats import Place, repeats
from ablate.engine.tasks.task_config import ImageFolderConfig

GREY_MODES = ("1", "L", "LA")
COLOUR_MODES = ("P", "RGB", "RGBA", "CMYK", "YCbCr")
NAMES = {"train": "train", "val": "validation", "test": "test"}
TAIL = 4096  # bytes; most images of one size differ in them
MIDDLE = 127.5  # of the values 0 to 255
BAD_IMAGE = (OSError, EOFError, ValueError, SyntaxError, struct.error, Image.DecompressionBombError)  # what PIL raises
NAMED = 10  # bad files named in one message


@dataclass(frozen=True)
class Header:
    """The header of an image, or the reason why it cannot be read."""

    size: tuple[int, int] = (0, 0)  # height, width in pixels
    grey: bool = False
    fault: str = ""


class ImageFolder(Classification):
    """A user's images: `path/CLASS/*` or `path/{train,val,test}/CLASS/*`.

    Without a `test` folder, a fixed stratified fifth of each class is the test split. Images are grey (one channel)
    if all files are, otherwise RGB. They are resized to `image_size` (bilinear with anti-aliasing, aspect ratio not
    kept); without it all must have one size.
    """

    def __init__(self, config: ImageFolderConfig) -> None:
        self.config = config

    def shape(self, data_dir: Path | None) -> InputShape:
        """Return the model's input shape from file names and headers; raise as `check` does."""
        return input_shape(self._listed(data_dir)[2], self.config.patch)

    def check(self, data_dir: Path | None) -> None:
        """Decode every image once; raise DataError that lists all bad files, or says what the folder lacks."""
        self._decoded(data_dir)

    def load(self, data_dir: Path | None) -> Data:
        """Return all parts as uint8 patches; values 0 to 255 are mapped to -1 to 1 by a fixed rule.

        Mean and deviation of the images would include the images that are held out for validation.
        """
        listing, images, pixels = self._decoded(data_dir)
        counts = [len(files) for files in listing.files.values()]
        parts: dict[str, Split] = {
            part: (images, torch.tensor(listing.targets[part], dtype=torch.int64))
            for part, images in zip(listing.files, torch.split(pixels, counts), strict=True)
        }
        middle = (MIDDLE,) * images.channels
        return patch_data(
            parts["train"],
            parts["test"],
            validation=parts.get("val"),
            patch=self.config.patch,
            mean=middle,
            std=middle,
            class_names=listing.class_names,
        )

    def remarks(self, data_dir: Path | None) -> tuple[str, ...]:
        """Return what is said of equal files in two splits or two classes."""
        folder = self.folder(data_dir)
        listing = list_images(folder)
        places = [
            (path, Place(part=NAMES[part], label=label, name=str(path.relative_to(folder))))
            for part, files in listing.files.items()
            for path, label in zip(files, listing.targets[part], strict=True)
        ]
        return repeats(
            (content, place) for (_, place), content in zip(places, contents([p for p, _ in places]), strict=True)
        )

    def folder(self, data_dir: Path | None) -> Path:
        """Return the folder of the images; raise RequestError if the study file names none."""
        if self.config.path is None:
            raise RequestError("task image_folder needs 'path': the folder that holds one subfolder per class")
        return data_folder(data_dir) / expanded(self.config.path)

    def _decoded(self, data_dir: Path | None) -> tuple[Listing, ImageSet, Tensor]:
        """Return what the folder holds, and all of its pixels."""
        folder, listing, images = self._listed(data_dir)
        input_shape(images, self.config.patch)
        files, size = tuple(chain(*listing.files.values())), (images.height, images.width, images.channels)
        pixels, faults = load_decoded(folder, files, size, _decode)
        _refuse_bad(folder, [(path, fault) for path, fault in zip(files, faults, strict=True) if fault])
        return listing, images, torch.from_numpy(pixels)

    def _listed(self, data_dir: Path | None) -> tuple[Path, Listing, ImageSet]:
        folder = self.folder(data_dir)
        listing = list_images(folder)
        return folder, listing, self._images(folder, listing)

    def _images(self, folder: Path, listing: Listing) -> ImageSet:
        headers = _headers(folder, tuple(chain(*listing.files.values())), listing.faults)
        sizes = {header.size for header in headers}
        if self.config.image_size is None and len(sizes) > 1:
            small, large = min(sizes), max(sizes)
            raise RequestError(
                f"image_folder {folder}: the images have {len(sizes)} sizes, from {small[0]}x{small[1]}"
                f" to {large[0]}x{large[1]} (height x width); set image_size"
            )
        height, width = self.config.image_size or sizes.pop()
        return ImageSet(
            name=f"image_folder {folder}",
            height=height,
            width=width,
            channels=1 if all(header.grey for header in headers) else 3,
            class_names=listing.class_names,
            train_samples=len(listing.files["train"]),
            ships_validation="val" in listing.files,
            test_samples=len(listing.files["test"]),
        )


def _headers(folder: Path, files: Sequence[Path], faults: Mapping[Path, str]) -> tuple[Header, ...]:
    headers = _read_headers(tuple(map(_stamp, files)))
    _refuse_bad(folder, [*faults.items(), *((p, h.fault) for p, h in zip(files, headers, strict=True) if h.fault)])
    return headers


def _stamp(path: Path) -> tuple[str, int, int]:
    try:
        found = path.stat()
    except OSError:  # opening it says why
        return str(path), 0, 0
    return str(path), found.st_size, found.st_mtime_ns


# A search asks for the shape once per trial; headers are read again only if a file has changed.
@lru_cache(maxsize=4)
def _read_headers(stamps: tuple[tuple[str, int, int], ...]) -> tuple[Header, ...]:
    with ThreadPoolExecutor() as pool:
        return tuple(pool.map(_read_header, (path for path, _, _ in stamps)))


def _read_header(path: str) -> Header:
    try:
        with opened(path) as image:
            if image.mode not in GREY_MODES + COLOUR_MODES:
                return Header(fault=f"pixels of kind {image.mode!r}, only 8-bit grey and colour are read")
            return Header(size=(image.height, image.width), grey=image.mode in GREY_MODES)
    except BAD_IMAGE as error:
        return Header(fault=reason(error))


def _decode(path: Path, out: np.ndarray) -> str:
    height, width, channels = out.shape
    try:
        with opened(path) as image:
            pixels = plain(image, "L" if channels == 1 else "RGB")
            if pixels.size != (width, height):
                pixels = pixels.resize((width, height), Image.Resampling.BILINEAR)
            out[:] = np.asarray(pixels).reshape(out.shape)
    except BAD_IMAGE as error:
        return reason(error)
    return ""


def plain(image: Image.Image, mode: str) -> Image.Image:
    """Return an opened image in `mode`, L or RGB, without transparency."""
    # PIL drops a palette's transparency without a warning only if it converts to RGBA first.
    opaque = image.convert("RGBA") if image.mode == "P" and "transparency" in image.info else image
    return opaque.convert(mode)


@contextmanager
def opened(path: Path | str) -> Iterator[Image.Image]:
    """Open the image in a regular file; raise one of BAD_IMAGE, also for a pipe or a device."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("not a regular file")
        with Image.open(file) as image:
            yield image


def contents(files: Sequence[Path]) -> list[Hashable]:
    """Return what is equal for equal files: the size, the last bytes where several have it, then the whole content."""
    found: list[Hashable] = [path.stat().st_size for path in files]
    for most in (TAIL, None):
        shared = Counter(found)
        found = [(c, _digest(path, most)) if shared[c] > 1 else c for path, c in zip(files, found, strict=True)]
    return found


def _digest(path: Path, most: int | None) -> bytes:
    with path.open("rb") as file:
        if most is not None:
            file.seek(max(os.fstat(file.fileno()).st_size - most, 0))
        return hashlib.file_digest(file, "sha256").digest()


def _refuse_bad(folder: Path, bad: Sequence[tuple[Path, str]]) -> None:
    if bad:
        listed = "; ".join(f"{path.relative_to(folder)}: {fault}" for path, fault in sorted(bad)[:NAMED])
        more = f"; and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
        count = "1 image" if len(bad) == 1 else f"{len(bad)} images"
        raise DataError(f"image_folder {folder}: {count} cannot be read: {listed}{more}")


def reason(error: Exception) -> str:
    """Return one line that says why PIL could not read an image."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    return getattr(error, "strerror", None) or error_text(error)


build = ImageFolder
