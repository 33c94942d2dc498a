"""What is beside an exported model: its settings alone, and which training, numbers and code it is of."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ablate import __version__
from ablate.base.plain_text import finite
from ablate.core.objectives import mean
from ablate.core.trial import TrialConfig

CONFIG, SETTINGS = "config.json", "settings.json"
PACKAGES = ("torch", "safetensors", "numpy", "xgboost", "lightgbm", "transformers", "keras", "lightning", "jax")


def write_about(
    folder: Path,
    config: TrialConfig,
    *,
    replicate: int,
    metrics: Sequence[Mapping[str, float]],
    code: Mapping[str, str] | None,
) -> None:
    """Write `settings.json` and `config.json` into the folder of a model.

    `metrics` are those of the report that counts, by replicate; `code` are the SHA-256 of the files of code.
    """
    content = {
        "format": 1,
        **identity(config, replicate),
        "stage": config.stage,
        "source": config.source,
        "variant": config.variant,
        "seed": config.seeds[replicate],
        "study_seed": config.study_seed,
        "protocol": config.protocol,
        "task": config.task.model_dump(mode="json"),
        "settings": config.settings.model_dump(mode="json"),
        "metrics": _with_n(metrics),
        "trainable": config.trainable,
        "code": dict(code or {}),
        "versions": {"ablate": __version__, "python": platform.python_version(), **_versions()},
    }
    for name, value in ((SETTINGS, config.settings.handed()), (CONFIG, finite(content))):
        (folder / name).write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def identity(config: TrialConfig, replicate: int) -> dict[str, Any]:
    """Return what names one replicate of a trial."""
    key = config.key
    return {"study": key.study, "dataset": key.dataset, "trial": key.number, "replicate": replicate}


def _with_n(metrics: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    names = dict.fromkeys(name for row in metrics for name in row)
    values = {name: [row.get(name) for row in metrics] for name in names}
    return {name: {"mean": mean(each), "n": len(each), "values": each} for name, each in values.items()}


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
