"""A training function that trains nothing, for `overhead.py`."""

from collections.abc import Iterator
from typing import Any


def train(config: dict[str, Any], run: Any) -> Iterator[dict[str, float]]:
    """Report one loss."""
    run.keep()
    for _ in run.epochs():
        yield {"val_loss": abs(config["lr"] - 1e-2)}
