"""Small image sets: scikit-learn's digits, MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100 in torchvision's layout.

The official files of CIFAR are pickles, and a pickle can run code. Only torchvision opens them, and it first checks
every file's MD5 sum against the published one. Therefore only the authors' original bytes are unpickled.
"""

from __future__ import annotations

import http.client
import socket
import struct
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ablate.base.errors import DataError
from ablate.base.redaction import error_text
from ablate.engine.models.model_config import InputShape
from ablate.engine.tasks.archives import SILENCE_SECONDS
from ablate.engine.tasks.base import Classification, Data, stratified_split
from ablate.engine.tasks.folders import data_folder, not_downloaded, unreadable, unusable
from ablate.engine.tasks.images.patches import ImageSet, Split, input_shape, patch_data
from ablate.engine.tasks.task_config import ImageConfig

IMAGE_MAGIC, LABEL_MAGIC = 0x803, 0x801  # of idx files: unsigned bytes in three dimensions and in one
MIDDLE = 8.0  # of the values 0 to 16 of digits
SPLIT_KEY = "digits"  # a constant: every study holds out the same images
NUMERALS = tuple("0123456789")
FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100_WORDS = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can "
    "castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin "
    "elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard "
    "lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear "
    "pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark "
    "shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone "
    "television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)
CIFAR100_CLASSES = tuple(_CIFAR100_WORDS.split())


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published image set: torchvision's class for it, its folder, and mean and deviation per channel of [0, 1]."""

    images: ImageSet
    reader: str
    folder: str
    mean: tuple[float, ...]
    std: tuple[float, ...]


def _images(name: str, side: int, channels: int, class_names: tuple[str, ...], train: int, test: int) -> ImageSet:
    return ImageSet(
        name=name, height=side, width=side, channels=channels, class_names=class_names, train_samples=train,
        test_samples=test,
    )  # fmt: skip


DIGITS = _images("digits", 8, 1, NUMERALS, 1438, 359)
MNIST = Published(
    images=_images("mnist", 28, 1, NUMERALS, 60_000, 10_000),
    reader="MNIST", folder="MNIST/raw", mean=(0.1307,), std=(0.3081,),
)  # fmt: skip
FASHION_MNIST = Published(
    images=_images("fashion_mnist", 28, 1, FASHION, 60_000, 10_000),
    reader="FashionMNIST", folder="FashionMNIST/raw", mean=(0.2860,), std=(0.3530,),
)  # fmt: skip
CIFAR10 = Published(
    images=_images("cifar10", 32, 3, CIFAR10_CLASSES, 50_000, 10_000),
    reader="CIFAR10", folder="cifar-10-batches-py", mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616),
)  # fmt: skip
CIFAR100 = Published(
    images=_images("cifar100", 32, 3, CIFAR100_CLASSES, 50_000, 10_000),
    reader="CIFAR100", folder="cifar-100-python", mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762),
)  # fmt: skip


class VisionTask(Classification, ABC):
    """One published image set in torchvision's on-disk layout; a subclass per format checks and reads its files."""

    def __init__(self, config: ImageConfig, published: Published) -> None:
        self.config = config
        self.published = published

    @property
    def name(self) -> str:
        """The registered name."""
        return self.published.images.name

    def location(self, data_dir: Path | None) -> Path:
        """Return the folder of the files that are read."""
        return data_folder(data_dir) / self.published.folder

    @abstractmethod
    def faults(self, data_dir: Path | None) -> dict[Path, str]:
        """Return what is wrong per file: `missing`, or a description of the damage; empty if all files are good."""

    @abstractmethod
    def read(self, data_dir: Path | None, *, train: bool) -> Split:
        """Return one split, images uint8 [n, H, W, C] and targets int64 [n], of checked files."""

    def shape(self, data_dir: Path | None) -> InputShape:
        """Return the model's input shape; raise RequestError if the patch does not divide the image."""
        return input_shape(self.published.images, self.config.patch)

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


class IdxTask(VisionTask):
    """A data set in four idx files (LeCun et al. 1998; Xiao et al. 2017)."""

    def faults(self, data_dir: Path | None) -> dict[Path, str]:
        """Check headers, lengths and labels; pixels are not read."""
        found: dict[Path, str] = {}
        images, outputs = self.published.images, len(self.published.images.class_names)
        for train in (True, False):
            n = images.train_samples if train else images.test_samples or 0
            image_file, label_file = self._files(data_dir, train=train)
            found[image_file] = idx_fault(image_file, IMAGE_MAGIC, (n, images.height, images.width))
            found[label_file] = idx_fault(label_file, LABEL_MAGIC, (n,)) or label_fault(label_file, outputs)
        return {path: fault for path, fault in found.items() if fault}

    def read(self, data_dir: Path | None, *, train: bool) -> Split:
        """Return the bytes unchanged, as torchvision's reader does, without importing torchvision (seconds)."""
        images = self.published.images
        image_file, label_file = self._files(data_dir, train=train)
        pixels = np.fromfile(image_file, dtype=np.uint8, offset=16).reshape(-1, images.height, images.width, 1)
        return torch.from_numpy(pixels), torch.from_numpy(np.fromfile(label_file, dtype=np.uint8, offset=8)).long()

    def _files(self, data_dir: Path | None, *, train: bool) -> tuple[Path, Path]:
        part = "train" if train else "t10k"
        folder = self.location(data_dir)
        return folder / f"{part}-images-idx3-ubyte", folder / f"{part}-labels-idx1-ubyte"


def idx_fault(path: Path, magic: int, dimensions: tuple[int, ...]) -> str:
    """Return what is wrong with the header or length of an idx file of unsigned bytes; empty if nothing is.

    Format: big-endian int32 magic number, one int32 per dimension, then the bytes.
    """
    if not path.is_file():
        return "missing"
    header = struct.pack(f">{1 + len(dimensions)}i", magic, *dimensions)
    with path.open("rb") as file:
        got = file.read(len(header))
    if got[:4] != header[:4]:
        return "not an idx file of this kind"
    if got != header:
        return f"its header does not say {' x '.join(map(str, dimensions))}"
    length, rule = path.stat().st_size, len(header) + int(np.prod(dimensions))
    return "" if length == rule else f"{length:,} bytes, not {rule:,}"


def label_fault(path: Path, outputs: int) -> str:
    """Return what is wrong with the labels of a checked idx file; empty if all are below `outputs`."""
    labels = np.fromfile(path, dtype=np.uint8, offset=8)
    return "" if labels.max() < outputs else f"holds label {labels.max()}, the last class is {outputs - 1}"


class CifarTask(VisionTask):
    """Colour images of 32x32 pixels (Krizhevsky 2009)."""

    def faults(self, data_dir: Path | None) -> dict[Path, str]:
        """Compare every file with its published MD5 sum (184 MB take half a second)."""
        from torchvision.datasets.utils import check_integrity

        reader, found = self.reader(), {}
        published = [*reader.train_list, *reader.test_list, (reader.meta["filename"], reader.meta["md5"])]
        for file, md5 in published:
            path = self.location(data_dir) / file
            if not path.is_file():
                found[path] = "missing"
            elif not check_integrity(str(path), md5):
                found[path] = "its MD5 sum is not the published one, so it is not opened"
        return found

    def read(self, data_dir: Path | None, *, train: bool) -> Split:
        """Read the files by torchvision, which checks the MD5 sums again before it unpickles."""
        split = self.reader()(root=str(data_folder(data_dir)), train=train, download=False)
        return torch.from_numpy(split.data), torch.tensor(split.targets, dtype=torch.int64)


class Digits(Classification):
    """Handwritten digits, values 0 to 16 (Alpaydin and Kaynak 1998; `sklearn.datasets.load_digits`).

    scikit-learn ships no test split; this one is fixed: a stratified fifth of the images, keyed by a constant.
    """

    def __init__(self, config: ImageConfig) -> None:
        self.config = config

    def shape(self, data_dir: Path | None) -> InputShape:
        """Return the model's input shape; raise RequestError if the patch does not divide 8x8."""
        return input_shape(DIGITS, self.config.patch)

    def check(self, data_dir: Path | None) -> None:
        """Raise DataError unless scikit-learn and its file are installed."""
        self.shape(data_dir)
        if not self.location(data_dir).is_file():
            raise DataError(
                f"data set digits is part of scikit-learn, and {self.location(data_dir)} is missing:"
                " install scikit-learn again (`ablate data fetch digits` has nothing to download)"
            )

    def load(self, data_dir: Path | None) -> Data:
        """Return the fixed split as patches; values 0 to 16 are mapped to -1 to 1 by a fixed rule."""
        self.check(data_dir)
        images, targets = read_digits(self.location(data_dir))
        rest, chosen = stratified_split(targets, key=SPLIT_KEY)
        return patch_data(
            (images[rest], targets[rest]),
            (images[chosen], targets[chosen]),
            patch=self.config.patch,
            mean=(MIDDLE,),
            std=(MIDDLE,),
            class_names=DIGITS.class_names,
        )

    def location(self, data_dir: Path | None) -> Path:
        """Return the path of scikit-learn's file."""
        package = find_spec("sklearn")
        places = [] if package is None else list(package.submodule_search_locations or [])
        return Path(places[0] if places else "sklearn") / "datasets" / "data" / "digits.csv.gz"

    def fetch(self, data_dir: Path | None) -> Path:
        """Return the path of scikit-learn's file; nothing is downloaded."""
        self.check(data_dir)
        return self.location(data_dir)


def read_digits(file: Path) -> Split:
    """Return all images of scikit-learn's file, uint8 [1797, 8, 8, 1] of values 0 to 16, and targets, in its order."""
    try:  # the file itself: the import of scikit-learn, which brings scipy.stats, takes most of a second
        rows = np.loadtxt(file, delimiter=",", dtype=np.int64)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"data set digits cannot be read: {error_text(error)}; install scikit-learn again") from error
    pixels, targets = torch.from_numpy(rows[:, :-1]), torch.from_numpy(rows[:, -1])
    return pixels.to(torch.uint8).reshape(-1, DIGITS.height, DIGITS.width, 1), targets.contiguous()


@contextmanager
def _timeout(seconds: float) -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


build_digits = Digits
build_mnist = partial(IdxTask, published=MNIST)
build_fashion_mnist = partial(IdxTask, published=FASHION_MNIST)
build_cifar10 = partial(CifarTask, published=CIFAR10)
build_cifar100 = partial(CifarTask, published=CIFAR100)
