"""`set_anomaly`: finds the image of another class in a set of ten, by features of CIFAR-100's images."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from ablate.base.errors import DataError
from ablate.base.redaction import error_text
from ablate.engine.models.model_config import InputShape
from ablate.engine.tasks.archives import FAILURES, download
from ablate.engine.tasks.base import Classification, Data, stratified_split
from ablate.engine.tasks.folders import alone, data_folder, expanded, fetch_command, not_downloaded
from ablate.engine.tasks.images.patches import Split
from ablate.engine.tasks.images.published import CIFAR100, CifarTask
from ablate.engine.tasks.sets.anomaly_sets import SET, AnomalySets, members
from ablate.engine.tasks.sets.features import WIDTH, Features, compute, keep, kept, read_weights, sha256
from ablate.engine.tasks.task_config import ImageConfig, SetAnomalyConfig

NAME = "set_anomaly"
SIZE = (224, 224)  # the input size that ResNet-34 was trained on
# torchvision's ResNet34_Weights.IMAGENET1K_V1; the name ends with the first digits of the file's SHA-256 sum.
WEIGHTS_URL = "https://download.pytorch.org/models/resnet34-b627a593.pth"
WEIGHTS_SUM = "b627a593"


class SetAnomaly(Classification):
    """Ten images, nine of one class and one of another; the target is the position of the one (paper B, section 4.2).

    Every image of a part is the anomaly of one set. The other nine come from the same part. A fixed stratified
    share `validation` of the train images is the validation part, so that no image is in sets of two parts.
    """

    def __init__(self, config: SetAnomalyConfig) -> None:
        self.config = config
        self.size = config.image_size or SIZE
        self.cifar = CifarTask(ImageConfig(task="cifar100"), CIFAR100)

    def shape(self, data_dir: Path | None) -> InputShape:
        """Return the shape of ten tokens of 512 features, with one score each."""
        per_class = CIFAR100.images.train_samples // len(CIFAR100.images.class_names)
        held_out = min(max(round(self.config.validation * per_class), 1), per_class - 1)
        samples = CIFAR100.images.train_samples - held_out * len(CIFAR100.images.class_names)
        return InputShape(
            tokens=SET, features=WIDTH, outputs=SET, train_samples=samples, output="set", ships_validation=True
        )

    def check(self, data_dir: Path | None) -> None:
        """Raise DataError unless the features are kept, or can be computed from CIFAR-100 and valid weights."""
        if kept(self.kept_file(data_dir)) is None:
            self.cifar.check(data_dir)
            self._weights(data_dir)
            self._refuse_unwritable(data_dir)

    def load(self, data_dir: Path | None) -> Data:
        """Return sets as streams, each feature with mean 0 and deviation 1 over the train part.

        Computes the features first if they are not kept (minutes on a GPU). Raises DataError as `check` does.
        """
        features = self._features(data_dir)
        labels = features["train"].labels
        rest, held_out = stratified_split(labels, key=NAME, share=self.config.validation)
        train = _part(features["train"], rest, name="train")
        validation = _part(features["train"], held_out, name="validation")
        test = _part(features["test"], torch.arange(len(features["test"].labels)), name="test")
        deviation, mean = torch.std_mean(train.features.double(), dim=0, correction=0)
        scale = 1 / torch.where(deviation > 0, deviation, 1.0)
        return Data(
            train_inputs=train,
            train_targets=train.places,
            validation_inputs=validation,
            validation_targets=validation.places,
            test_inputs=test,
            test_targets=test.places,
            scale=scale,
            shift=-mean * scale,
        )

    def location(self, data_dir: Path | None) -> Path:
        """Return the folder of the kept features."""
        return data_folder(data_dir) / NAME

    def kept_file(self, data_dir: Path | None) -> Path:
        """Return the file of the features of these weights and this image size."""
        digits = WEIGHTS_SUM if self.config.path is None else sha256(self.weights_file(data_dir))[:16]
        return self.location(data_dir) / f"resnet34-{digits}-{self.size[0]}x{self.size[1]}.safetensors"

    def weights_file(self, data_dir: Path | None) -> Path:
        """Return the file named by `path`, otherwise torchvision's, in the task's folder or in torch's cache."""
        if self.config.path is not None:
            return data_folder(data_dir) / expanded(self.config.path)
        name = Path(WEIGHTS_URL).name
        cached = Path(torch.hub.get_dir()) / "checkpoints" / name
        return cached if cached.is_file() else self.location(data_dir) / name

    def fetch(self, data_dir: Path | None) -> Path:
        """Get CIFAR-100 and the weights, compute the features and keep them; do nothing if they are already kept.

        Raises DataError if the network or the folder fails.
        """
        if kept(self.kept_file(data_dir)) is None:
            self._fetch_weights(data_dir)
            self.cifar.fetch(data_dir)
            self._features(data_dir)
        return self.location(data_dir)

    def _features(self, data_dir: Path | None) -> dict[str, Features]:
        path = self.kept_file(data_dir)
        found = kept(path)
        if found is not None:
            return found
        self.cifar.check(data_dir)
        weights = self._weights(data_dir)
        self._refuse_unwritable(data_dir)
        path.parent.mkdir(parents=True, exist_ok=True)
        with alone(path.parent):
            if kept(path) is None:
                keep(path, compute(self._images(data_dir), weights, self.size))
            found = kept(path)
        if found is None:
            raise DataError(f"features in {path} are damaged as soon as they are written: is the disk sound?")
        return found

    def _images(self, data_dir: Path | None) -> dict[str, Split]:
        try:
            return {part: self.cifar.read(data_dir, train=part == "train") for part in ("train", "test")}
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            raise DataError(
                f"data set cifar100 in {data_folder(data_dir)} cannot be read: {error_text(error)}"
            ) from error

    def _weights(self, data_dir: Path | None) -> dict[str, Tensor]:
        path = self.weights_file(data_dir)
        if not path.is_file():
            raise DataError(
                f"task {NAME} needs the weights of a trained ResNet-34, and {path} does not exist. Get them, and the"
                f" features, with: {fetch_command(NAME, data_dir)} (or name a file of your own by 'path')"
            )
        if self.config.path is None and not sha256(path).startswith(WEIGHTS_SUM):
            raise DataError(f"weights {path} are damaged: their SHA-256 sum is not {WEIGHTS_SUM}...; delete the file")
        return read_weights(path)

    def _fetch_weights(self, data_dir: Path | None) -> None:
        path = self.weights_file(data_dir)
        if path.is_file() or self.config.path is not None:
            self._weights(data_dir)
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".weights-", dir=path.parent) as scratch:
                whole = Path(scratch) / path.name
                download(WEIGHTS_URL, whole)
                if not sha256(whole).startswith(WEIGHTS_SUM):
                    raise DataError(f"the SHA-256 sum of {WEIGHTS_URL} is not {WEIGHTS_SUM}...")
                os.replace(whole, path)
        except (*FAILURES, DataError) as error:
            raise not_downloaded(f"the weights of ResNet-34 to {path}", NAME, data_dir, error) from error

    def _refuse_unwritable(self, data_dir: Path | None) -> None:
        folder = self.location(data_dir)
        there = next(place for place in (folder, *folder.parents) if place.exists())
        if not os.access(there, os.W_OK):
            raise DataError(
                f"features cannot be written to {folder}: no permission. Compute them where it may be written, with:"
                f" {fetch_command(NAME, data_dir)}"
            )


def _part(features: Features, index: Tensor, *, name: str) -> AnomalySets:
    found = members(features.labels[index], name=f"task {NAME}: the {name} part")
    return AnomalySets(features=features.values[index], members=found, name=name)


build = SetAnomaly
