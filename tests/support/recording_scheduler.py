"""A scheduler of a user's own, named by import path in tests: it writes down each call and stops at EDITED['from']."""

from __future__ import annotations

from typing import Any

from ablate.core.trial import Decision
from ablate.tuning import SchedulerRequest

CALLS: list[tuple[str, int, int, tuple[float, ...]]] = []  # method, trial, epoch, losses
EDITED: dict[str, int] = {}


class Recording:
    """Continues every trial until the rule is edited to stop at an epoch."""

    def observe(self, *, number: int, epoch: int, losses: tuple[float, ...], epochs: int) -> None:
        """Write the call down."""
        CALLS.append(("observe", number, epoch, losses))

    def decide(self, *, number: int, epoch: int, losses: tuple[float, ...], epochs: int) -> Decision:
        """Write the call down; stop from the epoch that the edited rule names."""
        CALLS.append(("decide", number, epoch, losses))
        return Decision.STOP if epoch >= EDITED.get("from", epochs) else Decision.CONTINUE


def build(request: SchedulerRequest) -> Any:
    """Return the scheduler."""
    return Recording()
