"""Equal tuning of a comparison's rows: the same draws for all, the best of each, whatever dies and whoever is first."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from ablate.study import Study
from ablate.training.family import family
from ablate.trial import TUNE_SEED_BASE, TrialConfig, TrialState
from ablate.tuning.planned import planned_trials, tuning_trials
from ablate.tuning.row_tuning import tuning_draws
from support.fleet import Fleet
from support.searches import accuracy, opened, report_at, run_all, run_trial, stored, study_of

RATE = "training.learning_rate"
BEST = {"narrow": -3.0, "middle": -2.0, "wide": -1.5}  # log10 of the rate at which each row is best


def tuned_study(**changes: Any) -> Study:
    fields: dict[str, Any] = {
        "model": {"depth": {"choices": [1, 2]}},
        "training": {"epochs": 3},
        "variants": [{"name": n, "model": {"width": w}} for n, w in (("narrow", 8), ("middle", 16), ("wide", 32))],
        "tune": {
            "trials": 6,
            RATE: {"float": [1e-4, 1e-1], "log": True},
            "training.weight_decay": {"choices": [0, 0.1]},
        },
        "sampler": {"name": "design"},
        "budget": {"trials": 1_000_000},
        "compare": {"baseline": "wide"},
        "replicates": 3,
    }
    return study_of(**(fields | changes))


def planted(config: TrialConfig, epoch: int) -> float:
    """Return an accuracy that is highest at a rate of each row's own."""
    off = math.log10(family(config).training.learning_rate) - BEST[str(config.variant)]
    return math.exp(-(off**2)) * (1 - math.exp(-epoch))


def by_row(configs: list[TrialConfig]) -> dict[tuple[str | None, int], list[TrialConfig]]:
    found = defaultdict(list)
    for config in configs:
        found[config.variant, family(config).model.depth].append(config)
    return found


def test_every_row_tries_the_same_values_and_is_trained_with_its_best(tmp_path: Path) -> None:
    study = tuned_study()
    with opened(study, tmp_path) as (search, _, _):
        done = run_all(search, planted)
        assert search.finished
    tuning = by_row([config for config in done if config.stage == "tune"])
    rows = by_row([config for config in done if config.stage == "search"])
    draws = tuning_draws(study, "digits")
    assert len(draws) == 6
    assert set(tuning) == set(rows) == {(name, depth) for name in BEST for depth in (1, 2)}
    for row, configs in tuning.items():
        tried = [{name: config.parameters[name] for name in draws[0]} for config in configs]
        assert tried == list(draws)
        assert {config.seeds for config in configs} == {(TUNE_SEED_BASE,)}
        best = max(configs, key=lambda config: planted(config, 3))
        (final,) = rows[row]
        assert (final.settings, final.parameters) == (best.settings, best.parameters)
        assert final.seeds == (0, 1, 2)
    assert len({final.parameters[RATE] for (final,) in rows.values()}) == 3, "the rows differ in their best rate"
    first_row = min(config.key.number for config in done if config.stage == "search")
    assert all(config.key.number < first_row for config in done if config.stage == "tune")
    assert (planned_trials(study), tuning_trials(study)) == ({"digits": 6}, {"digits": 36})


@pytest.mark.services
def test_the_ledger_is_the_same_at_any_concurrency_and_wherever_a_driver_dies(tmp_path: Path) -> None:
    """Rates above 0.05 diverge, so that some tuning trials fail."""
    study = tuned_study(tune={"trials": 6, RATE: {"float": [1e-3, 1.0], "log": True}})
    fleets = [
        Fleet(study, tmp_path / f"{slots}-{dying}", slots=slots, seed=slots, dying=dying)
        for slots, dying in ((1, False), (3, True), (8, True), (8, False))
    ]
    found = [fleet.run() for fleet in fleets]
    assert all(other == found[0] for other in found)
    assert sum(fleet.kills for fleet in fleets) > 0
    states = {(config["stage"], state) for config, state, *_ in found[0]["trials"]}
    assert states >= {("tune", "FAIL"), ("tune", "COMPLETE"), ("search", "COMPLETE")}


def test_no_row_begins_before_the_last_tuning_trial_has_ended(tmp_path: Path) -> None:
    with opened(tuned_study(), tmp_path) as (search, _, _):
        out = [config for _ in range(36) if (config := search.next_trial()) is not None]
        assert [config.stage for config in out] == ["tune"] * 36
        for config in out[:-1]:
            run_trial(search, config)
            assert search.next_trial() is None
            assert not search.finished
        run_trial(search, out[-1])
        following = search.next_trial()
        assert following is not None
        assert following.stage == "search"


@pytest.mark.parametrize(("metric", "better"), [("val_accuracy", max), ("val_loss", min)])
def test_a_failed_trial_never_wins_and_the_earliest_of_equal_ones_does(
    tmp_path: Path, metric: str, better: Any
) -> None:
    """The accuracy is the same for all, the loss too; the first draw diverges."""
    study = tuned_study(compare={"baseline": "wide", "metrics": [metric]})
    draws = tuning_draws(study, "digits")

    def value(config: TrialConfig, epoch: int) -> float:
        return math.nan if config.parameters[RATE] == draws[0][RATE] else 0.5

    with opened(study, tmp_path) as (search, _, _):
        done = run_all(search, value)
    assert {config.parameters[RATE] for config in done if config.stage == "search"} == {draws[1][RATE]}


def test_the_better_direction_is_that_of_the_metric(tmp_path: Path) -> None:
    study = tuned_study(compare={"baseline": "wide", "metrics": ["val_loss"]})  # the loss is 1 - accuracy
    with opened(study, tmp_path) as (search, _, _):
        done = run_all(search, accuracy)
    rates = {draw[RATE] for draw in tuning_draws(study, "digits")}
    best = min(rates, key=lambda rate: abs(math.log10(rate) + 2))
    assert {config.parameters[RATE] for config in done if config.stage == "search"} == {best}


def test_a_row_whose_tuning_failed_is_not_trained_and_the_others_are(tmp_path: Path) -> None:
    def value(config: TrialConfig, epoch: int) -> float:
        return math.nan if config.variant == "narrow" else planted(config, epoch)

    with opened(tuned_study(), tmp_path) as (search, _, _):
        done = run_all(search, value)
        assert search.finished
    assert {config.variant for config in done if config.stage == "search"} == {"middle", "wide"}
    failed = [record for record in stored(tmp_path) if record.state is TrialState.FAIL]
    assert {(record.config.stage, record.config.variant) for record in failed} == {("tune", "narrow")}


def test_more_seeds_later_use_the_same_best_values(tmp_path: Path) -> None:
    with opened(tuned_study(), tmp_path) as (search, _, _):
        before = by_row([c for c in run_all(search, planted) if c.stage == "search"])
    with opened(tuned_study(replicates=5), tmp_path) as (search, _, _):
        after = [c for c in run_all(search, planted) if c.stage == "search"]
        assert search.finished
    assert [config.seeds for config in after] == [(3, 4)] * 6
    for row, (config,) in by_row(after).items():
        assert config.settings == before[row][0].settings
        assert config.source == before[row][0].key.number


def test_a_value_that_a_row_cannot_have_is_not_tried_there(tmp_path: Path) -> None:
    variants = [
        {"name": "free", "model": {"width": 8}},
        {"name": "wide", "model": {"similarity": "collapsed", "width": 8}},
    ]
    tune = {"trials": 4, "model.heads": {"choices": [1, 2, 4]}, "training": {"label_smoothing": {"choices": [0, 0.1]}}}
    study = tuned_study(variants=variants, tune={**tune, "trials": 6}, model={})
    assert len(tuning_draws(study, "digits")) == 6, "a small space is tried whole"
    with opened(study, tmp_path) as (search, _, _):
        done = run_all(search, accuracy)
    tried = {row: len(configs) for row, configs in by_row([c for c in done if c.stage == "tune"]).items()}
    assert sorted((name, count) for (name, _), count in tried.items()) == [("free", 6), ("wide", 2)]
    assert len([config for config in done if config.stage == "search"]) == 2


def test_draws_are_spread_over_the_scale_and_belong_to_seed_and_data_set() -> None:
    fields: dict[str, Any] = {
        "datasets": {"digits": {}, "mnist": {}},
        "tune": {"trials": 16, RATE: {"float": [1e-4, 1e-1], "log": True}},
    }
    study = tuned_study(**fields)
    rates = [draw[RATE] for draw in tuning_draws(study, "digits")]
    cells = sorted(int((math.log10(rate) + 4) / 3 * 16) for rate in rates)
    assert cells == list(range(16)), "one point in each sixteenth of the log scale: a (0, 4, 1)-net"
    assert rates != [draw[RATE] for draw in tuning_draws(study, "mnist")]
    assert rates != [draw[RATE] for draw in tuning_draws(tuned_study(**fields, seed=4), "digits")]


def test_a_tuning_trial_is_never_stopped_early_and_reports_no_test_metric(tmp_path: Path) -> None:
    with opened(tuned_study(), tmp_path) as (search, _, _):
        config = search.next_trial()
        assert config is not None
        report = report_at(config, 3, planted)
        assert not any(name.startswith("test_") for name in report.metrics[0])
        assert run_trial(search, config, planted).value == "CONTINUE"


def test_a_tuning_trial_has_the_seeds_that_the_file_asks_for(tmp_path: Path) -> None:
    study = tuned_study(tune={"trials": 2, "replicates": 3, RATE: {"float": [1e-4, 1e-1]}}, model={})
    with opened(study, tmp_path) as (search, _, _):
        done = run_all(search, planted)
    tuning = {config.seeds for config in done if config.stage == "tune"}
    assert tuning == {(TUNE_SEED_BASE, TUNE_SEED_BASE + 1, TUNE_SEED_BASE + 2)}


def test_a_space_with_fewer_points_than_it_seems_to_have_is_tried_as_far_as_it_goes() -> None:
    low = 0.001
    study = tuned_study(tune={"trials": 5, RATE: {"float": [low, math.nextafter(low, 1.0)]}})
    assert 1 <= len(tuning_draws(study, "digits")) <= 2
