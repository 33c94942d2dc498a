"""Images cut into patches: one patch is one token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ablate.base.errors import RequestError
from ablate.engine.models.model_config import InputShape
from ablate.engine.tasks.base import Data

Split = tuple[Tensor, Tensor]  # images uint8 [n, H, W, C], targets int64 [n]


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """The properties of a set of images that are known before loading."""

    name: str
    height: int
    width: int
    channels: int
    class_names: tuple[str, ...]
    train_samples: int
    ships_validation: bool = False
    test_samples: int | None = None


def possible_patches(length: int) -> tuple[int, ...]:
    """Return every patch length in pixels that divides an image of `length` pixels."""
    return tuple(n for n in range(1, length + 1) if length % n == 0)


def input_shape(images: ImageSet, patch: tuple[int, int]) -> InputShape:
    """Return the model's input shape; raise RequestError that names the possible patches if `patch` does not fit."""
    high, wide = patch
    if images.height % high or images.width % wide:
        heights, widths = possible_patches(images.height), possible_patches(images.width)
        possible = f"heights {_list(heights)}; widths {_list(widths)}" if heights != widths else _list(heights)
        raise RequestError(
            f"{images.name}: patch {high}x{wide} does not divide the {images.height}x{images.width} image"
            f" (possible: {possible})"
        )
    return InputShape(
        tokens=(images.height // high) * (images.width // wide),
        features=high * wide * images.channels,
        outputs=len(images.class_names),
        train_samples=images.train_samples,
        test_samples=images.test_samples,
        ships_validation=images.ships_validation,
        patch=patch,
    )


def cut(images: Tensor, patch: tuple[int, int]) -> Tensor:
    """Return the patches [n, T, F] of `images` [n, H, W, C], tokens and pixels by rows, channels last.

    T = (H / height) (W / width), F = height * width * C; the dtype does not change.
    """
    n, height, width, channels = images.shape
    high, wide = patch
    grid = images.reshape(n, height // high, high, width // wide, wide, channels)
    return grid.permute(0, 1, 3, 2, 4, 5).reshape(n, -1, high * wide * channels)


def patch_data(
    train: Split,
    test: Split,
    *,
    patch: tuple[int, int],
    mean: Sequence[float],
    std: Sequence[float],
    class_names: tuple[str, ...],
    validation: Split | None = None,
) -> Data:
    """Return Data whose tokens are (value - mean) / std; `mean`, `std` per channel in stored units."""
    scale, shift = affine(mean, std, patch)
    return Data(
        train_inputs=cut(train[0], patch),
        train_targets=train[1],
        test_inputs=cut(test[0], patch),
        test_targets=test[1],
        validation_inputs=None if validation is None else cut(validation[0], patch),
        validation_targets=None if validation is None else validation[1],
        scale=scale,
        shift=shift,
        class_names=class_names,
    )


def affine(
    mean: Sequence[float], std: Sequence[float], patch: tuple[int, int]
) -> tuple[float | Tensor, float | Tensor]:
    """Return scale and shift of tokens, [F] or numbers, that map `mean` and `std` per channel to 0 and 1."""
    if len(mean) == 1:
        return 1 / std[0], -mean[0] / std[0]
    pixels = patch[0] * patch[1]
    scale = 1 / torch.tensor(std, dtype=torch.float64)
    shift = -torch.tensor(mean, dtype=torch.float64) * scale
    return scale.repeat(pixels), shift.repeat(pixels)


def _list(lengths: Sequence[int]) -> str:
    return ", ".join(map(str, lengths))
