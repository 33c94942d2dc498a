"""What the cells of a comparison scored on each test sample, for intervals that hold for other samples too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ablate.results.statistics.samples import Spread, spread

Values = NDArray[np.float64]
Places = Mapping[str, Mapping[str, int]]  # data set, configuration -> place in Runs.table


@dataclass(frozen=True, kw_only=True)
class SampleCells:
    """A metric's values on each sample, [samples], and the digest of the samples, by place and position of the seed."""

    found: Mapping[tuple[int, int], tuple[str, Values]]

    def spread(self, places: Places, seeds: NDArray[np.bool_], *, minus: Places | None = None) -> Spread | None:
        """Return the spread of a cell over the given seeds, [seeds], or of its difference from another one.

        A cell is the mean over data sets of means over configurations. None if a trial lacks values, or if two trials
        of a data set were read on other samples.
        """
        parts = []
        for dataset, own in places.items():
            groups = [list(own.values())] + ([] if minus is None else [list(minus[dataset].values())])
            means = [self._mean(group, np.flatnonzero(seeds).tolist()) for group in groups]
            if any(mean is None for mean in means) or len({mean[0] for mean in means if mean is not None}) > 1:
                return None
            values = [mean[1] for mean in means if mean is not None]
            parts.append(values[0] if minus is None else values[0] - values[1])
        return spread(parts)

    def _mean(self, places: Sequence[int], seeds: Sequence[int]) -> tuple[str, Values] | None:
        """Return the digest of the samples and the mean over trials, [seeds, samples]."""
        cells = [[self.found.get((place, seed)) for seed in seeds] for place in places]
        known = [cell for row in cells for cell in row if cell is not None]
        if not known or len(known) < len(places) * len(seeds) or len({split for split, _ in known}) > 1:
            return None
        if len({len(values) for _, values in known}) > 1:
            return None
        stacked = np.array([values for _, values in known], dtype=np.float64)
        return known[0][0], stacked.reshape(len(places), len(seeds), -1).mean(axis=0)
