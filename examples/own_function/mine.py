"""A training function of your own: a network with BatchNorm and dropout on the 8 x 8 digits of scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(x))
        return scores


def load(part: str) -> TensorDataset:
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    return TensorDataset(x[:1400], y[:1400]) if part == "train" else TensorDataset(x[1400:], y[1400:])


def accuracy(model: nn.Module, data: Dataset[Any]) -> float:
    x, y = map(torch.stack, zip(*(data[i] for i in range(len(data))), strict=True))  # type: ignore[arg-type]
    model.eval()
    with torch.no_grad():
        found = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return found


def train(config: Mapping[str, Any], run: Any) -> Iterator[dict[str, float]]:
    train_set, val_set = run.split(load("train"), 0.1)
    model = run.build(Net, width=config["width"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    run.keep(model=model, optimizer=optimizer)
    for _ in run.epochs():
        for x, y in run.loader(train_set, batch_size=64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        yield {"val_accuracy": accuracy(model, val_set)}


def test(model: nn.Module, config: Mapping[str, Any]) -> dict[str, float]:
    return {"test_accuracy": accuracy(model, load("test"))}


def size(config: Mapping[str, Any]) -> nn.Module:
    return Net(width=config["width"])
