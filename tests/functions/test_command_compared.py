"""The parts of a command are compared by its switches: planned, trained once, and its failures are no success."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from support.commands import LOCAL, run

SCRIPT = """\
import sys
open("started", "a").write(" ".join(sys.argv[1:]) + chr(10))
seed, parts = int(sys.argv[1]), sys.argv[2:]
if "--broken" in parts:
    raise SystemExit("it does not fit")
for epoch in (1, 2):
    print(f"epoch {epoch}: validation {'nan' if '--hot' in parts else 50 + 10 * len(parts) + seed}%")
print(f"test {40 + 10 * len(parts) + seed}%")
"""
STUDY = """\
study: parts
trainable:
  command: PYTHON train.py {seed} {a?--a} {b?--b} {broken?--broken} {hot?--hot}
  metrics:
    val_accuracy: {pattern: "validation {number}%", scale: 0.01}
    test_accuracy: {pattern: "test {number}%", scale: 0.01}
config: {a: true, b: true, broken: false, hot: false}
epochs: 2
parts:
  a: {config: {a: false}}
  b: {config: {b: false}}
objectives: [{metric: val_accuracy, direction: maximize}]
replicates: 3
compare: {baseline: complete, metrics: [val_accuracy, test_accuracy], margin: {val_accuracy: 0.02}}
""".replace("PYTHON", sys.executable)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def compared(text: str, capfd: Any, *, plan: int = 0) -> tuple[int, str]:
    """Return exit code and error of `ablate compare`, once `ablate plan` has ended with `plan` and the same error."""
    Path("study.yaml").write_text(text)
    planned, _, said = run(capfd, "plan", "study.yaml")
    code, _, err = run(capfd, "compare", "study.yaml", *LOCAL)
    assert planned == plan, said
    assert plan == 0 or said == err
    return code, err


@pytest.mark.services
def test_each_row_is_trained_once_and_read_on_the_test_split(folder: Path, capfd: Any) -> None:
    code, err = compared(STUDY, capfd)
    assert code == 0, err
    started = sorted((folder / "started").read_text().splitlines())
    assert started == sorted(f"{seed} {parts}" for seed in range(3) for parts in ("--a --b", "--a", "--b"))
    trials = pl.read_parquet(folder / "runs" / "parts" / "trials.parquet")
    read = {row["variant"]: row for row in trials.filter(stage="confirm").iter_rows(named=True)}
    for variant, parts in {"complete": 2, "without-a": 1, "without-b": 1}.items():
        expected = (0.51 + 0.1 * parts, 0.41 + 0.1 * parts)
        assert (read[variant]["val_accuracy"], read[variant]["test_accuracy"]) == pytest.approx(expected)


@pytest.mark.services
def test_without_a_metric_of_the_test_split_none_is_read(folder: Path, capfd: Any) -> None:
    text = "".join(line for line in STUDY.splitlines(keepends=True) if "test_accuracy: {" not in line)
    code, err = compared(text.replace(", test_accuracy]", "]"), capfd)
    assert code == 0, err
    trials = pl.read_parquet(folder / "runs" / "parts" / "trials.parquet")
    assert set(trials["stage"]) == {"search"}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("    test_accuracy: {", "    test_loss: {", "data set 'data' has no metric 'test_accuracy'"),
        (
            '    test_accuracy: {pattern: "test {number}%", scale: 0.01}\n',
            "",
            "reads a metric of the test split",
        ),
        ("{b?--b}", "", "config.b: the command does not use {b}"),
        (
            "a: {config: {a: false}}",
            "a: {replace: {layer: zero}}",
            "replace.layer: a command has no modules",
        ),
        ("config: {a: true", "config: {trial: 3, a: true", "config.trial: {trial} in a command is given by ablate"),
    ],
)
def test_the_plan_refuses_what_the_comparison_would(old: str, new: str, says: str, folder: Path, capfd: Any) -> None:
    code, err = compared(STUDY.replace(old, new), capfd, plan=2)
    assert code == 2
    assert says in err, err
    assert not (folder / "runs").exists()


@pytest.mark.services
def test_a_row_that_fails_is_no_success_and_one_that_diverges_is_a_result(folder: Path, capfd: Any) -> None:
    code, err = compared(STUDY.replace("b: {config: {b: false}}", "b: {config: {broken: true}}"), capfd)
    assert code == 1
    assert "ablate: study 'parts': without-b failed, see " in err
    assert "The last one said: the command ended with exit code 1 before it printed val_accuracy" in err
    code, err = compared(STUDY.replace("study: parts", "study: lacks").replace("a: true, b: true", "a: true"), capfd)
    assert code == 1
    assert "the command uses {b}, and this trial's `config` gives no value of it" in err
    text = STUDY.replace("study: parts", "study: hot").replace("b: {config: {b: false}}", "b: {config: {hot: true}}")
    code, err = compared(text, capfd)
    assert code == 0, err


def test_a_search_that_confirms_needs_its_objectives_on_the_test_split(folder: Path, capfd: Any) -> None:
    text = STUDY[: STUDY.index("parts:\n")] + "objectives: [{metric: val_accuracy, direction: maximize}]\n"
    Path("study.yaml").write_text(text.replace("test_accuracy: {", "test_acc: {"))
    for command in (["plan", "study.yaml"], ["search", "study.yaml", *LOCAL]):
        code, _, err = run(capfd, *command)
        assert code == 2
        assert "a confirmation reads objectives and constraints on the test split; no metric is 'test_accuracy'" in err
