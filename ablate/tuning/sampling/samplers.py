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
from ablate.tuning.sampling.request import SamplerRequest
from ablate.tuning.sampling.sequences import DesignSequence, GridSequence, SobolSequence

IGNORE_PRUNED = ("nsga2", "gp")
"""Samplers that read COMPLETE trials only; they get pruned trials as violated constraints (trial_converter.py)."""

BOUNDED = {"front": MOST // 2, "tpe": MOST, "gp": MOST}
"""Samplers that fit a model to all trials, and how many they are shown of a long history (bounded_history.py)."""

STARTUP = {"front": (5, 8)}
"""Random trials before a sampler starts by default, with one and with several objectives, where they are not 10."""

NO_MEMORY = ("qmc", "random", "grid", "design")
"""Samplers whose suggestions follow from no result."""

OBSERVED = {"nsga2": {NSGAIISampler._get_generation_key(): 0}}
"""What a sampler must find on a trial of another study: NSGA-II takes it for one of its first generation."""


def build_front(request: SamplerRequest) -> BaseSampler:
    """Return the default: expected gain of hypervolume, of known and learned objectives (front_sampler.py)."""
    _options(request)
    return FrontSampler(request)


def build_tpe(request: SamplerRequest) -> BaseSampler:
    """Return Optuna's TPE with constant liar: running trials count as bad, which spreads parallel trials.

    With one objective it is multivariate, and grouped if the space has conditions. With several objectives it samples
    each parameter independently.
    """
    given = _options(request, "multivariate", "group", "constant_liar", "n_ei_candidates")
    joint = request.objectives == 1
    defaults = {"multivariate": joint, "group": joint and request.dimensions.conditional}
    if given.get("multivariate") and request.dimensions.conditional:
        defaults["group"] = True
    if given.get("multivariate") is False:
        defaults["group"] = False
    settings = {**defaults, **given}
    if request.objectives > 1 and (good := request.good) is not None:
        settings["gamma"] = lambda shown: good
    return _made(request, TPESampler, seed=request.seed, n_startup_trials=request.startup_trials, **settings)


def build_nsga2(request: SamplerRequest) -> BaseSampler:
    """Return Optuna's NSGA-II; its first, random generation has `startup_trials` members unless an option sets it."""
    given = _options(request, "population_size", "mutation_prob", "crossover_prob", "swapping_prob")
    settings = {"population_size": max(2, request.startup_trials), **given}
    return _made(request, NSGAIISampler, seed=request.seed, **settings)


def build_gp(request: SamplerRequest) -> BaseSampler:
    """Return Optuna's Gaussian process sampler (expected improvement, of hypervolume with several objectives)."""
    given = _options(request, "deterministic_objective")
    settings = {"n_startup_trials": request.startup_trials, "warn_independent_sampling": False, **given}
    return _made(request, GPSampler, seed=request.seed, **settings)


def build_random(request: SamplerRequest) -> BaseSampler:
    """Return Optuna's random sampler."""
    _options(request)
    return RandomSampler(seed=request.seed)


def build_qmc(request: SamplerRequest) -> BaseSampler:
    """Return a scrambled Sobol' sequence."""
    _options(request)
    return SobolSequence(request)


def build_grid(request: SamplerRequest) -> BaseSampler:
    """Return every combination once; raise RequestError for a space that is infinite or too large."""
    _options(request)
    return GridSequence(request)


def build_design(request: SamplerRequest) -> BaseSampler:
    """Return every trial of a designed comparison once, in the order of the design."""
    _options(request)
    return DesignSequence(request)


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
