"""`test` of a user's function by sample: an array's mean is the metric, and the interval is for other samples too."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from ablate.base.errors import TrialError
from ablate.functions.metrics import checked_test
from support.commands import LOCAL, run
from support.s3 import S3Server

STUDY = """\
study: own
trainable: sampled_code:train
epochs: 1
config: {width: {choices: [4, 8, 16]}}
objectives:
  - {metric: val_accuracy, direction: maximize, reference: 0.0}
  - {metric: params, direction: minimize, reference: 1.0e+6, log: true}
sampler: {name: grid}
scheduler: {name: none}
budget: {trials: 3}
confirm: {replicates: 4}
"""
CODE = """\
import numpy as np

def train(config, run):
    run.keep(model={"seed": run.seed, "width": config["width"]})
    for epoch in run.epochs():
        run.report({"val_accuracy": 0.9 + 0.001 * config["width"], "params": config["width"]})

def test(model, config):
    own = np.random.default_rng([model["seed"], config["width"]]).standard_normal(400)
    right = 1.3 + 0.01 * config["width"] + 0.8 * np.random.default_rng(0).standard_normal(400) + 0.6 * own > 0
    return {"test_accuracy": RIGHT}
"""
NUMBERS = [1.0, 0.0, 1.0, 1.0]


class _NoRun:
    params = None


def by_sample(value: Any) -> Any:
    return checked_test({"test_accuracy": value}, _NoRun())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    [
        NUMBERS, tuple(NUMBERS), np.array(NUMBERS), np.array(NUMBERS, dtype=bool), np.array(NUMBERS, dtype=np.float16),
        torch.tensor(NUMBERS), torch.tensor(NUMBERS, dtype=torch.bfloat16, requires_grad=True), pd.Series(NUMBERS),
        pl.Series(NUMBERS), np.array(NUMBERS)[::-1],
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_one_number_per_sample_gives_their_mean(value: Any) -> None:
    found = by_sample(value)
    assert found.metrics == {"test_accuracy": 0.75}
    assert sorted(found.samples["test_accuracy"].tolist()) == sorted(NUMBERS)


@pytest.mark.parametrize("value", [0.75, 1, np.float32(0.75), np.array(0.75), torch.tensor(0.75), True])
def test_a_number_is_a_number(value: Any) -> None:
    found = by_sample(value)
    assert found.metrics == {"test_accuracy": float(value)}
    assert found.samples == {}


@pytest.mark.parametrize(
    "value",
    [[], ["a", "b"], [1.0, None], [[1.0], [2.0]], [[1], [2, 3]], np.zeros((2, 2)), np.array([1j]), {1.0}, "0.5x"],
)
def test_anything_else_is_one_line(value: Any) -> None:
    with pytest.raises(TrialError, match=r"test_accuracy=.*a metric is a number") as error:
        by_sample(value)
    assert "\n" not in str(error.value)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that commands are typed in."""
    (tmp_path / "study.yaml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("sampled_code", None)


@pytest.mark.services
@pytest.mark.parametrize(
    ("right", "over"),
    [
        ("right", "seeds and samples"),
        ("float(right.mean())", "seeds"),
        ("right[: 300 + model['seed'] % 7]", "seeds"),
    ],
    ids=["by sample", "one number", "seeds of other lengths"],
)
def test_page_terminal_and_table_say_what_an_interval_is_for(
    folder: Path, capfd: pytest.CaptureFixture[str], right: str, over: str
) -> None:
    (folder / "sampled_code.py").write_text(CODE.replace("RIGHT", right))
    code, out, err = run(capfd, "search", "study.yaml", *LOCAL)
    assert (code, "Traceback" in out + err) == (0, False), err
    said, page = " ".join(out.split()), (folder / "runs/own/report/index.html").read_text()
    front = pl.read_csv(folder / "runs/own/report/front.csv")
    assert set(front["accuracy_over"]) == {over}
    on = "other seeds on the same samples" if over == "seeds" else "other seeds and other samples"
    for text in (said, page):
        assert f") are for {on}." in text
    if over == "seeds":
        return
    assert set(front["accuracy_samples"]) == {400}

    for file in folder.glob("runs/own/checkpoints/**/samples-*"):
        file.unlink()
    code, _, err = run(capfd, "report", "own")
    assert code == 0, err
    narrow = pl.read_csv(folder / "runs/own/report/front.csv")
    assert set(narrow["accuracy_over"]) == {"seeds"}
    assert narrow["accuracy"].to_list() == pytest.approx(front["accuracy"].to_list())
    wide, thin = (table["accuracy_high"] - table["accuracy_low"] for table in (front, narrow))
    assert (wide > thin).any(), "near 1 the interval over a few seeds allows for their skew, and may be the wider one"


@pytest.mark.services
def test_values_in_an_object_store_are_read_and_a_silent_store_is_no_fault(
    folder: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    s3_server: S3Server,
    s3_store: str,
) -> None:
    (folder / "sampled_code.py").write_text(CODE.replace("RIGHT", "right"))
    code, _, err = run(capfd, "search", "study.yaml", *LOCAL, "--store", s3_store)
    assert code == 0, err
    assert not list(folder.glob("runs/**/samples-*"))
    assert "other seeds and other samples" in " ".join(run(capfd, "status", "own")[1].split())
    with s3_server.away():
        code, out, err = run(capfd, "status", "own")
    assert code == 0, err
    assert "other seeds on the same samples" in " ".join(out.split())
    assert "values of single samples are not read" in caplog.text
