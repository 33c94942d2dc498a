"""`ablate pick`: the network, its probabilities, and the study file that trains it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ablate.analysis.picking import Bound, keeping_probabilities
from ablate.base.randomness import stream
from ablate.ledger import Ledger, Snapshot
from ablate.trial import Report, TrialConfig
from support.commands import run
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
    place = ["--runs-dir", str(driver.runs), "--dataset", "digits", "--json"]
    known = networks(snapshot, "digits")
    means = {n: np.mean(values) for n, (values, _) in known.items()}
    bound = sorted(means.values())[len(means) // 2] - 1e-9
    code, out, _ = run(capfd, "pick", "looked", "--min", f"val_accuracy={bound}", *place)
    (found,) = json.loads(out)
    assert code == 0
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
    _, out, _ = run(capfd, "pick", "looked", "--max", f"params={most}", *place)
    assert json.loads(out)[0]["trial"] == max((means[n], n) for n, (_, p) in known.items() if p <= most)[1]
    both = ["--max", f"params={most}", "--min", "test_accuracy=0.0001"]
    _, out, _ = run(capfd, "pick", "looked", *both, *place)  # every objective is bounded: the first one decides
    assert json.loads(out)[0]["trial"] == max((means[n], n) for n, (_, p) in known.items() if p <= most)[1]


def test_the_probabilities_are_those_of_simulated_seeds() -> None:
    """Posterior draws of mean and deviation under the flat prior, whose predictive law is the t distribution."""
    values = [0.970, 0.975, 0.981, 0.968]
    bound = Bound(metric="test_accuracy", op=">=", bound=0.97, asked="val_accuracy")
    new, mean = keeping_probabilities(values, bound) or (0.0, 0.0)
    rng = np.random.default_rng(0)
    sd = np.std(values, ddof=1) * np.sqrt(3 / rng.chisquare(3, 400_000))
    means = rng.normal(np.mean(values), sd / 2)
    assert new == pytest.approx(np.mean(rng.normal(means, sd) >= 0.97), abs=0.003)
    assert mean == pytest.approx(np.mean(means >= 0.97), abs=0.003)
    below = Bound(metric="test_accuracy", op="<=", bound=0.97, asked="val_accuracy")
    assert keeping_probabilities(values, below) == pytest.approx((1 - new, 1 - mean))
    assert keeping_probabilities([0.98], bound) is None
    assert keeping_probabilities([0.98] * 3, bound) == (1.0, 1.0)
    assert keeping_probabilities([0.96] * 3, bound) == (0.0, 0.0)


def test_a_bound_that_is_kept_with_probability_nine_tenths_is_kept_nine_times_in_ten() -> None:
    """4,000 normal samples of five seeds; each one's bound is where the prediction is .9, and a sixth seed follows."""
    rng, share = np.random.default_rng(3), stats.t.ppf(0.9, 4)
    samples = rng.normal(0.0, 1.0, (4000, 6))
    kept = []
    for sample in samples:
        low = sample[:5].mean() - share * sample[:5].std(ddof=1) * np.sqrt(1 + 1 / 5)
        bound = Bound(metric="test_accuracy", op=">=", bound=low, asked="test_accuracy")
        assert (keeping_probabilities(sample[:5].tolist(), bound) or (0.0,))[0] == pytest.approx(0.9)
        kept.append(sample[5] >= low)
    assert np.mean(kept) == pytest.approx(0.9, abs=0.015)


def test_the_words_say_the_split_the_seeds_and_both_probabilities(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    driver, snapshot = filled(tmp_path)
    code, out, _ = run(capfd, "pick", "looked", "--min", "val_accuracy=0.1", "--runs-dir", str(driver.runs))
    assert code == 0
    assert "The bound on val_accuracy is read on test_accuracy, as the front is." in out
    assert out.count("a fresh training keeps it with probability") == 2  # two data sets
    assert "on 4 seeds; test split" in out
    assert "learning_rate: " in out
    assert len(snapshot.trials) > 24


def test_search_results_are_marked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    driver, _ = filled(tmp_path, TEXT.replace("{replicates: 4}", "null"))
    place = ["--runs-dir", str(driver.runs), "--dataset", "more"]
    _, out, _ = run(capfd, "pick", "looked", "--min", "val_accuracy=0.01", *place)
    assert "Unconfirmed: it was searched by these numbers" in out
    assert "one seed does not tell how surely" in out
    _, out, _ = run(capfd, "pick", "looked", "--min", "val_accuracy=0.01", "--json", *place)
    (found,) = json.loads(out)
    assert (found["stage"], found["confirmed"], found["bounds"][0]["fresh_training"]) == ("search", False, None)


def test_no_network_names_the_nearest_miss(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    driver, snapshot = filled(tmp_path)
    place = ["--runs-dir", str(driver.runs), "--dataset", "digits"]
    code, out, err = run(capfd, "pick", "looked", "--min", "val_accuracy=0.999", *place)
    known = networks(snapshot, "digits")
    best = max(known, key=lambda n: np.mean(known[n][0]))
    assert (code, out) == (1, "")
    assert err.splitlines() == [
        f"digits: no network keeps the bounds. The nearest is trial {best}: test_accuracy"
        f" {100 * np.mean(known[best][0]):.2f}% (not test_accuracy >= 0.999)."
    ]
    code, out, _ = run(capfd, "pick", "looked", "--min", "val_accuracy=0.999", "--json", *place)
    assert (code, json.loads(out)[0]["nearest"]) == (1, best)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "say what the network must keep: --min val_accuracy=0.97 or --max params=20000"),
        (["--min", "val_accuracy"], "--min val_accuracy: a bound reads METRIC=NUMBER"),
        (["--max", "params=nan"], "--max params=nan: a bound reads METRIC=NUMBER"),
        (["--min", "val_acuracy=0.9"], "no trial reports 'val_acuracy'. Did you mean 'val_accuracy'?"),
        (["--max", "params=9999", "--dataset", "digit"], "has no data set 'digit'. Did you mean 'digits'?"),
        (["--max", "params=9999", "--write", "a.yaml"], "one network is written. Type --dataset: digits, more"),
    ],
)
def test_a_wrong_request_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    driver, _ = filled(tmp_path, most=4)
    code, out, err = run(capfd, "pick", "looked", *words, "--runs-dir", str(driver.runs))
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.mark.services
def test_the_written_file_trains_the_picked_network(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    driver, snapshot = filled(tmp_path)
    file = tmp_path / "small.yaml"
    words = ["pick", "looked", "--max", "params=100000", "--dataset", "digits", "--runs-dir", str(driver.runs)]
    code, out, _ = run(capfd, *words, "--write", str(file))
    assert code == 0
    assert f"To train it: ablate search {file}" in out
    code, _, err = run(capfd, *words, "--write", str(file))
    assert (code, "exists and is kept" in err) == (2, True)
    found = json.loads(run(capfd, *words, "--json")[1])[0]
    picked = next(t.config for t in snapshot.trials if (t.key.dataset, t.key.number) == ("digits", found["trial"]))
    limited = file.read_text().replace("patch: 4", "patch: 4, train_limit: 64")
    file.write_text(limited)
    options: list[Any] = ["--executor", "local", "--tracker", "none", "--runs-dir", str(tmp_path / "runs")]
    code, out, err = run(capfd, "search", str(file), *options)
    assert code == 0, err
    name = f"looked-digits-{picked.source}"
    with Ledger.open(f"sqlite:///{tmp_path}/runs/{name}/ledger.sqlite") as ledger:
        (trial,) = ledger.trials(name)
    assert trial.config.settings == picked.settings
    assert (trial.config.study_seed, trial.config.protocol) == (picked.study_seed, picked.protocol)
    assert trial.params is not None
