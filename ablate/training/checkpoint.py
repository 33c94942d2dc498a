"""Checkpoints that are whole or not there: safetensors with a checksum, the Report and the trial in their metadata."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ablate.config import InputShape
from ablate.errors import CheckpointError
from ablate.trial import Report, TrialConfig

FORMAT = "ablate-checkpoint-1"
KEPT = 2
IDENTITY = ("stage", "model", "task", "train", "seeds", "study_seed", "protocol")  # the fields that change the numbers

logger = logging.getLogger("ablate.training")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What was written before `report` was yielded; `tensors` as RowGroup.tensors gives them."""

    report: Report
    tensors: Mapping[str, Tensor]
    trial: Mapping[str, Any]
    shape: InputShape


def file_name(epoch: int) -> str:
    """Return a checkpoint's file name; names sort by epoch."""
    return f"epoch-{epoch:06d}.safetensors"


def write(folder: Path, config: TrialConfig, shape: InputShape, report: Report, tensors: Mapping[str, Tensor]) -> None:
    """Write a checkpoint under `report.checkpoint` in one step, on disk before this returns, and keep the last two.

    Raises CheckpointError where the folder cannot be written.
    """
    content = json.dumps(
        {
            "format": FORMAT,
            "report": asdict(report) | {"metrics": [dict(m) for m in report.metrics]},
            "trial": config.to_json(),
            "shape": shape.model_dump(),
        }
    )
    packed = save(dict(tensors), metadata={"content": content, "sha256": _checksum(content, tensors)})
    path = folder / str(report.checkpoint)
    temporary = folder / f"{path.name}.{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(packed)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(folder)
        for old in _newest_first(folder)[KEPT:]:
            old.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(f"cannot write checkpoint {path}: {error.strerror or error}") from error


def newest(folder: Path, config: TrialConfig, *, repair: bool = False) -> Checkpoint | None:
    """Return the newest whole checkpoint of `config` in `folder`, or None; damaged ones are logged and passed over.

    `repair` also removes damaged files and fragments: for the one process that writes here. Raises CheckpointError
    where a whole checkpoint is of another trial, or where a file cannot be read or removed.
    """
    try:
        for fragment in folder.glob("*.tmp") if repair else ():
            fragment.unlink(missing_ok=True)
        for path in _newest_first(folder):
            try:
                found = read(path)
            except CheckpointError as error:
                logger.warning("%s; falling back to the one before", error)
                if repair:
                    path.unlink(missing_ok=True)
                continue
            _check_identity(path, found, config)
            return found
        return None
    except OSError as error:
        raise CheckpointError(f"cannot read checkpoints in {folder}: {error.strerror or error}") from error


def read(path: Path) -> Checkpoint:
    """Return the checkpoint in `path`; raise CheckpointError where it is not whole, OSError where there is none."""
    path.stat()
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        content = metadata["content"]
        if _checksum(content, tensors) != metadata["sha256"]:
            raise CheckpointError(f"damaged checkpoint {path}: its checksum does not match")
        fields = json.loads(content)
        if fields["format"] != FORMAT:
            raise CheckpointError(f"damaged checkpoint {path}: format {fields['format']!r}, not {FORMAT!r}")
    except (SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"damaged checkpoint {path}: {error}") from error
    saved = fields["report"]
    report = Report(**saved | {"metrics": tuple(saved["metrics"]), "diverged": tuple(saved["diverged"])})
    shape = InputShape.model_validate(fields["shape"])
    return Checkpoint(report=report, tensors=tensors, trial=fields["trial"], shape=shape)


def _check_identity(path: Path, found: Checkpoint, config: TrialConfig) -> None:
    mine = json.loads(json.dumps(config.to_json()))
    try:  # fields that are younger than the file have their defaults
        saved = json.loads(json.dumps(TrialConfig.from_json(found.trial).to_json()))
    except (ValueError, KeyError):  # written by a later version, with fields that are unknown here
        saved = dict(found.trial)
    different = [name for name in IDENTITY if saved.get(name) != mine[name]]
    if different:
        raise CheckpointError(f"checkpoint {path} belongs to another trial: its {' and '.join(different)} differ")


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("epoch-*.safetensors"), reverse=True)


def _checksum(content: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(content.encode())
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        digest.update(f"{name} {value.dtype} {list(value.shape)}".encode())
        digest.update(value.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
