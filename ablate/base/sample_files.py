"""What a trial scored on each sample of the test split: a small file beside its checkpoints."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ablate.base.files import Folder

if TYPE_CHECKING:
    from numpy.typing import NDArray

SPLIT = "split"  # key of the metadata
_NAME = re.compile(r"samples-attempt-([0-9]{3,18})\.safetensors")


@dataclass(frozen=True, kw_only=True)
class SampleValues:
    """Values by metric, [replicates, samples] each, whose means over samples are the metric of each replicate.

    `split` is a digest of the samples and their order: values of two trials are paired only if theirs are equal.
    """

    values: Mapping[str, NDArray[np.float32]]
    split: str


def write_sample_values(folder: Folder, attempt: int, found: SampleValues) -> None:
    """Write the values of an attempt, 0 and 1 as bytes; without any, write nothing. Raises OSError."""
    from safetensors.numpy import save

    if found.values:
        narrow = {name: _narrow(values) for name, values in found.values.items()}
        folder.write(f"samples-attempt-{attempt:03d}.safetensors", save(narrow, metadata={SPLIT: found.split}))


def read_sample_values(folder: Folder, attempt: int) -> SampleValues | None:
    """Return the newest values of `attempt` or an earlier one; None without a file, or for a damaged one.

    Raises OSError if the place does not answer.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    matches = [match for name in folder.names() if (match := _NAME.fullmatch(name)) and int(match[1]) <= attempt]
    if not matches:
        return None
    newest = max(matches, key=lambda match: int(match[1]))
    try:
        content = folder.read(newest[0])
        return SampleValues(
            values={n: v.astype(np.float32) for n, v in sorted(load(content).items())}, split=_split(content)
        )
    except (FileNotFoundError, SafetensorError, ValueError, KeyError, TypeError):
        return None


def _narrow(values: NDArray[np.float32]) -> NDArray[np.generic]:
    whole = bool(np.isin(values, (0.0, 1.0)).all())
    return np.ascontiguousarray(values, dtype=np.uint8 if whole else np.float32)


def _split(content: bytes) -> str:
    """Return the digest in the metadata of a safetensors file."""
    length = int.from_bytes(content[:8], "little")
    return str(json.loads(content[8 : 8 + length])["__metadata__"][SPLIT])
