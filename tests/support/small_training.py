"""Trials of striped images that train in a moment, and their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ablate.core.config import TaskConfig
from ablate.core.trial import Report, TrialConfig, TrialKey
from ablate.engine.models.model_config import InputShape, ModelConfig
from ablate.engine.tasks import Classification, Data
from ablate.engine.training import pack_state
from ablate.engine.training.modules import initial_weights
from ablate.engine.training.train_config import TrainConfig
from support.entries import entry
from support.trials import family_trial

SAMPLES, TEST_SAMPLES = 150, 40
SHAPE = InputShape(tokens=4, features=3, outputs=3, train_samples=SAMPLES)


class Stripes(Classification):
    """Three classes: which feature is bright."""

    def shape(self, data_dir: Path | None) -> InputShape:
        return SHAPE

    def check(self, data_dir: Path | None) -> None:
        pass

    def load(self, data_dir: Path | None) -> Data:
        return stripes()


def stripes() -> Data:
    generator = torch.Generator().manual_seed(0)
    parts = []
    for n in (SAMPLES, TEST_SAMPLES):
        targets = torch.randint(3, (n,), generator=generator)
        noise = torch.randint(0, 120, (n, 4, 3), generator=generator)
        bright = 100 * nn.functional.one_hot(targets, 3)[:, None, :]
        parts.append(((noise + bright).to(torch.uint8), targets))
    (train_inputs, train_targets), (test_inputs, test_targets) = parts
    return Data(
        train_inputs=train_inputs,
        train_targets=train_targets,
        test_inputs=test_inputs,
        test_targets=test_targets,
        scale=1 / 60,
        shift=torch.full((3,), -1.5, dtype=torch.float64),
    )


def trial(**changes: Any) -> TrialConfig:
    fields: dict[str, Any] = {
        "key": TrialKey(study="s", dataset="stripes", number=0),
        "stage": "search",
        "model": ModelConfig(width=8, depth=1, mlp=8),
        "task": entry(task=f"{__name__}:build_stripes"),
        "train": TrainConfig(epochs=4, batch_size=16, learning_rate=1e-2, clip_norm=1.0, label_smoothing=0.1),
        "seeds": (3, 4),
        "study_seed": 7,
    }
    return family_trial(**fields | changes)


DROPPED = ModelConfig(width=8, depth=1, mlp=8, dropout=0.2)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def poison(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Let the replicates of a seed begin with weights that are NaN."""

    def poisoned(config: TrialConfig, shape: InputShape, *, replicate: int) -> dict[str, Tensor]:
        weights = initial_weights(config, shape, replicate=replicate)
        return {name: w * torch.nan if config.seeds[replicate] == seed else w for name, w in weights.items()}

    monkeypatch.setattr(pack_state, "initial_weights", poisoned)


def numbers(reports: list[Report]) -> list[tuple[Any, ...]]:
    return [(r.epoch, r.metrics, r.checkpoint, r.diverged, r.final) for r in reports]


def build_stripes(config: TaskConfig) -> Stripes:
    return Stripes()
