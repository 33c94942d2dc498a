"""Which tuning seed decides the values of which seed of a row: each seed is a repetition of tuning and training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablate.trial import TUNE_SEED_BASE

if TYPE_CHECKING:
    from ablate.study.study import Study


def tuning_seeds(study: Study) -> int:
    """Return the number of tuning seeds of a row."""
    assert study.tune is not None
    return study.tune.replicates or study.replicates


def tuning_seed_of(study: Study, variant: str | None, seed: int) -> int:
    """Return the tuning seed by which the values of a row are chosen on `seed`, one of its own seeds.

    The tuning of a placebo has seeds of its own too.
    """
    first = study.seeds_of(variant)[0]
    return TUNE_SEED_BASE + first + (seed - first) % tuning_seeds(study)


def tuning_seeds_of(study: Study, variant: str | None) -> tuple[int, ...]:
    """Return the seeds on which a row is tuned, in the order of the seeds that it is trained on."""
    return tuple(dict.fromkeys(tuning_seed_of(study, variant, seed) for seed in study.seeds_of(variant)))


def shares_tuning_seeds(study: Study) -> bool:
    """Return whether a tuning seed decides several seeds of a row, so that intervals lack the luck of tuning."""
    return study.tune is not None and tuning_seeds(study) < study.replicates


def is_tuned_alike(before: Study, study: Study) -> bool:
    """Return whether every seed that both studies train has the same tuning seed in both."""
    if before.tune is None or study.tune is None:
        return before.tune is study.tune
    common = range(min(before.replicates, study.replicates))
    return all(seed % tuning_seeds(before) == seed % tuning_seeds(study) for seed in common)
