"""A front whose networks have unequal seeds after a race: page, terminal and pick by the commands."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from ablate.base.randomness import stream
from ablate.core.trial import Report, TrialConfig
from support.commands import run
from support.page_reader import Reader
from support.searches import report_at
from support.status_driver import Driver

TEXT = """\
study: looked
datasets: {digits: {patch: 4}}
model: {width: {int: [8, 64], step: 8}, depth: {int: [1, 8]}, mlp: {choices: [none, 16]}}
training: {epochs: 2, batch_size: 64, learning_rate: {float: [1.0e-3, 1.0e-1], log: true}}
sampler: {name: random}
scheduler: {name: none}
budget: {trials: 12}
confirm: {replicates: 3, budget: 34}
"""


def measured_on(config: TrialConfig, seed: int) -> float:
    """Return a test accuracy: equal networks with noise, most of which all of them share in a seed."""
    own = stream(1, "digits", seed, "own", str(config.source)).standard_normal()
    shared = stream(1, "digits", seed, "shared").standard_normal()
    return 0.8 + 0.003 * float(own) + 0.02 * float(shared)


def reported(config: TrialConfig, epoch: int) -> Report:
    plain = report_at(config, epoch)
    rows = [
        {**row, "test_accuracy": measured_on(config, seed)} if "test_accuracy" in row else row
        for seed, row in zip(config.seeds, plain.metrics, strict=True)
    ]
    return Report(epoch=epoch, metrics=tuple(rows), wall_seconds=float(epoch), final=plain.final)


def test_differences_use_every_seed_and_say_that_they_are_adjusted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Oracle: least squares on networks and seeds by numpy, over all seeds of all confirmed networks."""
    driver = Driver(tmp_path, TEXT)
    while (config := driver.search.next_trial()) is not None:
        for epoch in range(1, config.epochs + 1):
            driver.search.report(config.key, reported(config, epoch))
    snapshot = driver.ledger.snapshot("looked")
    driver.leave()
    given = [(t.config.source, s) for t in snapshot.trials if t.config.stage == "confirm" for s in t.config.seeds]
    networks, seeds = (sorted({pair[side] for pair in given}) for side in (0, 1))
    counts = [sum(network == n for network, _ in given) for n in networks]
    assert min(counts) >= 3
    assert len(set(counts)) > 1
    design = np.array([[n == network for n in networks] + [s == seed for s in seeds] for network, seed in given])
    configs = {t.config.source: t.config for t in snapshot.trials if t.config.stage == "confirm"}
    values = [measured_on(configs[network], seed) for network, seed in given]
    effects = np.linalg.lstsq(design.astype(float), np.array(values), rcond=None)[0][: len(networks)]
    plain = [np.mean([v for v, (n, _) in zip(values, given, strict=True) if n == network]) for network in networks]

    place = ["--runs-dir", str(driver.runs)]
    code, out, _ = run(capfd, "report", "looked", *place)
    assert code == 0
    folder = driver.runs / "looked" / "report"
    with (folder / "front.csv").open(encoding="utf-8", newline="") as file:
        rows = {int(row["source"]): row for row in csv.DictReader(file)}
    found = {n: float(row["difference"]) for n, row in rows.items()}
    expected = {n: effects[networks.index(n)] - effects.max() for n in rows}
    assert found == pytest.approx(expected, abs=1e-9)
    assert any(abs(plain[networks.index(n)] - max(plain) - found[n]) > 1e-3 for n in rows)
    page = Reader((folder / "index.html").read_text(encoding="utf-8")).text
    status = " ".join(run(capfd, "status", "looked", *place)[1].split())
    for said in (page, status):
        assert "Differences to the best are adjusted for the seeds that a network lacks" in said
        assert f"at {min(counts)} to {max(counts)} seeds" in said
    assert "), corrected for noise; that of the measured means is" in page

    code, out, _ = run(capfd, "pick", "looked", "--min", f"val_accuracy={min(plain) - 0.001}", *place)
    assert code == 0
    assert f"Picked among {len(networks)} confirmed networks." in out
    assert "The probabilities allow for the pick among these networks, the intervals do not." in out
