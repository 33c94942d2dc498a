"""A sampler's bounded history: nothing changes below the bound; beyond it nothing that TPE prefers is lost."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import moocore
import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers._tpe.sampler import _split_trials, default_gamma
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from ablate.tuning import SAMPLERS, SamplerTraits
from ablate.tuning.sampling.bounded_history import BoundedHistory
from ablate.tuning.sampling.ledger_storage import STUDY_NAME, LedgerStorage, freeze
from ablate.tuning.sampling.request import SamplerRequest
from ablate.tuning.sampling.samplers import build_tpe
from ablate.tuning.sampling.search_space import SearchSpace
from support.literal_asha import dominates
from support.searches import ONE, TWO, driving, run_all, run_trial, study_of, url_in

SPACE = {
    "width": IntDistribution(8, 512, log=True),
    "rate": FloatDistribution(1e-5, 1e-1, log=True),
    "kind": CategoricalDistribution((0, 1, 2)),
}

DIMENSIONS = SearchSpace.of(study_of().space_for("digits"))  # a request needs one; the options leave it unread


def losses_of(inner: dict[str, Any], objectives: int) -> list[float]:
    """Return a closed-form loss that falls with width, and the width."""
    off = (math.log10(inner["rate"]) + 3) ** 2 / 8 + 0.1 * inner["kind"]
    return [off + 4 / math.sqrt(inner["width"]), math.log10(inner["width"])][:objectives]


def drawn(rng: np.random.Generator) -> dict[str, Any]:
    """Return a random configuration."""
    width = int(math.exp(rng.uniform(math.log(8), math.log(512))))
    return {"width": width, "rate": float(10 ** rng.uniform(-5, -1)), "kind": int(rng.integers(3))}


def told(number: int, inner: dict[str, Any], state: TrialState, objectives: int, **more: Any) -> FrozenTrial:
    """Return a trial as the converter would make it."""
    values = losses_of(inner, objectives) if state is TrialState.COMPLETE else None
    return freeze(number=number, state=state, inner=inner, distributions=SPACE, values=values, **more)


def mixed(count: int, objectives: int, *, seed: int = 0) -> list[FrozenTrial]:
    """Return trials of all kinds: complete, violating, pruned, failed and running."""
    rng, found = np.random.default_rng(seed), []
    for number in range(count):
        inner, kind = (
            drawn(rng),
            rng.choice(["complete", "violating", "pruned", "fail", "running"], p=[0.5, *[0.125] * 4]),
        )
        more: dict[str, Any] = {}
        if kind == "violating":
            more["constraints"] = {"c": float(rng.uniform(0.1, 1)), "d": -1.0}
        if kind == "pruned" and objectives == 1:
            more["intermediate"] = {int(rng.integers(1, 4)): losses_of(inner, 1)[0]}
        state = {"pruned": TrialState.PRUNED, "fail": TrialState.FAIL, "running": TrialState.RUNNING}
        found.append(told(number, inner, state.get(str(kind), TrialState.COMPLETE), objectives, **more))
    return found


def bound_of(objectives: int, most: int, trials: Sequence[FrozenTrial]) -> BoundedHistory:
    """Return a bounded history of trials."""
    bound = BoundedHistory(objectives=objectives, keys=np.random.default_rng(7), most=most)
    for trial in trials:
        bound.put(trial)
    return bound


def suggestions(trials: Sequence[FrozenTrial], objectives: int, bound: BoundedHistory | None) -> list[dict[str, Any]]:
    """Return what TPE suggests for each seed after the trials."""
    storage = LedgerStorage([StudyDirection.MINIMIZE] * objectives, bounded=bound)
    for trial in trials:
        storage.put(trial)
    return [ask(storage, len(trials), seed) for seed in range(5)]


def ask(storage: LedgerStorage, number: int, seed: int) -> dict[str, Any]:
    """Return TPE's suggestion for trial `number`."""
    study = optuna.load_study(study_name=STUDY_NAME, storage=storage)
    request = SamplerRequest(
        name="tpe",
        dimensions=DIMENSIONS,
        study_seed=0,
        dataset="digits",
        seed=seed,
        objectives=len(study.directions),
        startup_trials=10,
        known=None,  # type: ignore[arg-type]  # TPE asks for nothing
        options={"group": False},
        good=None if storage.bounded is None else storage.bounded.good,
    )
    study.sampler = build_tpe(request)
    storage.open(number)
    trial = study.ask()
    inner = {name: trial._suggest(name, distribution) for name, distribution in SPACE.items()}
    storage.drop()
    return inner


@pytest.mark.parametrize("objectives", [1, 2])
def test_up_to_the_bound_nothing_changes(objectives: int) -> None:
    trials = mixed(80, objectives)
    finished = sum(t.state in (TrialState.COMPLETE, TrialState.PRUNED) for t in trials)
    free = suggestions(trials, objectives, None)
    assert suggestions(trials, objectives, bound_of(objectives, finished, [])) == free
    assert suggestions(trials, objectives, bound_of(objectives, finished // 2, [])) != free


@pytest.mark.parametrize("objectives", [1, 2, 3])
def test_what_is_kept_beyond_the_bound(objectives: int) -> None:
    trials = mixed(400, min(objectives, 2))
    if objectives == 3:
        rng = np.random.default_rng(1)
        for trial in trials:
            if trial.values is not None:
                trial.values = [*trial.values, float(rng.random())]
    by_number = {trial.number: trial for trial in trials}
    shown = bound_of(objectives, 200, trials).chosen()
    assert shown is not None
    assert shown == sorted(set(shown))
    ended = [t for t in trials if t.state in (TrialState.COMPLETE, TrialState.PRUNED)]
    running = {t.number for t in trials if t.state is TrialState.RUNNING}
    assert len(running) <= 100
    assert running <= set(shown)
    assert len(shown) == 200 + len(running)
    assert all(by_number[n].state is not TrialState.FAIL for n in shown)
    assert {t.number for t in ended[-40:]} <= set(shown)
    sound = [t for t in ended if t.state is TrialState.COMPLETE and max([0.0, *t.constraints.values()]) == 0]
    front = {t.number for t in sound if not any(dominates(tuple(o.values), tuple(t.values)) for o in sound)}
    assert len(front) <= 60
    assert front <= set(shown)
    for index in range(objectives):
        best = sorted(sound, key=lambda t: (t.values[index], t.number))[:4]
        assert {t.number for t in best} <= set(shown)
    sampled = {t.number for t in ended} & set(shown)
    assert len(sampled & {t.number for t in ended[:100]}) > 20  # old trials are not forgotten


@pytest.mark.parametrize("most", [40, 1000])
def test_of_many_unfinished_trials_the_newest_are_kept(most: int) -> None:
    """However few have finished: at the start of a search on many workers nearly all are unfinished."""
    trials = mixed(300, 2)
    trials += [told(number, trials[number % 300].params, TrialState.RUNNING, 2) for number in range(300, 900)]
    shown = bound_of(2, most, trials).chosen()
    running = [t.number for t in trials if t.state is TrialState.RUNNING]
    ended = {t.number for t in trials if t.state in (TrialState.COMPLETE, TrialState.PRUNED)}
    assert shown is not None
    assert [n for n in shown if n not in ended] == running[-most // 2 :]
    assert len(ended & set(shown)) == min(most, len(ended))


def test_the_choice_depends_on_the_trials_alone() -> None:
    trials = mixed(300, 2)
    straight = bound_of(2, 100, trials)
    late = bound_of(2, 100, [told(t.number, t.params, TrialState.RUNNING, 2) for t in trials])
    for trial in random.Random(5).sample(trials, len(trials)):
        late.put(trial)
    assert late.chosen() == straight.chosen()


def test_the_sample_changes_little_from_one_trial_to_the_next() -> None:
    trials = [told(t.number, t.params, TrialState.COMPLETE, 2) for t in mixed(400, 2)]
    bound = bound_of(2, 100, trials[:399])
    before = bound.chosen()
    bound.put(trials[399])
    after = bound.chosen()
    assert before is not None
    assert after is not None
    assert len(set(before) - set(after)) <= 5


@pytest.mark.parametrize("kinds", [(1.0, 0.0), (0.02, 0.9), (0.0, 0.5)], ids=["complete", "few complete", "none"])
def test_with_one_objective_tpe_calls_the_same_trials_good(kinds: tuple[float, float]) -> None:
    rng, trials = np.random.default_rng(3), []
    for number in range(600):
        inner, (complete, pruned), share = drawn(rng), kinds, rng.random()
        if share < complete:
            trials.append(told(number, inner, TrialState.COMPLETE, 1))
        elif share < complete + pruned:
            seen = {int(rng.integers(1, 6)): losses_of(inner, 1)[0]}
            trials.append(told(number, inner, TrialState.PRUNED, 1, intermediate=seen))
        else:
            trials.append(told(number, inner, TrialState.COMPLETE, 1, constraints={"c": float(rng.uniform(0.1, 1))}))
    shown = bound_of(1, 300, trials).chosen()
    assert shown is not None
    study = optuna.create_study(direction="minimize")
    below, _ = _split_trials(study, trials, default_gamma(len(trials)))
    seen_below, above = _split_trials(study, [trials[n] for n in shown], default_gamma(len(shown)))
    assert [t.number for t in seen_below] == [t.number for t in below]
    assert len(above) == 300 - len(below)


def test_a_front_that_does_not_fit_keeps_its_ends_and_is_thinned_evenly() -> None:
    rng = np.random.default_rng(2)
    shares = rng.random(1000) ** 3  # dense at one end
    inner = {"width": 8, "rate": 1e-3, "kind": 0}
    trials = [
        freeze(number=n, state=TrialState.COMPLETE, inner=inner, distributions=SPACE, values=[float(x), float(1 - x)])
        for n, x in enumerate(shares)
    ]
    bound = bound_of(2, 200, trials)
    best = bound._best(bound._rows[:1000], np.arange(1000))
    places = np.sort(np.argsort(np.argsort(shares))[best])
    assert len(best) == 60
    assert places[0] == 0
    assert places[-1] == 999
    assert np.ptp(np.diff(places)) <= 1


@pytest.mark.parametrize("sampler", ["front", "tpe", "nsga2"])
@pytest.mark.parametrize("objectives", [ONE, TWO], ids=["one", "two"])
def test_a_resumed_search_suggests_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampler: str, objectives: Any
) -> None:
    if (traits := SamplerTraits.of(sampler)).most_trials:
        monkeypatch.setattr(SAMPLERS.load(sampler), "sampler_traits", traits.model_copy(update={"most_trials": 12}))
    changes = {"sampler": {"name": sampler, "startup_trials": 5}, "scheduler": {"name": "asha"}}
    study = study_of(objectives=objectives, budget={"trials": 30}, **changes)
    for folder in ("straight", "resumed"):
        (tmp_path / folder).mkdir()
    with driving(study, url_in(tmp_path / "straight")) as search:
        straight = [dict(c.parameters) for c in run_all(search)]
    resumed = []
    for _ in range(30):
        with driving(study, url_in(tmp_path / "resumed")) as search:
            config = search.next_trial()
            run_trial(search, config)
            resumed.append(dict(config.parameters))
    assert resumed == straight


def harder(inner: dict[str, Any], objectives: int) -> list[float]:
    """Return losses whose best rate and kind depend on the width, with many local optima."""
    wide = math.log10(inner["width"])
    off = (math.log10(inner["rate"]) + 3 - wide / 2) ** 2 / 4 + 0.15 * abs(inner["kind"] - (inner["width"] > 60))
    return [off + 4 / math.sqrt(inner["width"]) + 0.05 * math.sin(40 * math.log10(inner["rate"])), wide][:objectives]


def explored(seed: int, most: int | None, loss: Callable[[dict[str, Any], int], list[float]]) -> float:
    """Return the hypervolume that TPE covers in 300 trials, four of them at a time."""
    bound = None if most is None else BoundedHistory(objectives=2, keys=np.random.default_rng(seed), most=most)
    storage = LedgerStorage([StudyDirection.MINIMIZE] * 2, bounded=bound)
    flying: list[tuple[int, dict[str, Any]]] = []
    found = []
    for number in range(300):
        inner = ask(storage, number, 1000 * seed + number)
        storage.put(told(number, inner, TrialState.RUNNING, 2))
        flying.append((number, inner))
        if len(flying) == 4:
            ended, inner = flying.pop(0)
            found.append(loss(inner, 2))
            values = {"state": TrialState.COMPLETE, "inner": inner, "distributions": SPACE, "values": found[-1]}
            storage.put(freeze(number=ended, **values))
    return float(moocore.hypervolume(np.array(found), ref=[3.0, 3.0]))


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "share"), [(losses_of, 0.001), (harder, 0.005)], ids=["smooth", "harder"])
def test_a_bounded_history_finds_no_worse_a_front(loss: Any, share: float) -> None:
    """With a bound of 80 for 300 trials; at most `share` of the hypervolume is lost."""
    bounded, free = (np.array([explored(seed, most, loss) for seed in range(4)]) for most in (80, None))
    assert (bounded - free).mean() > -share * free.mean()
