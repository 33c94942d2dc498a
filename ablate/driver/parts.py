"""The parts of the network of a training function, or of a study file's first data set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ablate.base.errors import RequestError
from ablate.core.config import DatasetFacts
from ablate.core.registry import COMMAND_PREFIX, trainable_settings
from ablate.core.trainable import load_trainable
from ablate.driver.own_sizes import inside
from ablate.study import load_study


def list_parts(target: str, config: Mapping[str, Any], *, data_dir: Path | None) -> dict[str, Any]:
    """Return the parts of a network as plain data; see `Trainable.list_parts`.

    `target` is a training function by import path, which gets `config`, or a study file. Raises RequestError if there
    is no network whose parts could be listed.
    """
    is_file = ":" not in target or target.endswith((".yaml", ".yml"))
    return _of_file(Path(target), config, data_dir) if is_file else _of_function(target, config)


def _of_function(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    if name.startswith(COMMAND_PREFIX):
        raise RequestError(
            f"{name!r} is no function mypkg.module:function, and the network of a command is out of reach"
        )
    return load_trainable(name).list_parts(
        trainable_settings(name).model_validate({"config": dict(config)}), DatasetFacts(), "data"
    )


def _of_file(file: Path, config: Mapping[str, Any], data_dir: Path | None) -> dict[str, Any]:
    study = load_study(file)
    label = study.labels[0]
    compared = study.compare is not None
    parameters = dict(study.design(label)[0]) if compared else inside(study.space_for(label), {})
    settings = study.settings_of(label, parameters)
    if config:
        raise RequestError(f"--set {next(iter(config))}: a study file gives the settings; --set is for a function")
    trainable = load_trainable(study.trainable)
    return trainable.list_parts(settings, trainable.find_facts(study.task(label), data_dir), label)
