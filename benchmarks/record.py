"""Writes a benchmark's rows as CSV, with commit, machine and versions on each row; counts the CPU time of processes.

It needs the standard library alone.
"""

from __future__ import annotations

import csv
import ctypes
import io
import os
import platform
import resource
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PR_SET_CHILD_SUBREAPER = 36


def write_csv(
    file: Path, rows: Sequence[Mapping[str, Any]], *, packages: Sequence[str] = ("torch",), key: str | None = None
) -> None:
    """Write rows with `made_by` to a CSV file and print its path.

    A row that has a column of `made_by` keeps its value. Rows that are in the file already are replaced; with `key`,
    those that have another value in this column stay.
    """
    new = with_origin(rows, packages)
    replaced = {str(row[key]) for row in new} if key else set()
    kept = [row for row in read_csv(file) if row[key] not in replaced] if key and file.exists() else []
    text = io.StringIO()
    writer = csv.DictWriter(text, list(new[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows([*kept, *new])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text.getvalue(), encoding="utf-8")
    print(f"Written: {file}")


def append_csv(file: Path, rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None) -> None:
    """Append rows to a CSV file, after a header if it is new; a cell that a row does not have is empty.

    `columns` are those of a new file (default: the first row's). Raises ValueError if a row has another column.
    """
    found = list(rows)
    with file.open("a+", newline="", encoding="utf-8") as out:
        out.seek(0)
        header = next(csv.reader(out), None)
        writer = csv.DictWriter(out, header or list(columns or found[0]), restval="", lineterminator="\n")
        if header is None:
            writer.writeheader()
        writer.writerows(found)


def read_csv(file: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    with file.open(newline="", encoding="utf-8") as text:
        return list(csv.DictReader(text))


def with_origin(rows: Iterable[Mapping[str, Any]], packages: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows with the columns of `made_by` that they do not have."""
    made = made_by(packages)
    return [{**row, **{name: value for name, value in made.items() if name not in row}} for row in rows]


def made_by(packages: Sequence[str]) -> dict[str, str]:
    """Return commit, machine and versions; `packages` are those whose versions matter."""
    machine = f"{os.cpu_count()} x {processor()}"
    return {"commit": commit(), "machine": machine, "versions": versions(packages)}


def versions(packages: Sequence[str]) -> str:
    """Return the versions of Python and of some packages."""
    return ", ".join([f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in packages)])


def commit(checkout: Path = ROOT) -> str:
    """Return the short name of a checkout's commit, with a + if `ablate` has changed since; `unknown` without git."""
    if shutil.which("git") is None:
        return "unknown"
    git = ["git", "-C", str(checkout)]
    short = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run([*git, "status", "--porcelain", "ablate"], capture_output=True, text=True)
    return short.stdout.strip() + ("+" if changed.stdout.strip() else "") if short.returncode == 0 else "unknown"


def processor() -> str:
    """Return the processor's name as Linux tells it, or the architecture."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def take_orphans() -> None:
    """Make this process the parent of what Ray leaves behind, so that it is ended and its CPU time counted."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def cpu_seconds() -> float:
    """Return the CPU seconds of all ended processes below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
