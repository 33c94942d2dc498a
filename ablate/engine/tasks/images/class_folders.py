"""Lists the images below one folder per class."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import torch

from ablate.base.errors import DataError
from ablate.base.redaction import error_text
from ablate.engine.tasks.base import stratified_split

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
PARTS = ("train", "val", "test")
SPLIT_KEY = "image_folder"

Identity = tuple[int, int]
"""Device and inode."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The images of a folder: the files of each part in order of path, and the class index of each file.

    `faults` are the folders that cannot be listed, each with the reason.
    """

    class_names: tuple[str, ...]
    files: dict[str, tuple[Path, ...]]
    targets: dict[str, tuple[int, ...]]
    faults: dict[Path, str]


@dataclass(frozen=True, kw_only=True)
class _Found:
    """The images below the folders of one part's classes, by class."""

    classes: dict[str, list[Path]] = field(default_factory=dict)
    faults: dict[Path, str] = field(default_factory=dict)


def list_images(folder: Path) -> Listing:
    """Return the images below `folder`; raise DataError if they do not make a data set."""
    try:
        roots = _parts(folder)
        found = {part: _classes(root, folder) for part, root in roots.items()}
    except OSError as error:
        raise DataError(f"image_folder {folder} cannot be read: {error_text(error)}") from error
    faults = {path: fault for each in found.values() for path, fault in each.faults.items()}
    names = tuple(sorted(found["train"].classes))
    empty = [
        roots[part] / name
        for part, each in found.items()
        for name, files in each.classes.items()
        if not files and not any(path.is_relative_to(roots[part] / name) for path in each.faults)
    ]
    unknown = sorted({name for each in found.values() for name in each.classes} - set(names))
    if len(names) < 2:
        only = f" (only {names[0]!r})" if names else ""
        raise DataError(f"image_folder {folder} needs two or more classes, a subfolder each; it has {len(names)}{only}")
    if unknown:
        raise DataError(f"image_folder {folder}: no such class in train: {', '.join(unknown)}")
    if empty:
        named = ", ".join(str(path.relative_to(folder)) for path in sorted(empty))
        raise DataError(f"image_folder {folder}: no images ({', '.join(SUFFIXES)}) in: {named}")
    by_part = {part: [(i, each.classes.get(name, [])) for i, name in enumerate(names)] for part, each in found.items()}
    listing = Listing(
        class_names=class_names(names),
        files={part: tuple(chain(*(files for _, files in each))) for part, each in by_part.items()},
        targets={part: tuple(i for i, files in each for _ in files) for part, each in by_part.items()},
        faults=faults,
    )
    return listing if "test" in found or faults else _with_test(folder, listing)


def class_names(folders: Iterable[str]) -> tuple[str, ...]:
    """Return folders' names as text that every file and server takes; raise DataError if two become one."""
    names: dict[str, str] = {}
    for folder in folders:
        name = os.fsencode(folder).decode(errors="backslashreplace")
        if name in names:
            raise DataError(f"two folders of classes are both called {name}: rename one of them")
        names[name] = folder
    return tuple(names)


def _parts(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise DataError(
            f"image_folder {folder} does not exist: 'path' is absolute or below the data folder"
            " (--data-dir, ABLATE_DATA), and 'ablate data fetch' cannot get it"
        )
    names = sorted(entry.name for entry in os.scandir(folder) if _is_folder(entry))
    if not set(names) & set(PARTS):
        return {"train": folder}
    other = [name for name in names if name not in PARTS]
    if "train" not in names or other:
        wrong = f"found {', '.join(other)} beside them" if other else "train is missing"
        raise DataError(f"image_folder {folder}: subfolders are classes, or train with val and test; {wrong}")
    return {part: folder / part for part in PARTS if part in names}


def _classes(root: Path, folder: Path) -> _Found:
    above = {_identity(place): place for place in (root, *folder.resolve().parents, folder)}
    found = _Found()
    for entry in os.scandir(root):
        if _is_folder(entry):
            files, faults = _walk(Path(entry), above)
            found.classes[entry.name] = sorted(files)
            found.faults.update(faults)
    return found


def _walk(top: Path, above: Mapping[Identity, Path]) -> tuple[list[Path], dict[Path, str]]:
    """Return the images below `top`, each folder visited once, and the reason for each folder that is not listed.

    `above` are the folders that hold `top`. A link that leads to one of them, or to a folder below `top`, would put
    one picture into several splits.
    """
    seen, left = dict(above), [top]
    files: list[Path] = []
    faults: dict[Path, str] = {}
    while left:
        place = left.pop()
        try:
            first = seen.setdefault(_identity(place), place)
            if first is not place:
                faults[place] = f"a link to {first}, whose images would count twice: remove the link"
                continue
            entries = sorted(os.scandir(place), key=lambda entry: entry.name, reverse=True)
        except OSError as error:
            faults[place] = error.strerror or str(error)
            continue
        folders = [entry for entry in entries if _is_folder(entry)]
        left += map(Path, folders)
        named = (e for e in entries if e.name.lower().endswith(SUFFIXES) and not e.name.startswith("."))
        files += (Path(entry) for entry in named if entry not in folders)
    return files, faults


def _identity(place: Path) -> Identity:
    found = place.stat()
    return found.st_dev, found.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether a visible entry is a folder; a broken link without a suffix is taken for one."""
    if entry.name.startswith("."):
        return False
    if not entry.is_symlink():
        return entry.is_dir()
    path = Path(entry)
    return path.is_dir() or (not path.suffix and not path.exists())


def _with_test(folder: Path, listing: Listing) -> Listing:
    files, targets = listing.files["train"], listing.targets["train"]
    rest, chosen = (part.tolist() for part in stratified_split(torch.tensor(targets), key=SPLIT_KEY))
    if not chosen:
        raise DataError(f"image_folder {folder}: one image per class is too few to hold out a test split")
    split = {"train": rest, "test": chosen}
    return Listing(
        class_names=listing.class_names,
        files=listing.files | {part: tuple(files[i] for i in chosen) for part, chosen in split.items()},
        targets=listing.targets | {part: tuple(targets[i] for i in chosen) for part, chosen in split.items()},
        faults=listing.faults,
    )
