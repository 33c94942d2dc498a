"""The samplers; each suggestion builds a new one with its own seed (docs/searching.md)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler

from ablate.base.errors import RequestError, did_you_mean
from ablate.tuning.sampling.bounded_history import MOST
from ablate.tuning.sampling.front_sampler import FrontSampler
from ablate.tuning.sampling.request import SamplerRequest, SamplerTraits
from ablate.tuning.sampling.sequences import DesignSequence, GridSequence, SobolSequence


def _without_options(make: Callable[[SamplerRequest], BaseSampler], **traits: Any) -> Callable[..., BaseSampler]:
    """Return the builder of a sampler that has no options."""

    @SamplerTraits(**traits)
    def build(request: SamplerRequest) -> BaseSampler:
        _options(request)
        return make(request)

    return build


build_front = _without_options(FrontSampler, startup_trials=6, most_trials=MOST // 2, stopped_as="pruned")
build_random = _without_options(lambda request: RandomSampler(seed=request.seed), learns=False)
build_qmc = _without_options(SobolSequence, learns=False)
build_grid = _without_options(GridSequence, learns=False)
build_design = _without_options(DesignSequence, learns=False)


@SamplerTraits(most_trials=MOST)
def build_tpe(request: SamplerRequest) -> BaseSampler:
    """Return Optuna's TPE with constant liar: running trials count as bad, which spreads parallel trials.

    With one objective it is multivariate, and grouped if the space has conditions. With several objectives it samples
    each parameter independently.
    """
    given = _options(request, "multivariate", "group", "constant_liar", "n_ei_candidates")
    joint = given.get("multivariate", request.objectives == 1)
    settings = {"multivariate": joint, "group": joint and request.dimensions.conditional, **given}
    if request.objectives > 1 and (good := request.good) is not None:
        settings["gamma"] = lambda shown: good
    return _made(request, TPESampler, seed=request.seed, n_startup_trials=request.startup_trials, **settings)


@SamplerTraits(stopped_as="violating", observed={NSGAIISampler._get_generation_key(): 0})
def build_nsga2(request: SamplerRequest) -> BaseSampler:
    """Return Optuna's NSGA-II; its first, random generation has `startup_trials` members unless an option sets it."""
    given = _options(request, "population_size", "mutation_prob", "crossover_prob", "swapping_prob")
    settings = {"population_size": max(2, request.startup_trials), **given}
    return _made(request, NSGAIISampler, seed=request.seed, **settings)


@SamplerTraits(most_trials=MOST, stopped_as="violating")
def build_gp(request: SamplerRequest) -> BaseSampler:
    """Return Optuna's Gaussian process sampler (expected improvement, of hypervolume with several objectives)."""
    given = _options(request, "deterministic_objective")
    settings = {"n_startup_trials": request.startup_trials, "warn_independent_sampling": False, **given}
    return _made(request, GPSampler, seed=request.seed, **settings)


def _options(request: SamplerRequest, *known: str) -> dict[str, Any]:
    unknown = sorted(set(request.options) - set(known))
    if unknown:
        hint = did_you_mean(unknown[0], known) if known else "It takes none."
        raise RequestError(f"sampler {request.name}: unknown option {unknown[0]!r}. {hint}")
    return dict(request.options)


def _made(request: SamplerRequest, make: Callable[..., BaseSampler], **settings: Any) -> BaseSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        warnings.filterwarnings("ignore", "`gamma` has been deprecated", FutureWarning)  # there is no other way
        try:
            return make(**settings)
        except (TypeError, ValueError) as error:
            raise RequestError(f"sampler {request.name}: {error}") from error
