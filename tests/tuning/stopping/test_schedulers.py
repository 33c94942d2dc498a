"""Rung decisions against a second, literal implementation, against the ledger, and on planted fronts."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import moocore
import numpy as np
import pytest

from ablate.base.errors import RequestError
from ablate.core.trial import Decision
from ablate.ledger import Ledger
from ablate.tuning.stopping.schedulers import (
    TOLERANCE,
    Scheduler,
    SchedulerRequest,
    bend,
    build_asha,
    build_none,
    crowding_distance,
    forecast,
)
from support.ledgers import Clock
from support.literal_asha import Stream, literal_asha
from support.searches import ONE, TWO, driving, hold_of, report_at, search_of, study_of, url_in


def built(objectives: int, *, reduction: int = 3, min_epochs: int = 1, **options: Any) -> Scheduler:
    """Return what a study file's `asha` is built as."""
    return build_asha(
        SchedulerRequest(
            name="asha", objectives=objectives, reduction=reduction, min_epochs=min_epochs, options=options
        )
    )


def random_stream(rng: random.Random, objectives: int, trials: int, epochs: int) -> Stream:
    """Return reports in random interleaving, with ties, NaN and trials that skip epochs."""
    stream: Stream = []
    for trial in range(trials):
        every = rng.choice([1, 1, 2, 5])
        for epoch in range(every, epochs, every):
            losses = tuple(rng.choice([rng.random(), 0.25, 0.5]) for _ in range(objectives))
            stream.append((trial, epoch, (math.nan, *losses[1:]) if rng.random() < 0.03 else losses))
    places = sorted((rng.random() + epoch, i) for i, (_, epoch, _) in enumerate(stream))
    return [stream[i] for _, i in places]


@pytest.mark.parametrize("keep_front", [True, False])
@pytest.mark.parametrize("objectives", [1, 2, 3])
@pytest.mark.parametrize("reduction", [2, 3])
def test_asha_decides_as_its_words_say(objectives: int, reduction: int, keep_front: bool) -> None:
    rng = random.Random(f"{objectives} {reduction}")
    for _ in range(3):
        stream = random_stream(rng, objectives, 25, 10)
        asha = built(objectives, reduction=reduction, keep_front=keep_front)
        got = [asha.decide(number=n, epoch=e, losses=losses, epochs=10) is Decision.CONTINUE for n, e, losses in stream]
        assert got == literal_asha(stream, reduction=reduction, first=1, epochs=10, keep_front=keep_front)
        assert 0 < sum(got) < len(got)


def test_observing_and_deciding_leave_the_same_rungs() -> None:
    stream = random_stream(random.Random(5), 2, 30, 10)
    live, replayed = built(2), built(2)
    for number, epoch, losses in stream[:-20]:
        live.decide(number=number, epoch=epoch, losses=losses, epochs=10)
        replayed.observe(number=number, epoch=epoch, losses=losses, epochs=10)
    for number, epoch, losses in stream[-20:]:
        ask = {"number": number, "epoch": epoch, "losses": losses, "epochs": 10}
        assert live.decide(**ask) == replayed.decide(**ask)


def planted(rng: np.random.Generator, n: int, on_front: int) -> tuple[np.ndarray, set[int]]:
    """Return (error, size) of n trials of which `on_front`, at all sizes, are exactly the front."""
    size = np.sort(rng.uniform(4, 7, n))
    front = np.linspace(0, n - 1, on_front).round().astype(int)
    error = 0.5 - 0.1 * (size - 4)
    error[np.setdiff1d(np.arange(n), front)] += rng.uniform(0.02, 0.3, n - on_front)
    points = np.stack([error, size], axis=1)
    return points, set(np.flatnonzero(moocore.is_nondominated(points)).tolist())


def survivors(points: np.ndarray, order: np.ndarray, **settings: Any) -> set[int]:
    """Return the trials that pass every rung when they run one after the other in `order`."""
    asha = built(points.shape[1], **settings)
    alive = set()
    for i in order:
        going = True
        for epoch in range(1, 9):
            losses = (points[i, 0] + 0.5 / epoch, *points[i, 1:])
            going = going and asha.decide(number=int(i), epoch=epoch, losses=losses, epochs=9) is Decision.CONTINUE
        if going:
            alive.add(int(i))
    return alive


def test_a_planted_front_survives_where_one_objective_would_kill_it() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        points, front = planted(rng, 30, 5)
        order = rng.permutation(30)
        kept = survivors(points, order)
        assert front <= kept
        assert len(kept) <= 20
        assert 0 in survivors(points, order, keep_front=False), "the smallest network is the best on its objective"
        by_accuracy = survivors(points[:, :1], order)
        assert 29 in by_accuracy
    assert not front <= by_accuracy


def test_a_forecast_and_a_bend_by_hand() -> None:
    reports = [(1, (9.0, 4.0)), (2, (6.0, 4.0)), (3, (5.0, 4.0)), (9, (2.0, 4.0))]
    assert forecast(reports) == (2.0 + 0.25 * (2.0 - 5.0), 4.0)
    assert forecast(reports[:3]) == (5.0 + 0.25 * (5.0 - 6.0), 4.0)
    assert forecast(reports[:1]) == (9.0, 4.0)
    assert forecast([(1, (math.inf, math.nan)), (2, (3.0, 1.0))]) == (3.0, 1.0)
    assert forecast([(1, (9.0, 1.0)), (5, (2.0, 1.0)), (7, (3.0, math.nan))])[0] == 2.0 + 0.25 * (2.0 - 9.0)
    assert math.isnan(forecast([(1, (9.0, 1.0)), (5, (2.0, 1.0)), (7, (3.0, math.nan))])[1])
    assert forecast([(1, (9.0,)), (6, (2.0,)), (7, (3.0,))]) == (2.0 + 0.25 * (2.0 - 9.0),), "the best, not the last"
    assert forecast([(e, (float(e),)) for e in (1, 2, 3, 4)]) == (3.0 + 0.25 * (3.0 - 1.0),), "seconds only grow"
    on_the_line = 6 - 4 / 7  # at epoch 3, between 6 at epoch 2 and 2 at epoch 9
    expected = (5 - on_the_line) / math.sqrt(1 + (1 / 7) ** 2 + (6 / 7) ** 2)
    assert bend(reports[1:]) == (pytest.approx(expected), 0.0)
    assert [bend([(1, (x,)), (2, (x,)), (9, (x,))]) for x in (0.1, 3.3)] == [(0.0,)] * 2, "equal costs stay equal"


def test_the_bends_of_straight_curves_have_the_variance_of_a_report() -> None:
    rng = np.random.default_rng(2)
    values = [bend([(e, (0.5 - 0.1 * e + rng.normal(0, 0.02),)) for e in (3, 5, 6)])[0] for _ in range(20_000)]
    assert np.std(values) == pytest.approx(0.02, rel=0.02)


def small_and_large(spread: float, behind: float, **options: Any) -> Decision:
    """Return what is decided at epoch 3 of a network that is `behind` ten smaller ones.

    The smaller ones all reach an error of .2, and their reports at epoch 2 are spread about a line by `spread`.
    """
    asha = built(2, min_epochs=3, **options)
    for number, off in enumerate([-1.5, -1, -0.5, -0.25, 0, 0, 0.25, 0.5, 1, 1.5]):
        for epoch, error in ((1, 0.3), (2, 0.25 + off * spread), (3, 0.2)):
            asha.observe(number=number, epoch=epoch, losses=(error, 3.0), epochs=27)
    for epoch, error in ((1, 0.3 + behind), (2, 0.25 + behind), (3, 0.2 + behind)):
        decision = asha.decide(number=10, epoch=epoch, losses=(error, 3.5), epochs=27)
    return decision


def test_the_tolerance_follows_the_noise() -> None:
    assert small_and_large(0.0, 0.01) is Decision.STOP, "without noise a small difference is a difference"
    assert small_and_large(0.03, 0.01) is Decision.CONTINUE
    assert small_and_large(0.03, 0.01, tolerance=0) is Decision.STOP
    assert small_and_large(0.03, 0.15) is Decision.STOP
    assert small_and_large(0.03, 0.15, tolerance=10) is Decision.CONTINUE
    assert small_and_large(0.03, math.nan, tolerance=10) is Decision.STOP


def kept_of_front(rng: np.random.Generator, noise: float, **options: Any) -> tuple[int, int, int]:
    """Return (kept members of the true front, members, trials trained in full) of 40 trials with noisy reports."""
    points, front = planted(rng, 40, 8)
    order, asha, full = rng.permutation(40), built(2, min_epochs=3, **options), set()
    for i in order:
        going, epoch = True, 0
        while going and epoch < 26:
            epoch += 1
            losses = (points[i, 0] + 0.5 / epoch + rng.normal(0, noise), points[i, 1])
            going = asha.decide(number=int(i), epoch=epoch, losses=losses, epochs=27) is Decision.CONTINUE
        full |= {int(i)} if going else set()
    return len(full & front), len(front), len(full)


def test_noise_costs_less_of_the_front_than_by_dominance_alone() -> None:
    found = {t: np.zeros(3) for t in (0.0, TOLERANCE)}
    for seed in range(20):
        for tolerance in found:
            found[tolerance] += kept_of_front(np.random.default_rng(seed), 0.02, tolerance=tolerance)
    (kept, members, _), (kept_by_dominance, _, _) = found[TOLERANCE], found[0.0]
    assert kept / members > 0.9
    assert members - kept < 0.5 * (members - kept_by_dominance)
    assert found[TOLERANCE][2] < 0.75 * 20 * 40


def test_crowding_distance_by_hand() -> None:
    points = np.array([[0.0, 4.0], [1.0, 2.0], [1.0, 2.0], [3.0, 1.0], [4.0, 0.0]])
    assert crowding_distance(points).tolist() == [np.inf, 3 / 4 + 3 / 4, 3 / 4 + 3 / 4, 3 / 4 + 2 / 4, np.inf]


@pytest.mark.parametrize("objectives", [ONE, TWO])
def test_the_ledger_replays_to_the_same_decisions(tmp_path: Path, objectives: list[dict[str, object]]) -> None:
    study = study_of(objectives=objectives, scheduler={"name": "asha"}, budget={"trials": 12})
    clock = Clock()
    with Ledger.open(url_in(tmp_path), clock=clock, monotonic=clock) as ledger, hold_of(study, ledger) as writer:
        search = search_of(study, writer, ledger)
        flying = [search.next_trial() for _ in range(4)]
        rng = random.Random(2)
        done = {config.key: 0 for config in flying}
        while flying:
            config = rng.choice(flying)
            done[config.key] += 1
            decision = search.report(config.key, report_at(config, done[config.key]))
            if decision is Decision.STOP or done[config.key] == 9:
                flying.remove(config)
                if (new := search.next_trial()) is not None:
                    flying.append(new)
                    done[new.key] = 0
        reports = sorted(ledger.reports("s"), key=lambda r: r.rowid)
        sizes = {t.key: t.params for t in ledger.trials("s")}
    rows = [r for r in reports if not r.final]
    second = [math.log10(sizes[r.key]) for r in rows]
    stream: Stream = [
        (r.key.number, r.epoch, (-r.metrics["val_accuracy"], s)[: len(objectives)])
        for r, s in zip(rows, second, strict=True)
    ]
    expected = literal_asha(stream, reduction=3, first=1, epochs=9, keep_front=True)
    assert [r.decision is Decision.CONTINUE for r in rows] == expected
    assert not all(expected)


def test_no_scheduler_stops_nothing(tmp_path: Path) -> None:
    with driving(study_of(budget={"trials": 3}), url_in(tmp_path)) as search:
        for _ in range(3):
            config = search.next_trial()
            assert {search.report(config.key, report_at(config, e)) for e in range(1, 10)} == {Decision.CONTINUE}


def test_unknown_options_are_refused() -> None:
    def request(name: str, **options: object) -> SchedulerRequest:
        return SchedulerRequest(name=name, objectives=2, reduction=3, min_epochs=1, options=options)

    with pytest.raises(RequestError, match=r"unknown option 'keep_frnt'\. Did you mean 'keep_front'"):
        build_asha(request("asha", keep_frnt=True))
    with pytest.raises(RequestError, match="keep_front must be true or false, got 'yes'"):
        build_asha(request("asha", keep_front="yes"))
    for wrong in (-1, True, "2", math.nan, math.inf):
        with pytest.raises(RequestError, match="tolerance must be a number from 0, got"):
            build_asha(request("asha", tolerance=wrong))
    with pytest.raises(RequestError, match="tolerance needs several objectives and keep_front: true"):
        build_asha(request("asha", tolerance=1, keep_front=False))
    with pytest.raises(RequestError, match="unknown option 'a'; it takes none"):
        build_none(request("none", a=1))
