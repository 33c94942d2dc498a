"""Equal tuning of a comparison's rows: the same draws for all, the best of each, whatever dies and whoever is first."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ablate.base.randomness import stream
from ablate.core.trial import TUNE_SEED_BASE, Report, TrialConfig, TrialState
from ablate.engine.training.family import family
from ablate.study import Study
from ablate.study.tuning_seeds import is_tuned_alike
from ablate.tuning.stages.row_tuning import tuning_draws
from ablate.tuning.state.planned import planned_trials, tuning_trials
from support.fleet import Fleet
from support.searches import Value, accuracy, opened, report_at, run_all, run_trial, stored, study_of

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


def noisy(config: TrialConfig, epoch: int) -> tuple[float, ...]:
    """Return `planted` of each seed with separate noise, so that the seeds of a row have several winners."""
    rate, row = str(config.parameters[RATE]), str(config.variant)
    noise = (stream(0, "digits", seed, "noise", row, rate).standard_normal() for seed in config.seeds)
    return tuple(1 / (1 + math.exp(-planted(config, epoch) - 0.6 * float(each))) for each in noise)


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
        assert {config.seeds for config in configs} == {tuple(range(TUNE_SEED_BASE, TUNE_SEED_BASE + 3))}
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

    def value(config: TrialConfig, epoch: int) -> float | tuple[float, ...]:
        return math.nan if config.parameters[RATE] > 0.05 and epoch > 2 else noisy(config, epoch)

    fleets = [
        Fleet(study, tmp_path / f"{slots}-{dying}", slots=slots, seed=slots, dying=dying, value=value)
        for slots, dying in ((1, False), (3, True), (8, True), (8, False))
    ]
    found = [fleet.run() for fleet in fleets]
    assert all(other == found[0] for other in found)
    assert sum(fleet.kills for fleet in fleets) > 0
    states = {(config["stage"], state) for config, state, *_ in found[0]["trials"]}
    assert states >= {("tune", "FAIL"), ("tune", "COMPLETE"), ("search", "COMPLETE")}
    assert any(config["stage"] == "search" and config["source"] is not None for config, *_ in found[0]["trials"])


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


@pytest.mark.parametrize("bound", [None, 0.5, 9.0])
def test_what_breaks_a_bound_wins_only_where_nothing_keeps_it(tmp_path: Path, bound: float | None) -> None:
    """Planted: `val_cost` falls with the accuracy, by another factor on each seed; each has to keep the bound."""
    bounds = [] if bound is None else [{"metric": "val_cost", "op": ">=", "bound": bound}]
    study = tuned_study(constraints=bounds, replicates=3)

    def cost(config: TrialConfig, seed: int) -> float:
        return (1 + seed % 3) * (1 - planted(config, 3))

    def costly(config: TrialConfig, epoch: int) -> Report:
        report = report_at(config, epoch, planted)
        seeds = zip(report.metrics, config.seeds, strict=True)
        return replace(report, metrics=tuple({**m, "val_cost": cost(config, seed)} for m, seed in seeds))

    with opened(study, tmp_path) as (search, _, _):
        done = []
        while (config := search.next_trial()) is not None:
            for epoch in range(1, config.epochs + 1):
                search.report(config.key, costly(config, epoch))
            done.append(config)
        assert search.finished
    for row, tried in by_row([config for config in done if config.stage == "tune"]).items():
        for seed in range(3):

            def rank(config: TrialConfig, tune_seed: int = TUNE_SEED_BASE + seed) -> tuple[float, float]:
                lack = 0.0 if bound is None else max(bound - cost(config, tune_seed), 0.0)
                return lack, -planted(config, 3)

            best = min(tried, key=rank)
            (final,) = [c for c in by_row(done)[row] if c.stage == "search" and seed in c.seeds]
            assert final.parameters == best.parameters


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


def winners(done: list[TrialConfig], row: tuple[str | None, int], value: Value, seed: int) -> TrialConfig:
    """Return the tuning trial with the best value of `row` on one tuning seed, by a second implementation."""
    tried = [config for config in by_row(done)[row] if config.stage == "tune" and seed in config.seeds]
    return max(tried, key=lambda config: value(config, 3)[config.seeds.index(seed)])  # type: ignore[index]


@pytest.mark.parametrize(("tuning_seeds", "seeds"), [(None, 5), (1, 5), (2, 5), (5, 5)])
def test_each_seed_is_trained_with_the_values_that_won_on_its_tuning_seed_alone(
    tmp_path: Path, tuning_seeds: int | None, seeds: int
) -> None:
    tune = {"trials": 6, RATE: {"float": [1e-4, 1e-1], "log": True}}
    tune |= {} if tuning_seeds is None else {"replicates": tuning_seeds}
    study = tuned_study(tune=tune, replicates=seeds)
    with opened(study, tmp_path) as (search, _, _):
        done = run_all(search, noisy)
        assert search.finished
    several = 0
    for row, configs in by_row([config for config in done if config.stage == "search"]).items():
        assert sorted(seed for config in configs for seed in config.seeds) == list(range(seeds)), "each once"
        assert [config.source for config in configs] == [None] + [configs[0].key.number] * (len(configs) - 1)
        assert len({config.parameters[RATE] for config in configs}) == len(configs), "a winner is one trial"
        several += len(configs) > 1
        for config in configs:
            for seed in config.seeds:
                best = winners(done, row, noisy, TUNE_SEED_BASE + seed % (tuning_seeds or seeds))
                assert (config.settings, config.parameters) == (best.settings, best.parameters)
    assert several == 0 if tuning_seeds == 1 else several > 0


@pytest.mark.parametrize(("before", "after"), [((None, 3), (None, 5)), ((3, 3), (5, 5)), ((2, 3), (2, 5))])
def test_more_seeds_later_add_tuning_seeds_and_change_nothing(
    tmp_path: Path, before: tuple[int | None, int], after: tuple[int | None, int]
) -> None:
    """The oracle is the study that has all its seeds from the start."""

    def of(tuning_seeds: int | None, seeds: int) -> Study:
        tune = {"trials": 6, RATE: {"float": [1e-4, 1e-1], "log": True}}
        return tuned_study(
            tune=tune | ({} if tuning_seeds is None else {"replicates": tuning_seeds}),
            replicates=seeds,
            variants=[{"name": n, "model": {"width": 8}} for n in BEST],
            compare={"baseline": "wide", "placebo": True},
        )

    def value(config: TrialConfig, epoch: int) -> tuple[float, ...]:
        return noisy(replace(config, variant="wide" if config.variant == "placebo" else config.variant), epoch)

    assert is_tuned_alike(of(*before), of(*after))
    assert of(*before).fingerprint() == of(*after).fingerprint()
    (tmp_path / "whole").mkdir()
    with opened(of(*after), tmp_path / "whole") as (search, _, _):
        whole = run_all(search, value)
    with opened(of(*before), tmp_path) as (search, _, _):
        first = run_all(search, value)
    with opened(of(*after), tmp_path) as (search, _, _):
        assert not search.finished
        further = run_all(search, value)
        assert search.finished
        assert search.next_trial() is None
    assert [c.stage for c in further] == sorted((c.stage for c in further), reverse=True), "tuning first"

    def trained(done: list[TrialConfig], stage: str) -> list[tuple[Any, ...]]:
        every = [c for c in done if c.stage == stage]
        return sorted((str(c.variant), str(sorted(c.parameters.items())), seed) for c in every for seed in c.seeds)

    for stage in ("tune", "search"):
        assert trained([*first, *further], stage) == trained(whole, stage)
    assert all(config.source is not None for config in further)


def test_a_seed_that_diverges_in_the_tuning_costs_its_own_row_seed_only(tmp_path: Path) -> None:
    """The best rate diverges on the first tuning seed; every rate does on the last one, for one row."""

    def value(config: TrialConfig, epoch: int) -> tuple[float, ...]:
        def score(seed: int) -> float:
            first = (
                seed == TUNE_SEED_BASE and abs(math.log10(config.parameters[RATE]) - BEST[str(config.variant)]) < 0.5
            )
            return math.nan if first or (seed == TUNE_SEED_BASE + 2 and config.variant == "wide") else 0.0

        return tuple(planted(config, epoch) + score(seed) for seed in config.seeds)

    study = tuned_study(tune={"trials": 6, RATE: {"float": [1e-4, 1e-1], "log": True}})
    with opened(study, tmp_path) as (search, _, _):
        done = run_all(search, value)
        assert search.finished
    assert {record.state for record in stored(tmp_path)} == {TrialState.COMPLETE}
    for row, configs in by_row([config for config in done if config.stage == "search"]).items():
        seeds = sorted(config.seeds for config in configs)
        assert seeds == ([(0,), (1,)] if row[0] == "wide" else [(0,), (1, 2)])


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


def test_a_space_with_fewer_points_than_it_seems_to_have_is_tried_as_far_as_it_goes() -> None:
    low = 0.001
    study = tuned_study(tune={"trials": 5, RATE: {"float": [low, math.nextafter(low, 1.0)]}})
    assert 1 <= len(tuning_draws(study, "digits")) <= 2
