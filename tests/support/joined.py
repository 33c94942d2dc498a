"""Images from their patches."""

from __future__ import annotations

from torch import Tensor


def join(patches: Tensor, patch: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Return the images [n, H, W, C] of `size` (H, W) from `patches` [n, T, F]: the inverse of `cut`."""
    (high, wide), (height, width) = patch, size
    grid = patches.reshape(patches.shape[0], height // high, width // wide, high, wide, -1)
    return grid.permute(0, 1, 3, 2, 4, 5).reshape(patches.shape[0], height, width, -1)
