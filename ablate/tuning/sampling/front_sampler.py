"""The sampler that knows what every candidate costs: expected gain of hypervolume over the front."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import moocore
import numpy as np
import scipy
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from ablate.base.randomness import stream
from ablate.tuning.sampling.candidates import Array, Candidates
from ablate.tuning.sampling.hypervolume_gain import expected_gain
from ablate.tuning.sampling.request import SamplerRequest
from ablate.tuning.sampling.surrogate import Surrogate, fit, prior_mode
from ablate.tuning.state.trial_progress import UNSEEN

if TYPE_CHECKING:
    import optuna

    from ablate.tuning.sampling.request import Known

DRAWN, MUTATED = 500, 500  # candidates of each kind
FITTED = 120  # trials to which the surrogate's parameters are fitted; the posterior uses all that are shown
ASKED = 200  # best candidates that may be refused before the sampler gives up
PARENTS = 8  # trials whose mutations are candidates, with one objective
POOL = 64  # draws whose costs tell the range of a cost without reference
MARGIN = 0.1  # of the range, beyond the worst value that is known
LEAST = 3  # trials with a result before there is a model


@dataclass(frozen=True)
class _Model:
    """A process of standardised values: `middle` + `scale` times it."""

    process: Surrogate
    middle: float
    scale: float

    def mean(self, asked: Array) -> Array:
        """Return the means at places."""
        return self.middle + self.scale * self.process.mean(asked)

    def predict(self, asked: Array) -> tuple[Array, Array]:
        """Return means and standard deviations at places."""
        mean, deviation = self.process.predict(asked)
        return self.middle + self.scale * mean, self.scale * deviation


@dataclass(kw_only=True)
class _Pool:
    """Candidates at `places` and what each is expected to gain over the front; `chances` are those of being allowed."""

    model: _Model
    places: Array
    costs: Array
    mean: Array
    deviation: Array
    front: Array
    losses: Array
    reference: Array
    chances: Array
    _taken: list[int] = field(default_factory=list)
    _spread: Array | None = None

    def gains(self) -> Array:
        """Return the expected gain of each candidate, minus infinity for one that was taken."""
        gain = expected_gain(
            self.costs, self.mean, self.deviation, front=self.front, losses=self.losses, reference=self.reference
        )
        gain *= self.chances
        gain[self._taken] = -np.inf
        return gain

    def take(self, place: int) -> None:
        """Let a candidate count as a trial that runs: as if it ended as predicted."""
        self._taken.append(place)
        if self._spread is None:
            self._spread = self.model.process.spread(self.places)
        part = self.model.process.added(self.places, self._spread, place)
        self._spread = np.vstack([self._spread, part])
        self.deviation = np.sqrt(np.maximum(self.deviation**2 - (self.model.scale * part) ** 2, 1e-12))
        self.front = np.vstack([self.front, self.costs[place]])
        self.losses = np.append(self.losses, np.exp(self.mean[place]))


@dataclass(frozen=True, kw_only=True)
class _History:
    """The trials shown: `losses` [n], NaN without one; `costs` [n, m]; `violations` [n, constraints].

    A stopped trial was dominated, so its loss counts as no better than the best one that costs no more, or
    than the worst one if all cost more.
    """

    rows: Array
    losses: Array
    costs: Array
    violations: Array
    complete: NDArray[np.bool_]  # may be on the front
    running: NDArray[np.bool_]


class FrontSampler(BaseSampler):
    """Proposes the candidate with the largest expected gain of hypervolume: its loss is guessed, its costs are known.

    A Gaussian process guesses the logarithm of the loss above the best one. Constraints on learned metrics have a
    process each, whose probability to keep the bound multiplies the gain. A running trial counts as if it ended as
    predicted. Before `startup_trials` trials, proposals are random. `further` has the other suggestions that were asked
    for: each with those before it counted as running, which is cheap because the process is not fitted again.
    """

    further: Sequence[dict[str, Any]] = ()

    def __init__(self, request: SamplerRequest, known: Known) -> None:
        self._request, self._known = request, known
        self._space = Candidates(dimensions=request.dimensions)
        self._random = RandomSampler(seed=request.seed)
        self._rng = np.random.default_rng(request.seed)
        self._deciding = np.array([name in known.deciding for name in self._space.names], dtype=bool)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return all dimensions, or none while proposals are random."""
        found = [t for t in study.get_trials(deepcopy=False) if t is not trial and t.number != trial.number]
        self._shown = [t for t in found if t.state is not TrialState.FAIL]
        results = sum(t.state is TrialState.COMPLETE for t in found)
        begins = len(self._shown) < self._request.startup_trials or results < LEAST
        return {} if begins else dict(self._request.dimensions.distributions)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the best candidate that is new and can be trained."""
        if not search_space:
            return {}
        history = self._history()
        rows, costs = self._candidates(history)
        if not len(rows):
            return {}
        pool = self._pool(history, rows, costs)
        first, *self.further = self._best(pool, rows, 1 + self._request.further)
        return first

    def _best(self, pool: _Pool, rows: Array, count: int) -> Iterator[dict[str, Any]]:
        """Yield the best candidate that is new and can be trained, or the best one; then the best beside it; and so on.

        It ends where none is left that can be trained.
        """
        for made in range(count):
            gains = pool.gains()
            order = np.argsort(-gains, kind="stable")[:ASKED]
            accepted = (
                place
                for place in order
                if gains[place] > -np.inf and self._known.accepts(self._space.values(rows[place]))
            )
            chosen = next(accepted, None if made else order[0])
            if chosen is None:
                return
            yield self._space.values(rows[chosen])
            if made + 1 < count:
                pool.take(int(chosen))

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return a random value."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def _history(self) -> _History:
        known, shown = self._known, self._shown
        places = [place for place in range(self._request.objectives) if place != known.learned]
        told = [t.values if t.values is not None else [np.nan] * self._request.objectives for t in shown]
        values = np.array(told, dtype=float).reshape(len(shown), -1)
        running = np.array([not t.state.is_finished() for t in shown])
        costs = values[:, places]
        for place in np.flatnonzero(np.isnan(costs).any(axis=1)):
            costs[place] = known.costs(shown[place].params) or np.nan
        violations = np.array([[t.constraints.get(name, np.nan) for name in known.constraints] for t in shown])
        unseen = np.array([t.constraints.get(UNSEEN, 0.0) for t in shown])
        violations = violations.reshape(len(shown), -1)
        ended = np.array([t.state is TrialState.COMPLETE for t in shown])
        losses, done = values[:, known.learned], ended & (unseen <= 0)
        no_dearer = (costs[done] <= costs[:, None, :]).all(axis=2)
        worst = losses[done].max(initial=-np.inf)
        best = np.where(no_dearer, losses[done], worst).min(axis=1, initial=worst)
        return _History(
            rows=self._space.rows(t.params for t in shown),
            losses=np.where(ended & ~done, np.maximum(losses, best), losses),
            costs=costs,
            violations=violations,
            complete=done & (violations <= 0).all(axis=1) & np.array([t.number >= 0 for t in shown]),
            running=running,
        )

    def _candidates(self, history: _History) -> tuple[Array, Array]:
        """Return different candidates [n, D] that keep the bounds on sizes, and their costs [n, m]."""
        parents = history.rows[self._parents(history)]
        some = np.arange(MUTATED) % self._known.distinct
        families = parents[self._rng.integers(len(parents), size=min(self._known.distinct, MUTATED))]
        rows = np.concatenate([self._space.draw(self._rng, DRAWN), self._space.mutate(self._rng, families[some])])
        shared = np.concatenate([np.arange(DRAWN) % self._known.distinct, DRAWN + some])
        rows[:, self._deciding] = rows[shared][:, self._deciding]
        rows = self._space.placed(rows, self._known.fixed)
        _, first = np.unique(np.nan_to_num(rows, nan=-1e300), axis=0, return_index=True)
        rows = rows[np.sort(first)]
        costs = self._costs(rows)
        kept = ~np.isnan(costs[:, 0])
        return rows[kept], costs[kept, 1:]

    def _parents(self, history: _History) -> NDArray[np.intp]:
        """Return the trials on the first two fronts of the complete ones, or of all while none is complete."""
        ended = ~np.isnan(history.losses)
        places = np.flatnonzero(history.complete if history.complete.any() else ended)
        points = np.column_stack([history.losses, history.costs])[places]
        if points.shape[1] == 1:
            return places[points[:, 0].argsort(kind="stable")[:PARENTS]]
        return places[np.asarray(moocore.pareto_rank(points)) < 2]

    def _costs(self, rows: Array) -> Array:
        """Return 0 and the costs [n, 1 + m] of rows; NaN where nothing can be trained or a size breaks its bound.

        They are asked once for each combination of the settings that decide them.
        """
        keys = np.nan_to_num(rows[:, self._deciding], nan=-1e300)
        _, group = np.unique(keys, axis=0, return_inverse=True)
        found = np.full((int(group.max(initial=0)) + 1, self._request.objectives), np.nan)
        tried = np.zeros(len(found), dtype=int)
        for row, own in zip(rows, group, strict=True):
            if np.isnan(found[own, 0]) and tried[own] < LEAST:
                tried[own] += 1
                costs = self._known.costs(self._space.values(row))
                found[own] = np.nan if costs is None else [0.0, *costs]
        return found[group]

    def _pool(self, history: _History, rows: Array, costs: Array) -> _Pool:
        """Return the candidates with what is predicted of them."""
        places, asked = (self._space.coordinates(each) for each in (history.rows, rows))
        finished, running = ~history.running, history.running
        losses = history.losses[finished]
        best, worst = np.nanmin(losses), np.nanmax(losses)
        above = (np.nanmedian(losses) - best) / 2 or worst - best or 1.0
        level = np.log(np.where(np.isnan(losses), worst, losses) - best + above)
        model = self._model(places[finished], level, places[running])
        mean, deviation = model.predict(asked)
        shrunk = np.exp(model.mean(places))
        standing = history.complete | running
        chances = np.ones(len(asked))
        for violation in history.violations[finished].T:
            bounded = self._model(places[finished], np.clip(np.nan_to_num(violation, nan=1.0), -1, 1))
            kept, spread = bounded.predict(asked)
            chances *= scipy.special.ndtr(-kept / spread)
        return _Pool(
            model=model,
            places=asked,
            costs=costs,
            mean=mean,
            deviation=deviation,
            front=history.costs[standing],
            losses=shrunk[standing],
            reference=self._reference(history, best, worst) - np.append(np.zeros(costs.shape[1]), best - above),
            chances=chances,
        )

    def _model(self, places: Array, values: Array, running: Array | None = None) -> _Model:
        """Return what predicts a number; at `running` places the prediction is taken for seen."""
        groups = self._space.groups
        middle, scale = values.mean(), values.std() or 1.0
        targets = (values - middle) / scale
        some = np.sort(self._rng.permutation(len(values))[:FITTED])
        parameters = fit(places[some], targets[some], groups, prior_mode(groups))
        model = Surrogate.of(places, targets, groups, parameters)
        if running is not None and len(running):
            seen = np.append(targets, model.mean(running))
            model = Surrogate.of(np.concatenate([places, running]), seen, groups, parameters)
        return _Model(model, float(middle), float(scale))

    def _reference(self, history: _History, best: float, worst: float) -> Array:
        """Return the costs and the loss that bound the volume: the study's, else a little beyond the worst known."""
        given = list(self._known.references)
        loss = given.pop(self._known.learned)
        if loss is None or loss <= best:
            loss = worst + MARGIN * (worst - best)
        if None in given:
            pool = stream(self._request.study_seed, self._request.dataset, 0, "sampler", "costs")
            drawn = self._costs(self._space.placed(self._space.draw(pool, POOL), {}))[:, 1:]
            known = np.concatenate([drawn, history.costs])
            least, most = np.nanmin(known, axis=0), np.nanmax(known, axis=0)
            beyond = most + MARGIN * np.where(most > least, most - least, 1.0)
            given = [beyond[place] if own is None else own for place, own in enumerate(given)]
        return np.array([*given, loss], dtype=float)
