"""What terminal, page and tables show of a study: each declared metric, each fact once, and only words that apply."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from support.commands import run, succeed
from support.page_reader import Reader

pytestmark = pytest.mark.services  # each searches or compares

CODE = """\
import random

SIZE
def train(config, run):
    width, lr = config["width"], config["lr"]
    for epoch in run.epochs():
        noise = random.Random(f"{run.seed} {epoch} {width} {lr}").gauss(0, 0.01)
        yield {"val_gain": 1 - 1 / width - lr + noise, "val_cost": width + lr + noise, "val_memory": 3 * width + noise}
"""
STUDY = """\
study: shown
trainable: MODULE:train
config: {width: {int: [2, 9]}, lr: {float: [0.01, 0.5]}}
epochs: 2
objectives: OBJECTIVES
constraints: [val_memory <= 24]
sampler: {name: random}
scheduler: {name: none}
replicates: 2
budget: {trials: 6}
confirm: null
"""
SIZE = 'def size(config):\n    return {"latency_ms": 1.5 * config["width"]}\n\n\n'
GAIN, COST = "{metric: val_gain, direction: maximize}", "{metric: val_cost, direction: minimize}"
LATENCY, SECONDS = "{metric: latency_ms, direction: minimize}", "{metric: wall_seconds, direction: minimize}"
ABSENT = re.compile(r"networks?\b|parameters|FLOPs|\bQ\b|\bdata:")
Search = Callable[..., tuple[str, str]]


@pytest.fixture
def searched(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Search:
    monkeypatch.chdir(tmp_path)

    def search(module: str, *objectives: str, size: str = "") -> tuple[str, str]:
        """Search with a function; return what `ablate status` prints and the page's text."""
        Path(f"{module}.py").write_text(CODE.replace("SIZE\n", size))
        text = STUDY.replace("MODULE", module).replace("OBJECTIVES", f"[{', '.join(objectives)}]")
        Path("study.yaml").write_text(text)
        succeed(capfd, "search", "study.yaml", "--executor", "local", "--tracker", "none")
        out = succeed(capfd, "status", "shown")
        assert max(map(len, out.splitlines())) <= 80
        return " ".join(out.split()), Reader(Path("runs/shown/report/index.html").read_text()).text

    return search


@pytest.mark.parametrize(
    ("module", "size", "objectives", "headings"),
    [
        ("shown_three", SIZE, (GAIN, COST, LATENCY), ("latency ms", "validation cost", "validation memory")),
        ("shown_cost", "", (GAIN, COST), ("validation cost", "validation memory")),
        ("shown_time", "", (GAIN, SECONDS), ("training seconds", "validation memory")),
        ("shown_one", "", (GAIN,), ("validation memory",)),
    ],
)
def test_every_declared_metric_is_a_column_and_no_other_thing_is_named(
    searched: Search, module: str, size: str, objectives: tuple[str, ...], headings: tuple[str, ...]
) -> None:
    terminal, page = searched(module, *objectives, size=size)
    for said in (terminal, page):
        assert not ABSENT.search(said), ABSENT.search(said)
        assert len(objectives) > 1 or "front" not in said.replace("front.csv", "")
        assert said.count("Nothing here is confirmed") == 1
    for heading in headings:
        assert heading in terminal
        assert heading.capitalize() in page
    table = pl.read_csv("runs/shown/report/front.csv")
    assert table["val_memory"].is_between(0, 24).all()
    assert page.count("6 search trials (6 complete)") == 1
    assert page.count("Validation numbers of 6 search trials.") == 1


def test_the_answer_is_a_case_with_the_trial_that_it_names(searched: Search, capfd: pytest.CaptureFixture[str]) -> None:
    searched("shown_case", GAIN, COST)
    values = json.loads(succeed(capfd, "status", "shown", "--json"))
    assert (values["case"], values["named"]) == ({"data": "searched"}, {"data": None})
    assert {row["val_memory"] <= 24 for row in values["front"]["data"]} == {True}
    code, _, err = run(capfd, "pick", "shown", "--min", "val_gain=9")
    assert (code, err.startswith("no configuration keeps the bounds. The nearest is trial")) == (1, True)
