"""The actor that runs in a Ray worker and turns one assignment after another into outcomes of its trials."""

from __future__ import annotations

from ablate.garbage import collecting_rarely

with collecting_rarely():  # a worker begins with these imports; else a fifth of their time goes into collections
    import threading
    from collections.abc import Sequence
    from typing import Any

    import ray
    from ray.tune import Trainable

    from ablate.execution.carried_code import unpack
    from ablate.execution.pack_run import Assignment, PackRun
    from ablate.execution.pausing import watch
    from ablate.trainable import Member
    from ablate.trial import TrialKey

ASSIGNMENT = "assignment"
TURN = "turn"
PAUSE = "pause"


class TrialActor(Trainable):
    """Trains the trials of an assignment, one turn per step.

    Exceptions are returned as outcomes, so a failed trial leaves its actor alive for the next one. Only a dead process
    is an error to Ray. Tune saves nothing: the trainer writes its own checkpoints.
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Start the assignment in `config`, and watch for the request to pause."""
        self._pause = threading.Event()
        threading.Thread(target=watch, args=(config[PAUSE], self._pause), name="pause", daemon=True).start()
        self._run: PackRun | None = None
        self._take(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Drop the last assignment and start the one in `new_config`."""
        self._take(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Return the next Turn: the outcomes of some trials."""
        assert self._run is not None
        return {TURN: self._run.turn()}

    def change(self, ended: Sequence[TrialKey], joined: Sequence[Member]) -> None:
        """Stop trials of the pack and add others; the driver calls this between two steps."""
        assert self._run is not None
        self._run.change(ended, joined)

    def cleanup(self) -> None:
        """Release files and device memory."""
        if self._run is not None:
            self._run.close()

    def _take(self, config: dict[str, Any]) -> None:
        self.cleanup()
        assignment: Assignment = config[ASSIGNMENT]
        if assignment.code is not None:
            content: Any = ray.get(assignment.code)
            unpack(content)
        self._run = PackRun(assignment, self._pause.is_set)
        self.config: dict[str, Any] = {}  # Tune would send it back with every result
