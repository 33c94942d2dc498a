"""Studies of `steered_training` whose reports a test lets through one by one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ablate.ledger.requests import ANSWERED
from support import steered_training
from support.faults import killing
from support.faults.study_runs import Command, StudyRun

MANY = 1_000_000


class Steered(StudyRun):
    """A study whose reports the test lets through, and commands beside it."""

    def allow(self, reports: int) -> None:
        """Let the study make so many reports in all."""
        (self.data / "allowed.new").write_text(str(reports))
        (self.data / "allowed.new").rename(self.data / "allowed")

    def begin(self, *more: str) -> Command:
        """Start the study."""
        environment = {steered_training.FOLDER: str(self.data)}
        return self.search(*more, inject=partial(killing.set_environment, environment))

    def end(self, *more: str) -> str:
        """Run the study to its end with every report let through, and return its output."""
        self.allow(MANY)
        command = self.begin(*more)
        assert command.wait() == 0, command.output
        return command.output

    def reported(self, count: int) -> Callable[[], bool]:
        """Return a condition: so many epochs are committed."""
        return lambda: self.committed() >= count

    def answers(self) -> list[dict[str, Any]]:
        """Return the payloads of the answers to requests."""
        return [event.payload for event in self.events() if event.kind == ANSWERED]
