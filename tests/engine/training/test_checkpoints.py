"""Checkpoints: written in one step, two at every moment, those of every attempt apart, and of one trial only."""

from __future__ import annotations

import json
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

from ablate.base.errors import CheckpointDownError, CheckpointError, RequestError
from ablate.base.files import DiskFolder
from ablate.core.trial import TrialConfig
from ablate.engine.models.model_config import ModelConfig
from ablate.engine.training import checkpoint, predictor, train
from ablate.engine.training.checkpoint import CheckpointId
from support.damage import truncate
from support.small_training import numbers, trial
from support.trials import with_training


def test_two_checkpoints_are_kept_each_on_disk_before_its_report(tmp_path: Path) -> None:
    for report in train(trial(), checkpoints=tmp_path):
        assert checkpoint.read(tmp_path, str(report.checkpoint)).report == report
        kept = sorted(path.name for path in tmp_path.iterdir())
        assert kept == [CheckpointId(attempt=1, epoch=e).name for e in (report.epoch - 1, report.epoch) if e]


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
    advice = r"free some space there and run the same command again: nothing that was committed is lost"
    with pytest.raises(CheckpointDownError, match=rf"cannot write checkpoint .*000002.*: No space left .*; {advice}$"):
        next(reports)
    assert [path.name for path in tmp_path.iterdir()] == [first.checkpoint]


def test_a_fragment_of_a_killed_process_is_ignored_and_removed(tmp_path: Path) -> None:
    whole = list(train(trial(), checkpoints=tmp_path))
    (tmp_path / "epoch-000009-attempt-001.safetensors.4711.tmp").write_bytes(b"half")
    assert numbers(list(train(trial(), checkpoints=tmp_path))) == numbers(whole[-1:])
    assert not list(tmp_path.glob("*.tmp"))


def test_what_later_attempts_have_is_not_mended_or_removed_by_an_earlier_one(tmp_path: Path) -> None:
    list(islice(train(trial(), checkpoints=tmp_path, attempt=3), 2))
    damaged, half = (
        tmp_path / CheckpointId(attempt=3, epoch=2).name,
        tmp_path / (CheckpointId(attempt=3, epoch=3).name + ".4711.tmp"),
    )
    truncate(damaged)
    half.write_bytes(b"half")
    late = list(train(trial(), checkpoints=tmp_path, attempt=2))
    assert numbers(late[1:]) == [
        (e, m, CheckpointId(attempt=2, epoch=e).name, d, f) for e, m, _, d, f in numbers(list(train(trial())))[1:]
    ]
    own = {CheckpointId(attempt=2, epoch=epoch).name for epoch in (3, 4)}
    assert {path.name for path in tmp_path.iterdir()} == own | {
        damaged.name,
        half.name,
        CheckpointId(attempt=3, epoch=1).name,
    }


def test_two_whole_checkpoints_remain_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    list(islice(train(trial(), checkpoints=tmp_path, attempt=1), 2))
    remove, removed = DiskFolder.remove, list[str]()

    def watched(folder: DiskFolder, name: str) -> None:
        remove(folder, name)
        removed.append(name)
        for left in (names := folder.names()):
            checkpoint.read(tmp_path, left)
        assert len(names) >= 2

    monkeypatch.setattr(DiskFolder, "remove", watched)
    list(islice(train(trial(), checkpoints=tmp_path, attempt=2), 1))
    list(islice(train(trial(), checkpoints=tmp_path, attempt=3), 3))
    marks = [(1, 1), (1, 2), (2, 2), (3, 2)]
    assert removed == [CheckpointId(attempt=attempt, epoch=epoch).name for attempt, epoch in marks]
    assert DiskFolder(tmp_path).names() == [CheckpointId(attempt=3, epoch=epoch).name for epoch in (3, 4)]


def test_a_disk_that_cannot_be_read_is_not_taken_for_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    list(train(trial(), checkpoints=tmp_path))
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def refused(folder: DiskFolder, name: str) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(DiskFolder, "read", refused)
    advice = "let it be read and written and run the same command again: nothing that was committed is lost"
    for reader in (lambda: next(train(trial(), checkpoints=tmp_path)), lambda: predictor(trial(), tmp_path)):
        with pytest.raises(CheckpointDownError, match=rf"cannot read checkpoints in .*: Permission denied; {advice}$"):
            reader()
    with pytest.raises(
        CheckpointDownError, match=rf"cannot read checkpoint .*-002\.safetensors: Permission .*{advice}$"
    ):
        checkpoint.read(tmp_path, "epoch-000001-attempt-002.safetensors")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_a_reader_whose_file_is_replaced_by_newer_ones_takes_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = train(trial(), checkpoints=tmp_path)
    next(reports)
    names = DiskFolder.names

    def overtaken(folder: DiskFolder) -> list[str]:
        listed = names(folder)
        monkeypatch.setattr(DiskFolder, "names", names)
        assert len(list(reports)) == 3
        return listed

    monkeypatch.setattr(DiskFolder, "names", overtaken)
    found = checkpoint.newest(tmp_path, trial())
    assert found is not None
    assert found.checkpoint_id == CheckpointId(attempt=1, epoch=4)
    with pytest.raises(CheckpointError, match=r"no checkpoint .*epoch-000001-attempt-001.safetensors$"):
        checkpoint.read(tmp_path, "epoch-000001-attempt-001.safetensors")


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
        (with_training(trial(), weight_decay=0.5), "train"),
        (trial(stage="confirm"), "stage"),
        (trial(study_seed=8), "study_seed"),
        (trial(protocol="paper"), "protocol"),
        (trial(task=trial().task.model_copy(update={"train_limit": 99})), "task"),
    ],
    ids=["model", "seeds", "train", "stage", "study_seed", "protocol", "task"],
)
def test_a_checkpoint_of_another_trial_is_refused(tmp_path: Path, other: TrialConfig, field: str) -> None:
    next(train(trial(), checkpoints=tmp_path))
    with pytest.raises(CheckpointError, match=f"belongs to another trial: its {field} differ"):
        next(train(other, checkpoints=tmp_path))
    assert (tmp_path / "epoch-000001-attempt-001.safetensors").exists()


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Write the checkpoint in `path` again, with another content and a checksum that is right for it."""
    found = checkpoint.read(path.parent, path.name)
    with safe_open(path, framework="pt") as file:
        content = json.loads(file.metadata()["content"])
    change(content)
    text = json.dumps(content)
    path.write_bytes(save(dict(found.tensors), {"content": text, "sha256": checkpoint._checksum(text, found.tensors)}))


def test_the_newest_is_that_of_the_last_attempt_then_epoch_then_step() -> None:
    marks = [
        CheckpointId(attempt=attempt, epoch=epoch, step=step)
        for attempt in (0, 1, 2, 999, 1000)
        for epoch in (0, 9, 10, 1000000)
        for step in (0, 1, 1000000)
    ]
    assert sorted(marks) == marks
    assert CheckpointId(attempt=2, epoch=5, step=120).name == "epoch-000005-step-000120-attempt-002.safetensors"
    assert CheckpointId(attempt=2, epoch=5).name == "epoch-000005-attempt-002.safetensors"
    assert len({checkpoint_id.name for checkpoint_id in marks}) == len(marks)


def test_files_that_are_no_checkpoints_are_left_alone(tmp_path: Path) -> None:
    names = [
        "epoch-5.safetensors",
        "epoch-000001-attempt-001.safetensors.bak",
        "notes.txt",
        "epoch-000001-attempt-٣٣٣.safetensors",
    ]
    for name in names:
        (tmp_path / name).write_text("mine")
    (tmp_path / "epoch-000099-attempt-001.safetensors").mkdir()
    whole = list(train(trial(), checkpoints=tmp_path))
    assert [r.epoch for r in whole] == [1, 2, 3, 4]
    assert all((tmp_path / name).read_text() == "mine" for name in names)


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("ablate-checkpoint-9", CheckpointId(attempt=1, epoch=1).name),
        ("ablate-checkpoint-1", "epoch-000001.safetensors"),
    ],
)
def test_a_file_of_another_format_is_refused_and_kept(form: str, name: str, tmp_path: Path) -> None:
    next(train(trial(), checkpoints=tmp_path))
    path = (tmp_path / CheckpointId(attempt=1, epoch=1).name).rename(tmp_path / name)

    def other(content: dict[str, Any]) -> None:
        content |= {"format": form, "form": content.pop("shape")}

    rewritten(path, other)
    with pytest.raises(CheckpointError, match=rf"is of another version: format '{form}', not 'ablate-checkpoint-2'"):
        next(train(trial(), checkpoints=tmp_path))
    assert path.exists()


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
