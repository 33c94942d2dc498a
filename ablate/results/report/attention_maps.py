"""Attention maps as images: one PNG per block, a column per head, similarity above attention weights."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ablate.base.errors import AblateError
from ablate.base.files import DiskFolder
from ablate.base.redaction import error_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS = ("similarity s", "attention softmax(s)")
INCHES = 2.6  # side of one map
TITLE_CHARACTERS, TITLE_LINE = 11.5, 0.17  # of a title: characters to an inch, inches of a line


@dataclass(frozen=True, kw_only=True)
class BlockMaps:
    """Maps of one block on one sample: similarity before softmax and attention weights, [heads, rows, columns]."""

    name: str
    similarity: NDArray[np.float64]
    weights: NDArray[np.float64]


def write_maps(blocks: Sequence[BlockMaps], folder: Path, *, title: str) -> list[Path]:
    """Write NAME.png per block and maps.npz with the numbers into `folder`; return the files' paths.

    Raises AblateError if the folder cannot be written.
    """
    paths = [folder / f"{block.name}.png" for block in blocks]
    numbers = folder / "maps.npz"
    arrays = {f"{b.name}/similarity": b.similarity for b in blocks} | {f"{b.name}/weights": b.weights for b in blocks}
    try:
        for block, path in zip(blocks, paths, strict=True):
            picture = BytesIO()
            _draw(block, title).savefig(picture, dpi=110, format="png")
            DiskFolder(folder).write(path.name, picture.getvalue())
        raw = BytesIO()
        np.savez_compressed(raw, allow_pickle=False, **arrays)
        DiskFolder(folder).write(numbers.name, raw.getvalue())
    except OSError as error:
        raise AblateError(f"{folder}: the maps cannot be written: {error_text(error, folder)}") from error
    return [*paths, numbers]


def _draw(block: BlockMaps, title: str) -> Figure:
    """Return one block's maps; similarities share a scale symmetric about zero, and weights start at zero."""
    from matplotlib.figure import Figure  # the import takes half a second, and only images need it
    from matplotlib.ticker import MaxNLocator

    heads = block.weights.shape[0]
    figure = Figure(figsize=(INCHES * heads + 1.2, 2 * INCHES + 0.9), layout="constrained")
    lines = textwrap.wrap(f"{title}, {block.name.replace('-', ' ')}", int(TITLE_CHARACTERS * figure.get_figwidth()))
    figure.set_figheight(figure.get_figheight() + TITLE_LINE * (len(lines) - 1))
    figure.suptitle("\n".join(lines), fontsize=10)
    axes = figure.subplots(2, heads, squeeze=False)
    reach = float(np.abs(block.similarity).max()) or 1.0
    styles = (
        {"cmap": "RdBu_r", "vmin": -reach, "vmax": reach},
        {"cmap": "Greys", "vmin": 0.0, "vmax": float(block.weights.max())},
    )
    for row, (name, values, style) in enumerate(zip(ROWS, (block.similarity, block.weights), styles, strict=True)):
        for head in range(heads):
            axis = axes[row, head]
            image = axis.imshow(values[head], interpolation="nearest", **style)
            axis.set_title(f"{name}, head {head + 1}", fontsize=8)
            for scale in (axis.xaxis, axis.yaxis):
                scale.set_major_locator(MaxNLocator(8, integer=True))
            axis.tick_params(labelsize=7)
            if head == 0:
                axis.set_ylabel("token that looks", fontsize=8)
            if row == 1:
                axis.set_xlabel("token looked at", fontsize=8)
        figure.colorbar(image, ax=list(axes[row]), shrink=0.8).ax.tick_params(labelsize=7)
    return figure
