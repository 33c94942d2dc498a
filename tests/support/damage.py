"""Files as a fault leaves them."""

from __future__ import annotations

from pathlib import Path


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])
