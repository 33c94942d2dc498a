"""A study of a network of one's own, run by the command in this process."""

from __future__ import annotations

from pathlib import Path


def local(path: Path, runs: Path) -> list[str]:
    return ["search", str(path), "--executor", "local", "--tracker", "none", "--runs-dir", str(runs)]


OWN_NETWORK = """\
from torch import nn


class Net(nn.Module):
    def __init__(self, config, shape):
        super().__init__()
        self.first = nn.Linear(shape.tokens * shape.features, config.options["hidden"])
        self.last = nn.Linear(config.options["hidden"], shape.outputs)

    def forward(self, x):
        return self.last(self.first(x.flatten(-2)).relu())


def build(config, shape):
    return Net(config, shape)
"""
