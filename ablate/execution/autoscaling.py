"""What a study asks of Ray's autoscaler: nodes for as many trials as can run at a time."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ray.autoscaler.sdk import request_resources
from ray.exceptions import RayError

from ablate.redaction import error_text

EPSILON = 1e-6

logger = logging.getLogger("ablate.execution")


@dataclass(kw_only=True)
class NodeRequest:
    """The one request of a study, for at most `most` trials at a time that hold `bundle` each.

    Ray keeps one request for a whole cluster until another replaces it. So it must be dropped in the end, and it is
    repeated meanwhile, for a GCS that was restarted.
    """

    most: int
    bundle: Mapping[str, float]
    asked: int | None = field(default=None, init=False)

    def ask(self, trials: int) -> None:
        """Ask for nodes that hold `trials` trials, `most` where these are fewer."""
        wanted = min(trials, self.most)
        request_resources(bundles=[dict(self.bundle)] * wanted)
        if wanted != self.asked:
            logger.info("asked Ray's autoscaler for nodes that hold %d trials", wanted)
        self.asked = wanted

    def drop(self) -> None:
        """Ask for nothing more, so that the autoscaler removes idle nodes; a cluster that refuses is logged."""
        try:
            self.ask(0)
        except (RayError, RuntimeError) as error:
            text = error_text(error, first_line=True)
            logger.warning("the request for nodes is still with Ray's autoscaler: it cannot be dropped (%s)", text)


def bundle_of(*, cpus: float, share: float) -> dict[str, float]:
    """Return what one trial holds, so that Ray packs as many onto a node as run there.

    A share below one is rounded up to one of 1/2, 1/3, …, because it never spans two GPUs.
    """
    if not share:
        return {"CPU": cpus}
    return {"CPU": cpus, "GPU": share if share >= 1 else 1 / math.floor(1 / share + EPSILON)}
