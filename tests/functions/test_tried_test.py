"""Faults of `test` are found at the first report of a study, and trying it changes no number."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from support.commands import LOCAL, run

STUDY = """\
study: tried
trainable: mine:train
config: {lr: {float: [0.1, 0.5]}}
epochs: 3
objectives: [{metric: val_auc, direction: maximize}]
sampler: {name: random}
scheduler: {name: none}
budget: {trials: 4}
confirm: {replicates: 2}
"""
CODE = """
import sys
import torch

def keep(run, **kept):
    run.keep(**kept)

def train(config, run):
    model = run.build(torch.nn.Sequential, torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))
    keep(run, model=model)
    for epoch in run.epochs():
        open("epochs", "a").write("1")
        with torch.no_grad():
            model[0].weight += config["lr"] * torch.randn(2, 2)
            yield {"val_auc": float(model(torch.ones(1, 2)).sum()), "val_random": float(torch.rand(1))}

def test(model, config):
    found = {}
    found["test_auc"] = 0.5
    return found
"""
GOOD = 'found["test_auc"] = 0.5'


@pytest.mark.services
@pytest.mark.parametrize(
    ("part", "other", "said"),
    [
        (GOOD, 'found["test_accuracy"] = 0.5', "the study needs test_auc too"),
        (GOOD, 'found["auc"] = 0.5', "the names of its metrics start with test_"),
        (GOOD, "sys.exit(0)", "sys.exit(0)"),
        (GOOD, "model.missing()", "has no attribute 'missing'"),
        ("keep(run, model=model)", "keep(run, net=model)", "call run.keep(model=...)"),
    ],
)
def test_a_fault_of_test_ends_the_study_at_its_first_reports_and_repaired_code_is_trained_from_the_start(
    part: str, other: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text(STUDY)
    Path("mine.py").write_text(CODE.replace(part, other))
    code, _, err = run(capfd, "search", "study.yaml", *LOCAL)
    assert code == 1
    assert said in err
    assert "Traceback" not in err
    assert len(Path("epochs").read_text()) == 2, "one epoch each of two trials"
    Path("mine.py").write_text(CODE)
    for trial in ("0", "1"):
        assert run(capfd, "retry", "tried", trial, "--from-start")[0] == 0
    code, _, err = run(capfd, "search", "study.yaml", *LOCAL, "--code-changed")
    assert code == 0, err
    table = pl.read_parquet("runs/tried/trials.parquet")
    assert set(table["state"]) == {"COMPLETE"}
    assert set(table["epochs"]) == {3}


@pytest.mark.services
def test_trying_it_changes_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    spoils = "model.eval(); torch.rand(9); model[0].weight.data.zero_(); " + GOOD
    found = []
    for name, text in (("tried", STUDY), ("plain", STUDY.replace("{replicates: 2}", "null"))):
        Path("study.yaml").write_text(text.replace("tried", name))
        Path("mine.py").write_text(CODE.replace(GOOD, spoils))
        code, _, err = run(capfd, "search", "study.yaml", *LOCAL)
        assert code == 0, err
        reports = pl.read_parquet(f"runs/{name}/reports.parquet").filter(pl.col("stage") == "search")
        found.append(reports.select("trial", "epoch", "val_auc", "val_random").rows())
    assert found[0] == found[1]
    assert len(found[0]) == 12


@pytest.mark.services
def test_a_study_whose_first_report_lacks_an_objective_takes_the_repaired_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text(STUDY)
    Path("mine.py").write_text(CODE.replace('"val_auc":', '"val_other":'))
    code, _, err = run(capfd, "search", "study.yaml", *LOCAL)
    assert code == 1
    assert "its first report has no val_auc" in err
    Path("mine.py").write_text(CODE)
    code, _, err = run(capfd, "search", "study.yaml", *LOCAL, "--code-changed")
    assert code == 0, err
