"""Atomic checkpoints: safetensors with a checksum; the metadata hold the Report and the trial.

A checkpoint's name contains the attempt that wrote it. A process that was replaced but still runs can therefore
neither overwrite nor remove the checkpoints of a later attempt, and its own are not taken for those.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch
from pydantic import BaseModel
from safetensors import SafetensorError, TensorSpec, serialize
from safetensors.torch import load
from torch import Tensor

from ablate.base.errors import CheckpointDownError, CheckpointError
from ablate.base.files import Folder, Place, foreign, open_trial
from ablate.base.redaction import error_text, redact_url
from ablate.base.sample_files import SampleValues, write_sample_values
from ablate.core.trial import Report, TrialConfig
from ablate.engine.models.model_config import InputShape

FORMAT = "ablate-checkpoint-2"
KEPT = 2
LISTINGS = 5  # maximum number of times a folder is listed if files vanish between listing and reading
NOT_IDENTITY = ("key", "parameters", "variant", "source", "evaluates")  # fields that change no number

_NAME = re.compile(r"epoch-([0-9]{6,18})(?:-step-([0-9]{6,18}))?(?:-attempt-([0-9]{3,18}))?\.safetensors")
_FAULTS = (SafetensorError, KeyError, ValueError, TypeError, AttributeError, RecursionError)

logger = logging.getLogger("ablate.engine.training")


@dataclass(frozen=True, kw_only=True, order=True)
class CheckpointId:
    """The position of a trial at a checkpoint; of two checkpoints of a trial, the one of the greater id is used.

    `epoch` epochs were done, and `step` steps of the next one.
    """

    attempt: int
    epoch: int
    step: int = 0

    @property
    def name(self) -> str:
        """The name of the file."""
        step = f"-step-{self.step:06d}" if self.step else ""
        return f"epoch-{self.epoch:06d}{step}-attempt-{self.attempt:03d}.safetensors"

    def is_of_report(self, epoch: int | None) -> bool:
        """Return whether it is the checkpoint of the report after `epoch`."""
        return (self.epoch, self.step) == (epoch, 0)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The state of a trial: last `report`, seconds of training, `tensors`, and other JSON values in `state`.

    `midway` is the additional state of an unfinished epoch (docs/training.md); `metrics` names the means in it. Trials
    of the family have a `shape`, and tensors as Layout.tensors returns them. `counted` is the epoch of the trial's best
    report so far, whose checkpoint is kept too; None for a trial whose last report counts.
    """

    checkpoint_id: CheckpointId
    report: Report | None
    wall_seconds: float
    tensors: Mapping[str, Tensor]
    trial: Mapping[str, Any]
    shape: InputShape | None = None
    state: Mapping[str, Any] = field(default_factory=dict)
    midway: Mapping[str, Tensor] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    counted: int | None = None


class _Content(BaseModel):
    """What the metadata hold, as JSON."""

    format: str
    report: Report | None
    trial: dict[str, Any]
    shape: InputShape | None
    state: dict[str, Any] = {}
    epoch: int
    step: int
    wall_seconds: float
    metrics: tuple[str, ...]
    counted: int | None


class _DamagedError(CheckpointError):
    """The bytes are not those of a whole checkpoint."""


def identity(config: TrialConfig) -> dict[str, Any]:
    """Return what a checkpoint holds of its trial."""
    return config.to_json() | {"owner": config.owner}


def write(place: Place, checkpoint: Checkpoint) -> None:
    """Write a checkpoint atomically; it is durable when this returns.

    The newest two files of this attempt and earlier ones are kept, and that of the best report; those of later attempts
    are not touched. Raises CheckpointDownError if `place` cannot be written.
    """
    checkpoint_id = checkpoint.checkpoint_id
    content = json.dumps(
        {
            "format": FORMAT,
            "report": None if checkpoint.report is None else _plain(checkpoint.report),
            "trial": checkpoint.trial,
            "shape": None if checkpoint.shape is None else checkpoint.shape.model_dump(),
            **({"state": checkpoint.state} if checkpoint.state else {}),
            "epoch": checkpoint_id.epoch,
            "step": checkpoint_id.step,
            "wall_seconds": checkpoint.wall_seconds,
            "metrics": checkpoint.metrics,
            "counted": checkpoint.counted,
        }
    )
    tensors = {**checkpoint.tensors, **{f"midway.{name}": value for name, value in checkpoint.midway.items()}}
    raw = _to_bytes(tensors, {"content": content, "sha256": _checksum(content, tensors)})
    with _faults_explained(f"write checkpoint {redact_url(place)}/{checkpoint_id.name}", place):
        folder = open_trial(place)
        folder.write(checkpoint_id.name, raw)
        own = [each for each in _newest_first(folder) if each[0].attempt <= checkpoint_id.attempt]
        counted = [name for found, name in own if found.is_of_report(checkpoint.counted)]
        for _, name in own[KEPT:]:
            if name not in counted[:1]:
                folder.remove(name)


def keep_samples(place: Place, attempt: int, found: SampleValues) -> None:
    """Write what an attempt scored on each sample of the test split; raise CheckpointDownError."""
    with _faults_explained(f"write the samples' values in {redact_url(place)}", place):
        write_sample_values(open_trial(place), attempt, found)


def rewrite(place: Place, found: Checkpoint, attempt: int) -> Checkpoint:
    """Write a checkpoint of an earlier attempt again as one of `attempt`, and return it.

    If the earlier attempt still runs somewhere, its later checkpoints are then ignored. The checkpoint of the best
    report follows, as the earlier attempt may remove its own.
    """
    best = find_counted(place, found)
    mine = _as_of(found, attempt)
    write(place, mine)
    if best is not None and best is not found:
        write(place, _as_of(best, attempt))
    return mine


def _as_of(found: Checkpoint, attempt: int) -> Checkpoint:
    position = replace(found.checkpoint_id, attempt=attempt)
    report = None if found.report is None else replace(found.report, checkpoint=position.name)
    return replace(found, checkpoint_id=position, report=report)


def discard(place: Place, epoch: int) -> None:
    """Remove the checkpoints from `epoch` on; raise CheckpointDownError if `place` cannot be written."""
    with _faults_explained(f"remove checkpoints in {redact_url(place)}", place):
        folder = open_trial(place)
        for checkpoint_id, name in _newest_first(folder):
            if checkpoint_id.epoch >= epoch:
                folder.remove(name)


def find_counted(place: Place, found: Checkpoint) -> Checkpoint | None:
    """Return the checkpoint of the report that counts, given a trial's newest; None if there is no whole one."""
    if found.counted is None or found.checkpoint_id.is_of_report(found.counted):
        return found
    with _faults_explained(f"read checkpoints in {redact_url(place)}", place):
        folder, attempt = open_trial(place), found.checkpoint_id.attempt
        own = [(each, name) for each, name in _newest_first(folder) if each.attempt <= attempt]
        names = [name for each, name in own if each.is_of_report(found.counted)]
        return _newest_whole(folder, place, names, lambda name: False)[0]


def newest(place: Place, config: TrialConfig, *, attempt: int | None = None) -> Checkpoint | None:
    """Return the newest whole checkpoint of `config` in `place`, or None; damaged ones are logged and skipped.

    A caller that continues as `attempt` also removes damaged files and fragments of it and of earlier attempts.
    Raises CheckpointError if a whole checkpoint is of another trial, CheckpointDownError if it is of another study or
    `place` cannot be read.
    """
    own = partial(_is_of, attempt)
    with _faults_explained(f"read checkpoints in {redact_url(place)}", place):
        folder = open_trial(place)
        folder.sweep(own)
        for _ in range(LISTINGS):
            names = [name for _, name in _newest_first(folder)]
            found, vanished = _newest_whole(folder, place, names, own)
            if found is not None or not vanished:
                break
    if found is not None:
        _check_identity(f"{redact_url(place)}/{found.checkpoint_id.name}", found, config)
        if find_counted(place, found) is None:
            logger.warning("the checkpoint of the best report of %s is lost: it begins again", config.key)
            return None
    return found


def read(place: Place, name: str) -> Checkpoint:
    """Return the checkpoint `name` in `place`.

    Raises CheckpointError if it is damaged or missing, CheckpointDownError if `place` cannot be read.
    """
    path = f"{redact_url(place)}/{name}"
    with _faults_explained(f"read checkpoint {path}", place):
        try:
            raw = open_trial(place).read(name)
        except FileNotFoundError:
            raise CheckpointError(f"no checkpoint {path}") from None
    return _from_bytes(raw, name, path)


def _newest_whole(
    folder: Folder, place: Place, names: Sequence[str], own: Callable[[str], bool]
) -> tuple[Checkpoint | None, bool]:
    """Return the first whole one of `names`, and whether a file vanished meanwhile: its writer then has newer ones."""
    vanished = False
    for name, before in zip(names, [*names[1:], None], strict=False):
        try:
            return _from_bytes(folder.read(name), name, f"{redact_url(place)}/{name}"), vanished
        except FileNotFoundError:
            vanished = True
        except _DamagedError as error:
            logger.warning("%s; falling back to %s", error, before or "the beginning: there is none before it")
            if own(name):
                folder.remove(name)
    return None, vanished


def _is_of(attempt: int | None, name: str) -> bool:
    """Return whether `name` is a checkpoint of `attempt` or an earlier one; False if `attempt` is None."""
    match = _NAME.fullmatch(name)
    return match is not None and attempt is not None and _mark(match).attempt <= attempt


def _newest_first(folder: Folder) -> list[tuple[CheckpointId, str]]:
    found = [(match, name) for name in folder.names() if (match := _NAME.fullmatch(name))]
    return sorted(((_mark(match), name) for match, name in found), reverse=True)


def _mark(match: re.Match[str]) -> CheckpointId:
    epoch, step, attempt = (int(number or 0) for number in match.groups())
    return CheckpointId(attempt=attempt, epoch=epoch, step=step)


def _from_bytes(raw: bytes, name: str, path: str) -> Checkpoint:
    """Return the checkpoint in `raw`; raise CheckpointError for any invalid bytes."""
    try:
        metadata, checkpoint_id = _metadata(raw), _NAME.fullmatch(name)
        tensors = load(raw)
        if _checksum(metadata["content"], tensors) != metadata["sha256"]:
            raise _DamagedError(f"damaged checkpoint {path}: its checksum does not match")
        fields = json.loads(metadata["content"])
        if fields["format"] != FORMAT:
            raise CheckpointError(
                f"checkpoint {path} is of another version: format {fields['format']!r}, not {FORMAT!r}"
            )
        content = _Content.model_validate(fields)
    except _FAULTS as error:
        raise _DamagedError(f"damaged checkpoint {path}: {error_text(error)}") from error
    found = None if checkpoint_id is None else _mark(checkpoint_id)
    if found is None or (found.epoch, found.step) != (content.epoch, content.step):
        raise _DamagedError(f"damaged checkpoint {path}: it holds epoch {content.epoch}, step {content.step}")
    return Checkpoint(
        checkpoint_id=found,
        report=content.report,
        wall_seconds=content.wall_seconds,
        tensors={name: value for name, value in tensors.items() if not name.startswith("midway.")},
        trial=content.trial,
        shape=content.shape,
        state=content.state,
        midway={n.removeprefix("midway."): value for n, value in tensors.items() if n.startswith("midway.")},
        metrics=content.metrics,
        counted=content.counted,
    )


def _to_bytes(tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> bytes:
    """Return tensors and metadata as a safetensors file, in a tenth of the time of `safetensors.torch.save`."""
    whole = {name: value.contiguous() for name, value in tensors.items()}
    specs = {
        name: TensorSpec(
            dtype=str(value.dtype).removeprefix("torch."),
            shape=value.shape,
            data_ptr=value.data_ptr(),
            data_len=value.nbytes,
        )
        for name, value in whole.items()
    }
    return bytes(serialize(specs, metadata=metadata))


def _metadata(raw: bytes) -> dict[str, str]:
    """Return the metadata in a safetensors header; raise one of _FAULTS."""
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    for name, entry in header.items():
        if name != "__metadata__" and math.prod(size for size in entry["shape"] if size) >= 2**63:
            raise ValueError(f"{name} has the shape {entry['shape']}")  # empty, but its size overflows torch's 64 bits
    metadata: dict[str, str] = header["__metadata__"]
    return metadata


def _plain(report: Report) -> dict[str, Any]:
    return asdict(report) | {"metrics": [dict(metrics) for metrics in report.metrics]}


def _check_identity(path: str, found: Checkpoint, config: TrialConfig) -> None:
    if config.owner != found.trial.get("owner", "") and config.owner:
        raise foreign(f"checkpoint {path}")
    mine = json.loads(json.dumps(config.to_json()))
    names = [name for name in {**mine, **found.trial} if name not in (*NOT_IDENTITY, "owner")]
    different = [name for name in names if found.trial.get(name) != mine.get(name)]
    if different:
        raise CheckpointError(f"checkpoint {path} belongs to another trial: its {' and '.join(different)} differ")


def _checksum(content: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(content.encode())
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        digest.update(f"{name} {value.dtype} {list(value.shape)}".encode())
        digest.update(value.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def _faults_explained(doing: str, place: Place) -> Iterator[None]:
    """Convert errors of a disk or an object store to a CheckpointDownError that says in one line what to do."""
    try:
        yield
    except OSError as error:
        raise CheckpointDownError(
            f"cannot {doing}: {error_text(error, place)}; {_remedy(error, place)} and run the same command again:"
            " nothing that was committed is lost"
        ) from error


def _remedy(error: OSError, place: Place) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space there"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "let it be read and written"
    return "fix that" if not isinstance(place, str) else "see that the store answers, has the bucket and lets you in"
