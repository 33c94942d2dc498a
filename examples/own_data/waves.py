"""Which shape has a noisy wave: sine, square or sawtooth?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ablate.engine.models.settings import InputShape
from ablate.engine.tasks import Classification, Data, OwnTaskConfig

TOKENS, FEATURES = 8, 4  # a wave has 32 samples, cut into 8 tokens
TRAIN, TEST = 600, 200


class Waves(Classification):  # brings loss and metrics of one class per sample
    def shape(self, data_dir: Path | None) -> InputShape:
        return InputShape(tokens=TOKENS, features=FEATURES, outputs=3, train_samples=TRAIN)

    def check(self, data_dir: Path | None) -> None:
        pass  # nothing can be missing; raise ablate.base.errors.DataError where your files are not there

    def load(self, data_dir: Path | None) -> Data:
        train_inputs, train_targets = draw(TRAIN, key=0)
        test_inputs, test_targets = draw(TEST, key=1)
        return Data(
            train_inputs=train_inputs,
            train_targets=train_targets,
            test_inputs=test_inputs,
            test_targets=test_targets,
            scale=1 / 64,  # a model reads inputs * scale + shift
            shift=-2.0,
            class_names=("sine", "square", "sawtooth"),
        )


def draw(count: int, *, key: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return waves uint8 [count, TOKENS, FEATURES] and their shapes int64 [count], the same for the same key."""
    random = np.random.default_rng(key)
    targets = random.integers(3, size=count)
    phase = 2 * random.random((count, 1)) + np.linspace(0, 3, TOKENS * FEATURES)
    sine = np.sin(np.pi * phase)
    shapes = np.stack([sine, np.sign(sine), phase % 2 - 1])
    noisy = shapes[targets, np.arange(count)] + 0.3 * random.normal(size=(count, TOKENS * FEATURES))
    pixels = np.clip(128 + 64 * noisy, 0, 255).astype(np.uint8).reshape(count, TOKENS, FEATURES)
    return torch.from_numpy(pixels), torch.from_numpy(targets)


def build(config: OwnTaskConfig) -> Waves:
    return Waves()
