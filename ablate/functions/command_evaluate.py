"""Measures what a command has written: the reference's own evaluation, run on the folder of a candidate's seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ablate.base.errors import TrialError
from ablate.core.objectives import is_evaluated
from ablate.functions.code_folder import CodeFolder
from ablate.functions.command_output import NumberReader
from ablate.functions.command_process import Running
from ablate.functions.command_words import words_of


def evaluate(
    command: str,
    readers: Sequence[NumberReader],
    values: Mapping[str, Any],
    *,
    folder: CodeFolder,
    environment: Mapping[str, str],
    say: Callable[[Sequence[str]], None],
    pause: Callable[[], bool],
) -> dict[str, float]:
    """Return the metrics that `command` prints, run in `folder`; `values` has `output`, the folder that it measures.

    The last value of each metric counts. Raises TrialError if the command ends with an error or does not print every
    metric that is none of training, PausedError once `pause()` is true.
    """
    found: dict[str, float] = {}

    def read(line: str) -> None:
        found.update({each.name: value for each in readers if (value := each.last(line)) is not None})

    running = Running(
        words_of(command, values),
        environment=environment,
        token=f"{values['output']} evaluate",
        read=read,
        say=say,
        pause=pause,
        folder=folder,
    )
    try:
        running.wait()
        missing = [each.name for each in readers if is_evaluated(each.name) and each.name not in found]
        if running.code != 0:
            raise running.failure(" while it evaluated what the trial has written")
        if missing:
            raise TrialError(f"`evaluate` printed no {', '.join(missing)}. Its last lines: {running.last_lines}")
        return found
    finally:
        running.end()
