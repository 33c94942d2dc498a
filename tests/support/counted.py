"""The digits task, which prints a line each time that its data are loaded."""

from __future__ import annotations

from pathlib import Path

from ablate.core.config import TaskConfig
from ablate.engine.tasks import Data, Task, load_task

LINE = "the data are loaded"


class Counted:
    """Does what another task does, and prints."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.shape, self.check, self.loss, self.metrics = task.shape, task.check, task.loss, task.metrics

    def load(self, data_dir: Path | None) -> Data:
        print(LINE)
        return self._task.load(data_dir)


def build(config: TaskConfig) -> Counted:
    """Return the digits task that prints."""
    return Counted(load_task(config.model_copy(update={"task": "digits"})))
