"""The simulated searches of benchmarks/: their clock, their tables, and that they ask what `ablate search` asks."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "benchmarks"))

import record_curves  # noqa: E402
import simulated_search as simulated  # noqa: E402
from recorded_curves import Curves, recorded  # noqa: E402
from search import study_of  # noqa: E402

from ablate.core.trial import Decision  # noqa: E402
from ablate.tuning.stopping.schedulers import Asha  # noqa: E402


def curves(seconds: list[float], epochs: int = 3) -> Curves:
    """Return networks of growing cost whose epochs take `seconds` each, with errors that fall by half each epoch."""
    n = len(seconds)
    errors = 0.5 ** np.arange(1, epochs + 1) * np.linspace(1, 0.5, n)[:, None]
    return Curves(
        errors=errors,
        seconds=np.repeat(np.array(seconds)[:, None], epochs, axis=1),
        cost=np.arange(3.0, 3.0 + n),
        truth=errors[:, -1],
    )


def in_order(networks: int) -> simulated.Propose:
    return lambda number: number if number < networks else None


def test_two_workers_take_turns_by_the_clock() -> None:
    told: list[tuple[int, int]] = []

    def report(number: int, network: int, epoch: int) -> bool:
        told.append((network, epoch))
        return network != 1 or epoch < 2

    found = simulated.simulate(curves([1.0, 1.4, 10.0]), in_order(3), report, workers=2)
    assert told == [(0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (2, 1), (2, 2), (2, 3)]
    assert [(e.network, e.epochs, e.complete, round(e.seconds, 6), e.spent) for e in found.ended] == [
        (1, 2, False, 2.8, 4),
        (0, 3, True, 3.0, 5),
        (2, 3, True, 32.8, 8),
    ]
    assert (found.complete(), found.stopped(), found.epochs) == ([0, 2], {1}, 8)


@pytest.mark.parametrize(
    ("budget", "epochs", "complete", "running"),
    [({"epochs": 4}, 4, [], [0, 1]), ({"seconds": 3.5}, 6, [0, 1], [2]), ({}, 9, [0, 1, 2], [])],
)
def test_a_budget_ends_the_search(
    budget: dict[str, float], epochs: int, complete: list[int], running: list[int]
) -> None:
    found = simulated.simulate(curves([1.0, 1.0, 1.0]), in_order(3), lambda *_: True, workers=2, **budget)
    assert (found.epochs, found.complete(), found.running) == (epochs, complete, running)


def test_fronts_and_volumes_by_hand() -> None:
    two = Curves(
        errors=np.array([[0.4], [0.2], [0.3]]),
        seconds=np.ones((3, 1)),
        cost=np.array([3.0, 4.0, 5.0]),
        truth=np.array([0.4, 0.2, 0.3]),
    )
    assert two.front() == {0, 1}
    assert simulated.volume(two, [0, 1, 2], (0.5, 5.0)) == pytest.approx(0.1 * 2 + 0.2 * 1)
    assert simulated.volume(two, [2], (0.5, 5.0)) == simulated.volume(two, [], (0.5, 5.0)) == 0


def table_of(name: str) -> tuple[pl.DataFrame, Curves, simulated.Table]:
    networks, found = recorded(name)
    return networks, found, simulated.Table(study_of(name, 0), networks, found)


@pytest.mark.parametrize("name", ["digits", "fashion_mnist"])
def test_a_recorded_network_stands_for_its_own_configuration_once(name: str) -> None:
    networks, found, table = table_of(name)
    assert found.errors.shape == found.seconds.shape
    assert networks.height >= 200
    assert not np.isnan(found.errors).any()
    ranges = table.dimensions.space.ranges
    for network in (5, 17, 3):
        row = networks.row(network, named=True)
        given = {key: int(row[key]) if str(row[key]).isdigit() else row[key] for key in ranges}
        values = table.dimensions.encode(given)
        assert table.nearest(values) == network
        assert table.nearest(values) != network


def test_the_simulated_search_decides_as_the_scheduler_alone() -> None:
    _, found, table = table_of("digits")
    searcher = simulated.OfStudy(study_of("digits", 1, rule="asha"), found)
    rule = Asha(reduction=3, min_epochs=3)
    answers = []

    def propose(number: int) -> int | None:
        network = table.nearest(searcher.ask(number)) if number < 12 else None
        if network is not None:
            searcher.start(number, table.settings[network])
            assert searcher.trials[number].size["params"] == round(10 ** found.cost[network])
        return network

    def report(number: int, network: int, epoch: int) -> bool:
        goes_on = searcher.report(number, network, epoch)
        if epoch < found.epochs:
            losses = float(found.errors[network, epoch - 1]), float(found.cost[network])
            alone = rule.decide(number=number, epoch=epoch, losses=losses, epochs=found.epochs)
            answers.append((goes_on, alone is Decision.CONTINUE))
        return goes_on

    done = simulated.simulate(found, propose, report, workers=2)
    assert len(done.ended) == 12
    assert all(one == two for one, two in answers)
    assert done.stopped()


def test_equal_tables_are_equal_files() -> None:
    table = pl.DataFrame({"trial": [0, 0], "epoch": [1, 2]})
    assert record_curves.packed(table) == record_curves.packed(table.clone())
