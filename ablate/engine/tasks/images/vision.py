"""Data sets that torchvision can download and read."""

from __future__ import annotations

import http.client
import socket
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.engine.models.settings import InputShape
from ablate.engine.tasks.base import Classification, Data
from ablate.engine.tasks.folders import data_folder, not_downloaded, unreadable, unusable
from ablate.engine.tasks.images.patches import ImageSet, Split, input_shape, patch_data
from ablate.engine.tasks.settings import ImageConfig

SILENCE_SECONDS = 60.0  # a download fails when it receives no data for this long


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published image set: torchvision's class for it, and its mean and deviation per channel of [0, 1] pixels."""

    images: ImageSet
    reader: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    test_samples: int


class VisionTask(Classification, ABC):
    """One published image set in torchvision's on-disk layout; a subclass per format checks and reads its files."""

    def __init__(self, config: ImageConfig, published: Published) -> None:
        self.config = config
        self.published = published

    @property
    def name(self) -> str:
        """The registered name."""
        return self.published.images.name

    @abstractmethod
    def location(self, data_dir: Path | None) -> Path:
        """Return the folder of the files that are read."""

    @abstractmethod
    def faults(self, data_dir: Path | None) -> dict[Path, str]:
        """Return what is wrong per file: `missing`, or a description of the damage; empty if all files are good."""

    @abstractmethod
    def read(self, data_dir: Path | None, *, train: bool) -> Split:
        """Return one split, images uint8 [n, H, W, C] and targets int64 [n], of checked files."""

    def shape(self, data_dir: Path | None) -> InputShape:
        """Return the model's input shape; raise RequestError if the patch does not divide the image."""
        known = {"test_samples": self.published.test_samples}
        return input_shape(self.published.images, self.config.patch).model_copy(update=known)

    def check(self, data_dir: Path | None) -> None:
        """Raise RequestError if the patch does not fit, DataError if a file is missing or damaged."""
        self.shape(data_dir)
        try:
            faults = self.faults(data_dir)
        except OSError as error:
            raise unreadable(self.name, data_dir, error) from error
        if faults:
            raise unusable(self.name, data_dir, faults)

    def load(self, data_dir: Path | None) -> Data:
        """Return both splits as uint8 patches; raise DataError if a file is missing, damaged or unreadable."""
        self.check(data_dir)
        try:
            train, test = self.read(data_dir, train=True), self.read(data_dir, train=False)
        except (OSError, RuntimeError, ValueError, TypeError, KeyError, AssertionError) as error:
            raise unreadable(self.name, data_dir, error) from error
        return patch_data(
            train,
            test,
            patch=self.config.patch,
            mean=[255 * value for value in self.published.mean],
            std=[255 * value for value in self.published.std],
            class_names=self.published.images.class_names,
        )

    def fetch(self, data_dir: Path | None) -> Path:
        """Download by torchvision, which checks the archives' MD5 sums; damaged files are replaced.

        Raises DataError if the network, the folder or the archive fails.
        """
        folder = data_folder(data_dir)
        try:
            for path, fault in self.faults(data_dir).items():
                if fault != "missing":
                    path.unlink()
            with _timeout(SILENCE_SECONDS):
                self.reader()(root=str(folder), train=True, download=True)
        except (OSError, RuntimeError, EOFError, tarfile.TarError, http.client.HTTPException) as error:
            what, place = f"{self.name} into {folder}", self.location(data_dir)
            raise not_downloaded(what, self.name, data_dir, error, copy=place) from error
        self.check(data_dir)
        return self.location(data_dir)

    def reader(self) -> Any:
        """Return torchvision's class of this data set."""
        # torchvision takes two seconds to import, and a listing of names does not need it.
        import torchvision.datasets

        return getattr(torchvision.datasets, self.published.reader)


@contextmanager
def _timeout(seconds: float) -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
