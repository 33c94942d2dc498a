"""Faults that are put into a forked command before it starts: it kills or stops itself at an exact point."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

When = Literal["before", "after"]


def at_report(when: When, number: int, signal_number: signal.Signals = signal.SIGKILL) -> None:
    """Let this process die at its `number`th report: its checkpoint is written, the commit is not, or it is."""
    from ablate.ledger import StudyWriter

    real, calls = StudyWriter.report, 0

    def report(self: StudyWriter, *arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and when == "before":
            os.kill(os.getpid(), signal_number)
        answer = real(self, *arguments, **options)
        if calls == number and when == "after":
            os.kill(os.getpid(), signal_number)
        return answer

    StudyWriter.report = report  # type: ignore[method-assign]


def at_call(name: str, signal_number: signal.Signals = signal.SIGKILL) -> None:
    """Let this process get a signal when it is about to call a function of ablate.driver.run."""
    from ablate.driver import run as drive

    real = getattr(drive, name)

    def called(*arguments: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal_number)
        return real(*arguments, **options)

    setattr(drive, name, called)


def after_the_last_trial() -> None:
    """Let this process stop when its last trial is over and nothing is written yet."""
    from ablate.execution import LocalExecutor

    real = LocalExecutor.run

    def run(self: LocalExecutor, *arguments: Any, **options: Any) -> None:
        real(self, *arguments, **options)
        os.kill(os.getpid(), signal.SIGSTOP)

    LocalExecutor.run = run  # type: ignore[method-assign]


def within_a_checkpoint() -> None:
    """Let this process stop when its third checkpoint is written under a temporary name."""
    real, names = Path.replace, list[str]()

    def replace(self: Path, target: Path) -> Path:
        if "epoch-" in Path(target).name:
            names.append(Path(target).name)
            if len(names) == 3:
                os.kill(os.getpid(), signal.SIGSTOP)
        return real(self, target)

    Path.replace = replace  # type: ignore[method-assign, assignment]


def failing(stage: str, message: str) -> None:
    """Let the first trial of a stage fail; `{width}` in the message is its network's."""
    from ablate.engine.training import one_trial
    from ablate.engine.training.family import family

    real, calls = one_trial.train, 0

    def train(config: Any, **options: Any) -> Any:
        nonlocal calls
        if config.stage == stage:
            calls += 1
            if calls == 1:
                raise RuntimeError(message.format(width=family(config).model.width))
        return real(config, **options)

    one_trial.train = train


def set_environment(variables: Mapping[str, str]) -> None:
    """Set variables of this process."""
    os.environ.update(variables)


def in_folder(folder: str, then: Callable[[], object] | None = None) -> None:
    """Work in a folder, where modules of a study file are found, and put a further fault into the command."""
    os.chdir(folder)
    if then is not None:
        then()
