"""Scripts in the shapes of public ones: each ends with the right answer, also if its driver is killed twice."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest
import yaml

from support.commands import LOCAL
from support.commands import run as command
from support.faults.study_runs import StudyRun
from support.shapes import SHAPE_LIST, Shape, last, read, rows

LIMIT = 600
pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT)]


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Shape], StudyRun]:
    """The uninterrupted study of a shape, run once."""
    done: dict[Shape, StudyRun] = {}

    def of(shape: Shape) -> StudyRun:
        if shape not in done:
            run = shape.copied(tmp_path_factory.mktemp("whole") / shape.name)
            shape.run(run)
            done[shape] = run
        return done[shape]

    return of


@pytest.mark.parametrize("shape", SHAPE_LIST, ids=str)
def test_a_shape_ends_with_the_answer_that_its_reports_give(
    shape: Shape, whole: Callable[[Shape], StudyRun], capfd: pytest.CaptureFixture[str]
) -> None:
    run = whole(shape)
    study = yaml.safe_load(shape.text)
    ends, reports = rows(run)
    assert {state for _, state, _, _ in ends.values()} <= {"COMPLETE", "PRUNED"}
    for key, (_, state, done, _) in ends.items():
        assert state == "PRUNED" or done == study.get("epochs", 1), key
    shares = [v for metrics, *_ in reports.values() for name, v in metrics.items() if name.endswith("accuracy")]
    assert all(0 <= value <= 1 for value in shares)
    status, out, err = command(capfd, "status", run.name, "--runs-dir", str(run.runs))
    assert status == 0, err
    assert "no trial is left to run" in out
    assert "no answer" not in out
    said = " ".join(out.split())
    numbers = answers(run, study)
    assert len(numbers) == (len(study["parts"]) + 1 if "compare" in study else 1)
    for number in numbers:
        assert number in said
    if study.get("confirm"):
        assert all(one != other for one, other in last_of_confirmed(run)), "two seeds have the same numbers"
    if shape in SPECIAL:
        SPECIAL[shape](run)


@pytest.mark.parametrize("shape", SHAPE_LIST, ids=str)
def test_a_shape_that_is_killed_ends_with_every_row_of_one_that_was_not(
    shape: Shape, whole: Callable[[Shape], StudyRun], tmp_path: Path
) -> None:
    run = shape.copied(tmp_path / shape.name)
    shape.run_killed(run)
    ends, reports = rows(run)
    expected_ends, expected = rows(whole(shape))
    assert ends == expected_ends
    assert reports == expected
    assert len(reports) >= 4
    assert sum(trial.attempt > 1 for trial in read(run)[0]) >= 1
    if str(shape) == "nanogpt":
        outputs = [file.read_text() for file in run.home.glob("checkpoints/data/*/output.txt")]
        assert any("Resuming training from" in text for text in outputs)


def answers(run: StudyRun, study: dict[str, object]) -> list[str]:
    """Return the numbers that the status must show: of each row of a comparison, or of the best network."""
    [metric, *_] = [o["metric"] for o in study["objectives"] if o["metric"] != "params"]  # type: ignore[index,attr-defined]
    best = max if metric.endswith("accuracy") else min
    if "compare" in study:
        return [_shown(metric, fmean(values)) for values in last(run, metric, stage="search").values()]
    if study["confirm"] is None:
        return [_shown(metric, best(fmean(values) for values in last(run, metric, stage="search").values()))]
    tested = metric.replace("val_", "test_")
    return [_shown(tested, best(fmean(values) for values in last(run, tested, stage="confirm").values()))]


def last_of_confirmed(run: StudyRun) -> list[list[float]]:
    """Return for each confirmed network the metric of the validation split in its last report, for each seed."""
    [name, *_] = [name for name in read(run)[1][-1].metrics if name.startswith("val_")]
    return [*last(run, name, stage="confirm").values()]


def _shown(metric: str, value: float) -> str:
    return f"{value:.2%}" if metric.endswith("accuracy") else f"{value:.4g}"


def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"}


def count_of_1000(run: StudyRun) -> None:
    """`Accuracy: 948/1000` is .948, the seeds differ, and each has a model of its own."""
    found = last(run, "val_accuracy", stage="search")
    assert all(1000 * value == pytest.approx(round(1000 * value)) for values in found.values() for value in values)
    assert all(one != other for one, other in found.values())
    models = [*run.home.glob("checkpoints/data/*/seed-*/model.pt")]
    assert len(models) >= 2 * len(found)
    assert not [*run.folder.glob("*.pt")]


def own_models(run: StudyRun) -> None:
    """Each seed is tested with the model that it saved: the numbers of the script alone."""
    [(number, tests)] = last(run, "test_loss", stage="confirm").items()
    assert tests[0] != tests[1]
    [trial] = [trial for trial in read(run)[0] if trial.key.number == number]
    values = trial.config.settings.config  # type: ignore[attr-defined]
    for seed, expected in zip(trial.config.seeds, tests, strict=True):
        options = ["--lr", str(values["lr"]), "--nhid", str(values["nhid"]), "--seed", str(seed)]
        words = [sys.executable, "plain.py", *options, "--save", "alone.pt"]
        out = subprocess.run(words, cwd=run.folder, env=environment(), capture_output=True, text=True, check=True)
        assert float(re.findall(r"test loss (\S+)", out.stdout)[0]) == expected


def steps(run: StudyRun) -> None:
    assert {r.metrics["step"] / r.epoch for r in read(run)[1]} == {20.0}


def parts_of_a_closure(run: StudyRun) -> None:
    """The MLP can be left out inside its ModuleDict; as a whole it is not a module that is called."""
    found = last(run, "val_loss", stage="search")
    means = {trial.config.variant: fmean(found[trial.key.number]) for trial in read(run)[0]}
    assert means["complete"] < means["without-mlp"] < means["without-attention"]
    text = run.text.replace("transformer.h.*.mlp.c_proj", "transformer.h.*.mlp").replace("mingpt_parts", "refused")
    (run.folder / "refused.yaml").write_text(text)
    for words in (["plan", "refused.yaml"], ["compare", "refused.yaml", *LOCAL]):
        all_words = [sys.executable, "-m", "ablate", *words]
        refused = subprocess.run(
            all_words, cwd=run.folder, env=environment(), capture_output=True, text=True, check=False
        )
        assert refused.returncode == 2
        assert "transformer.h.0.mlp" in refused.stderr
        assert "c_proj" in refused.stderr


def positions(run: StudyRun) -> None:
    """A parameter is left out by its path: 16 codes of 16 numbers less."""
    params = {trial.config.variant: trial.params for trial in read(run)[0]}
    assert params["complete"] - params["without-positions"] == 256  # type: ignore[operator]


def folds(run: StudyRun) -> None:
    """A report is the mean over the folds so far, so each is a multiple of a sample of a fold."""
    for report in read(run)[1]:
        correct = report.metrics["val_accuracy"] * report.epoch * 160
        assert correct == pytest.approx(round(correct))


def value_of_x(run: StudyRun) -> None:
    for trial in read(run)[0]:
        given = trial.config.settings.config  # type: ignore[attr-defined]
        [value] = last(run, "val_loss", stage="search")[trial.key.number]
        assert value == pytest.approx((given["x"] - 2) ** 2 + (given["y"] + 1) ** 2 + 0.5)


def conditional(run: StudyRun) -> None:
    """A layer that is not there has no width and no parameters."""
    for trial in read(run)[0]:
        given = trial.config.settings.config  # type: ignore[attr-defined]
        widths = [64, *(given[f"n_units_l{i}"] for i in range(given["n_layers"])), 10]
        assert not any(f"n_units_l{i}" in given for i in range(given["n_layers"], 3))
        assert trial.params == sum((a + 1) * b for a, b in pairwise(widths))
    words = [sys.executable, "-m", "ablate", "plan", "study.yaml"]
    plan = subprocess.run(words, cwd=run.folder, env=environment(), capture_output=True, text=True, check=True)
    assert "230,763 architectures" in plan.stdout + plan.stderr


def own_checkpoints(run: StudyRun) -> None:
    assert len([*run.home.glob("checkpoints/data/*/seed-*/state.npz")]) == len(read(run)[0])


SPECIAL: dict[Shape, Callable[[StudyRun], None]] = {
    shape: check
    for shape in SHAPE_LIST
    for name, check in {
        "mnist_cnn": count_of_1000,
        "word_language_model": own_models,
        "mingpt": steps,
        "mingpt-parts": parts_of_a_closure,
        "simple_vit-parts": positions,
        "sklearn_pipeline": folds,
        "hydra_overrides": value_of_x,
        "define_by_run": conditional,
        "checkpoint_reporter": own_checkpoints,
    }.items()
    if str(shape) == name
}
