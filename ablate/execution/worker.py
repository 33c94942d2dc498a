"""What runs in a Ray worker: an actor that turns one assignment after another into outcomes."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ray.tune import Trainable

from ablate.execution.executor import Assignment, advance
from ablate.trial import Report

ASSIGNMENT = "assignment"
OUTCOME = "outcome"


class TrialActor(Trainable):
    """Iterates a trainer's generator, one report or failure per step.

    Exceptions travel as outcomes, so a failed trial leaves its actor alive for the next one; only a dead
    process is an error to Ray. Tune saves nothing: the trainer writes its own checkpoints.
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Take on the assignment in `config`."""
        self._reports: Generator[Report] | None = None
        self._take(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Drop the last assignment and take on the one in `new_config`."""
        self._take(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Return the next outcome: a Report or a Failure."""
        assert self._reports is not None
        return {OUTCOME: advance(self._reports)}

    def cleanup(self) -> None:
        """Close the generator, so that it releases files and device memory."""
        if self._reports is not None:
            self._reports.close()

    def _take(self, config: dict[str, Any]) -> None:
        self.cleanup()
        assignment: Assignment = config[ASSIGNMENT]
        self._reports = assignment.reports()
        self.config: dict[str, Any] = {}  # Tune would send it back with every result
