"""The tutorial for one's own network and script: its files are written and its lines run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from support.changed_lines import Count, count_sections
from support.page_reader import Reader
from support.paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "tutorial_own_code.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
LIMIT = 240  # seconds
KILLED = (0, 137, -9)  # of `timeout`; the search may have ended before


def blocks() -> Iterator[tuple[str, str, str]]:
    """Yield language, file name and text of each fenced block; a name is in the first line of a file's block."""
    for language, text in BLOCK.findall(PAGE.read_text()):
        named = re.match(r"# (\w+\.\w+)", text)
        yield language, named[1] if named else "", text


def write(file: Path, text: str) -> None:
    """Write a file of the page; a block `from X on` replaces the end of a file that is there."""
    kept = ""
    if found := re.match(r"# \S+, from `(.+)` on\n", text):
        kept = file.read_text().partition(found[1])[0]
        assert kept != file.read_text()
        text = text[found.end() :]
    file.write_text(kept + text)


def ran(line: str, folder: Path) -> str:
    environment = os.environ | {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode in (KILLED if line.startswith("timeout") else (0,)), f"{line}\n{done.stderr}"
    return done.stdout


def install(folder: Path) -> None:
    """Let `ablate` and `python` be those of this test."""
    (folder / "bin").mkdir()
    for name, further in (("ablate", "-m ablate"), ("python", "")):
        (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {sys.executable} {further} "$@"\n')
        (folder / "bin" / name).chmod(0o755)


@pytest.mark.slow
@pytest.mark.timeout(3 * LIMIT)
def test_every_file_and_line_of_the_page_works_in_its_order(tmp_path: Path) -> None:
    install(tmp_path)
    said: dict[str, str] = {}
    for language, name, text in blocks():
        assert language in ("python", "yaml", "console")
        if language != "console":
            assert name, f"no file is named: {text[:60]}"
            write(tmp_path / name, text)
            continue
        for line in text.splitlines():
            assert line.startswith("$ ")
            said[line[2:]] = ran(line[2:], tmp_path)
    assert len(said) == 9
    mine = pl.read_parquet(tmp_path / "runs" / "mine" / "trials.parquet")
    assert mine.filter(stage="search").height == 12
    assert set(mine.filter(stage="confirm")["state"]) == {"COMPLETE"}
    best = mine.filter(stage="confirm").sort("val_accuracy")["config.width"][-1]
    assert said["python look.py"].split()[-1] == str(best)
    assert "test accuracy" in said["ablate status mine"]
    rows = Reader((tmp_path / "runs" / "parts" / "report" / "index.html").read_text()).rows
    assert {"without-norms", "without-mlps", "without-second"} <= {cell for row in rows for cell in row}


def test_the_page_changes_as_many_lines_as_it_says(tmp_path: Path) -> None:
    versions = [text for _, name, text in blocks() if name == "train.py"]
    write(tmp_path / "train.py", versions[0])
    before = (tmp_path / "train.py").read_text()
    write(tmp_path / "train.py", versions[1])
    found = count_sections(before, (tmp_path / "train.py").read_text())
    assert found["train"] == Count(6, 1)  # `return model` is gone
    assert (found["test"].written, found["rest"].written) == (2, 0)
    assert "Six lines change: four, and one for each parameter that is searched." in PAGE.read_text()
    [study] = [text for _, name, text in blocks() if name == "study.yaml"]
    assert len(study.splitlines()) - 1 == 9
