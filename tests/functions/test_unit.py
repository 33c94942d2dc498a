"""`unit:` of a study file is the word on pages and in the terminal; it changes no number and no fingerprint."""

from __future__ import annotations

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
    assert f"{unit.capitalize()}s" in page
    assert f"Mean over replicates of the validation loss by {unit}." in page
    assert ("epoch" in page) == (unit == "epoch"), "the other word is nowhere"


def test_the_word_makes_no_other_study() -> None:
    assert parse_study(STUDY).fingerprint() == parse_study(STUDY + "unit: round\n").fingerprint()
