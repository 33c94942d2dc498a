"""Which trials are confirmed, once, whatever happens meanwhile."""

from __future__ import annotations

import math
from pathlib import Path

import moocore
import numpy as np
import pytest

from ablate.base.randomness import stream
from ablate.core.trial import CONFIRM_SEED_BASE, TrialConfig, TrialState
from ablate.ledger import TrialRecord
from ablate.tuning.stages.confirmation import FrontMember, spread
from support.searches import (
    ONE,
    accuracy,
    driving,
    notes,
    run_all,
    stored,
    study_of,
    url_in,
)


def front_by_definition(trials: list[TrialRecord], values: dict[int, tuple[float, float]]) -> set[int]:
    """Return the numbers of COMPLETE search trials that moocore finds non-dominated."""
    done = [t.key.number for t in trials if t.state is TrialState.COMPLETE and t.config.stage == "search"]
    points = np.array([[-values[n][0], values[n][1]] for n in done])
    return {n for n, keep in zip(done, moocore.is_nondominated(points), strict=True) if keep}


def test_the_confirmed_front_is_that_of_the_finished_trials(tmp_path: Path) -> None:
    study = study_of(scheduler={"name": "asha"}, budget={"trials": 25}, confirm={"replicates": 3})

    def value(config: TrialConfig, epoch: int) -> float:
        if config.key.number == 4 and config.stage == "search":
            return math.nan if epoch == 9 else 0.999
        return accuracy(config, 9) if epoch == 9 else 0.9 + accuracy(config, epoch) / 20  # stopped ones look best

    with driving(study, url_in(tmp_path)) as search:
        run_all(search, value)
        assert search.finished
        members = {m.config.key.number for m in search.front("digits")}
    trials = stored(tmp_path)
    assert {t.state for t in trials} == {TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL}
    values = {t.key.number: (accuracy(t.config, 9), float(t.params or 0)) for t in trials}
    confirmed = [t for t in trials if t.config.stage == "confirm"]
    assert members == {t.config.source for t in confirmed} == front_by_definition(trials, values)
    assert [t.key.number for t in trials] == list(range(len(trials)))
    for trial in confirmed:
        source = trials[trial.config.source or 0].config
        assert trial.config.seeds == tuple(CONFIRM_SEED_BASE + i for i in range(3))
        assert not set(trial.config.seeds) & set(source.seeds)
        assert trial.config.settings == source.settings
        assert (trial.state, trial.epochs_done) == (TrialState.COMPLETE, 9)
    assert [p["trial"] for _, p in notes(tmp_path, "test_opened")] == [25]
    assert [p for _, p in notes(tmp_path, "frozen")] == [
        {"search_trials": 25, "confirmed": [t.config.source for t in confirmed]}
    ]


@pytest.mark.services
def test_the_order_of_confirmation_is_keyed_and_does_not_favour_the_best(tmp_path: Path) -> None:
    """Ten equal draws over studies that differ in their seed alone: the best one stands at more places than the first.

    The order itself is that of the keyed stream, read here a second time.
    """
    places = []
    for seed in range(10):
        study = study_of(seed=seed, budget={"trials": 25}, confirm={"replicates": 1})
        (tmp_path / str(seed)).mkdir()
        with driving(study, url_in(tmp_path / str(seed))) as search:
            run_all(search)
            best = search.front("digits")[0].config.key.number
        sources = [t.config.source for t in stored(tmp_path / str(seed)) if t.config.stage == "confirm"]
        expected = np.array(sorted(sources))[stream(seed, "digits", 0, "confirmation").permutation(len(sources))]
        assert sources == expected.tolist()
        places.append(sources.index(best))
    assert len(set(places)) > 1


def test_a_broken_constraint_keeps_a_trial_off_the_front(tmp_path: Path) -> None:
    study = study_of(objectives=ONE, constraints=["val_loss >= 0.6"], budget={"trials": 12})
    with driving(study, url_in(tmp_path)) as search:
        configs = run_all(search)
        best = search.front("digits")
    kept = {c.key: accuracy(c, 9) for c in configs if 1 - accuracy(c, 9) >= 0.6}
    assert len(kept) < len(configs)
    assert [(m.config.key, m.values) for m in best] == [(max(kept, key=kept.__getitem__), (max(kept.values()),))]


def test_a_search_that_is_extended_confirms_only_what_is_new(tmp_path: Path) -> None:
    with driving(study_of(budget={"trials": 4}, confirm={"replicates": 2}), url_in(tmp_path)) as search:
        run_all(search)
    before = stored(tmp_path)
    with driving(study_of(budget={"trials": 12}, confirm={"replicates": 2}), url_in(tmp_path)) as search:
        run_all(search)
        assert search.finished
        front = {m.config.key.number for m in search.front("digits")}
    after = stored(tmp_path)
    assert [t.config for t in after[: len(before)]] == [t.config for t in before]
    assert sum(t.config.stage == "search" for t in after) == 12
    sources = [t.config.source for t in after if t.config.stage == "confirm"]
    assert len(sources) == len(set(sources))
    assert front <= set(sources)
    assert len(notes(tmp_path, "frozen")) == 2


def test_confirmation_trials_are_never_stopped(tmp_path: Path) -> None:
    study = study_of(objectives=ONE, scheduler={"name": "asha"}, budget={"trials": 5}, confirm={"replicates": 1})

    def value(config: TrialConfig, epoch: int) -> float:
        return 0.0 if config.stage == "confirm" else accuracy(config, epoch)

    with driving(study, url_in(tmp_path)) as search:
        run_all(search, value)
    last = stored(tmp_path)[-1]
    assert (last.config.stage, last.state, last.epochs_done) == ("confirm", TrialState.COMPLETE, 9)


def test_without_a_finished_trial_there_is_nothing_to_confirm(tmp_path: Path) -> None:
    with driving(study_of(budget={"trials": 2}, confirm={"replicates": 1}), url_in(tmp_path)) as search:
        for _ in range(2):
            search.fail(search.next_trial().key, "boom")
        assert search.next_trial() is None
        assert search.finished
    assert notes(tmp_path, "frozen") == [("digits", {"search_trials": 2, "confirmed": []})]


def test_top_spreads_over_the_front() -> None:
    study = study_of()
    config = TrialConfig.__new__(TrialConfig)
    values = [(0.9, 1e6), (0.89, 9.9e5), (0.88, 9.8e5), (0.5, 1e4), (0.1, 1e2)]
    members = [FrontMember(config=config, values=v) for v in values]
    assert [m.values for m in spread(study, members, 3)] == [(0.9, 1e6), (0.5, 1e4), (0.1, 1e2)]
    assert [m.values for m in spread(study, members, 1)] == [(0.9, 1e6)]
    assert spread(study, members, None) == spread(study, members, 5) == tuple(members)
