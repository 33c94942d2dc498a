"""scikit-learn's digits: 1,797 real images of 8x8 pixels; the package contains them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from ablate.base.errors import DataError
from ablate.base.redaction import error_text
from ablate.engine.models.settings import InputShape
from ablate.engine.tasks.base import Classification, Data, stratified_split
from ablate.engine.tasks.images.patches import ImageSet, Split, input_shape, patch_data
from ablate.engine.tasks.settings import ImageConfig

IMAGES = ImageSet(
    name="digits",
    height=8,
    width=8,
    channels=1,
    class_names=tuple(map(str, range(10))),
    train_samples=1438,
    test_samples=359,
)
MIDDLE = 8.0  # of the values 0 to 16
SPLIT_KEY = "digits"  # a constant: every study holds out the same images


class Digits(Classification):
    """Handwritten digits, values 0 to 16 (Alpaydin and Kaynak 1998; `sklearn.datasets.load_digits`).

    scikit-learn ships no test split; this one is fixed: a stratified fifth of the images, keyed by a constant.
    """

    def __init__(self, config: ImageConfig) -> None:
        self.config = config

    def shape(self, data_dir: Path | None) -> InputShape:
        """Return the model's input shape; raise RequestError if the patch does not divide 8x8."""
        return input_shape(IMAGES, self.config.patch)

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
            class_names=IMAGES.class_names,
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
    return pixels.to(torch.uint8).reshape(-1, IMAGES.height, IMAGES.width, 1), targets.contiguous()


build = Digits
