"""Samplers that follow a fixed sequence of points; their only state is the last trial's place, stored with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

from ablate.base.errors import RequestError
from ablate.base.randomness import stream
from ablate.core.trial import PLACE
from ablate.tuning.sampling.request import SamplerRequest
from ablate.tuning.sampling.search_space import GRID_LIMIT, inner_at_share, shuffled, walk

if TYPE_CHECKING:
    import optuna


class SequenceEndedError(Exception):
    """Every point of the sequence has been visited."""


class SequenceSampler(BaseSampler):
    """Takes the first place after the last trial's, or after `rejected`, the place that was just refused."""

    def __init__(self, request: SamplerRequest) -> None:
        self.dimensions = request.dimensions
        self._rejected = request.rejected.get(PLACE)

    def point(self, start: int) -> tuple[int, dict[str, Any]]:
        """Return the first place from `start` on and Optuna's values there; raise SequenceEndedError at the end."""
        raise NotImplementedError

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return all dimensions."""
        return dict(self.dimensions.distributions)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the next point and store its place in the trial."""
        place, inner = self.following(study)
        study._storage.set_trial_system_attr(trial._trial_id, PLACE, place)
        return inner

    def following(self, study: optuna.Study) -> tuple[int, dict[str, Any]]:
        """Return the next place and Optuna's values there; raise SequenceEndedError at the end."""
        last = self._rejected
        if last is None:
            last = max(t.system_attrs.get(PLACE, -1) for t in study.get_trials(deepcopy=False))
        return self.point(last + 1)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Raise: every parameter is part of the point."""
        raise AssertionError(f"{param_name} is not part of the sequence")


class GridSequence(SequenceSampler):
    """Every combination of a finite space once, in an order shuffled by the study's seed.

    The order is shuffled so that a budget smaller than the grid still spreads over it. Raises RequestError if the grid
    has more than 5,000,000 combinations.
    """

    def __init__(self, request: SamplerRequest) -> None:
        super().__init__(request)
        size = request.dimensions.product()
        assert size is not None  # study/checks.py
        if size > GRID_LIMIT:
            raise RequestError(
                f"sampler grid: the space has {size:,} combinations, at most {GRID_LIMIT:,} are walked;"
                " take fewer values or sampler qmc"
            )
        self._order = shuffled(size, study_seed=request.study_seed, dataset=request.dataset, purpose="grid")

    def point(self, start: int) -> tuple[int, dict[str, Any]]:
        """Return the next combination."""
        found = next(walk(self.dimensions, self._order, start), None)
        if found is None:
            raise SequenceEndedError
        return found


class DesignSequence(SequenceSampler):
    """The trials of a designed comparison in their order: all variants of one configuration, then the next one.

    The request has those that are left: a command may have asked for some rows only.
    """

    def __init__(self, request: SamplerRequest) -> None:
        super().__init__(request)
        self._left = request.design()

    def following(self, study: optuna.Study) -> tuple[int, dict[str, Any]]:
        """Return the first of the trials that are left."""
        for place, parameters in self._left.items():
            return place, self.dimensions.encode(parameters)
        raise SequenceEndedError


class SobolSequence(SequenceSampler):
    """Points of a scrambled Sobol' sequence (scipy.stats.qmc), scrambled by the study's seed.

    Each conditional parameter has its own axis; its coordinate is ignored if the parameter is inactive.
    """

    def __init__(self, request: SamplerRequest) -> None:
        super().__init__(request)
        self._scramble = stream(request.study_seed, request.dataset, 0, "sampler", "qmc")

    def point(self, start: int) -> tuple[int, dict[str, Any]]:
        """Return point number `start`."""
        from scipy.stats import qmc

        engine = qmc.Sobol(len(self.dimensions.distributions), scramble=True, rng=self._scramble)
        if start:
            engine.fast_forward(start)
        unit = engine.random(1)[0]
        pairs = zip(self.dimensions.space.ranges.items(), unit, strict=True)
        return start, {name: inner_at_share(spec, float(share)) for (name, spec), share in pairs}
