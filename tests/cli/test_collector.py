"""When Python's garbage collector runs in a command; a process of its own shows it."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ablate.cli import app
from ablate.cli.collector import USUAL
from ablate.driver import run as driver
from ablate.driver.options import RunOptions
from support.commands import TINY

COUNTED = """
import atexit, gc, sys
atexit.register(lambda: print(before, after, gc.get_freeze_count(), file=sys.stderr))  # after what main() registers
sys.argv = ["ablate", *sys.argv[1:]]
from ablate.cli.app import main
before = sum(each["collections"] for each in gc.get_stats())
try:
    main()
finally:
    after = sum(each["collections"] for each in gc.get_stats())
"""


def test_a_short_command_hardly_collects_and_leaves_nothing_to_its_end(tmp_path: Path) -> None:
    words = [sys.executable, "-c", COUNTED, "list"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    before, after, frozen = map(int, done.stderr.split())
    assert after - before < 10, "about 300 as usual"
    assert frozen > 50_000


def test_a_driver_collects_as_usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, int]] = []
    usual = USUAL
    outcome = SimpleNamespace(report=tmp_path)

    def search(*_: object, **__: object) -> SimpleNamespace:
        seen.append(gc.get_threshold())
        return outcome

    monkeypatch.setattr(driver, "search", search)
    app.collect_rarely()
    assert gc.get_threshold()[0] > 10 * usual[0]
    app._drive(tmp_path / "study.yaml", RunOptions(runs_dir=tmp_path, tracker="none"), text=TINY)
    assert seen == [usual]
    assert gc.get_threshold() == usual
