"""Scripts as people write them, tuned by the real command and killed midway: numbers, page and MLflow agree."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import mlflow
import pytest

from support.faults import killing
from support.faults.study_runs import LOCAL, StudyRun
from support.page_reader import Reader
from support.paths import REPOSITORY

LIMIT = 600
SHOWN = LOCAL[:4]  # with MLflow
STATUS = {"COMPLETE": "FINISHED", "PRUNED": "KILLED"}
Numbers = Mapping[tuple[str, int, int, int], Mapping[str, float]]


def example(folder: Path, name: str, options: tuple[str, ...] = SHOWN) -> StudyRun:
    """Return the study of an example, in a copy of its folder."""
    if name == "cnn" and not Path(os.environ.get("ABLATE_DATA", "nowhere"), "FashionMNIST").is_dir():
        pytest.skip("Fashion-MNIST is not in $ABLATE_DATA")
    if name == "lightning":
        pytest.importorskip("lightning", reason="lightning is an optional package")
    shutil.copytree(REPOSITORY / "examples" / name, folder, ignore=shutil.ignore_patterns("__pycache__"))
    text = (folder / "study.yaml").read_text()
    return StudyRun(folder=folder, text=text[text.index("study:") :], options=options)


def finish(run: StudyRun) -> None:
    command = run.search(inject=partial(killing.in_folder, str(run.folder)))
    assert command.wait() == 0, command.output


def killed_at_a_report(run: StudyRun, number: int) -> None:
    """Kill the driver when a checkpoint is written and its report is not committed."""
    fault = partial(killing.at_report, "before", number)
    command = run.search(inject=partial(killing.in_folder, str(run.folder), fault))
    assert command.wait() == -signal.SIGKILL, command.output


def killed_in_an_epoch(run: StudyRun, commits: int, workers: bool) -> bool:
    """Kill the driver and its DataLoader workers after `commits` more commits; return False if it had ended before."""
    command, aim = run.search(inject=partial(killing.in_folder, str(run.folder))), run.committed() + commits
    while command.code is None and not (run.committed() >= aim and (command.children() or not workers)):
        time.sleep(0.02)
    command.end()
    return command.code != 0


def numbers(run: StudyRun) -> tuple[dict[tuple[str, int], str], Numbers]:
    """Return the state of each trial, and every reported metric by stage, trial, epoch and replicate."""
    with run.ledger() as ledger:
        trials = {trial.key: trial for trial in ledger.trials(run.name)}
        found = ledger.reports_since(run.name, 0)
    states = {(trial.config.stage, key.number): str(trial.state) for key, trial in trials.items()}
    return states, {(trials[r.key].config.stage, r.key.number, r.epoch, r.replicate): r.metrics for r in found}


@pytest.mark.slow
@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("name", ["boosting", "cnn", "lightning"])
def test_a_script_that_is_killed_ends_with_the_numbers_page_and_runs_of_one_that_was_not(
    name: str, tmp_path: Path
) -> None:
    whole, run = example(tmp_path / "whole", name, LOCAL), example(tmp_path / "killed", name)
    finish(whole)
    if name == "cnn":
        assert killed_in_an_epoch(run, 4, workers=True)
    else:
        killed_at_a_report(run, 8)
    before = len(numbers(run)[0])
    finish(run)
    assert before < len(numbers(run)[0])
    assert numbers(run) == numbers(whole)
    states = numbers(run)[0]
    assert {state for (stage, _), state in states.items() if stage == "search"} == {"COMPLETE", "PRUNED"}
    assert {state for (stage, _), state in states.items() if stage == "confirm"} == {"COMPLETE"}
    read_page(run)
    read_mlflow(run)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["boosting", "cnn", "lightning"])
def test_a_script_that_is_killed_at_many_moments_ends_with_the_same_numbers(
    name: str, tmp_path: Path, long: bool, measured: Callable[[str], None]
) -> None:
    whole, run, draws = example(tmp_path / "whole", name, LOCAL), example(tmp_path / "killed", name, LOCAL), Random(11)
    finish(whole)
    kills = 0
    while killed_in_an_epoch(run, draws.randrange(1 if long else 3, 5), workers=False):
        kills += 1
    assert kills >= 3
    assert numbers(run) == numbers(whole)
    measured(
        f"examples/{name}, driver and workers killed {kills} times: {len(numbers(run)[1])} reports equal bit for bit"
    )


def read_page(run: StudyRun) -> None:
    """The page has a row for each confirmed trial: the settings that differ, and its mean on the test split."""
    rows = Reader((run.home / "report" / "index.html").read_text()).rows
    start = next(place for place, row in enumerate(rows) if row[:2] == ["Settings", "Trial"])
    place = next(place for place, name in enumerate(rows[start]) if name.startswith("Test "))
    with run.ledger() as ledger:
        confirmed = {t.key.number: t for t in ledger.trials(run.name) if t.config.stage == "confirm"}
        reports = [r for r in ledger.reports_since(run.name, 0) if r.key.number in confirmed]
    front = {int(row[1]): row for row in rows[start + 1 : start + 1 + len(confirmed)]}
    assert front.keys() == confirmed.keys()
    configs: dict[int, dict[str, Any]] = {n: t.config.settings.model_dump()["config"] for n, t in confirmed.items()}
    values = {name: {config[name] for config in configs.values()} for name in configs[min(configs)]}
    for number, config in configs.items():
        given = config.items()
        named = {f"{n.replace('_', ' ')} {v:.3g}" for n, v in given if len(confirmed) == 1 or len(values[n]) > 1}
        assert set(front[number][0].removesuffix(" (yours)").split(" · ")) == named
        [metric] = {name for r in reports for name in r.metrics if name.startswith("test_")}
        tested = fmean(r.metrics[metric] for r in reports if r.key.number == number and metric in r.metrics)
        assert front[number][place].split()[0] == (f"{tested:.2%}" if "accuracy" in metric else f"{tested:.3g}")


def read_mlflow(run: StudyRun) -> None:
    """Each trial is a run with its settings, its state, and the mean of every metric at every epoch."""
    with run.ledger() as ledger:
        trials, reports = ledger.trials(run.name), ledger.reports_since(run.name, 0)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{run.runs}/mlflow.db")
    experiment = client.get_experiment_by_name(run.name)
    assert experiment is not None
    shown = {
        int(one.data.tags["ablate.trial"]): one
        for one in client.search_runs([experiment.experiment_id], "tags.`ablate.kind` = 'trial'")
    }
    assert sorted(shown) == sorted(trial.key.number for trial in trials)
    for trial in trials:
        one = shown[trial.key.number]
        assert one.info.status == STATUS[str(trial.state)]
        settings: Any = trial.config.settings
        for name, value in settings.config.items():
            assert one.data.params[f"config.{name}"] == str(value)
        for metric in one.data.metrics.keys() & {name for r in reports if r.key == trial.key for name in r.metrics}:
            if metric == "params":
                continue
            points = {point.step: point.value for point in client.get_metric_history(one.info.run_id, metric)}
            mine = [r for r in reports if r.key == trial.key and metric in r.metrics]
            epochs = {r.epoch for r in mine}
            means = {e: fmean(r.metrics[metric] for r in mine if r.epoch == e) for e in epochs}
            assert points == pytest.approx(means, rel=1e-15)  # the order of a sum
