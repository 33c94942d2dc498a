"""Every command of docs/measured/benchmarks.md starts as it is printed there: from the checkout, with nothing set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
COMMANDS = sorted(path.name for path in BENCHMARKS.glob("*.py") if "ArgumentParser(" in path.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_benchmark_finds_all_that_it_imports(name: str) -> None:
    plain = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, f"benchmarks/{name}", "--help"]
    done = subprocess.run(command, cwd=BENCHMARKS.parent, env=plain, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")
