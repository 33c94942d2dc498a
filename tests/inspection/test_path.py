"""`ablate path`: the written comparison against the search's own settings."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ablate.analysis.tables import trials_table
from ablate.inspection.path import Step, steps
from ablate.inspection.studies import read_study
from ablate.locations import Locations
from ablate.study import Study, load_study, parse_study
from ablate.trial import TrialState
from support.commands import TINY, run
from support.status_driver import Driver

SPACE = """\
study: looked
datasets: {digits: {patch: 4}}
seed: 7
model:
  depth: 2
  width: {int: [8, 64], step: 8}
  similarity: {choices: [separate, shared, collapsed]}
  heads: {choices: [1, 2, 4], when: {model.similarity: [separate, shared]}}
  mlp: {choices: [none, 64]}
training:
  epochs: 9
  learning_rate: {float: [1.0e-4, 1.0e-1], log: true}
  optimizer: {choices: [adamw, sgd]}
  momentum: {float: [0.1, 0.9], when: {training.optimizer: sgd}}
variants:
  - {name: plain}
  - {name: bare, model: {value: none}}
settings: [{datasets: [digits], training: {batch_size: 32}}]
sampler: {name: random}
scheduler: {name: none}
budget: {trials: 24}
confirm: {replicates: 4}
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: Any) -> Any:
    driver = Driver(tmp_path_factory.mktemp("searched"), SPACE)
    driver.run(24)
    yield driver
    driver.leave()


def path(capfd: Any, driver: Driver, *more: str) -> tuple[int, str, str]:
    return run(capfd, "path", "looked", "--runs-dir", str(driver.runs), *more)


def parameters(driver: Driver, number: int) -> dict[str, Any]:
    return dict(next(t for t in driver.ledger.trials("looked") if t.key.number == number).config.parameters)


def row_settings(study: Study, dataset: str = "digits") -> list[Any]:
    return [study.settings_of(dataset, {"variant": row.name}) for row in study.rows]


def test_the_file_is_a_comparison_from_the_baseline_to_the_best(driver: Driver, capfd: Any, tmp_path: Path) -> None:
    code, out, err = path(capfd, driver)
    assert code == 0, err
    file = tmp_path / "path.yaml"
    file.write_text(out)
    study = load_study(file)
    searched = driver.study
    trials = [t for t in driver.ledger.trials("looked") if t.state is TrialState.COMPLETE]
    first = min(trials, key=lambda t: t.key.number)
    rows = row_settings(study)
    assert rows[0] == searched.settings_of("digits", first.config.parameters)
    assert study.compare is not None
    assert study.compare.baseline == study.rows[0].name == "baseline"
    assert study.compare.metrics == ("val_accuracy",)
    assert (study.name, study.replicates, study.seed) == ("looked-path", 4, 7)
    assert study.task("digits") == searched.task("digits")
    table = trials_table(driver.ledger.snapshot("looked")).filter(pl.col("state") == "COMPLETE")
    best = table.sort("val_accuracy", "trial", descending=[True, False])["trial"][0]
    assert f"to trial {best} of study looked" in out
    assert rows[-1] == searched.settings_of("digits", parameters(driver, best))
    assert rows[-1].training.batch_size == 32  # type: ignore[attr-defined]
    assert "# The path from trial 0 to trial" in out
    assert "the file, because there is no importance: 24 trials, 60 are needed" in out


def test_every_pair_of_trials_has_a_path_of_valid_single_changes(driver: Driver) -> None:
    study = driver.study
    space = study.space_for("digits")
    together = [{"model.similarity", "model.heads"}, {"training.optimizer", "training.momentum"}]
    order = ("training.momentum", "model.heads", *reversed(space.names()))
    order = tuple(dict.fromkeys(order))
    numbers = range(12)
    merged = 0
    for one, two in itertools.permutations(numbers, 2):
        first, last = parameters(driver, one), parameters(driver, two)
        rows = steps(study, "digits", first, last, order)
        assert rows[0] == Step(name="baseline", values=first)
        assert rows[-1].values == last
        assert len({row.name for row in rows}) == len(rows)
        for above, row in itertools.pairwise(rows):
            assert space.contains(row.values)
            assert study.settings_of("digits", row.values) != study.settings_of("digits", above.values)
            changed = {n for n in space.names() if above.values.get(n) != row.values.get(n)}
            toggled = {n for n in changed if n not in above.values or n not in row.values}
            if len(changed) > 1 and not any(changed <= pair for pair in together):
                merged += 1
            assert all(row.values.get(n) == last.get(n) for n in changed)
            assert not toggled or changed & {"model.similarity", "training.optimizer"}
    assert merged == 0, "each of these combinations can be built, so only a condition and its settings go together"


def test_what_cannot_be_built_alone_is_merged_with_the_next_setting_and_named() -> None:
    text = SPACE.replace("step: 8", "step: 4").replace("[1, 2, 4]", "[1, 3, 4]").replace("[8, 64]", "[8, 60]")
    study = parse_study(text, known_good=True)
    own = {"variant": "plain", "model.similarity": "shared", "model.mlp": 64, "training.learning_rate": 1e-3}
    own |= {"training.optimizer": "adamw"}
    first, last = own | {"model.width": 8, "model.heads": 4}, own | {"model.width": 12, "model.heads": 3}
    order = ("model.heads", "model.width", "model.mlp")  # 8 wide has no 3 heads
    rows = steps(study, "digits", first, last, order)
    assert [row.name for row in rows] == ["baseline", "heads 3, width 12"]
    rows = steps(study, "digits", first, last, ("model.width", "model.heads"))
    assert [row.name for row in rows] == ["baseline", "width 12", "heads 3"], "12 wide has 4 heads"


def test_a_setting_that_trains_alike_is_merged_too() -> None:
    study = parse_study(SPACE.replace(", when: {training.optimizer: sgd}", ""))
    own = {"variant": "plain", "model.similarity": "collapsed", "training.optimizer": "adamw", "model.mlp": 64}
    own |= {"training.learning_rate": 1e-3}
    first = own | {"model.width": 8, "training.momentum": 0.5}  # AdamW reads no momentum
    last = own | {"model.width": 16, "training.momentum": 0.9}
    for order in (("training.momentum", "model.width"), ("model.width", "training.momentum")):
        rows = steps(study, "digits", first, last, order)
        assert len(rows) == 2
        assert rows[-1].values == last
        assert "momentum 0.9" in rows[-1].name
        assert "width 16" in rows[-1].name
    assert len(steps(study, "digits", first, first, ("model.width",))) == 1


def test_other_ends_are_chosen_by_number_and_start(driver: Driver, capfd: Any, tmp_path: Path) -> None:
    code, out, _ = path(capfd, driver, "--from", "3", "--to", "5")
    assert code == 0
    rows = row_settings(parse_study(out))
    assert rows[0] == driver.study.settings_of("digits", parameters(driver, 3))
    assert rows[-1] == driver.study.settings_of("digits", parameters(driver, 5))
    started = Driver(tmp_path, SPACE.replace("budget:", "start: [{model.width: 24, model.mlp: none}]\nbudget:"))
    started.run(12)
    code, out, _ = path(capfd, started, "--from", "start")
    assert code == 0
    first = row_settings(parse_study(out))[0]
    assert (first.model.width, first.model.mlp) == (24, 0)  # type: ignore[attr-defined]
    started.leave()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--from", "99"], "there is no such trial. Numbers: 0 to"),
        (["--to", "99"], "there is no such trial. Numbers: 0 to"),
        (["--from", "first"], "--from first: give the number of a trial, or start"),
        (["--from", "start"], "has no `start`"),
        (["--from", "2", "--to", "2"], "have the same settings"),
        (["--dataset", "digit"], "has no data set 'digit'. Did you mean 'digits'?"),
    ],
)
def test_what_cannot_be_a_path_is_one_line(driver: Driver, capfd: Any, options: list[str], words: str) -> None:
    code, out, err = path(capfd, driver, *options)
    assert code != 0
    assert out == ""
    assert words in " ".join(err.split())


@pytest.mark.services
def test_the_path_is_trained_by_compare(tmp_path: Path, capfd: Any) -> None:
    file, runs = tmp_path / "tiny.yaml", ["--runs-dir", str(tmp_path / "runs")]
    file.write_text(TINY)
    local = ["--executor", "local", "--tracker", "none", *runs]
    assert run(capfd, "search", str(file), *local)[0] == 0
    code, out, _ = run(capfd, "path", "tiny", *runs)
    assert code == 0
    assert "metrics: [val_accuracy, test_accuracy]" in out
    assert "the file, because there is no importance: 3 trials, 60 are needed" in out
    (tmp_path / "path.yaml").write_text(out)
    assert run(capfd, "compare", str(tmp_path / "path.yaml"), *local)[0] == 0
    study = load_study(tmp_path / "path.yaml")
    found = read_study("tiny-path", Locations(runs_dir=tmp_path / "runs"))
    trained = [t for t in found.snapshot.trials if t.config.stage == "search"]
    assert {t.state for t in trained} == {TrialState.COMPLETE}
    assert [t.config.parameters["variant"] for t in trained] == [row.name for row in study.rows]
    code, _, err = run(capfd, "path", "tiny-path", *runs)
    assert code != 0
    assert "is a comparison: a path is of a search" in err
