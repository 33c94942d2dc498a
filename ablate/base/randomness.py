"""Keyed randomness: every draw comes from a stream named by its purpose, never from global state."""

from __future__ import annotations

import hashlib

import numpy as np


def stream(study_seed: int, dataset: str, seed: int, purpose: str, *path: str | int) -> np.random.Generator:
    """Return the independent generator of `purpose` for one replicate.

    `purpose` is one of split, order, initialisation, augmentation, dropout, sampler, confirmation, front, and for a
    user's function also start, epoch and function; `path` narrows it (an epoch, a parameter's name). Equal arguments
    give equal streams on every machine; any difference gives an independent one.
    """
    words = "\x1f".join([dataset, purpose, *map(str, path)])
    digest = hashlib.blake2b(words.encode(), digest_size=16).digest()
    key = [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4)]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([study_seed, seed, *key])))
