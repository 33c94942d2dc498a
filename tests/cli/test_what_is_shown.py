"""What terminal, page and tables show of a study: each declared metric, each fact once, and only words that apply."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from support.commands import run, succeed
from support.page_reader import Reader

CODE = """\
import random
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
objectives: [{metric: val_gain, direction: maximize}, OTHERS]
constraints: [val_memory <= 24]
sampler: {name: random}
replicates: 2
budget: {trials: 6}
confirm: null
"""
SIZE = '\ndef size(config):\n    return {"latency_ms": 1.5 * config["width"]}\n'
ABSENT = re.compile(r"networks?\b|parameters|FLOPs|\bQ\b|\bdata:")


@pytest.mark.services
@pytest.mark.parametrize(
    ("module", "others"),
    [("three", ("val_cost", "latency_ms")), ("cost", ("val_cost",)), ("time", ("wall_seconds",)), ("one", ())],
)
def test_every_declared_metric_is_a_column_and_no_other_thing_is_named(
    module: str,
    others: tuple[str, ...],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(f"shown_{module}.py").write_text(CODE + SIZE * ("latency_ms" in others))
    objectives = ", ".join(f"{{metric: {name}, direction: minimize}}" for name in others)
    Path("study.yaml").write_text(STUDY.replace("MODULE", f"shown_{module}").replace("OTHERS", objectives))
    succeed(capfd, "search", "study.yaml", "--executor", "local", "--tracker", "none")
    terminal = succeed(capfd, "status", "shown")
    assert max(map(len, terminal.splitlines())) <= 80
    page = Reader(Path("runs/shown/report/index.html").read_text()).text
    words = {"wall_seconds": "training seconds", "latency_ms": "latency ms", "val_cost": "validation cost"}
    for said in (" ".join(terminal.split()), page):
        assert not ABSENT.search(said), ABSENT.search(said)
        assert others or "front" not in said.replace("front.csv", "")
        for fact in ("Nothing here is confirmed", "Validation numbers of "):
            assert said.count(fact) == 1
        for name in (*(words[each] for each in others), "validation memory"):
            assert name in said.lower()
    assert len(re.findall(r"6 search trials \(", page)) == 1
    assert pl.read_csv("runs/shown/report/front.csv")["val_memory"].is_between(0, 24).all()
    values = json.loads(succeed(capfd, "status", "shown", "--json"))
    assert (values["case"], values["named"]) == ({"data": "searched"}, {"data": None})
    code, _, err = run(capfd, "pick", "shown", "--min", "val_gain=9")
    assert (code, err.startswith("no configuration keeps the bounds. The nearest is trial")) == (1, True)


@pytest.mark.services
def test_a_path_stays_whole(tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    place = f"/data{'/folder' * 20}/train.parquet"
    Path("shown_path.py").write_text(CODE.replace('config["width"]', 'len(config["width"]) - 150'))
    text = STUDY.replace("{int: [2, 9]}", f"{{choices: [{place}]}}")
    Path("study.yaml").write_text(text.replace("MODULE", "shown_path").replace("OTHERS", "").replace("<= 24", "<= 99"))
    succeed(capfd, "search", "study.yaml", "--executor", "local", "--tracker", "none")
    assert succeed(capfd, "status", "shown").count(place) == 2, "in the answer and in the table"
