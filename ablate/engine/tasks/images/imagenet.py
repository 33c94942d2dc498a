"""Tiny ImageNet and ImageNet: too large for memory, so images are read from disk on demand."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import torch

from ablate.base.errors import DataError
from ablate.engine.tasks.archives import FAILURES, fetch_zip
from ablate.engine.tasks.folders import data_folder, not_downloaded, unusable
from ablate.engine.tasks.images.image_stream import Files
from ablate.engine.tasks.images.photographs import FileSplit, Nominal, StreamedTask, list_photographs

TINY_URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
TINY_MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
LISTS = ("wnids.txt", "val/val_annotations.txt")
NAMED = 5  # faults named in one message

TINY = Nominal(
    name="tiny_imagenet",
    folder="tiny-imagenet-200",
    classes=200,
    train_samples=100_000,
    size=(64, 64),
    margin=1.0,  # the photographs are 64x64, so the whole image is used
)
IMAGENET = Nominal(
    name="imagenet",
    folder="imagenet",
    classes=1000,
    train_samples=1_281_167,
    size=(224, 224),
    margin=256 / 224,  # Krizhevsky et al. 2012, section 2
)


class TinyImageNet(StreamedTask):
    """200 classes of 64x64 photographs, 500 of each to train on and 50 to test (Le and Yang 2015), in its own layout.

    `wnids.txt` lists the classes in use. A class whose line is removed is excluded from both parts.
    """

    def class_ids(self, root: Path) -> tuple[str, ...]:
        """Return the sorted lines of `wnids.txt`."""
        path = root / "wnids.txt"
        return tuple(sorted(set(path.read_text(errors="replace").split()))) if path.is_file() else ()

    def class_names(self, root: Path) -> tuple[str, ...]:
        """Return the first word of each class in `words.txt`, or its id if it has none or shares the word."""
        ids, path = self.class_ids(root), root / "words.txt"
        lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
        words = {wnid: text.split(",")[0].strip() for wnid, _, text in (line.partition("\t") for line in lines)}
        names = [words.get(wnid) or wnid for wnid in ids]
        return tuple(wnid if names.count(name) > 1 else name for wnid, name in zip(ids, names, strict=True))

    def faults(self, root: Path) -> dict[Path, str]:
        """Read the lists of classes and annotations, and look for each class's folder."""
        found = {root / part: "missing" for part in LISTS if not (root / part).is_file()}
        if found:
            return found
        ids = self.class_ids(root)
        if len(ids) < 2:
            found[root / "wnids.txt"] = f"names {len(ids)} classes, two or more are needed"
        folders = [root / "train" / wnid / "images" for wnid in ids]
        found |= {folder: "missing" for folder in [*folders, root / "val" / "images"] if not folder.is_dir()}
        return found | ({} if found else self._annotation_faults(root))

    def train(self, root: Path) -> FileSplit:
        """Return `train/<wnid>/images/*`."""
        return list_photographs([root / "train" / wnid / "images" for wnid in self.class_ids(root)])

    def test(self, root: Path) -> FileSplit:
        """Return `val/images/*` with classes from `val/val_annotations.txt`; the published test part has no labels."""
        index = {wnid: i for i, wnid in enumerate(self.class_ids(root))}
        rows = [(index[wnid], os.fsencode(name)) for name, wnid in _annotations(root) if wnid in index]
        targets, names = zip(*rows, strict=True) if rows else ((), ())
        files = Files(
            folders=(str(root / "val" / "images"),),
            place=np.zeros(len(names), dtype=np.int32),
            names=np.array(names, dtype="S"),
        )
        return files, torch.tensor(targets, dtype=torch.int64)

    def unusable(self, data_dir: Path | None, faults: dict[Path, str]) -> DataError:
        """Return the error with the command that gets the data."""
        damaged = [path for path, fault in faults.items() if fault != "missing"]
        named = {path: fault for path, fault in faults.items() if path not in damaged[NAMED:]}
        return unusable(self.nominal.name, data_dir, named)

    def fetch(self, data_dir: Path | None) -> Path:
        """Download the archive (248 MB) unless the data are complete; raise DataError if network or folder fail."""
        try:
            self.check(data_dir)
            return self.location(data_dir)
        except DataError:
            pass
        folder = data_folder(data_dir)
        try:
            fetch_zip(TINY_URL, folder, top=self.nominal.folder, md5=TINY_MD5)
        except (*FAILURES, DataError) as error:
            name = self.nominal.name
            raise not_downloaded(
                f"{name} into {folder}", name, data_dir, error, copy=self.location(data_dir)
            ) from error
        self.check(data_dir)
        return self.location(data_dir)

    def _annotation_faults(self, root: Path) -> dict[Path, str]:
        path, rows, ids = root / "val" / "val_annotations.txt", _annotations(root), set(self.class_ids(root))
        there = {entry.name for entry in os.scandir(root / "val" / "images")}
        absent = [name for name, wnid in rows if wnid in ids and name not in there]
        lacking = sorted(ids - {wnid for _, wnid in rows})
        trained = {entry.name for entry in os.scandir(root / "train")}
        unknown = sorted({wnid for _, wnid in rows} - ids - trained)
        if unknown:
            return {path: f"names the class {unknown[0]!r}, which is neither in wnids.txt nor in train"}
        if lacking:
            return {path: f"names no image of {lacking[0]}"}
        return {path: f"names val/images/{absent[0]}, which is missing"} if absent else {}


class ImageNet(StreamedTask):
    """1000 classes of photographs (Russakovsky et al. 2015), in torchvision's layout; its `meta.bin` is not read."""

    def class_ids(self, root: Path) -> tuple[str, ...]:
        """Return the sorted names of the folders in `train`."""
        train = root / "train"
        if not train.is_dir():
            return ()
        return tuple(sorted(e.name for e in os.scandir(train) if e.is_dir() and not e.name.startswith(".")))

    def faults(self, root: Path) -> dict[Path, str]:
        """Check that `train` and `val` exist and have the same classes."""
        found = {root / part: "missing" for part in ("train", "val") if not (root / part).is_dir()}
        if found:
            return found
        ids = self.class_ids(root)
        if len(ids) < 2:
            found[root / "train"] = f"has {len(ids)} classes, a folder each; two or more are needed"
        return found | {root / "val" / wnid: "missing" for wnid in ids if not (root / "val" / wnid).is_dir()}

    def train(self, root: Path) -> FileSplit:
        """Return `train/<class>/*`."""
        return list_photographs([root / "train" / wnid for wnid in self.class_ids(root)])

    def test(self, root: Path) -> FileSplit:
        """Return `val/<class>/*`."""
        return list_photographs([root / "val" / wnid for wnid in self.class_ids(root)])

    def unusable(self, data_dir: Path | None, faults: dict[Path, str]) -> DataError:
        """Return the error with the expected layout."""
        root = self.location(data_dir)
        named = "; ".join(f"{path.relative_to(root)}: {fault}" for path, fault in list(faults.items())[:NAMED])
        more = f"; and {len(faults) - NAMED} more" if len(faults) > NAMED else ""
        state = f"is damaged ({named}{more})" if root.is_dir() else "does not exist"
        return DataError(
            f"data set {self.nominal.name}: {root} {state}. It cannot be downloaded without an account at"
            " image-net.org; lay it out as imagenet/train/<class>/*.JPEG and imagenet/val/<class>/*.JPEG"
            " in the data folder (--data-dir, ABLATE_DATA)"
        )

    def fetch(self, data_dir: Path | None) -> Path:
        """Return the folder if the data are complete; otherwise raise DataError that says how to get them."""
        self.check(data_dir)
        return self.location(data_dir)


def _annotations(root: Path) -> list[tuple[str, str]]:
    """Return (file, class) of each line of `val_annotations.txt`, whose further columns are a bounding box."""
    lines = (root / "val" / "val_annotations.txt").read_text(errors="replace").splitlines()
    rows = [line.split("\t") for line in lines if line.strip()]
    return [(row[0], row[1] if len(row) > 1 else "") for row in rows]


build_tiny_imagenet = partial(TinyImageNet, nominal=TINY)


build_imagenet = partial(ImageNet, nominal=IMAGENET)
