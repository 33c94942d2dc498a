"""The actor that runs in a Ray worker and turns one assignment after another into outcomes of its trials."""

from __future__ import annotations

from ablate.base.garbage import collecting_rarely

with collecting_rarely():  # otherwise garbage collection takes a fifth of the time of these imports
    import logging
    import threading
    from collections.abc import Mapping, Sequence
    from contextlib import nullcontext
    from dataclasses import replace
    from typing import Any, TextIO

    import ray
    from ray import tune

    from ablate.core.code_version import CODE_PREFIX
    from ablate.core.trainable import Member
    from ablate.core.trial import TrialKey
    from ablate.execution.pack_run import Assignment, PackRun
    from ablate.execution.pausing import watch
    from ablate.functions.code.archive import extract

ASSIGNMENT = "assignment"
TURN = "turn"
PAUSE = "pause"


class Warnings(logging.StreamHandler[TextIO]):
    """Prints the warnings of a worker's trainer into its log, and keeps them until a turn takes them to the driver."""

    def __init__(self) -> None:
        super().__init__()
        self.setLevel(logging.WARNING)
        self._lines: list[str] = []

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for the log, and keep its message unless it is about progress."""
        line = super().format(record)
        if not hasattr(record, "progress"):
            self._lines.append(record.message)
        return line

    def taken(self) -> dict[str, str]:
        """Return the lines since the last call, each as its own subject."""
        with self.lock or nullcontext():  # another thread may log now
            lines, self._lines = self._lines, []
        return {line: line for line in lines}


class TrialActor(tune.Trainable):
    """Trains the trials of an assignment, one turn per step.

    Exceptions are returned as outcomes, so a failed trial leaves its actor alive for the next one. Only a dead process
    is an error to Ray. Tune saves nothing: the trainer writes its own checkpoints.
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Start the assignment in `config`, and watch for a request to pause."""
        self._pause = threading.Event()
        threading.Thread(target=watch, args=(config[PAUSE], self._pause), name="pause", daemon=True).start()
        self._run: PackRun | None = None
        self._warnings = Warnings()
        self._take(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Drop the last assignment and start the one in `new_config`."""
        self._take(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Return the next Turn: the outcomes of some trials."""
        assert self._run is not None
        turn = self._run.turn()
        return {TURN: replace(turn, notes={**turn.notes, **self._warnings.taken()})}

    def change(self, ended: Sequence[TrialKey], joined: Sequence[Member]) -> None:
        """Stop trials of the pack and add others; the driver calls this between two steps."""
        assert self._run is not None
        self._run.change(ended, joined)

    def cleanup(self) -> None:
        """Release files and device memory."""
        if self._run is not None:
            self._run.close()
        logging.getLogger("ablate").removeHandler(self._warnings)

    def get_auto_filled_metrics(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Return nothing: Tune would send a trial's whole configuration with each step."""
        return {}

    def _take(self, config: Mapping[str, Any]) -> None:
        self.cleanup()
        logging.getLogger("ablate").addHandler(self._warnings)
        assignment: Assignment = config[ASSIGNMENT]
        if assignment.code is not None:
            content: Any = ray.get(assignment.code)
            folder = extract(content)
            if assignment.members[0].config.trainable.startswith(CODE_PREFIX):
                assignment = replace(assignment, versions=folder)
        self._run = PackRun(assignment, self._pause.is_set)
