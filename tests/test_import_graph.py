"""The rooms of ablate/ stay few, and none of them imports itself by way of another."""

from __future__ import annotations

import runpy
from graphlib import CycleError
from pathlib import Path

import pytest

from support.paths import REPOSITORY, TESTS

SCRIPT = runpy.run_path(str(TESTS / "import_graph.py"))
MOST_ROOMS = 15
MOST_FLOORS = 7
MOST_ARROWS = 65
MOST_BYTES = 2_483_500
MOST_TEST_LINES = 62_360


def test_a_planted_package_has_the_rooms_floors_and_arrows_that_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "__init__.py": "",
        "low.py": "import os",
        "middle/__init__.py": "from .one import x",
        "middle/one.py": "from planted_rooms import low\nfrom planted_rooms.low import os as x",
        "high.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from planted_rooms import low, middle",
    }
    for name, text in files.items():
        (tmp_path / "planted_rooms" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "planted_rooms" / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert SCRIPT["render"](SCRIPT["read_rooms"]("planted_rooms")) == "\n".join(
        ["3 rooms, 3 floors, 3 arrows", " 3 high", " 2 middle", " 1 low"]
    )
    (tmp_path / "planted_rooms" / "low.py").write_text("import planted_rooms.high")
    with pytest.raises(CycleError):
        SCRIPT["read_rooms"]("planted_rooms").floors()


def test_ablate_has_few_rooms_few_arrows_and_no_cycle() -> None:
    rooms = SCRIPT["read_rooms"]()
    said = SCRIPT["render"](rooms)
    assert len(rooms.imports) <= MOST_ROOMS, said
    assert len(rooms.floors()) <= MOST_FLOORS, said
    assert rooms.arrows <= MOST_ARROWS, said


def test_neither_the_package_nor_its_tests_grow() -> None:
    assert sum(path.stat().st_size for path in (REPOSITORY / "ablate").rglob("*.py")) <= MOST_BYTES
    assert sum(len(path.read_bytes().splitlines()) for path in TESTS.rglob("*.py")) <= MOST_TEST_LINES
