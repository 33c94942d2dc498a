"""What takes long to import is imported in a thread, while Ray starts in the main one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.commands import TINY

AHEAD = """
import sys, threading
from pathlib import Path
import ablate.driver.run
import ablate.execution.ray_tune
from ablate.driver.executors import import_ahead
from ablate.driver.options import RunOptions
from ablate.study import parse_study

def imported():
    print(*({"ray", "ray.tune", "torch", "triton", "torch._dynamo"} & set(sys.modules)))

imported()
import_ahead(parse_study(sys.argv[1]), RunOptions(runs_dir=Path("runs"), executor=sys.argv[2]))
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
imported()
"""


@pytest.mark.services
@pytest.mark.parametrize(("executor", "ahead"), [("ray", {"torch"}), ("local", set())])
def test_torch_is_imported_while_ray_starts_and_not_before(executor: str, ahead: set[str]) -> None:
    command = [sys.executable, "-c", AHEAD, TINY, executor]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    before, after = (set(line.split()) for line in done.stdout.splitlines())
    assert before == set(), "Ray is imported with the settings that it reads then"
    assert after == ahead
