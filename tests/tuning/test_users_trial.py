"""The trial with the user's settings: first, trained to its end, and confirmed on the seeds of the best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ablate.core.trial import Decision, TrialConfig, TrialState
from ablate.ledger.requests import PRUNE
from ablate.study import Study
from support.extended import seeds_of
from support.searches import ONE, TWO, opened, run_all, run_trial, search_of, stored, study_of

WIDTHS = {"int": [8, 64], "step": 8}
ASHA = {"name": "asha", "reduction": 2}
CONFIRM = {"replicates": 2}


def study(default: int | None = 8, **changes: Any) -> Study:
    width = WIDTHS | ({} if default is None else {"default": default})
    model = {"width": width, "depth": {"int": [1, 4], "default": 1}}
    fields = {"model": model, "objectives": ONE, "scheduler": ASHA, "confirm": CONFIRM}
    return study_of(**(fields | {"training": {"epochs": 9, "learning_rate": 0.01}} | changes))


def value(config: TrialConfig, epoch: int) -> float:
    """The wider, the better: a width of 8 is the worst of all."""
    return config.parameters["model.width"] / 100 * epoch / config.epochs + config.key.number * 1e-6


def numbers(folder: Path) -> tuple[list[int], dict[int | None, list[tuple[int, ...]]]]:
    trials = stored(folder)
    return [t.config.key.number for t in trials if t.state is TrialState.PRUNED], seeds_of(trials)


def test_the_worst_settings_are_trained_to_the_end_and_confirmed_if_they_are_the_users(tmp_path: Path) -> None:
    with opened(study(), tmp_path) as (search, _, _):
        best = max(run_all(search, value), key=lambda config: value(config, 9)).key.number
        assert [t.number for t in search._subsearches["digits"].search_trials()
                if search._subsearches["digits"].is_users(t)] == [0]  # fmt: skip
    stopped, confirmed = numbers(tmp_path)
    assert 0 not in stopped
    assert stopped, "others are stopped"
    assert dict(stored(tmp_path)[0].config.parameters) == {"model.width": 8, "model.depth": 1}
    assert set(confirmed) > {0}
    assert set(map(str, confirmed.values())) == {"[(0, 1)]"}, "the same fresh seeds"
    assert best in confirmed or len(confirmed) == 2


def test_without_a_default_nothing_is_protected(tmp_path: Path) -> None:
    worst = study_of(
        model={"width": WIDTHS}, objectives=ONE, scheduler=ASHA, confirm=CONFIRM, start=[],
        training={"epochs": 9, "learning_rate": 0.01}, budget={"trials": 8},
    )  # fmt: skip
    with opened(worst, tmp_path) as (search, _, _):
        run_all(search, value)
    _, confirmed = numbers(tmp_path)
    assert len(confirmed) == 1


def test_of_several_first_ones_only_the_first_is_the_users(tmp_path: Path) -> None:
    starts = [{"model.width": 16}, {"model.width": 24}, {"model.width": 32}]
    with opened(study(start=starts), tmp_path) as (search, _, _):
        configs = run_all(search, value)
    assert [c.parameters["model.width"] for c in configs[:3]] == [16, 24, 32]
    assert {c.parameters["model.depth"] for c in configs[:3]} == {1}
    stopped, confirmed = numbers(tmp_path)
    assert 0 not in stopped
    assert {0} < set(confirmed)
    assert not {1, 2} & set(confirmed)


@pytest.mark.parametrize("top", [1, 2])
def test_top_counts_the_front_alone(tmp_path: Path, top: int) -> None:
    with opened(study(objectives=TWO, confirm=CONFIRM | {"top": top}), tmp_path) as (search, _, _):
        run_all(search, lambda config, epoch: 0.9 - value(config, epoch) if config.key.number else 0.01)
    _, confirmed = numbers(tmp_path)
    assert 0 in confirmed
    assert len(confirmed) <= top + 1


def test_each_data_set_has_its_own(tmp_path: Path) -> None:
    both = study(datasets={"digits": {}, "mnist": {}}, budget={"trials": 5})
    with opened(both, tmp_path) as (search, _, _):
        run_all(search, value)
    users = {t.config.key.dataset for t in stored(tmp_path) if t.config.stage == "confirm" and t.config.source == 0}
    assert users == {"digits", "mnist"}


def test_a_user_may_still_stop_it_and_then_it_is_not_confirmed(tmp_path: Path) -> None:
    with opened(study(), tmp_path) as (search, _, ledger):
        config = search.next_trial()
        assert config is not None
        ledger.request("s", {"command": PRUNE, "message": "prune", "trial": 0}, dataset="digits")
        assert run_trial(search, config, value) is Decision.STOP
        run_all(search, value)
        assert search.finished
    stopped, confirmed = numbers(tmp_path)
    assert 0 in stopped
    assert 0 not in confirmed


def test_a_next_driver_knows_it(tmp_path: Path) -> None:
    with opened(study(), tmp_path) as (search, writer, ledger):
        for _ in range(4):
            config = search.next_trial()
        assert config is not None
        again = search_of(study(), writer, ledger)
        assert [t.number for t in again._subsearches["digits"].trials.values()
                if again._subsearches["digits"].is_users(t)] == [0]  # fmt: skip
        run_all(again, value)
    stopped, confirmed = numbers(tmp_path)
    assert 0 not in stopped
    assert 0 in confirmed
