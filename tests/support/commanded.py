"""Trials of a user's code, and those of a command run by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ablate.core.registry import read_task
from ablate.core.trainable import load_trainable
from ablate.core.trial import Report, TrialConfig, TrialKey
from ablate.functions.function_settings import FunctionSettings
from ablate.study.sections import trainable_name

COMMAND = f"{sys.executable} train.py {{x}} {{seed}} {{epochs}}"


def own_trial(
    trainable: str, config: Mapping[str, Any] | None = None, *, epochs: int = 1, **fields: Any
) -> TrialConfig:
    """Return a trial of a function or a command; `fields` are other fields of TrialConfig."""
    given = {"key": TrialKey(study="s", dataset="data", number=0), "stage": "search", "seeds": (0,), "study_seed": 0}
    settings = FunctionSettings(config=dict(config or {}), epochs=epochs, replace=fields.pop("replace", {}))
    return TrialConfig(settings=settings, task=read_task({"task": "data"}), trainable=trainable, **{**given, **fields})


def commanded(
    command: str = COMMAND,
    *,
    metrics: Any = "val_loss={number}",
    config: dict[str, Any] | None = None,
    stage: Any = "search",
    epochs: int = 3,
    seeds: tuple[int, ...] = (0,),
    checkpoints: Path | None = None,
    attempt: int = 1,
    pause: Callable[[], bool] = lambda: False,
    trial: dict[str, Any] | None = None,
    place: dict[str, Any] | None = None,
    **more: Any,
) -> Iterator[Report]:
    """Return the reports of a trial of `command`; `metrics` is a pattern of val_loss, or several.

    `place` is more of a TrialContext.
    """
    named = metrics if isinstance(metrics, dict) else {"val_loss": metrics}
    name = trainable_name({"command": command, "metrics": named} | more)
    fields = {"key": TrialKey(study="s", dataset="data", number=4), "stage": stage, "seeds": seeds, **(trial or {})}
    asked = own_trial(name, {"x": 1.0} if config is None else config, epochs=epochs, **fields)
    return load_trainable(name).train(
        asked, data_dir=None, checkpoints=checkpoints, device="cpu", attempt=attempt, pause=pause, **(place or {})
    )


def losses(reports: Iterator[Report]) -> list[list[float]]:
    """Return the values of val_loss, for each report those of its seeds."""
    return [[metrics["val_loss"] for metrics in report.metrics] for report in reports]
