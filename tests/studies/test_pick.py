"""`ablate pick`: the network, its probabilities, and the study file that trains it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import stats

from ablate.base.randomness import stream
from ablate.core.trial import Report, TrialConfig
from ablate.ledger import Ledger, Snapshot
from support.commands import refused, run, succeed
from support.searches import accuracy, report_at
from support.status_driver import Driver

TEXT = """\
study: looked
datasets: {digits: {patch: 4}, more: {task: digits, patch: 4}}
model: {width: {int: [8, 64], step: 8}, depth: {int: [1, 8]}, mlp: {choices: [none, 16]}}
training: {epochs: 2, batch_size: 64, learning_rate: {float: [1.0e-3, 1.0e-1], log: true}}
sampler: {name: random}
scheduler: {name: none}
budget: {trials: 12}
confirm: {replicates: 4}
"""


def reported(config: TrialConfig, epoch: int) -> Report:
    """Return a report whose test accuracy has noise keyed by network and seed."""
    plain = report_at(config, epoch)
    rows = []
    for seed, row in zip(config.seeds, plain.metrics, strict=True):
        noise = 0.02 * float(stream(1, config.key.dataset, seed, "noise", str(config.source)).standard_normal())
        tested = {"test_accuracy": accuracy(config, epoch) + noise} if "test_accuracy" in row else {}
        rows.append({**row, **tested})
    return Report(epoch=epoch, metrics=tuple(rows), wall_seconds=float(epoch), final=plain.final)


def filled(folder: Path, text: str = TEXT, most: int = 1000) -> tuple[Driver, Snapshot]:
    driver = Driver(folder, text)
    for _ in range(most):
        config = driver.search.next_trial()
        if config is None:
            break
        for epoch in range(1, config.epochs + 1):
            driver.search.report(config.key, reported(config, epoch))
    snapshot = driver.ledger.snapshot("looked")
    driver.leave()
    return driver, snapshot


def pick(driver: Driver, *words: str) -> list[str]:
    """Return the words that pick from a driver's study."""
    return ["pick", "looked", "--runs-dir", str(driver.runs), *words]


def networks(snapshot: Snapshot, dataset: str) -> dict[int, tuple[list[float], int]]:
    """Return test accuracies and parameters of each confirmed network, by the number of its trial."""
    return {
        t.key.number: (
            [r.metrics["test_accuracy"] for r in snapshot.reports if r.key == t.key and r.final],
            int(t.params or 0),
        )
        for t in snapshot.trials
        if t.config.stage == "confirm" and t.key.dataset == dataset
    }


def test_the_cheapest_network_above_a_bound_and_the_best_below_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    driver, snapshot = filled(tmp_path)
    place = ["--dataset", "digits", "--json"]
    known = networks(snapshot, "digits")
    means = {n: np.mean(values) for n, (values, _) in known.items()}
    bound = sorted(means.values())[len(means) // 2] - 1e-9
    out = succeed(capfd, *pick(driver, "--min", f"val_accuracy={bound}", *place))
    (found,) = json.loads(out)
    assert found["trial"] == min((p, n) for n, (_, p) in known.items() if means[n] >= bound)[1]
    values = known[found["trial"]][0]
    assert found["metrics"]["test_accuracy"]["mean"] == pytest.approx(np.mean(values))
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert found["metrics"]["test_accuracy"]["low"] == pytest.approx(max(low, 0))
    assert found["metrics"]["test_accuracy"]["high"] == pytest.approx(min(high, 1))
    assert (found["bounds"][0]["asked"], found["confirmed"]) == ("val_accuracy", True)
    assert found["bounds"][0]["bound"].startswith("test_accuracy >= ")
    sizes = sorted(p for _, p in known.values())
    most = sizes[len(sizes) // 2]
    out = succeed(capfd, *pick(driver, "--max", f"params={most}", *place))
    assert json.loads(out)[0]["trial"] == max((means[n], n) for n, (_, p) in known.items() if p <= most)[1]
    both = ["--max", f"params={most}", "--min", "test_accuracy=0.0001"]
    out = succeed(capfd, *pick(driver, *both, *place))  # every objective is bounded: the first one decides
    assert json.loads(out)[0]["trial"] == max((means[n], n) for n, (_, p) in known.items() if p <= most)[1]


def test_the_words_say_the_split_and_the_seeds(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    driver, snapshot = filled(tmp_path)
    out = succeed(capfd, *pick(driver, "--min", "val_accuracy=0.1"))
    assert "The bound on val_accuracy is read on test_accuracy, as the front is." in out
    assert "on 4 seeds; test split" in out
    assert "learning_rate: " in out
    assert len(snapshot.trials) > 24


def test_the_curve_tells_the_accuracy_at_a_size_and_the_size_for_an_accuracy(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    driver, snapshot = filled(tmp_path)
    known = networks(snapshot, "digits")
    size = sorted(params for _, params in known.values())[len(known) // 2]

    def read(at: str) -> dict[str, Any]:
        out = succeed(capfd, *pick(driver, "--at", at, "--dataset", "digits", "--json"))
        (found,) = json.loads(out)
        assert found["networks"] == len(known)
        return dict(found)

    at_size = read(f"params={size}")
    near = [np.mean(values) for values, params in known.values() if params == size]
    assert at_size["metric"] == "test_accuracy"
    assert at_size["low"] < at_size["estimate"] < at_size["high"]
    assert at_size["low"] < near[0] < at_size["high"]
    back = read(f"val_accuracy={at_size['estimate']}")  # the medians of both questions are inverse to each other
    assert (back["metric"], back["estimate"]) == ("params", pytest.approx(size, rel=0.01))
    code, out, err = run(capfd, *pick(driver, "--at", f"params={size}"))
    assert f"digits: a network with {size:,} parameters has {100 * at_size['estimate']:.1f}% test accuracy (" in out
    code, _, err = run(capfd, *pick(driver, "--at", "params=1e9"))
    assert (code, err.count("1,000,000,000 is beyond the curve, which says something about ")) == (1, 2)


def test_several_objectives_without_a_bound_show_the_front_and_what_to_type(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    driver, _ = filled(tmp_path)
    out = succeed(capfd, *pick(driver))
    assert "digits: Best: " in out
    assert out.splitlines()[-1] == (
        "To pick one, say what the network must keep: --min val_accuracy=NUMBER or --max params=NUMBER"
    )


def test_one_objective_needs_no_bound_and_what_is_printed_is_a_file_of_settings(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = TEXT.replace(", more: {task: digits, patch: 4}", "") + "objectives: [{metric: val_accuracy}]\n"
    driver, snapshot = filled(tmp_path, text)
    known = networks(snapshot, "digits")
    best = max(known, key=lambda n: np.mean(known[n][0]))
    (config,) = (t.config for t in snapshot.trials if t.key.number == best)
    out = succeed(capfd, *pick(driver))
    assert yaml.safe_load(out) == config.settings.model_dump(mode="json")
    for name in ("best.json", "best.yaml", "best.yml"):
        succeed(capfd, *pick(driver, "--write", str(tmp_path / name)))
        content = (tmp_path / name).read_text()
        read = json.loads(content) if name == "best.json" else yaml.safe_load(content)
        assert read == config.settings.model_dump(mode="json")
        assert len(repr(read["training"]["learning_rate"])) <= 9, content
    (tmp_path / "linked.json").symlink_to(tmp_path / "elsewhere")
    assert "exists and is kept" in refused(capfd, *pick(driver, "--write", str(tmp_path / "linked.json")))
    assert not (tmp_path / "elsewhere").exists()


def test_search_results_are_marked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    driver, _ = filled(tmp_path, TEXT.replace("{replicates: 4}", "null"))
    place = ["--dataset", "more"]
    out = succeed(capfd, *pick(driver, "--min", "val_accuracy=0.01", *place))
    assert "Unconfirmed: it was searched by these numbers" in out
    out = succeed(capfd, *pick(driver, "--min", "val_accuracy=0.01", "--json", *place))
    (found,) = json.loads(out)
    assert (found["stage"], found["confirmed"]) == ("search", False)


def test_no_network_names_the_nearest_miss(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    driver, snapshot = filled(tmp_path)
    place = ["--dataset", "digits"]
    code, out, err = run(capfd, *pick(driver, "--min", "val_accuracy=0.999", *place))
    known = networks(snapshot, "digits")
    best = max(known, key=lambda n: np.mean(known[n][0]))
    assert (code, out) == (1, "")
    assert err.splitlines() == [
        f"digits: no network keeps the bounds. The nearest is trial {best}: test_accuracy"
        f" {100 * np.mean(known[best][0]):.2f}% (not test_accuracy >= 0.999)."
    ]
    code, out, _ = run(capfd, *pick(driver, "--min", "val_accuracy=0.999", "--json", *place))
    assert (code, json.loads(out)[0]["nearest"]) == (1, best)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--json"], "say what the network must keep: --min val_accuracy=NUMBER or --max params=NUMBER"),
        (["--write", "a.json"], "say what the network must keep: --min val_accuracy=NUMBER"),
        (["--max", "params=9999", "--dataset", "more", "--write", "a.txt"], "a file of settings ends with .json or"),
        (["--min", "val_accuracy"], "--min val_accuracy: it reads METRIC=NUMBER"),
        (["--max", "params=nan"], "--max params=nan: it reads METRIC=NUMBER"),
        (
            ["--at", "width=3"],
            "--at width: the curve is of val_accuracy against params. Known: params, val_accuracy.",
        ),
        (["--at", "val_accuracy=93"], "--at val_accuracy=93: a share is from 0 to 1, such as val_accuracy=0.93"),
        (["--at", "params"], "--at params: it reads METRIC=NUMBER"),
        (["--at", "params=9", "--max", "params=3"], "--at reads the curve and picks no network: leave out --max"),
        (["--at", "params=9", "--dataset", "digit"], "has no data set 'digit'. Did you mean 'digits'?"),
        (["--min", "val_acuracy=0.9"], "no trial reports 'val_acuracy'. Did you mean 'val_accuracy'?"),
        (["--max", "params=9999", "--dataset", "digit"], "has no data set 'digit'. Did you mean 'digits'?"),
        (["--max", "params=9999", "--write", "a.yaml"], "--write: it is of one network. Type --dataset: digits, more"),
    ],
)
def test_a_wrong_request_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    driver, _ = filled(tmp_path, most=4)
    code, out, err = run(capfd, *pick(driver, *words))
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.mark.services
def test_the_written_file_trains_the_picked_network(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    driver, snapshot = filled(tmp_path)
    file = tmp_path / "small.yaml"
    words = ["--max", "params=100000", "--dataset", "digits"]
    out = succeed(capfd, *pick(driver, *words, "--study", str(file)))
    assert f"To train it: ablate search {file}" in out
    assert "exists and is kept" in refused(capfd, *pick(driver, *words, "--study", str(file)))
    found = json.loads(succeed(capfd, *pick(driver, *words, "--json")))[0]
    picked = next(t.config for t in snapshot.trials if (t.key.dataset, t.key.number) == ("digits", found["trial"]))
    limited = file.read_text().replace("patch: 4", "patch: 4, train_limit: 64")
    file.write_text(limited)
    options: list[Any] = ["--executor", "local", "--tracker", "none", "--runs-dir", str(tmp_path / "runs")]
    out = succeed(capfd, "search", str(file), *options)
    name = f"looked-digits-{picked.source}"
    with Ledger.open(f"sqlite:///{tmp_path}/runs/{name}/ledger.sqlite") as ledger:
        (trial,) = ledger.trials(name)
    assert trial.config.settings == picked.settings
    assert (trial.config.study_seed, trial.config.protocol) == (picked.study_seed, picked.protocol)
    assert trial.params is not None
