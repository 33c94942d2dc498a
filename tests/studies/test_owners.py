"""What a trial reads back is its study's own, and a study whose ledger is gone writes nothing more."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ablate.base.errors import LedgerMovedError
from ablate.ledger import Ledger
from support.commands import LOCAL, run

STUDY = """\
study: {name}
trainable: {{command: "{python} {script} {{x}}", epoch: "^{{number}}:", metrics: {{val_loss: "val_loss={{number}}"}}}}
config: {{x: {{choices: [{choices}]}}}}
epochs: 2
objectives: [{{metric: val_loss, direction: minimize}}]
sampler: {{name: grid}}
budget: {{trials: 2}}
confirm: null
"""
GOOD = "for epoch, value in enumerate((0.5, 0.25)): print(f'{epoch}: val_loss={value}', flush=True)\n"
BAD = GOOD.replace("0.5, 0.25", "9.5, 9.25")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("good.py").write_text(GOOD)
    Path("bad.py").write_text(BAD)
    return tmp_path


def search(capfd: Any, name: str, *, script: str = "good.py", choices: str = "1, 2") -> tuple[int, str]:
    file = Path(f"{name}.yaml")
    file.write_text(STUDY.format(name=name, python=sys.executable, script=script, choices=choices))
    code, _, err = run(capfd, "search", str(file), *LOCAL)
    return code, err


def values(name: str) -> list[float]:
    return sorted(pl.read_parquet(f"runs/{name}/trials.parquet")["val_loss"].drop_nulls().to_list())


@pytest.mark.services
def test_a_new_study_of_a_command_does_not_take_the_reports_of_another_one(capfd: Any) -> None:
    """The new command was never started, and its study had the numbers of the old one."""
    assert search(capfd, "one")[0] == 0
    for file in Path("runs/one").glob("ledger.*"):
        file.unlink()
    code, err = search(capfd, "one", script="bad.py", choices="7, 8")
    assert (code, "holds checkpoints of a study 'one', and there is no ledger" in err) == (2, True), err
    assert not Path("runs/one/ledger.sqlite").exists()


FOREIGN: dict[str, Callable[[Path, Path], Any]] = {
    "folder": lambda theirs, mine: shutil.copytree(theirs / "checkpoints", mine / "checkpoints"),
    "record": lambda theirs, mine: (
        (mine / "checkpoints/data/000000").mkdir(parents=True),
        shutil.copy(theirs / "checkpoints/data/000000/seed-0.reports.json", mine / "checkpoints/data/000000"),
    ),
}


@pytest.mark.services
@pytest.mark.parametrize("place", FOREIGN.values(), ids=FOREIGN.keys())
def test_reports_of_another_study_are_refused_in_one_line(place: Callable[[Path, Path], Any], capfd: Any) -> None:
    assert search(capfd, "one")[0] == 0
    shutil.copytree("runs/one", "runs/two", ignore=shutil.ignore_patterns("checkpoints"))  # the same ledger
    place(Path("runs/one"), Path("runs/two"))
    code, err = search(capfd, "two", script="bad.py")
    last = err.strip().splitlines()[-1]
    assert (code, "seed-0.reports.json belongs to another study" in last) == (75, True), err
    shutil.rmtree("runs/two/checkpoints")
    assert search(capfd, "two", script="bad.py")[0] == 0
    assert values("two") == [9.25, 9.25]


GONE: dict[str, str] = {
    "folder removed": "shutil.rmtree('runs/gone')",
    "folder renamed": "os.rename('runs/gone', 'runs/other')",
    "folder made anew": "shutil.rmtree('runs/gone'); os.mkdir('runs/gone')",
    "runs renamed": "os.rename('runs', 'others')",
    "ledger removed": "os.remove('runs/gone/ledger.sqlite')",
    "ledger renamed": "os.rename('runs/gone/ledger.sqlite', 'runs/gone/ledger.old')",
    "ledger emptied": "open('runs/gone/ledger.sqlite', 'w').close()",
    "ledger replaced": "shutil.copy('runs/gone/ledger.sqlite', 'copy'); os.replace('copy', 'runs/gone/ledger.sqlite')",
}


@pytest.mark.services
@pytest.mark.parametrize("change", GONE.values(), ids=GONE.keys())
def test_a_study_whose_ledger_or_folder_is_gone_ends_at_the_next_commit(change: str, capfd: Any) -> None:
    """It ended with 0 and wrote tables and a report into a new folder, without a ledger."""
    Path("good.py").write_text(f"import os, shutil\nif os.path.isdir('runs/gone/checkpoints'):\n    {change}\n{GOOD}")
    code, err = search(capfd, "gone")
    lines = [line for line in err.splitlines() if "Note: " not in line]
    assert (code, len(lines)) == (75, 1), err
    assert "removed" in lines[0]
    assert "Put it back" in lines[0] or "run the same command again" in lines[0]
    if "gone'" in change and "ledger" not in change:
        assert not [*Path("runs").glob("gone/*")]
    assert not [*Path().rglob("index.html"), *Path().rglob("trials.parquet")]


def test_a_ledger_that_is_gone_is_not_begun_anew(tmp_path: Path) -> None:
    file = tmp_path / "home" / "ledger.sqlite"
    with Ledger.open(f"sqlite:///{file}", retry_seconds=0.0) as ledger:
        writer = ledger.acquire("s", file_text="x", fingerprint="f", seed=0, holder="me")
        file.parent.rename(tmp_path / "moved")
        for _ in range(2):
            with pytest.raises(LedgerMovedError, match="removed, renamed or replaced while it was open"):
                writer.note("event")
        with pytest.raises(LedgerMovedError):
            writer.check()
        assert writer.lost
        assert not file.parent.exists()
        (tmp_path / "moved").rename(file.parent)
        writer.release()


@pytest.mark.services
@pytest.mark.parametrize(("place", "expected"), [("packages", [0.25, 0.25]), (".", [0.25])])
def test_beside_a_report_a_failed_trial_is_tried_again_once_a_variable_has_changed(
    place: str, expected: list[float], capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repaired study repeated its old failure without training. What a script imports is not watched."""
    Path("good.py").write_text(f"import sys\nif sys.argv[1] == '2': import ablate_no_such_module\n{GOOD}")
    for _ in range(2):
        assert search(capfd, "again")[0] == 0
        assert values("again") == [0.25]
    Path(place).mkdir(exist_ok=True)
    Path(place, "ablate_no_such_module.py").touch()
    if place == "packages":
        monkeypatch.setenv("PYTHONPATH", str(Path(place).absolute()))
    assert search(capfd, "again")[0] == 0
    assert values("again") == expected


@pytest.mark.services
def test_code_that_changed_after_a_report_is_refused_as_before(capfd: Any) -> None:
    assert search(capfd, "kept")[0] == 0
    Path("good.py").write_text(BAD)
    code, err = search(capfd, "kept")
    assert (code, "the code that it names has changed since: " in err) == (2, True), err


@pytest.mark.services
@pytest.mark.parametrize("metric", ["val_accuracy", "train_accuracy", "val_top5_accuracy"])
def test_a_percentage_beside_the_objective_is_refused(metric: str, capfd: Any) -> None:
    """It was shown as 9500.00%."""
    text = STUDY.format(name="share", python=sys.executable, script="good.py", choices="1, 2")
    Path("share.yaml").write_text(text.replace("metrics: {", f'metrics: {{{metric}: "{metric}={{number}}", '))
    Path("good.py").write_text(GOOD.replace("val_loss=", f"{metric}=95 val_loss="))
    code, _, err = run(capfd, "search", "share.yaml", *LOCAL)
    assert (code, f"{metric} is 95, and a metric whose name ends with accuracy is a share" in err) == (1, True), err
