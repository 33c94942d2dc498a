"""A part of the data and its batches: images, ids, pairs of texts, and streams from disk."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from ablate.engine.tasks import Data
from ablate.engine.tasks.base import Stream

HASHED_AT_ONCE = 4096  # samples hashed at a time by `digest`

ModelInput = Tensor | tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """The number of ids before the padding in each sample of an encoder-decoder, int64 [n], on the CPU."""

    source: Tensor
    target: Tensor

    def ranks(self) -> Tensor:
        """Return one number per sample, int64 [n], that sorts by target length, then by source length."""
        return self.target * (int(self.source.max()) + 1) + self.source


@dataclass(frozen=True, kw_only=True)
class Samples:
    """A part of the data on the device, and the numbers `index` int64 [R, n] of each replicate's samples, on the CPU.

    The model reads ids, or vectors inputs * scale + shift. For an encoder-decoder, `pairs` are the lengths and `start`
    is the id that a target begins with.
    """

    inputs: Tensor | Stream
    targets: Tensor
    index: Tensor
    scale: Tensor
    shift: Tensor
    ids: bool
    pairs: Pairs | None
    start: int

    @staticmethod
    def of(
        data: Data,
        inputs: Tensor | Stream,
        targets: Tensor,
        index: Tensor,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Samples:
        """Return the samples `index` of one split of `data`; vectors are converted to `dtype`."""
        pairs = None
        if data.start is not None and isinstance(inputs, Tensor):
            pairs = Pairs(source=lengths(inputs, data.pad), target=lengths(targets, data.pad))
        return Samples(
            inputs=_move(inputs, device) if isinstance(inputs, Tensor) else inputs,
            targets=_move(targets, device),
            index=index,
            scale=torch.as_tensor(data.scale, dtype=dtype, device=device),
            shift=torch.as_tensor(data.shift, dtype=dtype, device=device),
            ids=data.ids,
            pairs=pairs,
            start=0 if data.start is None else data.start,
        )

    def shared(self, replicates: int) -> Samples:
        """Return these samples, which are the same for every replicate, for `replicates` replicates."""
        return replace(self, index=self.index[:1].expand(replicates, -1))

    @cached_property
    def digest(self) -> str:
        """A SHA-256 of the first replicate's targets and inputs, in order; without the inputs of a Stream."""
        found = hashlib.sha256()
        for values in (self.targets, self.inputs):
            if not isinstance(values, Tensor):
                continue
            found.update(f"{values.dtype} {list(values.shape[1:])} {self.index.shape[1]}".encode())
            for index in torch.split(self.index[0].to(values.device), HASHED_AT_ONCE):
                chosen = values.index_select(0, index).cpu().contiguous()
                found.update(chosen.view(-1).view(torch.uint8).numpy().data)
        return found.hexdigest()

    def batches(
        self, index_rn: Tensor, batch: int, *, keys: Sequence[int] | None = None
    ) -> Generator[tuple[ModelInput, Tensor], None, None]:
        """Yield (x, targets) of the samples `index_rn` [R, n] in batches of `batch` per replicate.

        x is [R, B, T, F] in the dtype of `scale`, ids int64 [R, B, T], or the pair (source [R, B, S'], targets shifted
        right after `start` [R, B, T']), both trimmed to the longest of the batch over all replicates. Targets are
        int64 [R, B, ...], trimmed alike. `keys` has one number per replicate that keys the
        augmentation of a `Stream`, None in evaluation.
        """
        moved = index_rn.to(self.targets.device)
        if not isinstance(self.inputs, Tensor):
            return self._streamed(self.inputs, index_rn, moved, batch, keys)
        if self.pairs is not None:
            return self._paired(self.inputs, self.pairs, index_rn, moved, batch)
        return self._resident(self.inputs, moved, batch)

    def _resident(self, inputs: Tensor, moved: Tensor, batch: int) -> Generator[tuple[Tensor, Tensor], None, None]:
        flat = inputs if self.ids else inputs.view(len(inputs), -1)
        for index_rb in torch.split(moved, batch, dim=1):
            # windows overlap: all of them would be larger than the text
            picked = flat.index_select(0, index_rb.reshape(-1)).view(*index_rb.shape, *inputs.shape[1:])
            yield picked.long() if self.ids else self._vectors(picked), _picked(self.targets, index_rb)

    def _paired(
        self, inputs: Tensor, pairs: Pairs, index_rn: Tensor, moved: Tensor, batch: int
    ) -> Generator[tuple[tuple[Tensor, Tensor], Tensor], None, None]:
        places = zip(torch.split(index_rn, batch, dim=1), torch.split(moved, batch, dim=1), strict=True)
        for on_cpu, index_rb in places:
            longest = int(pairs.source[on_cpu].max()), int(pairs.target[on_cpu].max())
            source = _picked(inputs[:, : longest[0]], index_rb)
            targets = _picked(self.targets[:, : longest[1]], index_rb)
            yield (source, F.pad(targets[..., :-1], (1, 0), value=self.start)), targets

    def _streamed(
        self, inputs: Stream, index_rn: Tensor, moved: Tensor, batch: int, keys: Sequence[int] | None
    ) -> Generator[tuple[Tensor, Tensor], None, None]:
        read = inputs.batches(index_rn, batch, keys)
        try:
            for index_rb, images in zip(torch.split(moved, batch, dim=1), read, strict=True):
                # replicates that use the same images share their memory, here and on the device
                distinct = images[:1] if images.stride(0) == 0 else images
                if self.targets.is_cuda:  # from pinned memory the copy overlaps with the previous step
                    distinct = distinct.pin_memory()
                copied = distinct.to(self.targets.device, non_blocking=True)
                vectors = self._vectors(copied).expand(len(images), -1, -1, -1)
                yield vectors, _picked(self.targets, index_rb)
        finally:
            if isinstance(read, Generator):  # its processes end with the epoch
                read.close()

    def _vectors(self, inputs: Tensor) -> Tensor:
        return torch.addcmul(self.shift, inputs.to(self.scale.dtype), self.scale)


def _picked(values: Tensor, index_rb: Tensor) -> Tensor:
    """Return the samples `index_rb` of `values` [n, ...] as int64 [R, B, ...]."""
    return values.index_select(0, index_rb.reshape(-1)).view(*index_rb.shape, *values.shape[1:]).long()


def lengths(ids: Tensor, pad: int | None) -> Tensor:
    """Return the number of ids before the padding of every sample, at least 1, int64 [n]."""
    if pad is None:
        return torch.full((len(ids),), ids.shape[1])
    return (ids != pad).sum(1).clamp(min=1).cpu()


def _move(values: Tensor, device: torch.device) -> Tensor:
    """Return `values` on `device`, contiguous; if samples overlap, as windows on a text that is moved once."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(values.shape, values.stride(), strict=True))
    if extent >= values.numel():
        return values.to(device).contiguous()
    text = values.as_strided((extent,), (1,))
    return text.to(device).as_strided(values.shape, values.stride())
