"""MNIST and Fashion-MNIST: idx files in torchvision's layout, `MNIST/raw` and `FashionMNIST/raw`."""

from __future__ import annotations

import struct
from functools import partial
from pathlib import Path

import numpy as np
import torch

from ablate.engine.tasks.folders import data_folder
from ablate.engine.tasks.images.patches import ImageSet, Split
from ablate.engine.tasks.images.vision import Published, VisionTask

# Magic numbers of idx files: unsigned bytes in three dimensions and in one.
IMAGE_MAGIC, LABEL_MAGIC = 0x803, 0x801

MNIST = Published(
    images=ImageSet(
        name="mnist",
        height=28,
        width=28,
        channels=1,
        class_names=tuple(map(str, range(10))),
        train_samples=60_000,
    ),
    reader="MNIST",
    mean=(0.1307,),
    std=(0.3081,),
    test_samples=10_000,
)
FASHION_MNIST = Published(
    images=ImageSet(
        name="fashion_mnist",
        height=28,
        width=28,
        channels=1,
        class_names=(
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ),
        train_samples=60_000,
    ),
    reader="FashionMNIST",
    mean=(0.2860,),
    std=(0.3530,),
    test_samples=10_000,
)


class IdxTask(VisionTask):
    """A data set in four idx files (LeCun et al. 1998; Xiao et al. 2017)."""

    def location(self, data_dir: Path | None) -> Path:
        """Return the `raw` folder."""
        return data_folder(data_dir) / self.published.reader / "raw"

    def faults(self, data_dir: Path | None) -> dict[Path, str]:
        """Check headers, lengths and labels; pixels are not read."""
        found: dict[Path, str] = {}
        images, outputs = self.published.images, len(self.published.images.class_names)
        for train in (True, False):
            n = images.train_samples if train else self.published.test_samples
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


build_mnist = partial(IdxTask, published=MNIST)
build_fashion_mnist = partial(IdxTask, published=FASHION_MNIST)
