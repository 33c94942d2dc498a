"""Decisions of `asha` against a second, literal implementation and against the ledger; options of all schedulers."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ablate.base.errors import RequestError
from ablate.core.trial import Decision
from ablate.ledger import Ledger
from ablate.tuning.state.curves import Curves
from ablate.tuning.stopping.schedulers import (
    SchedulerRequest,
    build_asha,
    build_forecast,
    build_none,
    crowding_distance,
)
from support.ledgers import Clock
from support.literal_asha import Stream, literal_asha
from support.searches import ONE, TWO, driving, hold_of, report_at, search_of, study_of, url_in


def request_of(name: str, *, reduction: int = 3, min_epochs: int = 1, **options: Any) -> SchedulerRequest:
    """Return what a scheduler is built from."""
    curves = Curves(study=study_of())
    return SchedulerRequest(name=name, curves=curves, reduction=reduction, min_epochs=min_epochs, options=options)


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


@pytest.mark.parametrize("objectives", [1, 2, 3])
@pytest.mark.parametrize("reduction", [2, 3])
def test_asha_decides_as_its_words_say(objectives: int, reduction: int) -> None:
    rng = random.Random(f"{objectives} {reduction}")
    for _ in range(3):
        stream = random_stream(rng, objectives, 25, 10)
        asha = build_asha(request_of("asha", reduction=reduction))
        got = [asha.decide(number=n, epoch=e, losses=losses, epochs=10) is Decision.CONTINUE for n, e, losses in stream]
        assert got == literal_asha(stream, reduction=reduction, first=1, epochs=10)
        assert 0 < sum(got) < len(got)


def test_observing_and_deciding_leave_the_same_rungs() -> None:
    stream = random_stream(random.Random(5), 2, 30, 10)
    live, replayed = build_asha(request_of("asha")), build_asha(request_of("asha"))
    for number, epoch, losses in stream[:-20]:
        live.decide(number=number, epoch=epoch, losses=losses, epochs=10)
        replayed.observe(number=number, epoch=epoch, losses=losses, epochs=10)
    for number, epoch, losses in stream[-20:]:
        ask = {"number": number, "epoch": epoch, "losses": losses, "epochs": 10}
        assert live.decide(**ask) == replayed.decide(**ask)


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
    expected = literal_asha(stream, reduction=3, first=1, epochs=9)
    assert [r.decision is Decision.CONTINUE for r in rows] == expected
    assert not all(expected)


def test_no_scheduler_stops_nothing(tmp_path: Path) -> None:
    with driving(study_of(budget={"trials": 3}), url_in(tmp_path)) as search:
        for _ in range(3):
            config = search.next_trial()
            assert {search.report(config.key, report_at(config, e)) for e in range(1, 10)} == {Decision.CONTINUE}


def test_unknown_options_are_refused() -> None:
    for name, build in (("asha", build_asha), ("forecast", build_forecast), ("none", build_none)):
        with pytest.raises(RequestError, match=f"scheduler {name}: unknown option 'a'; it takes none"):
            build(request_of(name, a=1))
