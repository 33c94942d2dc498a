"""A study in which no trial has reported may change freely; one report ends that."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ablate.base.errors import StudyMismatchError
from ablate.driver.resume import begins_afresh, refuse_other_study
from ablate.ledger import Ledger
from ablate.study import parse_study
from support.commands import LOCAL, run
from support.searches import hold_of, run_trial, search_of, study_of, url_in

SCRIPT = """\
import os, sys
x, folder = float(sys.argv[1]), sys.argv[2]
assert not os.listdir(folder), "files of another trial"
open(f"{folder}/made", "w").close()
if x > 1:
    sys.exit("broken")
print(f"val_error={x}")
"""
STUDY = """\
study: s
seed: 0
trainable: {command: 'PYTHON script.py {x} {folder}', metric: 'val_error={number}'}
config: {x: {float: [2, 3]}}
objectives: [{metric: val_error}]
budget: {trials: 3}
confirm: null
"""


def searched(capfd: pytest.CaptureFixture[str], content: str) -> tuple[int, str, str]:
    Path("s.yaml").write_text(content.replace("PYTHON", sys.executable))
    return run(capfd, "search", "s.yaml", "--tracker", "none", *LOCAL)


@pytest.mark.services
def test_a_range_that_was_wrong_from_the_start_is_corrected_under_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(SCRIPT)

    def values() -> list[tuple[int, float, str]]:
        with Ledger.open("sqlite:///runs/s/ledger.sqlite") as ledger:
            return [(t.key.number, t.config.parameters["config.x"], str(t.state)) for t in ledger.trials("s")]

    assert searched(capfd, STUDY)[0] == 1
    failed = values()
    assert {state for *_, state in failed} == {"FAIL"}
    assert all(2 <= x <= 3 for _, x, _ in failed)
    Path("script.py").write_text(SCRIPT + "# edited\n")  # code may change too
    corrected = STUDY.replace("[2, 3]", "[0.1, 0.5]").replace("seed: 0", "seed: 7").replace("{x} {f", "{x}  {f")
    code, out, err = searched(capfd, corrected)
    assert code == 0, err
    assert "No trial of this study has reported: it begins again with the settings of now." in out
    assert [number for number, *_ in values()] == [0, 1, 2]
    assert all(0.1 <= x <= 0.5 and state == "COMPLETE" for _, x, state in values())
    code, _, err = searched(capfd, corrected.replace("0.5]", "0.4]"))
    assert (code, "would make its trials incomparable" in err) == (2, True)


@pytest.mark.parametrize("begun", [True, False])
def test_trials_without_a_report_stay_where_only_more_is_asked_for(begun: bool, tmp_path: Path) -> None:
    text = "study: s\ndatasets: [digits]\nmodel: {width: {int: [8, 64], step: 8}}\nbudget: {trials: 4}\n"
    study = parse_study(text)
    with Ledger.open(url_in(tmp_path)) as ledger:
        with hold_of(study, ledger, file_text=text) as writer:
            if begun:
                search_of(study, writer, ledger).next_trial()
        changed = [text, text.replace("trials: 4", "trials: 9"), text.replace("64", "32"), text + "seed: 1\n"]
        assert [begins_afresh(ledger, parse_study(each)) for each in changed] == [False, False, True, True]
        for each in changed:
            refuse_other_study(ledger, parse_study(each), each, extend=False)


def test_a_report_of_the_last_moment_is_not_deleted(storage: str) -> None:
    study: Any = study_of(budget={"trials": 4})
    with Ledger.open(storage) as ledger:
        with hold_of(study, ledger) as writer:
            search = search_of(study, writer, ledger)
            config = search.next_trial()
            assert config is not None
            assert len(ledger.trials(study.name)) == 1
        with ledger.acquire(
            study.name, file_text="new", fingerprint="new", seed=study.seed + 1, holder="x", afresh=True
        ):
            assert ledger.trials(study.name) == []
            record = ledger.study(study.name)
            assert record is not None
            assert (record.seed, record.file_text) == (study.seed + 1, "new")
        with ledger.acquire(study.name, file_text="", fingerprint="", seed=study.seed + 1, holder="x") as writer:
            search = search_of(study, writer, ledger)
            config = search.next_trial()
            assert config is not None
            run_trial(search, config)
        with pytest.raises(StudyMismatchError, match="has reported meanwhile"):
            ledger.acquire(study.name, file_text="", fingerprint="", seed=9, holder="x", afresh=True)
        assert len(ledger.reports(study.name)) > 0


@pytest.mark.services
def test_the_same_command_tries_every_trial_again_while_none_has_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text("import needed, sys\nassert sys.argv[2]\nprint('val_error=1')\n")
    assert searched(capfd, STUDY)[0] == 1
    Path("needed.py").touch()  # ablate does not notice that an imported module has changed
    code, out, err = searched(capfd, STUDY)
    assert (code, "Validation numbers of 3 search trials." in out, "Note: " in out) == (0, True, False), (out, err)
