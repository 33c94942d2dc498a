"""Samplers of a user's own, named by import path in tests: they write down their requests and what they are shown."""

from __future__ import annotations

from typing import Any

from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial

from ablate.tuning import SamplerRequest, SamplerTraits

ASKED: list[SamplerRequest] = []
SHOWN: list[list[FrozenTrial]] = []  # the finished trials at each suggestion


class Recording(RandomSampler):
    """Suggests at random."""

    def infer_relative_search_space(self, study: Any, trial: FrozenTrial) -> dict[str, Any]:
        """Write down the finished trials."""
        SHOWN.append([each for each in study.get_trials(deepcopy=False) if each.state.is_finished()])
        return {}


def plain(request: SamplerRequest) -> Recording:
    """Return the sampler that declares nothing."""
    ASKED.append(request)
    return Recording(seed=request.seed)


violating = SamplerTraits(learns=False, stopped_as="violating")(lambda request: plain(request))
pruned = SamplerTraits(startup_trials=(3, 7), stopped_as="pruned", observed={"x": 4})(lambda request: plain(request))
bounded = SamplerTraits(most_trials=1)(lambda request: plain(request))
