"""The interface of a task: its data, its loss and its metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ablate.base.errors import DataError
from ablate.base.randomness import stream
from ablate.engine.models.layers import widen
from ablate.engine.models.model_config import InputShape

TEST_SHARE = 0.2  # of a data set that ships without a test split


@runtime_checkable
class Task(Protocol):
    """A data set, its loss and its metrics; `build(config: TaskConfig) -> Task` makes one.

    `data_dir` is the folder the user named, or None; `ablate.engine.tasks.data_folder` finds the one that counts.
    """

    def shape(self, data_dir: Path | None) -> InputShape:
        """Return the model's input shape without loading data; raise RequestError if the patch does not fit."""

    def check(self, data_dir: Path | None) -> None:
        """Raise DataError, in one line that says how to fix it, unless `load` will succeed."""

    def load(self, data_dir: Path | None) -> Data:
        """Return the data in memory; raise DataError if they are missing or damaged."""

    def loss(self, logits: Tensor, targets: Tensor, label_smoothing: float | Tensor) -> Tensor:
        """Return the loss of each target, [*R, B] or [*R, B, T]; 0 if the target is padding."""

    def metrics(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return every metric of each target, shaped as the loss and 0 at padding; training averages over the rest."""


@runtime_checkable
class Decoded(Protocol):
    """A task that also scores the text that a model generates, over a whole corpus at once.

    `corpus_names` are the names of its corpus metrics.
    """

    corpus_names: tuple[str, ...]

    def corpus_metrics(self, decode: Callable[[Tensor], Tensor], data: Data, part: str) -> dict[str, list[float]]:
        """Return metrics by name, one value per replicate, of the split `part` (`validation` or `test`) of `data`.

        `decode` maps source ids [n, S] to the ids [R, n, T'] that each replicate generates, by greedy decoding from
        `data.start` until `data.end`.
        """


@runtime_checkable
class Written(Protocol):
    """A task of text that converts between ids and readable text; `opening` is a possible beginning of a text."""

    opening: str

    def encode(self, text: str, data_dir: Path | None) -> list[int]:
        """Return the ids of `text`; raise RequestError if a part of it is not in the vocabulary."""

    def decode(self, ids: Sequence[int], data_dir: Path | None) -> str:
        """Return the text of `ids`."""


@runtime_checkable
class Remarked(Protocol):
    """A task that has remarks about its data, shown before training."""

    def remarks(self, data_dir: Path | None) -> tuple[str, ...]:
        """Return the remarks for the reader, one sentence each."""


@runtime_checkable
class Stream(Protocol):
    """Samples that are read from disk batch by batch, because they do not fit into memory."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Samples, tokens and features: (n, T, F)."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def batches(self, index: Tensor, batch: int, keys: Sequence[int] | None) -> Iterator[Tensor]:
        """Yield the samples `index` [R, n] in batches of `batch`, uint8 [R, b, T, F]; worker processes read ahead.

        `keys` holds one number per replicate that keys its augmentation of this epoch; None selects evaluation. A
        sample depends on its key and its index alone, so that a trial can resume in the middle of an epoch. Raises
        DataError if a file is damaged.
        """


@runtime_checkable
class Fetchable(Protocol):
    """A task whose data `ablate data` can list and fetch."""

    def location(self, data_dir: Path | None) -> Path:
        """Return the file or folder that holds the data, whether it exists or not."""

    def fetch(self, data_dir: Path | None) -> Path:
        """Get missing files, replace damaged ones and return `location`; raise DataError if that fails."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """A data set, stored compactly: `tokens` turns a batch of inputs into the model's input.

    Inputs of images are uint8 patches [n, T, F] with targets int64 [n]; inputs of texts are ids [n, T] (`ids`), and
    their targets are whole numbers [n, T]. Either may be a view whose samples overlap; a `Stream` is read from disk.
    `scale` and `shift` are numbers or tensors [F]. `validation_*` are None unless the data set ships a validation
    split.
    """

    train_inputs: Tensor | Stream
    train_targets: Tensor
    test_inputs: Tensor | Stream
    test_targets: Tensor
    validation_inputs: Tensor | Stream | None = None
    validation_targets: Tensor | None = None
    scale: float | Tensor = 1.0
    shift: float | Tensor = 0.0
    class_names: tuple[str, ...] = ()
    ids: bool = False
    """Whether inputs are ids; `scale` and `shift` do not apply to ids."""
    pad: int | None = None
    """The target that is ignored; also the padding id in inputs of an encoder-decoder."""
    start: int | None = None
    """Encoder-decoder: the id that a target text begins with; the model reads (inputs, targets shifted right)."""
    end: int | None = None
    """Encoder-decoder: the id that every target text ends with."""
    window: int = 0
    """Window length in tokens, if above 0: training samples are windows on one text, each shifted by one token.
    A contiguous last part is then held out for validation, in steps of one window.
    """

    def __post_init__(self) -> None:
        if (self.validation_inputs is None) != (self.validation_targets is None):
            raise DataError("Data: validation_inputs and validation_targets belong together, one is None")
        for split, inputs, targets in self.splits():
            if len(inputs) != len(targets) or len(inputs) == 0:
                raise DataError(f"Data: {split} has {len(inputs)} inputs and {len(targets)} targets")
            if inputs.shape[1:] != self.train_inputs.shape[1:]:
                got, rule = tuple(inputs.shape[1:]), tuple(self.train_inputs.shape[1:])
                raise DataError(f"Data: a sample of {split} has the shape {got}, one of train {rule}")
            if targets.is_floating_point():
                raise DataError(f"Data: {split} targets are {targets.dtype}, not whole numbers")
            if self.class_names and not 0 <= int(targets.min()) <= int(targets.max()) < len(self.class_names):
                raise DataError(f"Data: {split} has targets outside 0 to {len(self.class_names) - 1}")

    def splits(self) -> list[tuple[str, Tensor | Stream, Tensor]]:
        """Return (name, inputs, targets) of each available split."""
        there = [("train", self.train_inputs, self.train_targets), ("test", self.test_inputs, self.test_targets)]
        if self.validation_inputs is not None and self.validation_targets is not None:
            there.append(("validation", self.validation_inputs, self.validation_targets))
        return there

    def tokens(self, inputs: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the model's input: `inputs * scale + shift` in `dtype`, [*R, B, T, F], or ids as int64 [*R, B, T]."""
        if self.ids:
            return inputs.long()
        scale = self.scale.to(dtype) if isinstance(self.scale, Tensor) else self.scale
        shift = self.shift.to(dtype) if isinstance(self.shift, Tensor) else self.shift
        return inputs.to(dtype) * scale + shift

    def to(self, device: str | torch.device) -> Data:
        """Return the same data on `device`."""
        moved: dict[str, Any] = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **moved)


class Classification:
    """Loss and metrics of a task with one class per sample."""

    def loss(self, logits: Tensor, targets: Tensor, label_smoothing: float | Tensor = 0.0) -> Tensor:
        """Return each sample's smoothed cross-entropy in nats, [*R, B]; equals `torch.nn.functional.cross_entropy`.

        `logits` are [*R, B, M], `targets` [*R, B] or [B] for all replicates, `label_smoothing` is a number or
        [R, 1], one per replicate. Half precision is converted to float32. Source: Szegedy et al. 2016, section 7.
        """
        log_p = torch.log_softmax(widen(logits), dim=-1)
        index = targets.expand(logits.shape[:-1]).long().unsqueeze(-1)
        picked = -log_p.gather(-1, index).squeeze(-1)
        if isinstance(label_smoothing, (int, float)) and label_smoothing == 0:
            return picked
        evenly = -log_p.sum(dim=-1) / logits.shape[-1]
        return (1 - label_smoothing) * picked + label_smoothing * evenly

    def metrics(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return `accuracy` of each sample, 1.0 or 0.0, [*R, B] float32."""
        return {"accuracy": (logits.argmax(dim=-1) == targets).float()}


def stratified_split(targets: Tensor, *, key: str, share: float = TEST_SHARE) -> tuple[Tensor, Tensor]:
    """Return sorted indices (train, test) of a fixed split: about `share` of every class goes to the test part.

    The draw depends on `key` and the order of samples alone, never on a study's seed. A class of two samples or more
    is in both parts; a class of one sample is in train.
    """
    labels = targets.numpy()
    test: list[np.ndarray] = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = min(max(round(share * len(members)), 1), len(members) - 1)
        # NumPy guarantees that raw bits never change; its permutation may change with a release.
        bits = stream(0, key, 0, "split", "test", int(label)).bit_generator.random_raw(len(members))
        test.append(members[np.argsort(bits, kind="stable")[:count]])
    chosen = np.sort(np.concatenate(test))
    rest = np.setdiff1d(np.arange(len(labels)), chosen)
    return torch.from_numpy(rest), torch.from_numpy(chosen)


def shared_part(n: int, share: float) -> Tensor:
    """Return sorted int64 indices of `max(1, round(share * n))` of `n` samples, evenly spaced: floor(i n / k)."""
    k = max(1, round(share * n))
    return torch.arange(k) * n // k
