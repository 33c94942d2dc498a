"""Sets of ten images, nine of one class and one of another, drawn from keys on demand."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ablate.base.errors import DataError
from ablate.engine.tasks.images.image_stream import distinct

ALIKE = 9  # images of the majority class
SET = ALIKE + 1
# Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators": SplitMix64.
GAMMA, FIRST, SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True, kw_only=True, eq=False)
class Members:
    """The images of each class: `order` [n] sorts them by class, class c has `counts[c]` from `firsts[c]`."""

    classes: np.ndarray
    """Each image's class as an index 0, 1, ... of the classes that occur, int64 [n]."""
    order: np.ndarray
    firsts: np.ndarray
    counts: np.ndarray


def members(labels: Tensor, *, name: str) -> Members:
    """Sort images by `labels` [n]; raise DataError unless there are two classes, each of `ALIKE` images or more."""
    found, classes, counts = np.unique(labels.numpy(), return_inverse=True, return_counts=True)
    if len(found) < 2 or counts.min() < ALIKE:
        raise DataError(
            f"{name} has {len(found)} classes of {counts.min()} images or more; a set needs two classes of {ALIKE}"
        )
    return Members(
        classes=classes.astype(np.int64),
        order=np.argsort(classes, kind="stable"),
        firsts=np.cumsum(counts) - counts,
        counts=counts,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class AnomalySets:
    """Sets of features [n, 10, 512]; image i is the anomaly of set i (paper B, section 4.2): a `Stream`.

    A key selects one epoch's draw: another class per image, and nine different images of it, each equally likely.
    The position of the anomaly in its set never changes.
    """

    features: Tensor
    """The features of each image, [n, F]."""
    members: Members
    name: str
    """The name of the part; different names give different draws."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Sets, images per set and features."""
        return len(self.features), SET, self.features.shape[1]

    def __len__(self) -> int:
        """Return the number of sets, which equals the number of images."""
        return len(self.features)

    @property
    def places(self) -> Tensor:
        """The position of the anomaly in each set, int64 [n]."""
        images = np.arange(len(self), dtype=np.uint64)
        return torch.from_numpy(self._places(images).astype(np.int64))

    def images(self, index: Tensor, keys: Sequence[int] | None) -> Tensor:
        """Return the images of sets `index` [R, b], int64 [R, b, 10], by one key per replicate.

        Without keys: the sets of evaluation. A set depends on its key and its image alone.
        """
        anomalies = index.cpu().numpy()
        texts = ["evaluation"] * len(anomalies) if keys is None else [f"key {key}" for key in keys]
        base = np.array([_number(f"{self.name} {text}") for text in texts], dtype=np.uint64)[:, None]
        state = _mix(base ^ _mix(anomalies.astype(np.uint64)))
        found = self.members
        own = found.classes[anomalies]
        other = _below(state, 0, np.full_like(own, len(found.counts) - 1))
        other += other >= own
        ranks = _different(state, found.counts[other])
        alike = found.order[found.firsts[other][..., None] + ranks]
        column, place = np.arange(SET), self._places(anomalies.astype(np.uint64))[..., None]
        beside = np.take_along_axis(alike, np.clip(column - (column > place), 0, ALIKE - 1), axis=-1)
        return torch.from_numpy(np.where(column == place, anomalies[..., None], beside))

    def batches(self, index: Tensor, batch: int, keys: Sequence[int] | None) -> Iterator[Tensor]:
        """Yield the sets `index` [R, n] in batches of `batch`, [R, b, 10, F] as stored; `keys` as for `images`."""
        own = distinct(index, keys)
        for start in range(0, index.shape[1], batch):
            images = self.images(own[:, start : start + batch], keys)
            features = self.features.index_select(0, images.flatten()).view(*images.shape, -1)
            yield features.expand(len(index), -1, -1, -1)

    def _places(self, images: np.ndarray) -> np.ndarray:
        return _below(_mix(_number(f"{self.name} place") ^ _mix(images)), 0, np.full(images.shape, SET))


def _different(state: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return `ALIKE` different numbers below `counts`; all subsets are equally likely, [*state, ALIKE]."""
    taken = np.empty((*state.shape, 0), dtype=np.int64)
    for draw in range(ALIKE):
        # The rank among the remaining numbers; each smaller number already taken increases it by one.
        rank = _below(state, 1 + draw, counts - draw)
        for earlier in range(draw):
            rank += rank >= taken[..., earlier]
        taken = np.sort(np.concatenate([taken, rank[..., None]], axis=-1), axis=-1)
    return taken


def _below(state: np.ndarray, draw: int, limits: np.ndarray) -> np.ndarray:
    """Return the numbered draw from each state, int64 from 0 to `limits` - 1; the bias is below limit / 2^64."""
    # The generator relies on overflow; NumPy warns of it for single numbers only.
    bits = _mix(state + np.full(state.shape, draw * int(GAMMA) % 2**64, dtype=np.uint64))
    below: np.ndarray = (bits % limits.astype(np.uint64)).astype(np.int64)
    return below


def _mix(z: np.ndarray) -> np.ndarray:
    z = z + np.full_like(z, GAMMA)
    z = (z ^ (z >> np.uint64(30))) * FIRST
    z = (z ^ (z >> np.uint64(27))) * SECOND
    mixed: np.ndarray = z ^ (z >> np.uint64(31))
    return mixed


def _number(text: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))
