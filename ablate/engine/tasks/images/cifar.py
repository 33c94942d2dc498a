"""CIFAR-10 and CIFAR-100: the official python archives in torchvision's layout.

The official files are pickles, and a pickle can run code. Only torchvision opens them, and it first checks every
file's MD5 sum against the published one. Therefore only the authors' original bytes are unpickled.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from ablate.engine.tasks.folders import data_folder
from ablate.engine.tasks.images.patches import ImageSet, Split
from ablate.engine.tasks.images.vision import Published, VisionTask

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

CIFAR10 = Published(
    images=ImageSet(name="cifar10", height=32, width=32, channels=3, class_names=CIFAR10_CLASSES, train_samples=50_000),
    reader="CIFAR10",
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    test_samples=10_000,
)
CIFAR100 = Published(
    images=ImageSet(
        name="cifar100", height=32, width=32, channels=3, class_names=CIFAR100_CLASSES, train_samples=50_000
    ),
    reader="CIFAR100",
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    test_samples=10_000,
)
FOLDERS = {"CIFAR10": "cifar-10-batches-py", "CIFAR100": "cifar-100-python"}


class CifarTask(VisionTask):
    """Colour images of 32x32 pixels (Krizhevsky 2009)."""

    def location(self, data_dir: Path | None) -> Path:
        """Return the folder that the archive unpacks to."""
        return data_folder(data_dir) / FOLDERS[self.published.reader]

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


build_cifar10 = partial(CifarTask, published=CIFAR10)
build_cifar100 = partial(CifarTask, published=CIFAR100)
