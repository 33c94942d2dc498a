"""What the parts of the GPU check share: its files, its data, its clock and what the device can do at most."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from record import append_csv, commit

from ablate.base.errors import DataError
from ablate.core.registry import read_task
from ablate.engine.tasks import Data, load_task

TASK = read_task({"task": "mnist", "patch": (7, 7)})
MADE_UP = "made up in the shape of MNIST"
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command line asks for; `small` runs everything in miniature."""

    out: Path
    device: str
    small: bool
    commit: str | None


class Table:
    """A CSV file that is written row by row, so that what was measured stays if the part is ended."""

    def __init__(self, asked: Asked, part: str, columns: tuple[str, ...], *, data: str = "") -> None:
        self.columns = (*columns, "problem", "data", "device", "versions", "commit")
        self._file = asked.out / f"{part}.csv"
        self._same: Mapping[str, Any] = {
            "data": data,
            "device": device_name(asked.device),
            "versions": f"Python {platform.python_version()}, torch {torch.__version__}",
            "commit": asked.commit or commit(),
        }
        self._file.unlink(missing_ok=True)
        append_csv(self._file, [], self.columns)

    def add(self, **row: Any) -> None:
        """Write one row and print it; what is not given stays empty."""
        given = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in row.items()}
        append_csv(self._file, [{**self._same, **given}])
        print(", ".join(f"{name} {value}" for name, value in given.items() if value != ""), flush=True)


def device_name(device: str) -> str:
    """Return the GPU's name, or `cpu`."""
    return torch.cuda.get_device_name() if device == "cuda" else "cpu"


def mnist(asked: Asked) -> tuple[Data, str]:
    """Return MNIST, or made-up data of its shape if it is not here, and which of the two it is."""
    task = load_task(TASK)
    try:
        return task.load(None), "MNIST"
    except DataError:
        return _made_up(asked), MADE_UP


def _made_up(asked: Asked) -> Data:
    shape, draws = load_task(TASK).shape(None), torch.Generator().manual_seed(0)
    parts: dict[str, torch.Tensor] = {}
    for part, count in (("train", shape.train_samples), ("test", shape.test_samples or 1)):
        kept = min(count, 2000) if asked.small else count
        size = (kept, shape.tokens, shape.features)
        parts[f"{part}_inputs"] = torch.randint(256, size, dtype=torch.uint8, generator=draws)
        parts[f"{part}_targets"] = torch.randint(shape.outputs, (kept,), generator=draws)
    return Data(**parts, scale=1 / 255)


def cut(data: Data, *, train: int, test: int) -> Data:
    """Return the first samples of both parts."""
    return replace(
        data,
        train_inputs=data.train_inputs[:train],
        train_targets=data.train_targets[:train],
        test_inputs=data.test_inputs[:test],
        test_targets=data.test_targets[:test],
    )


def synchronize(device: str) -> None:
    """Wait until the device has done what it was asked."""
    if device == "cuda":
        torch.cuda.synchronize()


def fastest(call: Callable[[], object], device: str, *, times: int) -> float:
    """Return the seconds of the fastest of some calls, after a first one."""
    found = []
    for _ in range(times + 1):
        synchronize(device)
        before = time.perf_counter()
        call()
        synchronize(device)
        found.append(time.perf_counter() - before)
    return max(min(found[1:]), 1e-9)


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """What this device reaches at most: bytes per second of a large copy, and operations per second of a product."""

    bytes_per_second: float
    flops_per_second: Mapping[str, float]

    @staticmethod
    def of(asked: Asked) -> Peaks:
        """Measure them; a copied byte is read once and written once, a multiply-add is two operations."""
        source = torch.empty((2**22 if asked.small else 2**30), dtype=torch.uint8, device=asked.device)
        target = torch.empty_like(source)
        copied = 2 * source.numel() / fastest(lambda: target.copy_(source), asked.device, times=10)
        n = 256 if asked.small else 8192
        flops = {}
        for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
            a, b = (torch.randn(n, n, device=asked.device).to(dtype) for _ in range(2))
            flops[name] = 2 * n**3 / fastest(lambda a=a, b=b: a @ b, asked.device, times=5)  # type: ignore[misc]
        return Peaks(bytes_per_second=copied, flops_per_second=flops)


def measure_device(asked: Asked) -> None:
    """Write what the device is and reaches."""
    table = Table(asked, "device", ("what", "value", "unit"))
    if asked.device == "cuda":
        about = torch.cuda.get_device_properties(0)
        table.add(what="memory", value=about.total_memory / GIB, unit="GiB")
        table.add(what="multiprocessors", value=about.multi_processor_count, unit="")
        table.add(what="CUDA", value=torch.version.cuda, unit="")
    peaks = Peaks.of(asked)
    table.add(what="copy within its memory, read and written", value=peaks.bytes_per_second / 1e9, unit="GB/s")
    for name, value in peaks.flops_per_second.items():
        table.add(what=f"square matrix product, {name}", value=value / 1e12, unit="TFLOP/s")
