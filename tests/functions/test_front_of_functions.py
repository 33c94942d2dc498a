"""The sampler `front` beside a function: its networks are counted before training, by running it up to its loop."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import polars as pl
import pytest

import ablate
from ablate.core.config import DatasetFacts
from ablate.core.trainable import load_trainable
from ablate.study.file import parse_study
from ablate.tuning.suggester import Suggester
from support.commands import run

CODE = """
import math
from torch import nn

def train(config, run):
    layers = [nn.Linear(8, config["width"]) for _ in range(config["depth"])] if config["kind"] == "deep" else []
    model = run.build(nn.Sequential, *layers, nn.Linear(8, config["width"]))
    off = abs(math.log10(config["lr"]) + 2)
    for _ in run.epochs():
        yield {"val_loss": 1 / math.log(run.params) + off}
"""
BUILT_LATE = (
    CODE.replace("run.build(nn.Sequential, ", "nn.Sequential(")
    + """
        run.build(nn.Linear, 8, 8)
"""
)
STUDY = """
study: own
trainable: mine:train
config:
  width: {int: [4, 64]}
  lr: {float: [1.0e-4, 1.0e-1], log: true}
  kind: {choices: [flat, deep]}
  depth: {int: [1, 4], when: {config.kind: [deep]}}
epochs: 1
objectives: [{metric: val_loss, direction: minimize}, {metric: params, direction: minimize, log: true}]
sampler: {name: front}
constraints: [params <= 1000]
budget: {trials: 16}
confirm: null
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "study.yaml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


def test_the_costs_are_those_of_the_networks_and_the_learning_rate_decides_none(here: Path) -> None:
    study = parse_study(STUDY)
    trainable = load_trainable(study.trainable)
    asked = Suggester(study=study, dataset="data", measure=trainable.measure, facts=DatasetFacts)
    known = asked._costs.before(accepts=lambda inner: True, fixed={})
    assert known is not None
    assert set(known.deciding) == {"config.width", "config.kind", "config.depth"}
    for width, depth in ((4, None), (9, 3), (40, 4), (64, 4)):
        given = {"config.width": width, "config.lr": 0.01, "config.kind": "flat" if depth is None else "deep"}
        params = 9 * width * (1 + (depth or 0))
        inner = asked.dimensions.encode(given | ({} if depth is None else {"config.depth": depth}))
        assert known.costs(inner) == (pytest.approx((math.log10(params),)) if params <= 1000 else None)


def test_a_search_counts_what_it_proposes(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capfd, "search", "study.yaml", "--executor", "local", "--tracker", "none")
    assert code == 0, err
    trials = ablate.load_study("own").trials()
    assert trials.height == 16
    assert trials.filter(pl.col("trial") >= 5)["params"].max() <= 1000
    assert trials.filter(pl.col("trial") < 5)["params"].max() > 1000, "random trials tell whether the bound is met"


def test_a_network_that_is_built_in_the_loop_is_refused_in_one_line(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.py").write_text(BUILT_LATE)
    code, _, err = run(capfd, "search", "study.yaml", "--executor", "local", "--tracker", "none")
    assert code == 2
    assert "sampler front: no network of data set 'data' can be counted before it is trained" in " ".join(err.split())
