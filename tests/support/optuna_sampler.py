"""A sampler of a user's own, named by import path in tests: always the largest value."""

from __future__ import annotations

from typing import Any

from optuna.distributions import CategoricalDistribution
from optuna.samplers import BaseSampler

from ablate.tuning import SamplerRequest


class Largest(BaseSampler):
    """Suggests the top of every range."""

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        """Return nothing: every parameter by itself."""
        return {}

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        """Return the largest value, or the first choice."""
        if isinstance(param_distribution, CategoricalDistribution):
            return param_distribution.choices[0]
        return param_distribution.high


def build(request: SamplerRequest) -> BaseSampler:
    """Return the sampler."""
    return Largest()
