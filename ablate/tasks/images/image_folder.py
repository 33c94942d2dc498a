"""`image_folder`: any folder of images with one subfolder per class."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from ablate.base.errors import DataError, RequestError
from ablate.base.redaction import error_text
from ablate.models.settings import InputShape
from ablate.tasks.base import Classification, Data, stratified_split
from ablate.tasks.folders import data_folder, expanded
from ablate.tasks.images.decoded import load_decoded
from ablate.tasks.images.patches import ImageSet, Split, input_shape, patch_data
from ablate.tasks.settings import ImageFolderConfig

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
PARTS = ("train", "val", "test")
GREY_MODES = ("1", "L", "LA")
COLOUR_MODES = ("P", "RGB", "RGBA", "CMYK", "YCbCr")
SPLIT_KEY = "image_folder"
MIDDLE = 127.5  # of the values 0 to 255
BAD_IMAGE = (OSError, EOFError, ValueError, SyntaxError, struct.error, Image.DecompressionBombError)  # what PIL raises
NAMED = 10  # bad files named in one message


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The images of a folder: the files of each part in order of path, and the class index of each file."""

    class_names: tuple[str, ...]
    files: dict[str, tuple[Path, ...]]
    targets: dict[str, tuple[int, ...]]


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
        folder = self.folder(data_dir)
        listing = list_images(folder)
        return input_shape(self._images(folder, listing), self.config.patch)

    def check(self, data_dir: Path | None) -> None:
        """Decode every image once; raise DataError that lists all bad files, or says what the folder lacks."""
        folder = self.folder(data_dir)
        listing = list_images(folder)
        images = self._images(folder, listing)
        input_shape(images, self.config.patch)
        _decode_all(folder, tuple(chain(*listing.files.values())), images)

    def load(self, data_dir: Path | None) -> Data:
        """Return all parts as uint8 patches; values 0 to 255 are mapped to -1 to 1 by a fixed rule.

        Mean and deviation of the images would include the images that are held out for validation.
        """
        folder = self.folder(data_dir)
        listing = list_images(folder)
        images = self._images(folder, listing)
        input_shape(images, self.config.patch)
        pixels = _decode_all(folder, tuple(chain(*listing.files.values())), images)
        counts = [len(files) for files in listing.files.values()]
        parts: dict[str, Split] = {
            part: (rows, torch.tensor(listing.targets[part], dtype=torch.int64))
            for part, rows in zip(listing.files, torch.split(pixels, counts), strict=True)
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

    def folder(self, data_dir: Path | None) -> Path:
        """Return the folder of the images; raise RequestError if the study file names none."""
        if self.config.path is None:
            raise RequestError("task image_folder needs 'path': the folder that holds one subfolder per class")
        return data_folder(data_dir) / expanded(self.config.path)

    def _images(self, folder: Path, listing: Listing) -> ImageSet:
        headers = _headers(folder, tuple(chain(*listing.files.values())))
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


def list_images(folder: Path) -> Listing:
    """Return the images below `folder`; raise DataError if they do not make a data set."""
    try:
        roots = _parts(folder)
        found = {part: _classes(root) for part, root in roots.items()}
    except OSError as error:
        raise DataError(f"image_folder {folder} cannot be read: {error_text(error)}") from error
    names = tuple(sorted(found["train"]))
    empty = [roots[part] / name for part, classes in found.items() for name, files in classes.items() if not files]
    unknown = sorted({name for classes in found.values() for name in classes} - set(names))
    if len(names) < 2:
        only = f" (only {names[0]!r})" if names else ""
        raise DataError(f"image_folder {folder} needs two or more classes, a subfolder each; it has {len(names)}{only}")
    if unknown:
        raise DataError(f"image_folder {folder}: no such class in train: {', '.join(unknown)}")
    if empty:
        raise DataError(f"image_folder {folder}: no images ({', '.join(SUFFIXES)}) in: {_relative(empty, folder)}")
    files = {part: tuple(chain(*(classes[n] for n in sorted(classes)))) for part, classes in found.items()}
    index = {name: i for i, name in enumerate(names)}
    targets = {part: tuple(index[n] for n in sorted(classes) for _ in classes[n]) for part, classes in found.items()}
    listing = Listing(class_names=names, files=files, targets=targets)
    return listing if "test" in files else _with_test(folder, listing)


def _relative(paths: Iterable[Path], folder: Path) -> str:
    return ", ".join(str(path.relative_to(folder)) for path in sorted(paths))


def _parts(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise DataError(
            f"image_folder {folder} does not exist: 'path' is absolute or below the data folder"
            " (--data-dir, ABLATE_DATA), and 'ablate data fetch' cannot get it"
        )
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not set(names) & set(PARTS):
        return {"train": folder}
    other = [name for name in names if name not in PARTS]
    if "train" not in names or other:
        wrong = f"found {', '.join(other)} beside them" if other else "train is missing"
        raise DataError(f"image_folder {folder}: subfolders are classes, or train with val and test; {wrong}")
    return {part: folder / part for part in PARTS if part in names}


def _classes(root: Path) -> dict[str, list[Path]]:
    classes = [entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    return {entry.name: sorted(_walk(entry)) for entry in classes}


def _walk(folder: Path) -> Iterable[Path]:
    for place, _, names in os.walk(folder, followlinks=True):
        yield from (Path(place, n) for n in names if n.lower().endswith(SUFFIXES) and not n.startswith("."))


def _with_test(folder: Path, listing: Listing) -> Listing:
    files, targets = listing.files["train"], listing.targets["train"]
    rest, chosen = (part.tolist() for part in stratified_split(torch.tensor(targets), key=SPLIT_KEY))
    if not chosen:
        raise DataError(f"image_folder {folder}: one image per class is too few to hold out a test split")
    split = {"train": rest, "test": chosen}
    return Listing(
        class_names=listing.class_names,
        files=listing.files | {part: tuple(files[i] for i in rows) for part, rows in split.items()},
        targets=listing.targets | {part: tuple(targets[i] for i in rows) for part, rows in split.items()},
    )


def _headers(folder: Path, files: Sequence[Path]) -> tuple[Header, ...]:
    try:
        stamps = tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files)
    except OSError as error:
        raise DataError(f"image_folder {folder} cannot be read: {error_text(error)}") from error
    headers = _read_headers(stamps)
    _refuse_bad(folder, [(path, header.fault) for path, header in zip(files, headers, strict=True) if header.fault])
    return headers


# A search asks for the shape once per trial; headers are read again only if a file has changed.
@lru_cache(maxsize=4)
def _read_headers(stamps: tuple[tuple[str, int, int], ...]) -> tuple[Header, ...]:
    with ThreadPoolExecutor() as pool:
        return tuple(pool.map(_read_header, (path for path, _, _ in stamps)))


def _read_header(path: str) -> Header:
    try:
        with Image.open(path) as image:
            if image.mode not in GREY_MODES + COLOUR_MODES:
                return Header(fault=f"pixels of kind {image.mode!r}, only 8-bit grey and colour are read")
            return Header(size=(image.height, image.width), grey=image.mode in GREY_MODES)
    except BAD_IMAGE as error:
        return Header(fault=reason(error))


def _decode_all(folder: Path, files: Sequence[Path], images: ImageSet) -> torch.Tensor:
    pixels, faults = load_decoded(folder, files, (images.height, images.width, images.channels), _decode)
    _refuse_bad(folder, [(path, fault) for path, fault in zip(files, faults, strict=True) if fault])
    return torch.from_numpy(pixels)


def _decode(path: Path, out: np.ndarray) -> str:
    height, width, channels = out.shape
    try:
        with Image.open(path) as image:
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


def _refuse_bad(folder: Path, bad: Sequence[tuple[Path, str]]) -> None:
    if bad:
        listed = "; ".join(f"{path.relative_to(folder)}: {fault}" for path, fault in sorted(bad)[:NAMED])
        more = f"; and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
        count = "1 image" if len(bad) == 1 else f"{len(bad)} images"
        raise DataError(f"image_folder {folder}: {count} cannot be read: {listed}{more}")


def reason(error: Exception) -> str:
    """Return one line that says why PIL could not read an image."""
    return "not an image" if isinstance(error, UnidentifiedImageError) else error_text(error)


def build(config: ImageFolderConfig) -> ImageFolder:
    """Return the task `image_folder`."""
    return ImageFolder(config)
