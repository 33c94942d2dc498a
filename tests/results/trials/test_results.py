"""The results of a study are read once: a page pools its seeds once, and two studies do not share what is computed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from ablate.results.report import front_table, write_report
from ablate.results.trials import results as results_module
from ablate.results.trials.results import Results, once
from support.page_reader import draw_nothing
from support.planted_study import make_study, plant


def test_a_page_pools_the_seeds_of_its_networks_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    draw_nothing(monkeypatch)
    calls: list[int] = []
    pooled = results_module.pooled

    def counting(trials: pl.DataFrame, reports: pl.DataFrame) -> Any:
        calls.append(trials.height)
        return pooled(trials, reports)

    monkeypatch.setattr(results_module, "pooled", counting)
    study = make_study(datasets=["digits", "mnist"])
    trials, reports = plant(study, trials=6)
    write_report(Results(study, trials, reports), tmp_path)
    assert calls == [trials.height]


def test_other_results_are_computed_anew() -> None:
    study = make_study()
    few, many = (Results(study, *plant(study, trials=count, confirmed=False)) for count in (1, 12))
    assert front_table(few).height == 1
    assert front_table(many).height > 1
    assert front_table(many) is front_table(many)


def test_nothing_is_a_value_too() -> None:
    calls: list[Results] = []
    study = make_study()
    given = Results(study, *plant(study, trials=1, confirmed=False))
    computed = once(calls.append)
    assert (computed(given), computed(given)) == (None, None)
    assert calls == [given]


def test_events_are_those_of_a_kind_on_the_data_set_in_their_order() -> None:
    found = [("frozen", "a"), ("code", "a"), ("frozen", "b"), ("frozen", None), ("plan", "a"), ("frozen", "a")]
    events: list[Any] = [SimpleNamespace(kind=kind, dataset=dataset) for kind, dataset in found]
    given = Results(make_study(), pl.DataFrame(), events=events)
    assert given.events_of("a", "frozen") == [events[0], events[5]]
