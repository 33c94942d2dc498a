"""Sizes that a function reports are sizes: objectives, columns of the tables, and bounds of `ablate pick`."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from support.commands import LOCAL, run

STUDY = """\
study: sized
trainable: mine:train
config: {width: {choices: [4, 8, 16]}}
objectives: [{metric: val_loss, direction: minimize}, {metric: flops, direction: minimize}]
sampler: {name: grid}
scheduler: {name: none}
budget: {trials: 3}
confirm: null
"""
CODE = """
def train(config, run):
    width = config["width"]
    return {"val_loss": 1 / width, "flops": 100 * width, "params_body": 10 * width, "params": 11 * width}
"""


@pytest.mark.services
def test_reported_flops_make_a_front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "study.yaml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capfd, "search", "study.yaml", *LOCAL)
    assert code == 0, err
    assert "There is no answer yet" not in out
    trials = pl.read_parquet(tmp_path / "runs" / "sized" / "trials.parquet")
    for width, *sizes in trials.select("config.width", "params", "params_body", "flops").iter_rows():
        assert sizes == [11 * width, 10 * width, 100 * width]
    code, out, err = run(capfd, "pick", "sized", "--max", "flops=900")
    assert code == 0, err
    assert "8" in out
    front = pl.read_csv(tmp_path / "runs" / "sized" / "report" / "front.csv")
    assert sorted(front["flops"]) == [400, 800, 1600]
