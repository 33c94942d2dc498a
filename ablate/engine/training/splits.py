"""The samples that each replicate trains and validates on: keyed splits, shares and the end of a text."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ablate.base.errors import DataError
from ablate.base.randomness import stream
from ablate.core.trial import TrialConfig
from ablate.engine.tasks import Data
from ablate.engine.tasks.base import Stream, shared_part
from ablate.engine.training.samples import Samples


@dataclass(frozen=True, kw_only=True)
class Splits:
    """The training and validation samples of a trial."""

    train: Samples
    validation: Samples


def split(
    data: Data, config: TrialConfig, *, device: torch.device, dtype: torch.dtype, beside: Splits | None = None
) -> Splits:
    """Return each replicate's training and validation samples.

    `beside` are the splits of another trial on the same data, whose tensors on the device are shared.

    Under `held_out` a keyed share of the training part is held out per replicate, unless the data set ships a
    validation part. Of windows on a text the last ones are held out, in steps of one window. Under `paper` the test
    part is the validation part; otherwise the test part is not touched. Raises DataError if no sample is left to train
    or to validate on.
    """
    index = _shuffle(data, config)
    if beside is None:
        whole = Samples.of(data, data.train_inputs, data.train_targets, index, device=device, dtype=dtype)
    else:
        whole = replace(beside.train, index=index)
    ships = data.validation_inputs is not None and data.validation_targets is not None
    if beside is not None and (ships or config.protocol == "paper"):
        validation = beside.validation.shared(len(config.seeds))
    elif config.protocol == "paper":
        validation = test_part(data, config, device=device, dtype=dtype)
    elif data.validation_inputs is not None and data.validation_targets is not None:
        validation = _whole(data, data.validation_inputs, data.validation_targets, config, device, dtype)
    else:
        held_out, index = _last_windows(data, config, index) if data.window else _first_samples(config, index)
        validation = _evaluated(replace(whole, index=held_out))
    kept = max(1, round(config.task.share * index.shape[1]))
    chosen = index[:, : min(kept, config.task.train_limit or kept)].contiguous()
    return Splits(train=replace(whole, index=chosen), validation=validation)


def test_part(data: Data, config: TrialConfig, *, device: torch.device, dtype: torch.dtype) -> Samples:
    """Return the test part in evaluation order, the same for every replicate."""
    return _whole(data, data.test_inputs, data.test_targets, config, device, dtype)


def _shuffle(data: Data, config: TrialConfig) -> Tensor:
    """Return the training part in the keyed order of the split, int64 [R, n].

    Pairs of texts have the same split in all replicates, because their batches must have the same lengths.
    """
    samples, dataset = len(data.train_targets), config.key.dataset
    if data.start is not None:
        order = stream(config.study_seed, dataset, 0, "split", "pairs").permutation(samples)
        return torch.from_numpy(order).repeat(len(config.seeds), 1)
    shuffled = [stream(config.study_seed, dataset, seed, "split").permutation(samples) for seed in config.seeds]
    return torch.from_numpy(np.stack(shuffled))


def _first_samples(config: TrialConfig, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first samples of every replicate's `index` [R, n], cut to `share`, and the samples to train on."""
    samples = index.shape[1]
    count = min(max(round(config.task.validation * samples), 1), samples - 1)
    if count == 0:
        raise DataError(
            f"data set {config.key.dataset} has {samples} training sample: nothing is left to train on when one is"
            " held out for validation. Add samples, or ship a validation part"
        )
    kept = max(1, round(config.task.share * count))
    return index[:, :kept].contiguous(), index[:, count:]


def _last_windows(data: Data, config: TrialConfig, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return every window-th of the last windows, in order, and the windows before that share no token with them."""
    samples = index.shape[1]
    first = samples - max(round(config.task.validation * samples), 1)
    before = first - data.window  # window i reads the tokens from i, its last target is token i + window
    if before < 1:
        raise DataError(
            f"data set {config.key.dataset} has {samples} windows of {data.window} tokens: none is left to train on"
            f" when the last {config.task.validation:g} of the text is held out. Use a shorter length or a longer text"
        )
    steps = torch.arange(first, samples, data.window)
    held_out = steps[shared_part(len(steps), config.task.share)]
    return held_out.expand(len(index), -1), index[index < before].view(len(index), before)


def _whole(
    data: Data,
    inputs: Tensor | Stream,
    targets: Tensor,
    config: TrialConfig,
    device: torch.device,
    dtype: torch.dtype,
) -> Samples:
    index = shared_part(len(targets), config.task.share).expand(len(config.seeds), -1)
    return _evaluated(Samples.of(data, inputs, targets, index, device=device, dtype=dtype))


def _evaluated(samples: Samples) -> Samples:
    """Return `samples` in evaluation order: pairs by length, so that a batch has little padding."""
    if samples.pairs is None:
        return samples
    by_length = samples.pairs.ranks()[samples.index].argsort(dim=1, stable=True)
    return replace(samples, index=samples.index.gather(1, by_length))
