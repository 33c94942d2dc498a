"""Writes a benchmark's rows to benchmarks/results, with commit, machine and versions on each row."""

from __future__ import annotations

import csv
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def write_csv(name: str, rows: Sequence[Mapping[str, Any]], *, packages: Sequence[str] = ("torch",)) -> Path:
    """Write `rows` as NAME.csv, say where, and return the file; `packages` are those whose versions matter."""
    made = {
        "commit": commit(),
        "machine": f"{os.cpu_count()} x {processor()}",
        "versions": ", ".join([f"Python {platform.python_version()}", *(f"{p} {version(p)}" for p in packages)]),
    }
    file = RESULTS / f"{name}.csv"
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, [*rows[0], *made], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, **made} for row in rows)
    print(f"Written: {file.relative_to(ROOT)}")
    return file


def commit() -> str:
    """Return the short name of the commit, with a + if files have changed since; `unknown` without git."""
    if shutil.which("git") is None:
        return "unknown"
    short = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    changed = subprocess.run(["git", "status", "--porcelain", "ablate"], cwd=ROOT, capture_output=True, text=True)
    return short.stdout.strip() + ("+" if changed.stdout.strip() else "") if short.returncode == 0 else "unknown"


def processor() -> str:
    """Return the processor's name as Linux tells it, or the architecture."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
