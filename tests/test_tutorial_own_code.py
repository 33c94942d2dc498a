"""Write the files of README, the tutorial for a user's script and pages by job, and run their command lines."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import polars as pl
import pytest

from ablate.results.comparison.verdicts import CLAIMS
from support.changed_lines import Count, count_sections
from support.page_reader import Reader
from support.paths import REPOSITORY

README = REPOSITORY / "README.md"
PAGE = REPOSITORY / "docs" / "tutorial_own_code.md"
HOW_TO = REPOSITORY / "docs" / "how_to"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
LIMIT = 240  # seconds
KILLED = (0, 137, -9)  # of `timeout`; the search may have ended before


def blocks(page: Path = PAGE) -> Iterator[tuple[str, str, str]]:
    """Yield language, file name and text of each fenced block; a name is in the first line of a file's block."""
    for language, text in BLOCK.findall(page.read_text()):
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
    (folder / "bin").mkdir(exist_ok=True)
    for name, further in (("ablate", "-m ablate"), ("python", "")):
        (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {sys.executable} {further} "$@"\n')
        (folder / "bin" / name).chmod(0o755)


def follow(page: Path, folder: Path) -> dict[str, str]:
    """Write the files of a page and run its lines that begin with `$`, in order; return what each printed.

    A file that stands below the first command that names it is written before that.
    """
    install(folder)
    said: dict[str, str] = {}
    for place, (language, name, text) in enumerate(found := [*blocks(page)]):
        assert language in ("python", "yaml", "console")
        if name:
            write(folder / name, text)
            continue
        if language != "console":  # a part of a file that is there
            assert any(text in file.read_text() for file in folder.glob("*.[py]*")), text
            continue
        assert text.startswith("$ ")
        for _, below, content in found[place:]:
            if below and f" {below} " in text and not (folder / below).exists():
                write(folder / below, content)
        said |= {line[2:]: ran(line[2:], folder) for line in text.splitlines() if line.startswith("$ ")}
    return said


@pytest.mark.slow
@pytest.mark.timeout(3 * LIMIT)
def test_the_readme_ends_in_a_front_and_in_verdicts(tmp_path: Path) -> None:
    """Which networks win, and whether a verdict is undecided, may differ on a processor that rounds otherwise."""
    wrapped, front, verdicts = follow(README, tmp_path).values()
    assert "(yours)" in wrapped
    assert "networks confirmed on fresh seeds, test split" in front
    for heading in ("parameters", "test accuracy", "to the best", "± "):
        assert heading in front
        assert heading in README.read_text()
    for variant in ("without-norm", "without-mlp"):
        assert re.search(rf"^{variant}: (?:{'|'.join(CLAIMS)}|inconclusive)\b", verdicts, re.M)
        assert re.search(rf"^{variant} +[\d,]+ .*±", verdicts, re.M)
        assert re.search(rf"^{variant}: (equivalent|harmful)\b", README.read_text(), re.M)


@pytest.mark.slow
@pytest.mark.timeout(3 * LIMIT)
def test_every_file_and_line_of_the_page_works_in_its_order(tmp_path: Path) -> None:
    said = follow(PAGE, tmp_path)
    assert len(said) == 9
    mine = pl.read_parquet(tmp_path / "runs" / "tutorial" / "trials.parquet")
    assert mine.filter(stage="search").height == 12
    assert set(mine.filter(stage="confirm")["state"]) == {"COMPLETE"}
    best = mine.filter(stage="confirm").sort("val_accuracy")["config.width"][-1]
    assert f"width': {best}" in said["python look.py"]
    assert "test accuracy" in said["ablate status tutorial"]
    rows = Reader((tmp_path / "runs" / "tutorial-parts" / "report" / "index.html").read_text()).rows
    assert {"without-norms", "without-mlps", "without-second"} <= {cell for row in rows for cell in row}


CHECK = """
import json
from load import model
from look import confirmed
from train import test
kept = json.load(open("best/config.json"))["metrics"]["test_accuracy"]["values"][0]
print(bool(abs(test(model, {})["test_accuracy"].mean() - kept) < 1e-6), len(confirmed) > 0)
"""


def files_of_the_readme(folder: Path) -> None:
    for _, name, text in blocks(README):
        if name:
            write(folder / name, text.replace("trials: 20", "trials: 4").replace("epochs: 20", "epochs: 3"))


@pytest.mark.slow
@pytest.mark.timeout(3 * LIMIT)
def test_the_pages_by_job_work_on_the_files_of_the_readme(tmp_path: Path) -> None:
    """The oracle of the weights that `load.py` reads is the test accuracy that their own seed has reported."""
    files_of_the_readme(tmp_path)
    page = HOW_TO / "which_parts.md"
    listed, compared = follow(page, tmp_path).values()
    assert [line for line in listed.splitlines() if line.rstrip() not in page.read_text()] == []
    assert "without-mlp" in compared
    assert "without-mlp: " in ran("ablate verdict parts", tmp_path)
    ran("ablate search study.yaml --executor local", tmp_path)
    follow(HOW_TO / "production.md", tmp_path)
    assert {"width", "lr"} == set(json.loads((tmp_path / "best.json").read_text()))
    assert "study: mine-data-" in (tmp_path / "final.yaml").read_text()
    [look] = [text for _, name, text in blocks(HOW_TO / "data_and_model.md") if name]
    write(tmp_path / "look.py", look)
    write(tmp_path / "check.py", CHECK)
    assert ran("python check.py", tmp_path).splitlines()[-1] == "True True"


PAGES = [  # a page, its example, what it needs, what its first line prints
    ("boosting", "xgboost", ("xgboost", "lightgbm"), "your settings"),
    ("coming_from", None, (), "widths.yaml"),
    ("last_month", None, (), "new: "),
    ("reinforcement_learning", "reinforcement", ("gymnasium",), "test return"),
]


@pytest.mark.slow
@pytest.mark.timeout(3 * LIMIT)
@pytest.mark.parametrize(("page", "example", "needed", "words"), PAGES, ids=[page for page, *_ in PAGES])
def test_a_page_by_job_works(page: str, example: str | None, needed: tuple[str], words: str, tmp_path: Path) -> None:
    if missing := [library for library in needed if find_spec(library) is None]:
        pytest.skip(f"{', '.join(missing)}: an optional package")
    files_of_the_readme(tmp_path)
    if example:
        shutil.copytree(REPOSITORY / "examples" / example, tmp_path, dirs_exist_ok=True)
    assert words in next(iter(follow(HOW_TO / f"{page}.md", tmp_path).values()))


def test_the_page_changes_as_many_lines_as_it_says(tmp_path: Path) -> None:
    versions = [text for _, name, text in blocks() if name == "train.py"]
    write(tmp_path / "train.py", versions[0])
    before = (tmp_path / "train.py").read_text()
    write(tmp_path / "train.py", versions[1])
    found = count_sections(before, (tmp_path / "train.py").read_text())
    assert found["train"] == Count(6, 1)  # `return model` is gone
    assert (found["test"].written, found["rest"].written) == (2, 2)  # and `size`
    said = "Six lines of `train` change: four for `ablate`, and one for each parameter that is searched."
    assert said in PAGE.read_text()
    [study] = [text for _, name, text in blocks() if name == "study.yaml"]
    assert len(study.splitlines()) - 1 == 9
