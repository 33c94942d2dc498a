"""Requests nodes from Ray's autoscaler, for as many trials as can run at a time."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from ray.autoscaler.sdk import request_resources
from ray.exceptions import RayError

from ablate.base.redaction import error_text

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
        request_resources(bundles=[dict(self.bundle)] * wanted)
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
