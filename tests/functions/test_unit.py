"""`unit:` of a study file is the word on pages and in the terminal; it changes no number and no fingerprint."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ablate.study import parse_study
from support.commands import LOCAL, run
from support.page_reader import Reader

CODE = """
def train(config, run):
    for fold in run.epochs():
        yield {"val_loss": config["x"] / fold}
"""
STUDY = """\
study: folds
trainable: mine:train
config: {x: {choices: [1, 2]}}
epochs: 3
objectives: [{metric: val_loss, direction: minimize}]
scheduler: {name: none}
budget: {trials: 2}
confirm: null
"""


@pytest.mark.services
@pytest.mark.parametrize("unit", ["epoch", "fold"])
def test_pages_and_commands_use_the_users_word(
    unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "study.yaml").write_text(STUDY + ("" if unit == "epoch" else f"unit: {unit}\n"))
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capfd, "plan", "study.yaml")
    assert code == 0, err
    assert f"2 trials of up to 3 {unit}s" in out
    assert run(capfd, "search", "study.yaml", *LOCAL)[0] == 0
    code, out, err = run(capfd, "trial", "folds", "0")
    assert code == 0, err
    assert f"COMPLETE after 3 of 3 {unit}s" in out
    page = Reader((tmp_path / "runs/folds/report/index.html").read_text(encoding="utf-8")).text
    assert f"Mean over replicates of the validation loss by {unit}." in page
    assert ("epoch" in page) == (unit == "epoch"), "the other word is nowhere"


def test_the_word_makes_no_other_study() -> None:
    assert parse_study(STUDY).fingerprint() == parse_study(STUDY + "unit: round\n").fingerprint()


def test_the_last_commit_is_that_of_an_earlier_run_and_a_network_is_no_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "study.yaml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    assert run(capfd, "search", "study.yaml", *LOCAL)[0] == 0
    with closing(sqlite3.connect(tmp_path / "runs" / "folds" / "ledger.sqlite")) as ledger:
        for table, columns in {"report": ["created_at"], "trial": ["created_at", "started_at", "finished_at"]}.items():
            ledger.execute(f"UPDATE ablate_{table} SET " + ", ".join(f"{name} = 1.0e9" for name in columns))
        ledger.execute("UPDATE ablate_note SET created_at = 1.0e9")
        ledger.commit()
    (tmp_path / "mine.py").write_text("import torch\n" + CODE)
    (tmp_path / "study.yaml").write_text(STUDY.replace("trials: 2", "trials: 3"))
    code, out, err = run(capfd, "search", "study.yaml", "--code-changed", "--extend", *LOCAL)
    assert code == 0, err
    assert "(2001-09-09 01:46:40 UTC)" in " ".join((out + err).split())
    built = CODE.replace("    for fold", "    run.build(torch.nn.Linear(1, 1))\n    for fold")
    (tmp_path / "mine.py").write_text("import torch\n" + built)
    (tmp_path / "study.yaml").write_text(STUDY.replace("study: folds", "study: built"))
    code, _, err = run(capfd, "plan", "study.yaml")
    assert code == 2
    assert "run.build takes a class and its arguments" in " ".join(err.split())
