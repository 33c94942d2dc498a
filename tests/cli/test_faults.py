"""What a person meets on the way: an interruption, a file mended after a refusal, a misspelt metric, a broken home."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ablate.core.trial import TrialConfig
from ablate.driver import run as drive
from ablate.driver.options import RunOptions
from ablate.study import parse_study
from ablate.tracking.tracker import Several
from ablate.tuning.state.planned import planned_trials
from support.commands import TINY, local, run
from support.postgres import PASSWORD


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


@pytest.mark.services
def test_a_file_mended_after_its_first_search_was_refused_is_no_other_study(
    tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    go = local(tiny, tiny.parent / "runs")
    tiny.write_text(TINY + "constraints: [params <= 1]\n")
    code, _, err = run(capfd, *go)
    assert code == 2
    assert "Widen the space or loosen the constraints" in err
    tiny.write_text(TINY.replace("trials: 3", "trials: 1") + "constraints: [params <= 1_000_000]\n")
    code, _, err = run(capfd, *go)
    assert code == 0, err


@pytest.mark.parametrize(
    "line",
    ["objectives: [{metric: val_acuracy, direction: maximize}]", "constraints: [val_acuracy >= 0.5]"],
)
def test_a_misspelt_metric_is_refused_before_any_trial(
    line: str, tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tiny.write_text(f"{TINY}{line}\n")
    code, _, err = run(capfd, *local(tiny, tiny.parent / "runs"))
    assert code == 2
    assert "'digits' has no metric 'val_acuracy'. Did you mean 'val_accuracy'?" in err
    assert not (tiny.parent / "runs").exists()


@pytest.mark.services
def test_the_list_goes_on_past_a_home_that_cannot_be_read_and_resume_takes_the_options_of_search(
    tiny: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    runs = tiny.parent / "runs"
    tiny.write_text(TINY.replace("trials: 3", "trials: 1"))
    assert run(capfd, *local(tiny, runs))[0] == 0
    (runs / "tiny").rename(runs / "renamed")
    (runs / "broken").mkdir()
    (runs / "broken" / "ledger.sqlite").write_text("no database" * 100)
    code, out, err = run(capfd, "list", "--json", "--runs-dir", str(runs))
    assert (code, json.loads(out)) == (0, []), err
    assert {"broken", "renamed"} <= {record.args[0] for record in caplog.records if isinstance(record.args, tuple)}
    (runs / "renamed").rename(runs / "tiny")
    code, out, err = run(capfd, "list", "--json", "--runs-dir", str(runs))
    assert [study["study"] for study in json.loads(out)] == ["tiny"], err
    options = ["--executor", "local", "--tracker", "none", "--device", "cpu", "--runs-dir", str(runs)]
    code, out, err = run(capfd, "resume", "tiny", *options)
    assert code == 0, err
    assert "MLflow" not in out


def test_the_estimate_counts_the_samples_that_are_used(
    tiny: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ablate.engine.training.timing._seconds_per_sample", lambda *_: 1e-3)

    def seconds(text: str) -> float:
        tiny.write_text(text)
        return float(json.loads(run(capfd, "plan", str(tiny), "--json")[1])["seconds_per_trial"]["digits"])

    assert seconds(TINY) < 0.5 * seconds(TINY.replace(", train_limit: 128", ""))


@pytest.mark.parametrize(("confirm", "stage"), [("null", "search"), ("{replicates: 1}", "confirm")])
def test_the_networks_of_the_front_reach_the_tracker_confirmed_where_they_were_to_be(
    confirm: str, stage: str, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[TrialConfig] = []

    class Remembers(Several):
        def log_models(self, configs: Sequence[TrialConfig], **_: Any) -> None:
            logged.extend(configs)

    tiny.write_text(TINY.replace("trials: 3", "trials: 1").replace("{replicates: 2}", confirm))
    monkeypatch.setattr(drive, "build_trackers", lambda *_, **__: Remembers())
    drive.search(tiny, RunOptions(runs_dir=tiny.parent / "runs", executor="local"), Console(quiet=True))
    assert [config.stage for config in logged] == [stage]


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (4, {"small": 1, "large": 3}),
        (3, {"small": 1, "large": 2}),
        (1, {"small": 1, "large": 0}),
        (9, {"small": 1, "large": 3}),
    ],
)
def test_what_a_used_up_space_leaves_of_a_common_budget_goes_to_the_others(
    budget: int, expected: dict[str, int]
) -> None:
    text = """\
study: shared
datasets: {small: {task: digits}, large: {task: digits}}
variants: [{name: a, model: {depth: 1}}, {name: b, datasets: [large]}, {name: c, model: {depth: 2}, datasets: [large]}]
"""
    study = parse_study(f"{text}budget: {{trials: {budget}, scope: total}}\n")
    assert planned_trials(study) == expected


def test_a_cluster_elsewhere_needs_a_number_of_gpus(tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place = ["--runs-dir", str(tiny.parent / "runs"), "--tracker", "none"]
    code, _, err = run(capfd, "search", str(tiny), "--address", "127.0.0.1:1", *place)
    assert code == 2
    assert "--address 127.0.0.1:1: say how many of its GPUs to use. Type --gpus 8, or --gpus 0." in err


def test_a_module_of_ones_own_that_does_not_parse_is_one_line(
    tiny: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tiny.parent / "broken_sampler.py").write_text("def build(:\n")
    monkeypatch.syspath_prepend(tiny.parent)
    tiny.write_text(f"{TINY}sampler: {{name: 'broken_sampler:build'}}\n")
    code, _, err = run(capfd, *local(tiny, tiny.parent / "runs"))
    assert code == 2
    assert "sampler 'broken_sampler:build': cannot import 'broken_sampler': invalid syntax" in err


def test_a_number_without_end_is_a_fault_of_the_file(tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tiny.write_text(TINY + f"seed: {'9' * 5000}\n")
    code, _, err = run(capfd, *local(tiny, tiny.parent / "runs"))
    assert code == 2
    assert "this number has too many digits" in err


@pytest.mark.services
def test_a_study_in_a_shared_database_is_read_from_elsewhere(
    tiny: Path, storage: str, capfd: pytest.CaptureFixture[str]
) -> None:
    elsewhere = ["--storage", storage, "--runs-dir", str(tiny.parent / "laptop")]
    code, _, err = run(capfd, *local(tiny, tiny.parent / "cluster"), "--storage", storage)
    assert code == 0, err
    code, out, err = run(capfd, "status", "tiny", "--json", *elsewhere)
    assert code == 0, err
    found = json.loads(out)
    assert found["trials"]["digits"]["COMPLETE"] >= 4
    assert PASSWORD not in out
    assert "tiny" in run(capfd, "list", *elsewhere)[1]
    assert run(capfd, "report", "tiny", *elsewhere)[0] == 0
    assert (tiny.parent / "laptop" / "tiny" / "report" / "index.html").is_file()
    assert (tiny.parent / "laptop" / "tiny" / "trials.parquet").is_file()


@pytest.mark.services
def test_a_message_in_a_log_file_is_one_line_however_long(tmp_path: Path) -> None:
    name = "a-study-with-a-rather-long-name" * 2
    (tmp_path / name).mkdir()
    (tmp_path / name / "ledger.sqlite").write_text("no database at all, and longer than its header would be " * 3)
    command = [sys.executable, "-m", "ablate", "list", "--runs-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    (line,) = done.stderr.splitlines()
    assert re.match(rf"\[\d\d:\d\d:\d\d\] WARNING +{name} is left out: ledger sqlite:///", line)
