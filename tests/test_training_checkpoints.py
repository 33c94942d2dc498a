"""Checkpoints: atomic, checked, and the one before when the newest is damaged."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save
from test_training_loop import numbers, trial

from ablate.config import ModelConfig
from ablate.errors import CheckpointError, RequestError
from ablate.training import checkpoint, predictor, train
from ablate.training.checkpoint import Mark
from ablate.trial import TrialConfig


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


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
    with caplog.at_level(logging.WARNING, logger="ablate.training"):
        resumed = list(train(trial(), checkpoints=tmp_path))
    assert [(r.epoch, r.metrics) for r in resumed] == [(r.epoch, r.metrics) for r in whole[1:]]
    assert len(caplog.records) == 1
    assert "epoch-000003-attempt-001.safetensors" in caplog.text
    assert "falling back" in caplog.text


def test_a_missing_newest_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    reports = list(islice(train(trial(), checkpoints=tmp_path), 3))
    (tmp_path / "epoch-000003-attempt-001.safetensors").unlink()
    assert numbers(list(islice(train(trial(), checkpoints=tmp_path), 2))) == numbers(reports[1:])


def test_two_damaged_checkpoints_mean_a_fresh_start_that_keeps_its_own(tmp_path: Path) -> None:
    whole = list(train(trial(), checkpoints=tmp_path))
    for path in tmp_path.iterdir():
        truncate(path)
    resumed = train(trial(), checkpoints=tmp_path)
    assert numbers([next(resumed)]) == numbers(whole[:1])
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-000001-attempt-001.safetensors"]
    assert numbers(list(resumed)) == numbers(whole[1:])


def test_two_checkpoints_are_kept_each_on_disk_before_its_report(tmp_path: Path) -> None:
    for report in train(trial(), checkpoints=tmp_path):
        assert checkpoint.read(tmp_path, str(report.checkpoint)).report == report
        kept = sorted(path.name for path in tmp_path.iterdir())
        assert kept == [Mark(attempt=1, epoch=e).name for e in (report.epoch - 1, report.epoch) if e]


def test_a_finished_trial_repeats_its_last_report_and_ends(tmp_path: Path) -> None:
    last = list(train(trial(), checkpoints=tmp_path))[-1]
    assert list(train(trial(), checkpoints=tmp_path)) == [last]


def test_a_write_that_fails_leaves_the_last_checkpoint_and_no_fragment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = train(trial(), checkpoints=tmp_path)
    first = next(reports)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"cannot write checkpoint .*000002.*: No space left on device"):
        next(reports)
    assert [path.name for path in tmp_path.iterdir()] == [first.checkpoint]


def test_a_fragment_of_a_killed_process_is_ignored_and_removed(tmp_path: Path) -> None:
    whole = list(train(trial(), checkpoints=tmp_path))
    (tmp_path / "epoch-000009-attempt-001.safetensors.4711.tmp").write_bytes(b"half")
    assert numbers(list(train(trial(), checkpoints=tmp_path))) == numbers(whole[-1:])
    assert not list(tmp_path.glob("*.tmp"))


def test_reading_a_predictor_leaves_a_folder_that_is_written_to_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    list(train(trial(), checkpoints=tmp_path))
    truncate(tmp_path / "epoch-000004-attempt-001.safetensors")
    (tmp_path / "epoch-000005-attempt-001.safetensors.4711.tmp").write_bytes(b"half")
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    module = predictor(trial(), tmp_path, 1)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files
    assert "epoch-000004-attempt-001.safetensors" in caplog.text
    expected = checkpoint.read(tmp_path, "epoch-000003-attempt-001.safetensors").tensors["weights.head.weight"][1]
    assert torch.equal(module.state_dict()["head.weight"], expected)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write checkpoint .*file/trial.*: Not a directory"):
        next(train(trial(), checkpoints=tmp_path / "file" / "trial"))


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (trial(model=ModelConfig(width=12, depth=1, mlp=8)), "model"),
        (trial(seeds=(3, 5)), "seeds"),
        (trial(train=trial().train.model_copy(update={"weight_decay": 0.5})), "train"),
    ],
    ids=["model", "seeds", "train"],
)
def test_a_checkpoint_of_another_trial_is_refused(tmp_path: Path, other: TrialConfig, field: str) -> None:
    next(train(trial(), checkpoints=tmp_path))
    with pytest.raises(CheckpointError, match=f"belongs to another trial: its {field} differ"):
        next(train(other, checkpoints=tmp_path))
    assert (tmp_path / "epoch-000001-attempt-001.safetensors").exists()


YOUNGER = {
    "model": ("dropout",),
    "task": ("share", "length"),
    "train": ("steps_per_epoch",),
    "shape": ("inputs", "output", "causal", "source_tokens", "source_features", "pad"),
}


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Write the checkpoint in `path` again, with another content and a checksum that is right for it."""
    found = checkpoint.read(path.parent, path.name)
    with safe_open(path, framework="pt") as file:
        content = json.loads(file.metadata()["content"])
    change(content)
    text = json.dumps(content)
    path.write_bytes(save(dict(found.tensors), {"content": text, "sha256": checkpoint._checksum(text, found.tensors)}))


def test_a_checkpoint_from_before_texts_is_gone_on_from(tmp_path: Path) -> None:
    whole = list(train(trial()))
    list(islice(train(trial(), checkpoints=tmp_path), 3))

    def older(content: dict[str, Any]) -> None:
        for part, names in YOUNGER.items():
            fields = content["shape"] if part == "shape" else content["trial"][part]
            for name in names:
                del fields[name]
        del content["trial"]["train"]["schedule"]["warmup_steps"]

    rewritten(tmp_path / "epoch-000003-attempt-001.safetensors", older)
    predictor(trial(), tmp_path, 0)
    assert [r.metrics for r in train(trial(), checkpoints=tmp_path)] == [r.metrics for r in whole[2:]]


def test_a_checkpoint_of_a_later_version_is_of_another_trial(tmp_path: Path) -> None:
    list(islice(train(trial(), checkpoints=tmp_path), 3))
    rewritten(
        tmp_path / "epoch-000003-attempt-001.safetensors",
        lambda content: content["trial"]["model"].update(unheard_of=1),
    )
    with pytest.raises(CheckpointError, match="belongs to another trial: its model differ"):
        next(train(trial(), checkpoints=tmp_path))


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    report = next(train(trial(), checkpoints=tmp_path))
    found = checkpoint.read(tmp_path, str(report.checkpoint))
    name = "weights.head.weight"
    for changed, message in (
        ({**found.tensors, name: torch.zeros(2, 9, 3)}, r"weights.head.weight is float32 \[2, 9, 3\], the trial's"),
        ({k: v for k, v in found.tensors.items() if k != name}, r"weights.head.weight is only in the trial's model"),
        ({**found.tensors, "weights.extra": torch.zeros(2)}, r"weights.extra is only in the checkpoint"),
    ):
        checkpoint.write(tmp_path, replace(found, tensors=changed))
        with pytest.raises(CheckpointError, match=message):
            next(train(trial(), checkpoints=tmp_path))


def test_a_predictor_without_a_checkpoint_or_replicate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no whole checkpoint of s/stripes/0"):
        predictor(trial(), tmp_path, 0)
    with pytest.raises(RequestError, match="has replicates 0 to 1, not 2"):
        predictor(trial(), tmp_path, 2)
