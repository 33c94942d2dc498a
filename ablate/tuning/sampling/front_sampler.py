"""The default sampler: expected gain of hypervolume of any mixture of known and learned objectives."""

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
from ablate.tuning.sampling.hypervolume_gain import Expected, expected_gain
from ablate.tuning.sampling.request import SamplerRequest
from ablate.tuning.sampling.surrogate import Fits, Prediction

if TYPE_CHECKING:
    import optuna

DRAWN, MUTATED = 500, 500  # candidates of each kind
ASKED = 200  # best candidates that may be refused before the sampler gives up
PARENTS = 8  # trials whose mutations are candidates, with one objective
POOL = 64  # draws whose costs tell the range of a cost without reference
MARGIN = 0.1  # of the range, beyond the worst value that is known
LEAST = 3  # trials with a result before there is a model
CLIPPED = 3.0  # what a violation counts as at most, in units of the median one


@dataclass(kw_only=True)
class _Learned:
    """The logarithm of a learned loss above its least value, predicted at the candidates' `places`."""

    model: Prediction
    places: Array
    mean: Array
    deviation: Array
    _spread: Array | None = None

    def take(self, place: int) -> None:
        """Let the candidate at a place count as seen, as predicted."""
        if self._spread is None:
            self._spread = self.model.process.spread(self.places)
        part = self.model.process.added(self.places, self._spread, place)
        self._spread = np.vstack([self._spread, part])
        self.deviation = np.sqrt(np.maximum(self.deviation**2 - (self.model.scale * part) ** 2, 1e-12))


@dataclass(kw_only=True)
class _Pool:
    """Candidates and what each is expected to gain over the front; `chances` are those of being allowed.

    `costs` [n, m] are the known losses, NaN where `learned` has a prediction by place. `front` and `reference` are in
    the same units; a learned loss is counted from its least value.
    """

    costs: Array
    learned: dict[int, _Learned]
    front: Array
    reference: Array
    chances: Array
    _taken: list[int] = field(default_factory=list)

    def gains(self) -> Array:
        """Return the expected gain of each candidate, minus infinity for one that was taken."""
        order = sorted(range(len(self.reference)), key=lambda place: place in self.learned)  # a learned one last
        losses = [
            Expected(own.mean, own.deviation) if (own := self.learned.get(place)) else Expected(self.costs[:, place])
            for place in order
        ]
        gain = expected_gain(losses, front=self.front[:, order], reference=self.reference[order])
        gain *= self.chances
        gain[self._taken] = -np.inf
        return gain

    def take(self, place: int) -> None:
        """Let a candidate count as a trial that runs: as if it ended as predicted."""
        self._taken.append(place)
        point = self.costs[place].copy()
        for objective, own in self.learned.items():
            point[objective] = np.exp(own.mean[place])
            own.take(place)
        self.front = np.vstack([self.front, point])


@dataclass(frozen=True, kw_only=True)
class _History:
    """The trials shown: `losses` [n, m], NaN where unknown, and `violations` [n, constraints].

    A trial that was stopped counts with its forecast, but as no better than the best complete one. Of a trial that
    ended for want of memory, nothing else is known.
    """

    rows: Array
    losses: Array
    violations: Array
    complete: NDArray[np.bool_]
    kept: NDArray[np.bool_]  # complete and on the bounds, so that it may be on the front
    running: NDArray[np.bool_]
    outgrown: NDArray[np.bool_]  # ended for want of memory

    @property
    def taught(self) -> NDArray[np.bool_]:
        """Which trials tell the models of losses and violations."""
        found: NDArray[np.bool_] = ~self.running & ~self.outgrown
        return found


class FrontSampler(BaseSampler):
    """Proposes the candidate with the largest expected gain of hypervolume; with one objective, expected improvement.

    A Gaussian process predicts each learned objective, as the logarithm of the loss above the best one; known costs are
    exact and are coordinates of the processes. Constraints on learned metrics have a process each, whose probability
    to keep the bound multiplies the gain; so has the constraint to fit into memory, once a trial did not. A running
    trial counts as if it ended as predicted. Before `startup_trials` trials, proposals are random. `further` has the
    other suggestions that were asked for: each with those before it counted as running, which is cheap because the
    processes are not fitted again.
    """

    further: Sequence[dict[str, Any]] = ()

    def __init__(self, request: SamplerRequest) -> None:
        self._request, self._known = request, request.known
        self._space = Candidates(dimensions=request.dimensions)
        self._random = RandomSampler(seed=request.seed)
        self._rng = np.random.default_rng(request.seed)
        self._deciding = np.array([name in self._known.deciding for name in self._space.names], dtype=bool)
        self._costly = [place for place in range(request.objectives) if place not in self._known.learned]

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return all dimensions, or none while proposals are random."""
        found = [t for t in study.get_trials(deepcopy=False) if t is not trial and t.number != trial.number]
        self._shown = [t for t in found if t.state is not TrialState.FAIL]
        curves = self._known.curves
        told = curves.by_number.keys() - curves.outgrown
        results = sum(t.state.is_finished() and t.number in told for t in self._shown)
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
        shown, curves, objectives = self._shown, self._known.curves, self._request.objectives
        numbers = np.array([t.number for t in shown])
        running = np.array([not t.state.is_finished() for t in shown])
        complete = np.array([t.state is TrialState.COMPLETE for t in shown])
        reported = np.array([t.number in curves.by_number for t in shown])
        ends = np.full((len(shown), len(curves.reads)), np.nan)
        finished = [int(number) for number in numbers[complete]]
        ends[complete] = np.array([curves.by_number[number].end() for number in finished]).reshape(-1, ends.shape[1])
        outgrown = ~running & np.isin(numbers, list(curves.outgrown))
        stopped = ~running & ~complete & reported & ~outgrown
        ends[stopped] = curves.outlooks([int(number) for number in numbers[stopped]], finished)
        best = np.where(complete[:, None], ends, np.inf).min(axis=0, initial=np.inf)[:objectives]
        losses = ends[:, :objectives]
        losses[stopped] = np.maximum(losses[stopped], np.where(np.isfinite(best), best, -np.inf))
        if self._costly:
            known = self._known.costs([t.params for t in shown])
            costs = np.array([[np.nan] * objectives if own is None else own for own in known])
            losses[:, self._costly] = costs[:, self._costly]
        kept = complete & (numbers >= 0) & np.isfinite(losses).all(axis=1) & (ends[:, objectives:] <= 0).all(axis=1)
        return _History(
            rows=self._space.rows(t.params for t in shown),
            losses=losses,
            violations=ends[:, objectives:],
            complete=complete,
            kept=kept,
            running=running,
            outgrown=outgrown,
        )

    def _candidates(self, history: _History) -> tuple[Array, Array]:
        """Return different candidates [n, D] that keep the bounds on sizes, and their known losses [n, m]."""
        parents = history.rows[self._parents(history)]
        some = np.arange(MUTATED) % self._known.distinct
        families = parents[self._rng.integers(len(parents), size=min(self._known.distinct, MUTATED))]
        rows = np.concatenate([self._space.draw(self._rng, DRAWN), self._space.mutate(self._rng, families[some])])
        shared = np.concatenate([np.arange(DRAWN) % self._known.distinct, DRAWN + some])
        rows[:, self._deciding] = rows[shared][:, self._deciding]
        rows = self._space.placed(rows, self._known.fixed)
        _, first = np.unique(np.nan_to_num(rows, nan=-1e300), axis=0, return_index=True)
        rows = rows[np.sort(first)]
        costs, possible = self._costs(rows)
        return rows[possible], costs[possible]

    def _parents(self, history: _History) -> NDArray[np.intp]:
        """Return the trials on the first two fronts of the complete ones, or of all while none is complete.

        With one objective they are the best PARENTS.
        """
        known = history.taught & np.isfinite(history.losses).all(axis=1)
        places = np.flatnonzero(history.kept if history.kept.any() else known if known.any() else history.taught)
        points = np.nan_to_num(history.losses[places], nan=np.inf)
        if points.shape[1] == 1:
            return places[points[:, 0].argsort(kind="stable")[:PARENTS]]
        return places[np.asarray(moocore.pareto_rank(np.clip(points, -1e300, 1e300))) < 2]

    def _costs(self, rows: Array) -> tuple[Array, NDArray[np.bool_]]:
        """Return the known losses [n, m] of rows, NaN for a learned one, and which rows can be trained.

        They are asked once for each combination of the settings that decide them, of up to LEAST of its rows.
        """
        keys = np.nan_to_num(rows[:, self._deciding], nan=-1e300)
        _, group = np.unique(keys, axis=0, return_inverse=True)
        group = group.reshape(-1)
        found = np.full((int(group.max(initial=0)) + 1, self._request.objectives), np.nan)
        possible = np.zeros(len(found), dtype=bool)
        left = np.arange(len(rows))
        for _ in range(LEAST):
            left = left[~possible[group[left]]]
            _, first = np.unique(group[left], return_index=True)
            asked = left[first]
            for row, costs in zip(asked, self._known.costs([self._space.values(rows[r]) for r in asked]), strict=True):
                if costs is not None:
                    found[group[row]], possible[group[row]] = costs, True
            left = np.setdiff1d(left, asked)
        return found[group], possible[group]

    def _pool(self, history: _History, rows: Array, costs: Array) -> _Pool:
        """Return the candidates with what is predicted of them."""
        places, asked = self._coordinates(history, rows, costs)
        groups = np.append(self._space.groups, self._space.groups.max() + 1 + np.arange(len(self._costly)))
        taught = history.taught
        fits = Fits(places[taught], groups, self._rng)
        reference = self._reference(history, costs)
        front, learned = history.losses.copy(), {}
        for place in self._known.learned:
            level, least = _levels(history.losses[taught, place], history.complete[taught])
            model = fits.model(level, places[history.running])
            front[:, place] = np.exp(model.mean(places))
            reference[place] -= least
            mean, deviation = model.predict(asked)
            learned[place] = _Learned(model=model, places=asked, mean=mean, deviation=deviation)
        chances = np.ones(len(asked))
        if history.outgrown.any():
            ended = Fits(places[~history.running], groups, self._rng)
            chances = _chances(ended.model(np.where(history.outgrown[~history.running], 1.0, -1.0)), asked)
        for violation in history.violations[taught].T:
            unit = np.nanmedian(np.abs(violation)) if np.isfinite(violation).any() else 1.0
            told = np.clip(np.nan_to_num(violation / (unit or 1.0), nan=1.0), -CLIPPED, CLIPPED)
            chances *= _chances(fits.model(told), asked)
        standing = (history.kept | history.running) & np.isfinite(front).all(axis=1)
        return _Pool(costs=costs, learned=learned, front=front[standing], reference=reference, chances=chances)

    def _coordinates(self, history: _History, rows: Array, costs: Array) -> tuple[Array, Array]:
        """Return the places of trials and candidates; each known cost is one more coordinate, scaled to its range."""
        places, asked = (self._space.coordinates(each) for each in (history.rows, rows))
        for place in self._costly:
            both = np.concatenate([history.losses[:, place], costs[:, place]])
            least, most = np.nanmin(both), np.nanmax(both)
            shares = np.nan_to_num((both - least) / ((most - least) or 1.0), nan=0.5)
            places = np.column_stack([places, shares[: len(places)]])
            asked = np.column_stack([asked, shares[-len(asked) :]])
        return places, asked

    def _reference(self, history: _History, costs: Array) -> Array:
        """Return the losses [m] that bound the volume: the study's, else a little beyond the worst known."""
        found = np.empty(self._request.objectives)
        pool: Array | None = None
        for place, given in enumerate(self._known.references):
            known = history.losses[:, place]
            known = known[np.isfinite(known)]
            if place in self._known.learned:
                least, most = known.min(initial=np.inf), known.max(initial=-np.inf)
                inside = given is not None and given > least
                found[place] = given if inside else most + MARGIN * (most - least) if len(known) else 0.0
            elif given is not None:
                found[place] = given
            else:
                if pool is None:
                    rng = stream(self._request.study_seed, self._request.dataset, 0, "sampler", "costs")
                    pool = self._costs(self._space.placed(self._space.draw(rng, POOL), {}))[0]
                both = np.concatenate([pool[:, place], known])
                least, most = np.nanmin(both), np.nanmax(both)
                found[place] = most + MARGIN * ((most - least) or 1.0)
        return found


def _chances(violation: Prediction, asked: Array) -> Array:
    """Return the probability [n] that a predicted violation is not above 0."""
    mean, deviation = violation.predict(asked)
    found: Array = scipy.special.ndtr(-mean / deviation)
    return found


def _levels(losses: Array, complete: NDArray[np.bool_]) -> tuple[Array, float]:
    """Return log(loss - least) of trials, and `least`, below the best complete one by half of its way to the median.

    A trial without a loss counts as the worst one. The median is that of all trials, because those that early stopping
    lets end are alike.
    """
    known = np.isfinite(losses)
    if not known.any():
        return np.zeros(len(losses)), 0.0
    taught = losses[complete & known] if (complete & known).any() else losses[known]
    best, worst = taught.min(), losses[known].max()
    above = (np.median(losses[known]) - best) / 2 or worst - best or 1.0
    return np.log(np.maximum(np.where(known, losses, worst), best) - best + above), best - above
