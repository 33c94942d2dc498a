"""Photographs in one folder per class, too many for memory: images are read from disk on demand."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ablate.base.errors import DataError
from ablate.base.redaction import error_text
from ablate.engine.models.model_config import InputShape
from ablate.engine.tasks.base import Classification, Data
from ablate.engine.tasks.folders import data_folder
from ablate.engine.tasks.images.class_folders import SUFFIXES, class_names
from ablate.engine.tasks.images.image_stream import Files, ImageStream, default_workers
from ablate.engine.tasks.images.patches import ImageSet, affine, input_shape
from ablate.engine.tasks.task_config import StreamConfig

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's [0, 1] pixels, as usually published

FileSplit = tuple[Files, Tensor]  # files and targets int64 [n]


@dataclass(frozen=True, kw_only=True)
class Nominal:
    """The properties of a data set that are known before its files are read."""

    name: str
    folder: str
    """Relative to the data folder."""
    classes: int
    train_samples: int
    size: tuple[int, int]
    """Height and width in pixels if the study file names none."""
    margin: float
    """The length of the shorter side before the centre crop, as a multiple of the longer side of `size`."""


class StreamedTask(Classification, ABC):
    """Photographs in one folder per class; a subclass per layout finds the files."""

    def __init__(self, config: StreamConfig, nominal: Nominal) -> None:
        self.config = config
        self.nominal = nominal
        self.size = config.image_size or nominal.size
        self.augment = config.options.augment
        self.workers = default_workers() if config.options.workers is None else config.options.workers

    @abstractmethod
    def class_ids(self, root: Path) -> tuple[str, ...]:
        """Return the folder names of all classes in order; empty if they cannot be determined."""

    @abstractmethod
    def faults(self, root: Path) -> dict[Path, str]:
        """Return the faults of required files other than images: `missing`, or a description of the damage."""

    @abstractmethod
    def train(self, root: Path) -> FileSplit:
        """Return the training images; an empty folder has none."""

    @abstractmethod
    def test(self, root: Path) -> FileSplit:
        """Return the images that are published for validation; they are the test part here."""

    @abstractmethod
    def unusable(self, data_dir: Path | None, faults: dict[Path, str]) -> DataError:
        """Return the error of a data set with `faults`."""

    def class_names(self, root: Path) -> tuple[str, ...]:
        """Return the names of the classes, in the order of `class_ids`."""
        return class_names(self.class_ids(root))

    def location(self, data_dir: Path | None) -> Path:
        """Return the data set's folder."""
        return data_folder(data_dir) / self.nominal.folder

    def shape(self, data_dir: Path | None) -> InputShape:
        """Return the model's input shape: the published numbers, or those of the available subset of classes.

        Raises RequestError if the patch does not fit, DataError if a subset is damaged.
        """
        try:
            ids = self.class_ids(self.location(data_dir))
        except OSError as error:
            raise self._unreadable(error, data_dir) from error
        whole = not ids or len(ids) == self.nominal.classes
        samples = self.nominal.train_samples if whole else len(self._splits(data_dir)[0][0])
        images = ImageSet(
            name=self.nominal.name,
            height=self.size[0],
            width=self.size[1],
            channels=3,
            class_names=class_names(ids) or tuple(map(str, range(self.nominal.classes))),
            train_samples=samples,
        )
        return input_shape(images, self.config.patch)

    def check(self, data_dir: Path | None) -> None:
        """Raise RequestError if the patch does not fit, DataError if a class has no images.

        File names are read, files are not: a damaged image is detected when it is used.
        """
        self.shape(data_dir)
        self._splits(data_dir)

    def load(self, data_dir: Path | None) -> Data:
        """Return both parts as streams; raise DataError as `check` does."""
        train, test = self._splits(data_dir)
        mean, deviation = ([255 * value for value in values] for values in (MEAN, DEVIATION))
        scale, shift = affine(mean, deviation, self.config.patch)
        return Data(
            train_inputs=self._stream(train[0]),
            train_targets=train[1],
            test_inputs=self._stream(test[0]),
            test_targets=test[1],
            scale=scale,
            shift=shift,
            class_names=self.class_names(self.location(data_dir)),
        )

    def _splits(self, data_dir: Path | None) -> tuple[FileSplit, FileSplit]:
        root = self.location(data_dir)
        try:
            faults = self.faults(root)
            if faults:
                raise self.unusable(data_dir, faults)
            train, test = self.train(root), self.test(root)
        except OSError as error:
            raise self._unreadable(error, data_dir) from error
        faults = self._empty(train) | self._empty(test)
        if faults:
            raise self.unusable(data_dir, faults)
        return train, test

    def _empty(self, split: FileSplit) -> dict[Path, str]:
        files = split[0]
        held = np.bincount(files.place, minlength=len(files.folders))
        fault = f"holds no images ({', '.join(SUFFIXES)})"
        return {Path(folder): fault for folder, n in zip(files.folders, held, strict=True) if n == 0}

    def _stream(self, files: Files) -> ImageStream:
        return ImageStream(
            files=files,
            size=self.size,
            shorter=round(max(self.size) * self.nominal.margin),
            patch=self.config.patch,
            augment=self.augment,
            workers=self.workers,
        )

    def _unreadable(self, error: OSError, data_dir: Path | None) -> DataError:
        return DataError(f"data set {self.nominal.name} in {data_folder(data_dir)} cannot be read: {error_text(error)}")


def list_photographs(folders: Sequence[Path]) -> FileSplit:
    """Return the images directly in `folders`, one per class, in order of name; hidden files are skipped."""
    names = [_names(folder) for folder in folders]
    sizes = [len(some) for some in names]
    files = Files(
        folders=tuple(map(str, folders)),
        place=np.repeat(np.arange(len(folders), dtype=np.int32), sizes),
        names=np.concatenate(names) if names else np.array([], dtype="S"),
    )
    return files, torch.from_numpy(files.place.astype(np.int64))


def _names(folder: Path) -> np.ndarray:
    with os.scandir(os.fsencode(folder)) as entries:
        names = [entry.name for entry in entries]
    endings = tuple(map(str.encode, SUFFIXES))
    return np.array(sorted(n for n in names if n.lower().endswith(endings) and not n.startswith(b".")), dtype="S")
