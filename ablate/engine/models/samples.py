"""Samples in the shape that a module asks for: whole images or rows of a table instead of tokens."""

from __future__ import annotations

from torch import Tensor, nn

from ablate.base.errors import RequestError
from ablate.engine.models.settings import InputShape

TAKES = ("tokens", "samples")  # values of a module's attribute `takes`


def give_samples(module: nn.Module, shape: InputShape) -> nn.Module:
    """Return `module`; if its attribute `takes` is "samples", it is called with samples [B, C, H, W] or [B, F].

    Raises RequestError for another value of `takes`, and for a task whose samples are nothing but tokens.
    """
    takes = getattr(module, "takes", TAKES[0])
    if takes not in TAKES:
        raise RequestError(f"{type(module).__name__}.takes is {takes!r}, it is one of {', '.join(TAKES)}")
    if takes == "tokens":
        return module
    if shape.sample is None:
        raise RequestError(
            f"{type(module).__name__} takes samples, and those of this task are tokens [B, {shape.tokens},"
            f" {shape.features}]: remove its attribute `takes`"
        )
    module.register_forward_pre_hook(lambda _, arguments: (as_samples(arguments[0], shape), *arguments[1:]))
    return module


def as_samples(tokens: Tensor, shape: InputShape) -> Tensor:
    """Return the samples [B, *shape.sample] of `tokens` [B, T, F]: images from their patches, rows from columns."""
    assert shape.sample is not None
    if shape.patch is None:
        return tokens.reshape(tokens.shape[0], *shape.sample)
    _, height, width = shape.sample
    return join(tokens, shape.patch, (height, width)).permute(0, 3, 1, 2)


def join(patches: Tensor, patch: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Return the images [n, H, W, C] of `size` (H, W) from `patches` [n, T, F]: the inverse of `cut` of the tasks."""
    (high, wide), (height, width) = patch, size
    grid = patches.reshape(patches.shape[0], height // high, width // wide, high, wide, -1)
    return grid.permute(0, 1, 3, 2, 4, 5).reshape(patches.shape[0], height, width, -1)
