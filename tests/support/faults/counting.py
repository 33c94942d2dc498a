"""`ablate` itself, with one line on disk for every optimiser step that is really taken.

It is run as `python -m support.faults.counting search …`.

The lines lie in `DATA_DIR/steps.jsonl`, for `--data-dir` is the one option that reaches every worker untouched (the
data sets of these tests need no folder). A number in `DATA_DIR/pace` makes every step last so many seconds longer; a
file `DATA_DIR/mortal-NUMBER` with a number lets the process die by SIGKILL at that step of each attempt of the trial.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ablate.core.trainable import load_trainable
from ablate.core.trial import Report, TrialConfig
from ablate.driver.options import RunOptions

STEPS, PACE, MORTAL = "steps.jsonl", "pace", "mortal-%d"


def train(config: TrialConfig, *, data_dir: Path | None, attempt: int = 1, **rest: Any) -> Iterator[Report]:
    """Yield what the built-in trainer yields; `steps.jsonl` gets a line after each step of it."""
    from ablate.engine.training.replica_group import ReplicaGroup

    assert data_dir is not None
    taken, pace, left = ReplicaGroup.step, number(data_dir / PACE), number(data_dir / (MORTAL % config.key.number))
    who = {"dataset": config.key.dataset, "trial": config.key.number, "attempt": attempt, "pid": os.getpid()}

    def step(*arguments: Any, **options: Any) -> Any:
        nonlocal left
        result = taken(*arguments, **options)
        append(data_dir / STEPS, who | {"at": time.time()})
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(pace)
        return result

    reports = load_trainable(config.trainable).train(config, data_dir=data_dir, attempt=attempt, **rest)
    try:
        while True:
            ReplicaGroup.step = step  # type: ignore[method-assign]
            try:
                report = next(reports, None)
            finally:
                ReplicaGroup.step = taken  # type: ignore[method-assign]
            if report is None:
                return
            yield report
    finally:
        close = getattr(reports, "close", None)
        if close is not None:
            close()


def append(file: Path, line: dict[str, Any]) -> None:
    """Append one line in one write, so that many processes may."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
    finally:
        os.close(descriptor)


def main() -> None:
    """Run the command line with the counting trainer as the default one."""
    count()
    from ablate.cli.app import main as run

    run()


def count(trainer: str | None = "support.faults.counting:train") -> None:
    """Make `trainer` the one that every command of this process uses, None for the built-in one."""
    defaults = RunOptions.__init__.__kwdefaults__
    assert defaults is not None
    assert "trainer" in defaults
    defaults["trainer"] = trainer


def number(file: Path) -> float:
    return float(file.read_text()) if file.exists() else 0.0


if __name__ == "__main__":
    main()
