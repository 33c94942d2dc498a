"""Damaged and hostile checkpoints: noticed whatever the bytes are, and the one before is gone on from."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from ablate.base.errors import CheckpointError
from ablate.engine.training import checkpoint, train
from support.damage import truncate
from support.small_training import numbers, trial


def cut_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip_a_weight(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    path.write_bytes(content)


def flip_a_metric(path: Path) -> None:
    content = path.read_bytes()
    assert content.count(b"val_loss") == 2
    path.write_bytes(content.replace(b"val_loss", b"vaI_loss"))


def replace_with_text(path: Path) -> None:
    path.write_text("not a checkpoint " * 100)


DAMAGES = [truncate, cut_header, empty, flip_a_weight, flip_a_metric, replace_with_text]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    whole = list(train(trial()))
    list(islice(train(trial(), checkpoints=tmp_path), 3))
    damage(tmp_path / "epoch-000003-attempt-001.safetensors")
    with caplog.at_level(logging.WARNING, logger="ablate.engine.training"):
        resumed = list(train(trial(), checkpoints=tmp_path))
    assert [(r.epoch, r.metrics) for r in resumed] == [(r.epoch, r.metrics) for r in whole[1:]]
    (record,) = caplog.records
    name = re.escape(str(tmp_path / "epoch-000003-attempt-001.safetensors"))
    rule = rf"damaged checkpoint {name}: [^\n]+; falling back to epoch-000002-attempt-001\.safetensors"
    assert re.fullmatch(rule, record.getMessage())
    assert record.levelno == logging.WARNING


def test_a_missing_newest_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    reports = list(islice(train(trial(), checkpoints=tmp_path), 3))
    (tmp_path / "epoch-000003-attempt-001.safetensors").unlink()
    assert numbers(list(islice(train(trial(), checkpoints=tmp_path), 2))) == numbers(reports[1:])


def test_two_damaged_checkpoints_mean_a_fresh_start_that_keeps_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = list(train(trial(), checkpoints=tmp_path))
    for path in tmp_path.iterdir():
        truncate(path)
    resumed = train(trial(), checkpoints=tmp_path)
    assert numbers([next(resumed)]) == numbers(whole[:1])
    assert "falling back to the beginning: there is none before it" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-000001-attempt-001.safetensors"]
    assert numbers(list(resumed)) == numbers(whole[1:])


def packed(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str, shape: list[int], end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}


SIGNED = {"content": "{}", "sha256": checkpoint._checksum("{}", {})}
HOSTILE = {
    "header that is longer than the file": (2**63).to_bytes(8, "little") + b"{}",
    "header of nothing": bytes(8),
    "deep brackets": packed(b"[" * 10**6),
    "deep metadata": packed(b'{"__metadata__":' + b'{"a":' * 10**5),
    "list": packed([]),
    "number": packed(1),
    "not UTF-8": packed(b"\xff\xfe{}"),
    "no metadata": packed({}),
    "metadata of numbers": packed({"__metadata__": {"content": 1, "sha256": 2}}),
    "more numbers than torch can count": packed({"__metadata__": SIGNED, "a": entry("F32", [0, 2**62, 4], 0)}),
    "a size beyond 64 bits": packed({"__metadata__": SIGNED, "a": entry("F32", [0, 2**64], 0)}),
    "a negative size": packed({"__metadata__": SIGNED, "a": entry("F32", [-1, 0], 0)}),
    "a size that is no number": packed({"__metadata__": SIGNED, "a": {"dtype": "F32", "shape": ["x"]}}),
    "a type that torch does not have": packed({"__metadata__": SIGNED, "a": entry("F4", [2], 1)}, b"1"),
    "a pickle": b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
    "content that is no object": packed({"__metadata__": {"content": "7", "sha256": checkpoint._checksum("7", {})}}),
    "content without anything": packed({"__metadata__": SIGNED}),
    "deep content": packed({"__metadata__": {"content": "[" * 10**5, "sha256": checkpoint._checksum("[" * 10**5, {})}}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_are_a_damaged_checkpoint(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    first = next(train(trial(), checkpoints=tmp_path))
    path = tmp_path / "epoch-000002-attempt-001.safetensors"
    path.write_bytes(HOSTILE[name])
    with pytest.raises(CheckpointError, match=r"^damaged checkpoint [^\n]*epoch-000002-attempt-001[^\n]*$"):
        checkpoint.read(tmp_path, path.name)
    assert next(train(trial(), checkpoints=tmp_path)) == first
    assert "falling back to epoch-000001-attempt-001.safetensors" in caplog.text


@pytest.mark.services
def test_every_changed_bit_and_every_cut_is_noticed(tmp_path: Path) -> None:
    report = next(train(trial(), checkpoints=tmp_path))
    path = tmp_path / str(report.checkpoint)
    whole, content = checkpoint.read(tmp_path, path.name), path.read_bytes()
    rng = np.random.default_rng(0)
    for place in [*range(400), *rng.integers(len(content), size=600).tolist()]:
        changed = bytearray(content)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        with pytest.raises(CheckpointError, match=r"^damaged checkpoint"):
            checkpoint.read(tmp_path, path.name)
    for length in rng.integers(len(content), size=100).tolist():
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"^damaged checkpoint"):
            checkpoint.read(tmp_path, path.name)
    path.write_bytes(content)
    assert checkpoint.read(tmp_path, path.name).report == whole.report == report


def test_a_checkpoint_under_the_name_of_another_is_damaged(tmp_path: Path) -> None:
    report = next(train(trial(), checkpoints=tmp_path))
    (tmp_path / str(report.checkpoint)).rename(tmp_path / "epoch-000007-attempt-001.safetensors")
    with pytest.raises(CheckpointError, match=r"damaged checkpoint .*000007.*: it holds epoch 1, step 0"):
        checkpoint.read(tmp_path, "epoch-000007-attempt-001.safetensors")
