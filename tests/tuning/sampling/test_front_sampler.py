"""The sampler `front`: its parts against second implementations, and what it does with what is known beforehand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import moocore
import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from ablate.core.config import DatasetFacts
from ablate.core.trial import TrialConfig, TrialState
from ablate.engine.models.model_config import InputShape, ModelConfig
from ablate.engine.models.size import NetworkSize
from ablate.engine.training.family import FamilySettings, family
from ablate.study import Study, parse_study
from ablate.tuning.sampling import surrogate
from ablate.tuning.sampling.candidates import Candidates, _at
from ablate.tuning.sampling.front_sampler import _Learned, _levels, _Pool
from ablate.tuning.sampling.hypervolume_gain import Expected, expected_gain
from ablate.tuning.sampling.search_space import SearchSpace, distribution_of, inner_at_share
from ablate.tuning.sampling.suggester import Suggester
from ablate.tuning.sampling.surrogate import AT_ONCE, LEAST_NOISE, Prediction, Surrogate, fit, prior_mode
from ablate.tuning.state.trial_progress import TrialProgress
from support.ledgers import SHAPE
from support.searches import TWO, driving, report_at, run_all, run_trial, size_of, stored, study_of, url_in
from support.trials import measure_by

THREE = [*TWO, {"metric": "flops", "direction": "minimize", "log": True}]


def front_of(rng: np.random.Generator, objectives: int, points: int = 30) -> np.ndarray:
    """Return up to ten points of a random front, [K, objectives], the learned losses above 0."""
    drawn = rng.random((points, objectives)) + 0.1
    kept = np.asarray(moocore.is_nondominated(drawn)) if objectives > 1 else [drawn[:, 0].argmin()]
    return drawn[kept][:10]


def volume_of(points: np.ndarray, reference: np.ndarray) -> float:
    """Return the hypervolume of points, or with one objective how far the best is below the reference."""
    if points.shape[1] == 1:
        return float(max(reference[0] - points.min(initial=math.inf), 0.0))
    inside = points[(points < reference).all(axis=1)]
    return float(moocore.hypervolume(inside, ref=reference)) if len(inside) else 0.0


MIXTURES = ["u", "ku", "uu", "kku", "kuu", "uuu", "kkku"]  # k: known, u: uncertain


def losses_of(kinds: str, known: np.ndarray, mean: np.ndarray, deviation: float) -> list[Expected]:
    """Return losses by objective: the columns of `known`, or of exp(`mean`) with a deviation."""
    return [
        Expected(known[:, place]) if kind == "k" else Expected(mean[:, place], np.full(len(mean), deviation))
        for place, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize("kinds", ["ku", "uu", "kku"])
def test_points_beyond_the_reference_count_for_nothing(kinds: str) -> None:
    reference = np.ones(len(kinds))
    asked = losses_of(kinds, np.full((1, len(kinds)), 0.5), np.log(np.full((1, len(kinds)), 0.5)), 0.1)
    beyond = np.column_stack([np.full((3, len(kinds) - 1), 2.0), np.full(3, 0.1)])
    gains = [expected_gain(asked, front=front, reference=reference) for front in (beyond, beyond[:0])]
    assert gains[0] == gains[1] > 0


@pytest.mark.parametrize("kinds", MIXTURES)
@pytest.mark.parametrize("seed", range(3))
def test_the_gain_of_certain_losses_is_the_difference_of_hypervolumes(kinds: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    front, reference = front_of(rng, len(kinds)), np.full(len(kinds), 1.0)
    values = 1.2 * rng.random((40, len(kinds))) + 1e-3
    gains = expected_gain(losses_of(kinds, values, np.log(values), 1e-9), front=front, reference=reference)
    whole = volume_of(front, reference)
    for value, gain in zip(values, gains, strict=True):
        assert gain == pytest.approx(volume_of(np.vstack([front, value]), reference) - whole, abs=1e-7)


@pytest.mark.parametrize("kinds", ["u", "ku", "uu", "kuu", "uuu"])
def test_the_expected_gain_is_the_mean_over_the_losses(kinds: str) -> None:
    """The oracle averages hypervolumes over 4,000 draws of the losses; four standard errors."""
    rng = np.random.default_rng(len(kinds))
    front, reference = 0.2 + front_of(rng, len(kinds)), np.full(len(kinds), 1.4)
    whole = volume_of(front, reference)
    learned = np.array([kind == "u" for kind in kinds])
    for _ in range(4):
        known, mean = rng.random((1, len(kinds))), np.log(rng.random((1, len(kinds))) * 0.5 + 0.05)
        drawn = np.exp(mean + 0.5 * rng.standard_normal((4000, len(kinds))))
        points = np.where(learned, drawn, known)
        gains = np.array([volume_of(np.vstack([front, point]), reference) for point in points]) - whole
        found = expected_gain(losses_of(kinds, known, mean, 0.5), front=front, reference=reference)
        assert abs(found[0] - gains.mean()) <= 4 * gains.std() / math.sqrt(len(drawn)) + 1e-9


def test_a_long_front_of_two_costs_is_thinned_and_ranks_candidates_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    costs = rng.random((200, 2))
    given = {"front": np.column_stack([costs, 2.05 - costs.sum(axis=1)]), "reference": np.full(3, 2.1)}
    asked = losses_of("kku", rng.random((50, 3)), np.log(1.5 * rng.random((50, 3)) + 0.1), 0.2)
    thinned = expected_gain(asked, **given)
    monkeypatch.setattr("ablate.tuning.sampling.hypervolume_gain.CELLS", 10**6)
    exact = expected_gain(asked, **given)
    assert (thinned >= exact - 1e-12).all()
    assert np.corrcoef(thinned.argsort().argsort(), exact.argsort().argsort())[0, 1] > 0.98


def some_values(rng: np.random.Generator, count: int = 40) -> tuple[np.ndarray, np.ndarray]:
    places = rng.random((count, 3))
    return places, np.sin(4 * places[:, 0]) + places[:, 1] ** 2 + 0.1 * rng.standard_normal(count)


def test_the_process_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    places, values = some_values(rng)
    scales, signal, noise = np.array([0.3, 0.8, 2.0]), 1.7, 0.05
    kernel = ConstantKernel(signal) * Matern(scales, nu=2.5) + WhiteKernel(noise + LEAST_NOISE)
    reference = GaussianProcessRegressor(kernel, optimizer=None, alpha=0.0).fit(places, values)
    parameters = np.log([*scales, signal, noise])
    ours = Surrogate.of(places, values, np.arange(3), parameters)
    asked = rng.random((2 * AT_ONCE + 50, 3))
    mean, deviation = ours.predict(asked)
    assert ours.mean(asked) == pytest.approx(mean, abs=1e-12)
    expected, with_noise = reference.predict(asked, return_std=True)
    assert mean == pytest.approx(expected, abs=1e-9)
    assert deviation**2 == pytest.approx(with_noise**2 - noise - LEAST_NOISE, abs=1e-8)
    shifted = parameters + 0.1
    difference = [
        surrogate._objective(p, surrogate.square_distances(places, np.arange(3)), values, prior_mode(np.arange(3)))[0]
        for p in (parameters, shifted)
    ]
    likelihoods = [
        reference.log_marginal_likelihood(np.log([signal, *scales, noise + LEAST_NOISE]) + s) for s in (0, 0.1)
    ]
    deviations = np.array([1.0, 1.0, 1.0, 1.0, 1.5])
    priors = [(((p - prior_mode(np.arange(3))) / deviations) ** 2).sum() / 2 for p in (parameters, shifted)]
    assert difference[1] - difference[0] == pytest.approx(
        likelihoods[0] - likelihoods[1] + priors[1] - priors[0], abs=1e-4
    )


def test_the_gradient_is_that_of_finite_differences() -> None:
    rng = np.random.default_rng(1)
    places, values = some_values(rng)
    groups = np.array([0, 1, 1])  # two coordinates share a length scale
    distances = surrogate.square_distances(places, groups)
    mode = prior_mode(groups)
    for _ in range(5):
        at = mode + rng.standard_normal(4)
        steps = 1e-6 * np.eye(4)
        slopes = [
            (
                surrogate._objective(at + s, distances, values, mode)[0]
                - surrogate._objective(at - s, distances, values, mode)[0]
            )
            / 2e-6
            for s in steps
        ]
        assert surrogate._objective(at, distances, values, mode)[1] == pytest.approx(slopes, rel=1e-4, abs=1e-5)
    found = fit(distances, values, mode)
    assert (
        surrogate._objective(found, distances, values, mode)[0] < surrogate._objective(mode, distances, values, mode)[0]
    )


def test_candidates_are_configurations_of_the_space() -> None:
    study = study_of()
    space = Candidates(dimensions=SearchSpace.of(study.space_for("digits")))
    rng = np.random.default_rng(0)
    drawn = space.placed(space.draw(rng, 300), {})
    mutated = space.placed(space.mutate(rng, drawn), {})
    heads = space.names.index("model.heads")
    assert {bool(found) for found in np.isnan(drawn[:, heads])} == {True, False}
    for rows in (drawn, mutated):
        given = [space.values(row) for row in rows]
        assert all(study.space.contains(space.dimensions.decode(values)) for values in given)
        np.testing.assert_array_equal(space.rows(given), rows)
    same = (drawn == mutated) | (np.isnan(drawn) & np.isnan(mutated))
    whole = [
        place
        for place, own in enumerate(space.dimensions.distributions.values())
        if not isinstance(own, FloatDistribution)
    ]
    assert 0.1 < 1 - same[:, whole].mean() < 0.4
    fixed = {"model.similarity": 2, "training.weight_decay": 0.05}  # collapsed: no heads
    for row in space.placed(space.draw(rng, 20), fixed):
        assert fixed.items() <= space.values(row).items()
        assert "model.heads" not in space.values(row)


def test_draws_are_those_of_the_ranges_and_coordinates_their_inverse() -> None:
    ranges = study_of().space.ranges
    shares = np.linspace(0, 0.999, 200)
    for spec in ranges.values():
        assert _at(distribution_of(spec), shares) == pytest.approx([inner_at_share(spec, s) for s in shares])
    space = Candidates(dimensions=SearchSpace.of(study_of().space_for("digits")))
    rows = space.placed(space.draw(np.random.default_rng(0), 50), {})
    found = space.coordinates(rows)
    assert found.shape[1] == len(space.groups)
    assert (found >= 0).all()
    assert (found <= 1).all()
    for place, (name, own) in enumerate(space.dimensions.distributions.items()):
        if isinstance(own, CategoricalDistribution) and not ranges[name].when:
            each = found[:, space.groups == place]
            one, other = (each[rows[:, place] == choice][0] for choice in (0, 1))
            assert np.linalg.norm(one - other) == pytest.approx(1.0)


def front_study(**changes: Any) -> Study:
    """Return a study with the sampler `front`, five random trials first."""
    return study_of(**({"sampler": {"startup_trials": 5}, "budget": {"trials": 25}} | changes))


def planted(config: TrialConfig, epoch: int) -> float:
    """Return an accuracy that rises with the logarithm of the size and falls off around a planted configuration."""
    size = size_of(family(config).model, SHAPE).params
    off = (math.log10(family(config).training.learning_rate) + 2) ** 2 + 0.5 * (
        family(config).model.similarity != "shared"
    )
    return math.exp(-0.4 * off) * math.log10(size) / 6


def volume(folder: Path, sampler: str, seed: int, objectives: Any) -> float:
    """Return the hypervolume that a search finds of the planted accuracy against sizes."""
    folder.mkdir(parents=True)
    asked = {"name": sampler, "startup_trials": 5}
    with driving(front_study(sampler=asked, seed=seed, objectives=objectives), url_in(folder)) as search:
        run_all(search, planted)
    sizes = [[t.params, t.flops][: len(objectives) - 1] for t in stored(folder)]
    points = np.column_stack([[1 - planted(t.config, 9) for t in stored(folder)], np.log10(sizes)])
    return float(moocore.hypervolume(points, ref=np.array([1.0, *[6.0] * (len(objectives) - 1)])))


@pytest.mark.parametrize("objectives", [TWO, THREE], ids=["two", "three"])
def test_it_finds_more_of_a_planted_front_than_random_draws(tmp_path: Path, objectives: Any) -> None:
    """Without reference points, which most study files do not give."""
    found = {
        name: [volume(tmp_path / str(name) / str(seed), name, seed, objectives) for seed in range(3)]
        for name in ("front", "random")
    }
    assert np.mean(found["front"]) > 1.02 * np.mean(found["random"])


def test_the_best_learning_rate_is_looked_for_where_all_networks_have_one_size(tmp_path: Path) -> None:
    rates = {"epochs": 1, "learning_rate": {"float": [1e-5, 1e-1], "log": True}}
    study = front_study(model={"width": 16}, training=rates, objectives=[{**o, "reference": None} for o in TWO])
    with driving(study, url_in(tmp_path)) as search:
        configs = run_all(search, planted)
    off = [abs(math.log10(family(c).training.learning_rate) + 2) for c in configs]
    assert len(configs) == 25
    assert np.mean(off[8:]) < 0.8  # 1.25 of random draws


def test_a_bound_on_size_refuses_no_proposal_and_given_values_are_kept(tmp_path: Path) -> None:
    """Bounds are a filter of the candidates, and values that are given are part of each candidate."""
    study = front_study(constraints=["params <= 20000"], start=[{"model.width": 48}], sampler={"startup_trials": 3})
    with driving(study, url_in(tmp_path)) as search:
        run_all(search)
    trials = stored(tmp_path)
    assert len(trials) == 25
    assert trials[0].config.parameters["model.width"] == 48
    assert all((t.params or 0) <= 20_000 for t in trials)
    assert [t.sampler_state["attempts"] for t in trials[4:]] == [1] * 21
    drawn = [study_of(seed=s).settings_of("digits", t.config.parameters) for s, t in enumerate(trials)]
    assert len({d.model_dump_json() for d in drawn}) == 25


def test_a_learned_bound_is_learned(tmp_path: Path) -> None:
    """The loss asks for a high learning rate, the bound on train_share for one below 1e-2."""
    rates = {"epochs": 1, "learning_rate": {"float": [1e-4, 1e-1], "log": True}}
    model = {"width": {"int": [8, 64], "step": 8}}
    study = front_study(model=model, training=rates, constraints=["train_share >= 0.5"])

    def rising(config: TrialConfig, epoch: int) -> float:
        return (math.log10(family(config).training.learning_rate) + 4) / 3

    kept, rates_found = [], []
    with driving(study, url_in(tmp_path)) as search:
        while (config := search.next_trial()) is not None:
            share = 1 - rising(config, 1)
            kept.append(share >= 1 / 3)
            search.report(config.key, report_at(config, 1, rising, train_share=share + 0.5 - 1 / 3))
            rates_found.append(rising(config, 1))
    assert np.mean(kept[10:]) > 0.45
    assert max(rate for rate, keeps in zip(rates_found, kept, strict=True) if keeps) > 2 / 3 - 0.02


@pytest.mark.parametrize("sampler", ["front", "tpe"])
def test_a_bound_on_the_size_of_ones_own_network_is_learned(sampler: str) -> None:
    """A function's size comes with its reports, so no proposal can be refused for it."""
    study = parse_study(
        "study: s\ntrainable: a.b:c\nconfig: {width: {int: [1, 1000]}, lr: {float: [0.1, 1.0]}}\nepochs: 1\n"
        "objectives: [{metric: val_loss, direction: minimize}]\nconstraints: [params <= 300]\nconfirm: null\n"
        f"sampler: {{name: {sampler}}}\nscheduler: {{name: none}}\n"
    )
    suggester = Suggester(study=study, dataset="data", measure=lambda many, _: [{}] * len(many), facts=DatasetFacts)
    found = []
    for number in range(40):
        new = suggester.suggest(number)
        assert new is not None
        width = new.config.parameters["config.width"]
        found.append(width)
        means = {"val_loss": 1.0 - width / 1000, "params": float(width)}  # the larger, the better
        ended = {"state": TrialState.COMPLETE, "epoch": 1, "means": means, "sampler_state": {}, "size": {}}
        trial = TrialProgress(config=new.config, **ended)
        suggester.curves.observe(trial, means)
        suggester.put(trial)
    assert np.mean([width <= 300 for width in found[15:]]) > 0.45  # .3 of random draws


def test_trials_that_run_are_not_proposed_beside_again(tmp_path: Path) -> None:
    study = front_study(budget={"trials": 16})
    with driving(study, url_in(tmp_path)) as search:
        for _ in range(10):
            run_trial(search, search.next_trial())
        asked = [search.next_trial() for _ in range(6)]
    space = Candidates(dimensions=SearchSpace.of(study.space_for("digits")))
    places = space.coordinates(space.rows(space.dimensions.encode(c.parameters) for c in asked))
    distances = np.linalg.norm(places[:, None] - places, axis=2)[~np.eye(6, dtype=bool)]
    assert distances.min() > 0.05


def test_a_candidate_that_is_taken_counts_as_one_that_runs() -> None:
    """The oracle conditions the process anew on the value that it predicts."""
    rng = np.random.default_rng(0)
    places, values = some_values(rng)
    groups, parameters = np.arange(3), np.log([0.3, 0.8, 2.0, 1.7, 0.05])
    process = Surrogate.of(places, values, groups, parameters)
    asked = rng.random((40, 3))
    mean, deviation = process.predict(asked)
    known = rng.random((40, 2))
    known[:, 1] = np.nan
    model, scaled = Prediction(process, 0.3, 2.0), {"mean": 0.3 + 2.0 * mean, "deviation": 2.0 * deviation}
    learned, edge = _Learned(model=model, places=asked, **scaled), np.array([1.0, 5.0])
    pool = _Pool(costs=known, learned={1: learned}, front=np.empty((0, 2)), reference=edge, chances=np.ones(40))
    for chosen in (7, 3, 19):
        pool.take(chosen)
        places, values = np.vstack([places, asked[chosen]]), np.append(values, mean[chosen])
        again, left = Surrogate.of(places, values, groups, parameters).predict(asked)
        assert 0.3 + 2.0 * again == pytest.approx(learned.mean, abs=1e-9)
        assert 2.0 * left == pytest.approx(learned.deviation, abs=1e-8)
    assert pool.front[:, 0] == pytest.approx(known[[7, 3, 19], 0])
    assert pool.front[:, 1] == pytest.approx(np.exp(learned.mean[[7, 3, 19]]))
    assert list(np.flatnonzero(np.isinf(pool.gains()))) == [3, 7, 19]


def test_losses_are_counted_in_a_unit_of_all_trials_not_of_those_that_were_let_end() -> None:
    losses, complete = np.array([0.1, 0.11, 1.1, 1.3, math.nan]), np.array([True, True, False, False, False])
    levels, least = _levels(losses, complete)
    assert least == pytest.approx(0.1 - (0.605 - 0.1) / 2)  # half of the way from the best to the median
    assert np.exp(levels) + least == pytest.approx(np.array([0.1, 0.11, 1.1, 1.3, 1.3]))


@pytest.mark.parametrize(("deterministic", "fits"), [(None, 2), (132, 3)])
def test_one_model_makes_several_suggestions_while_many_trials_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deterministic: int | None, fits: int
) -> None:
    fitted: list[int] = []
    monkeypatch.setattr(surrogate, "fit", lambda *given: fitted.append(1) or fit(*given))
    study = front_study(budget={"trials": 300}, deterministic=deterministic)
    with driving(study, url_in(tmp_path)) as search:
        for _ in range(20):
            run_trial(search, search.next_trial())
        running = [search.next_trial() for _ in range(128)]
        fitted.clear()
        asked = [search.next_trial() for _ in range(3)]
        assert len(fitted) == fits
        for config in running + asked:
            run_trial(search, config)
        fitted.clear()
        assert search.next_trial() is not None
        assert search.next_trial() is not None
    assert len(fitted) == 2  # none of what was proposed beside trials that have ended is left
    space = Candidates(dimensions=SearchSpace.of(study.space_for("digits")))
    places = space.coordinates(space.rows(space.dimensions.encode(c.parameters) for c in [*running, *asked]))
    distances = np.linalg.norm(places[:, None] - places, axis=2)[~np.eye(len(places), dtype=bool)]
    assert distances.min() > 0.001


def test_suggestions_made_beside_others_are_dropped_or_refused_when_things_change() -> None:
    study = front_study(objectives=BOUNDED, budget={"trials": 300})
    suggester = Suggester(study=study, dataset="digits", measure=measure_by(size_of), facts=lambda: SHAPE)
    tell(suggester, study, 8)

    def run_more(first: int, count: int) -> None:
        for number in range(first, first + count):
            new = suggester.suggest(number)
            assert new is not None
            running = {"state": TrialState.RUNNING, "epoch": 0, "means": {}, "sampler_state": {}}
            suggester.put(TrialProgress(config=new.config, size=new.size, **running))

    run_more(8, 320)
    assert len(suggester._further) in range(5)
    while len(suggester._further) != 3:
        run_more(8 + suggester.history.bounded.running, 1)
    kept = suggester._further[0]
    for number in range(8, 8 + 130):  # of 320 and more, fewer than 256 still run
        tell(suggester, study, 1, first=number)
    assert suggester.suggest_given(900, suggester.dimensions.decode(suggester._further[1])) is not None
    assert suggester._further == []
    run_more(8 + 500, 1)
    assert kept not in suggester._further
    assert len(suggester._further) <= suggester.history.bounded.running // 64 - 1


def test_regions_where_trials_diverge_are_left(tmp_path: Path) -> None:
    rates = {"epochs": 1, "learning_rate": {"float": [1e-4, 1e-1], "log": True}}
    study = front_study(model={"width": {"int": [8, 64], "step": 8}}, training=rates)

    def lost(config: TrialConfig, epoch: int) -> float:
        rate = math.log10(family(config).training.learning_rate)
        return math.nan if rate > -2 else (rate + 4) / 3

    with driving(study, url_in(tmp_path)) as search:
        configs = run_all(search, lost)
    gone = [math.isnan(lost(c, 1)) for c in configs]
    assert len(configs) == 25
    assert np.mean(gone[12:]) < 0.34


def test_networks_that_must_be_built_are_counted_a_few_for_each_suggestion(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function's `size` may build networks: at most 16 of each kind of candidate are built."""
    measured: list[int] = []

    def count(model: ModelConfig, shape: InputShape) -> NetworkSize:
        measured.append(model.width)
        return size_of(model, shape)

    study = front_study(model={"width": {"int": [1, 100_000]}, "position": "none"}, objectives=BOUNDED)
    for at_once, most in ((False, 16), (True, 1000)):
        monkeypatch.setattr(FamilySettings, "counted_at_once", at_once)
        suggester = Suggester(study=study, dataset="digits", measure=measure_by(count), facts=lambda: SHAPE)
        tell(suggester, study, 8)
        measured.clear()
        assert suggester.suggest(8) is not None
        assert most // 2 <= len(set(measured)) <= 2 * most + 1


BOUNDED = [
    {"metric": "val_accuracy", "direction": "maximize", "reference": 0.0},
    {"metric": "params", "direction": "minimize", "log": True, "reference": 1e12},
]


def tell(suggester: Suggester, study: Study, count: int, *, first: int = 0) -> None:
    """Tell a suggester of complete trials with accuracies that rise with their number."""
    rng = np.random.default_rng(0)
    space = Candidates(dimensions=suggester.dimensions)
    for number, row in enumerate(space.placed(space.draw(rng, count), {}), start=first):
        parameters = suggester.dimensions.decode(space.values(row))
        size = size_of(study.settings_of("digits", parameters).model, SHAPE)  # type: ignore[attr-defined]
        seen = {"parameters": parameters, "state": "COMPLETE", "share": 1.0}
        seen["metrics"] = {"val_accuracy": 0.1 * (number + 1 - first), "params": size.params, "flops": size.flops}
        suggester.observe(number, seen)


def test_what_was_best_in_another_study_is_looked_for_here() -> None:
    """An observation informs the model but is on no front here, so its neighbourhood is worth the most."""
    study = front_study(objectives=BOUNDED, model={"width": {"int": [8, 64], "step": 8}})
    suggester = Suggester(study=study, dataset="digits", measure=measure_by(size_of), facts=lambda: SHAPE)
    tell(suggester, study, 9, first=-9)
    space = Candidates(dimensions=suggester.dimensions)
    found = suggester.suggest(0)
    assert found is not None
    both = [suggester.history.get_trial(-1).params, suggester.dimensions.encode(found.config.parameters)]
    one, other = space.coordinates(space.rows(both))
    assert np.linalg.norm(one - other) < 0.4


def test_the_default_of_every_study_is_front() -> None:
    study = parse_study("study: s\ntrainable: a.b:c\nobjectives: [{metric: val_loss, direction: minimize}]\n")
    assert (study.sampler.name, study.scheduler.name) == ("front", "forecast")
    assert study.fingerprint() == Study.model_validate(study.model_dump(exclude_unset=True)).fingerprint()


LEARNED = [{"metric": "val_loss", "direction": "minimize"}, {"metric": "val_latency", "direction": "minimize"}]


def function_study(objectives: list[dict[str, Any]], **changes: Any) -> Study:
    """Return a study of a function with two settings, `objectives` are told by its trials."""
    fields: dict[str, Any] = {"study": "s", "trainable": "a.b:c", "epochs": 1, "confirm": None}
    config = {"width": {"int": [1, 1000], "log": True}, "lr": {"float": [1e-4, 1.0], "log": True}}
    return Study.model_validate(fields | {"config": config, "objectives": objectives} | changes)


def front_found(study: Study, trials: int = 40) -> np.ndarray:
    """Return the points of a search whose loss falls with the width and whose latency is the logarithm of the width."""
    suggester = Suggester(study=study, dataset="data", measure=lambda many, _: [{}] * len(many), facts=DatasetFacts)
    points = []
    for number in range(trials):
        new = suggester.suggest(number)
        assert new is not None
        width, lr = (new.config.parameters[f"config.{name}"] for name in ("width", "lr"))
        loss = 1 / math.sqrt(width) + (math.log10(lr) + 2) ** 2 / 10
        points.append([loss, math.log10(width)])
        means = {"val_loss": loss, "val_latency": math.log10(width)}
        ended = {"state": TrialState.COMPLETE, "epoch": 1, "means": means, "sampler_state": {}, "size": {}}
        trial = TrialProgress(config=new.config, **ended)
        suggester.curves.observe(trial, means)
        suggester.put(trial)
    return np.array(points)


def test_two_learned_objectives_find_more_of_a_planted_front_than_tpe() -> None:
    reference = np.array([1.5, 3.3])
    volumes = {
        name: [
            volume_of(front_found(function_study(LEARNED, seed=seed, sampler={"name": name})), reference)
            for seed in range(3)
        ]
        for name in ("front", "tpe")
    }
    assert np.mean(volumes["front"]) > 1.01 * np.mean(volumes["tpe"])


def test_a_study_whose_objectives_are_all_known_is_searched_too() -> None:
    with_sizes = study_of(objectives=THREE[1:], sampler={})
    suggester = Suggester(study=with_sizes, dataset="digits", measure=measure_by(size_of), facts=lambda: SHAPE)
    tell(suggester, with_sizes, 6)
    assert suggester.suggest(6) is not None


@pytest.mark.parametrize("sampler", ["front", "tpe"])
def test_a_lack_of_memory_teaches_the_sampler_and_another_failure_does_not(tmp_path: Path, sampler: str) -> None:
    """The wider the better, at a learning rate of 1e-2; above a width of 400 trials end for want of memory."""
    lost = {kind: wide(tmp_path / kind, sampler, kind) for kind in ("memory", "trial")}
    assert lost["memory"] < 0.7 * lost["trial"], lost


def wide(folder: Path, sampler: str, kind: Any) -> int:
    """Return how many trials of two searches are too wide, after the random ones; they fail by `kind`."""
    found = 0
    for seed in range(2):
        (folder / str(seed)).mkdir(parents=True)
        rates = {"epochs": 1, "learning_rate": {"float": [1e-4, 1.0], "log": True}}
        study = front_study(
            seed=seed,
            model={"width": {"int": [8, 1000]}},
            training=rates,
            objectives=TWO[:1],
            sampler={"name": sampler, "startup_trials": 5},
        )
        with driving(study, url_in(folder / str(seed))) as search:
            while (config := search.next_trial()) is not None:
                if (large := family(config).model.width > 400) and search.attempt(config.key) == 1:
                    found += config.key.number >= 8
                if large:
                    search.fail(config.key, "CUDA out of memory", kind=kind)
                else:
                    search.report(config.key, report_at(config, 1, planted_width))
    return found


def planted_width(config: TrialConfig, epoch: int) -> float:
    """Return an accuracy that rises with the width and is best at a learning rate of 1e-2."""
    off = (math.log10(family(config).training.learning_rate) + 2) ** 2
    return math.exp(-0.2 * off) * family(config).model.width / 1000
