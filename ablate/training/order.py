"""Which samples each replicate sees, and when: keyed splits and keyed epoch orders."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ablate.randomness import stream
from ablate.tasks import Data
from ablate.trial import TrialConfig


@dataclass(frozen=True, kw_only=True)
class Samples:
    """A part of the data on the device, with the samples `index` [R, n] that belong to each replicate."""

    inputs: Tensor
    targets: Tensor
    index: Tensor
    scale: Tensor
    shift: Tensor

    def batch(self, index_rb: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens [R, B, T, F], in the dtype of `scale`, and targets [R, B] of samples `index_rb` [R, B]."""
        flat = index_rb.reshape(-1)
        inputs = self.inputs.view(len(self.inputs), -1).index_select(0, flat)
        tokens = inputs.view(*index_rb.shape, *self.inputs.shape[1:]).to(self.scale.dtype)
        return torch.addcmul(self.shift, tokens, self.scale), self.targets.index_select(0, flat).view(index_rb.shape)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a trial trains and validates on."""

    train: Samples
    validation: Samples


def split(data: Data, config: TrialConfig, *, device: torch.device, dtype: torch.dtype) -> Parts:
    """Return each replicate's training and validation samples.

    Under `held_out` a keyed share of the training part is held out per replicate, unless the data set ships a
    validation part; under `paper` the test part is the validation part. The test part is not touched otherwise.
    """
    samples = len(data.train_targets)
    shuffled = [stream(config.study_seed, config.key.dataset, s, "split").permutation(samples) for s in config.seeds]
    index = torch.from_numpy(np.stack(shuffled))
    held_out = 0
    if config.protocol == "paper":
        validation = test_part(data, config, device=device, dtype=dtype)
    elif data.validation_inputs is not None and data.validation_targets is not None:
        validation = _whole(data, data.validation_inputs, data.validation_targets, config, device, dtype)
    else:
        held_out = min(max(round(config.task.validation * samples), 1), samples - 1)
        validation = _samples(data, data.train_inputs, data.train_targets, index[:, :held_out], device, dtype)
    last = None if config.task.train_limit is None else held_out + config.task.train_limit
    chosen = index[:, held_out:last].contiguous()
    return Parts(
        train=_samples(data, data.train_inputs, data.train_targets, chosen, device, dtype),
        validation=validation,
    )


def test_part(data: Data, config: TrialConfig, *, device: torch.device, dtype: torch.dtype) -> Samples:
    """Return the test part, whole and in order for every replicate: the only place that opens it."""
    return _whole(data, data.test_inputs, data.test_targets, config, device, dtype)


def epoch_order(config: TrialConfig, *, samples: int, epoch: int) -> Tensor:
    """Return each replicate's own keyed order of its `samples` in `epoch`, int64 [R, samples]."""
    streams = [stream(config.study_seed, config.key.dataset, seed, "order", epoch) for seed in config.seeds]
    return torch.from_numpy(np.stack([one.permutation(samples) for one in streams]))


def steps_per_epoch(samples: int, batch_size: int) -> int:
    """Return the number of full batches; fewer samples than one batch make one small batch."""
    return max(samples // batch_size, 1)


def _whole(
    data: Data, inputs: Tensor, targets: Tensor, config: TrialConfig, device: torch.device, dtype: torch.dtype
) -> Samples:
    index = torch.arange(len(targets)).expand(len(config.seeds), -1)
    return _samples(data, inputs, targets, index, device, dtype)


def _samples(
    data: Data, inputs: Tensor, targets: Tensor, index: Tensor, device: torch.device, dtype: torch.dtype
) -> Samples:
    return Samples(
        inputs=inputs.to(device).contiguous(),
        targets=targets.to(device),
        index=index.to(device),
        scale=torch.as_tensor(data.scale).to(device, dtype),
        shift=torch.as_tensor(data.shift).to(device, dtype),
    )
