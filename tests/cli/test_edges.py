"""Objectives, names and folders at the edges: values no objective can have, any metric's name, odd runs folders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from support.commands import run

pytestmark = pytest.mark.services  # each searches or compares

CODE = """\
def train(config, run):
    lr = config["lr"]
    return {report}
"""
STUDY = """\
study: edges
trainable: {module}:train
config: {{lr: {{float: [1.0e-3, 1.0e-1], log: true}}}}
objectives: [{{metric: "{metric}", direction: {direction}, log: {log}}}]
constraints: ["{metric} >= {least}"]
budget: {{trials: 6}}
confirm: null
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def searched(capfd: Any, module: str, report: str, runs: str = "runs", **fields: str) -> tuple[int, str, str]:
    """Search with a function that reports `report`, and return exit code and output."""
    Path(f"{module}.py").write_text(CODE.replace("{report}", report))
    given = {"metric": "val_error", "direction": "minimize", "log": "false", "least": "-1.0e300", **fields}
    Path("study.yaml").write_text(STUDY.format(module=module, **given))
    return run(capfd, "search", "study.yaml", "--executor", "local", "--tracker", "none", "--runs-dir", runs)


@pytest.mark.parametrize(
    ("module", "report", "fields", "says"),
    [
        ("edge_negative", "{'val_error': -lr}", {"log": "true"}, "which needs values from 0: write log: false"),
        ("edge_percent", "{'val_accuracy': 90 + lr}", {"metric": "val_accuracy"}, "is a share from 0 to 1"),
        ("edge_count", "{'val_accuracy': 948}", {"metric": "val_accuracy"}, "val_accuracy is 948"),
        ("edge_below", "{'val_accuracy': -lr}", {"metric": "val_accuracy"}, "is a share from 0 to 1"),
        ("edge_beyond", "{'val_error': 1e101 + lr}", {}, "1e+101"),
    ],
)
def test_a_value_that_no_objective_can_have_ends_the_study_at_the_first_report(
    module: str, report: str, fields: dict[str, str], says: str, capfd: Any
) -> None:
    code, out, err = searched(capfd, module, report, **fields)
    assert code == 1
    assert says in " ".join(err.split())
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    ("module", "report"),
    [
        ("edge_zero", "{'val_error': 0.0 if .01 < lr < .03 else lr}"),
        ("edge_tiny", "{'val_error': 5e-324 if lr < .01 else 1e-310}"),
        ("edge_huge", "{'val_error': 10.0 ** (1990 * lr - 100)}"),
        ("edge_all_zero", "{'val_error': 0.0}"),
    ],
)
def test_a_study_whose_values_are_zero_or_extreme_under_a_logarithm_has_its_report(
    module: str, report: str, capfd: Any
) -> None:
    code, out, err = searched(capfd, module, report, log="true")
    assert (code, "Traceback" in out + err) == (0, False), err
    trials = pl.read_parquet("runs/edges/trials.parquet")
    assert trials["state"].to_list().count("COMPLETE") == 6
    assert Path("runs/edges/report/index.html").is_file()


@pytest.mark.parametrize(
    "metric", ["val_F1Score", "val_mAP@0.5", "val_top-1 (%)", "val_größe", "val_x <= y", "train_R²"]
)
def test_any_printable_name_of_a_metric_is_an_objective_and_a_constraint(metric: str, capfd: Any) -> None:
    code, out, err = searched(capfd, "edge_names", f"{{{metric!r}: 1 + lr}}", metric=metric, least="0.1")
    assert code == 0, err
    code, out, err = run(capfd, "pick", "edges", "--min", f"{metric}=0.5")
    assert code == 0, err
    assert f"#   {metric} 1." in out
    code, _, err = run(capfd, "pick", "edges", "--min", f"{metric}=2")
    assert code != 0
    assert f"(not {metric} >= 2)" in err


@pytest.mark.parametrize("metric", ["val_", "F1", "val_\\u0007", "test_x"])
def test_other_names_are_refused_in_the_study_file(metric: str, capfd: Any) -> None:
    code, _, err = searched(capfd, "edge_refused", "{'val_error': 1}", metric=metric)
    assert code == 2
    assert "metric" in err


def test_a_runs_folder_with_brackets_is_a_folder_like_others(capfd: Any) -> None:
    runs = "exp[red]a[/b]a*b:fire:"
    assert searched(capfd, "edge_folders", "{'val_error': lr}", runs)[0] == 0
    for words in (["report"], ["status"], ["export", "optuna"], ["export", "optuna"]):
        code, _, err = run(capfd, *words, "edges", "--runs-dir", runs)
        assert code == 0, (words, err)
    assert runs in "".join(run(capfd, "report", "edges", "--runs-dir", runs)[1].split("\n"))


def test_what_a_trial_printed_is_not_read_through_a_link(capfd: Any) -> None:
    assert searched(capfd, "edge_linked", "{'val_error': lr}")[0] == 0
    checkpoints = Path("runs/edges/checkpoints")
    moved = checkpoints.rename("elsewhere")
    checkpoints.symlink_to(moved.absolute())
    code, out, err = run(capfd, "trial", "edges", "1")
    assert (code, out) == (2, "")
    assert "is a symbolic link, which is not followed out of a study's folder" in " ".join(err.split())


def test_a_pipe_in_a_study_s_folder_is_not_waited_for(capfd: Any) -> None:
    assert searched(capfd, "edge_pipes", "{'val_error': lr}")[0] == 0
    os.mkfifo("optuna.db")
    code, _, err = run(capfd, "export", "optuna", "edges", "optuna.db")
    assert code == 2
    assert "there is a file that is no export of study 'edges'" in " ".join(err.split())
