"""A user's training function as people write it: BatchNorm, dropout, a schedule, workers, and the global generators."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

FOLDER = "ABLATE_TEST_FUNCTION"  # where every batch appends a line to `steps.jsonl`; `pace` is seconds for each


class Net(nn.Module):
    """A small network whose regular layers draw and remember."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores [B, 2]."""
        scores: Tensor = self.head(self.body(x))
        return scores


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Samples with noise from NumPy's and Python's generators, drawn where they are loaded: in a worker, if any."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = torch.sin(torch.arange(8) * (index + 1.0)) + 0.1 * np.random.rand() + 0.1 * random.random()
        return x.float(), torch.tensor(index % 2)


def train(config: Mapping[str, Any], run: Any) -> Iterator[dict[str, float]]:
    """Yield losses to which every global generator contributes."""
    train_set, val_set = run.split(Noisy(), 0.25)
    model = run.build(Net, width=config["width"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=config["lr"], total_steps=5 * 100)
    run.keep(model=model, optimizer=optimizer, schedule=schedule)
    for _ in run.epochs():
        total = 0.0
        for x, y in run.loader(train_set, batch_size=16, num_workers=config.get("workers", 0)):
            weight = 1 + random.random() + np.random.rand()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x + 0.1 * torch.randn_like(x)), y) * weight
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            total += loss.item()
            tick(run.seed)
        yield {"train_loss": total, "val_loss": validate(model, val_set)}


def test(model: nn.Module, config: Mapping[str, Any]) -> dict[str, float]:
    """Return a loss on validation samples."""
    return {"test_loss": validate(model, TensorDataset(torch.eye(8), torch.arange(8) % 2))}


test.__test__ = False  # type: ignore[attr-defined]  # not one of pytest's


def validate(model: nn.Module, samples: Any) -> float:
    """Return the mean loss over a data set, in evaluation mode."""
    model.eval()
    x, y = map(torch.stack, zip(*[samples[i] for i in range(len(samples))], strict=True))
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(x), y).item()
    model.train()
    return loss


def tick(seed: int) -> None:
    """Count a batch and take as long as the test asks for."""
    if (folder := os.environ.get(FOLDER)) is None:
        return
    with Path(folder, "steps.jsonl").open("a") as file:
        file.write(f'{{"seed": {seed}}}\n')
    pace = Path(folder, "pace")
    time.sleep(float(pace.read_text()) if pace.exists() else 0.0)


def one_report(config: Mapping[str, Any], run: Any) -> dict[str, float]:
    """Return one report: a function without epochs."""
    return {"val_loss": config["x"] ** 2 + random.random() * 1e-3}
