"""Requests nodes from Ray's autoscaler, for as many trials as can run at a time."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ray.autoscaler.sdk import request_resources
from ray.exceptions import RayError

from ablate.base.redaction import error_text
from ablate.execution.cluster import EPSILON

logger = logging.getLogger("ablate.execution")


@dataclass(kw_only=True)
class NodeRequest:
    """A study's request for nodes that hold at most `most` trials at a time, each with the resources `bundle`.

    Ray keeps one request for a whole cluster until another replaces it, so it must be dropped at the end. It is
    repeated meanwhile, because a restarted GCS loses it.
    """

    most: int
    bundle: Mapping[str, float]
    asked: int | None = field(default=None, init=False)

    def ask(self, trials: int) -> None:
        """Request nodes for `trials` trials, but for no more than `most`."""
        wanted = min(trials, self.most)
        try:
            request_resources(bundles=[dict(self.bundle)] * wanted)
        except TypeError:  # Ray 2.55 takes whole numbers only
            request_resources(bundles=whole_bundles(self.bundle, wanted))
        if wanted != self.asked:
            logger.info("asked Ray's autoscaler for nodes that hold %d trials", wanted)
        self.asked = wanted

    def drop(self) -> None:
        """Request no nodes, so that the autoscaler removes idle ones; log an error if this fails."""
        try:
            self.ask(0)
        except (RayError, RuntimeError) as error:
            text = error_text(error, first_line=True)
            logger.warning("the request for nodes is still with Ray's autoscaler: it cannot be dropped (%s)", text)


def whole_bundles(bundle: Mapping[str, float], trials: int) -> list[dict[str, int]]:
    """Return bundles in whole numbers that hold `trials` trials: several trials share one GPU, or one CPU."""
    share = min(bundle.get("GPU", bundle["CPU"]), 1.0)
    whole = {name: math.ceil(value - EPSILON) for name, value in bundle.items()}
    return [whole] * math.ceil(trials * share - EPSILON)
