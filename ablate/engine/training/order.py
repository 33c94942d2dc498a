"""The order in which each replicate sees its samples: keyed epoch orders, and batches of equal length."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ablate.base.randomness import stream
from ablate.core.trial import TrialConfig
from ablate.engine.training.family import family
from ablate.engine.training.samples import Samples
from ablate.engine.training.train_config import TrainConfig


def steps_per_epoch(samples: int, train: TrainConfig) -> int:
    """Return the number of full batches, at most `train.steps_per_epoch`; too few samples make one small batch."""
    full = max(samples // train.batch_size, 1)
    return full if train.steps_per_epoch is None else min(full, train.steps_per_epoch)


def epoch_order(config: TrialConfig, *, samples: int, epoch: int) -> Tensor:
    """Return each replicate's own keyed order of its `samples` in `epoch`, int64 [R, samples]."""
    streams = [stream(config.study_seed, config.key.dataset, seed, "order", epoch) for seed in config.seeds]
    return torch.from_numpy(np.stack([one.permutation(samples) for one in streams]))


def epoch_index(config: TrialConfig, samples: Samples, *, epoch: int) -> Tensor:
    """Return the samples of `epoch` in training order, int64 [R, steps * batch], on the CPU."""
    chosen = samples.index.shape[1]
    order = samples.index.gather(1, epoch_order(config, samples=chosen, epoch=epoch))
    training = family(config).training
    steps, batch = steps_per_epoch(chosen, training), min(training.batch_size, chosen)
    if samples.pairs is not None:
        order = _by_length(config, order, samples.pairs.ranks(), epoch=epoch, batch=batch)
    return order[:, : steps * batch]


def _by_length(config: TrialConfig, order: Tensor, ranks: Tensor, *, epoch: int, batch: int) -> Tensor:
    """Return `order` [R, n] as full batches of samples of similar length, int64 [R, full * batch].

    Every replicate's samples are sorted by length, ties by its own order, and the sorted positions are cut into
    batches. The dropped positions and the order of batches are keyed by (study seed, data set, epoch) alone. All
    replicates have the same lengths, so step k is padded to the same length in each, for any set of replicates.
    """
    by_length = order.gather(1, ranks[order].argsort(dim=1, stable=True))
    shared = stream(config.study_seed, config.key.dataset, 0, "order", "lengths", epoch)
    full = by_length.shape[1] // batch
    kept = np.sort(shared.permutation(by_length.shape[1])[: full * batch])
    batches = by_length[:, torch.from_numpy(kept)].view(-1, full, batch)
    return batches[:, torch.from_numpy(shared.permutation(full))].flatten(1)


def keys(config: TrialConfig, purpose: str, epoch: int) -> list[int]:
    """Return one number per replicate that keys `purpose` in `epoch`."""
    streams = [stream(config.study_seed, config.key.dataset, seed, purpose, epoch) for seed in config.seeds]
    return [int(one.integers(2**63)) for one in streams]
