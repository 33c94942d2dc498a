"""An attempt that was given up, and comes back while a later one is at work, changes nothing that counts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest

from ablate.base.errors import PausedError
from ablate.engine.training import checkpoint
from support.paused import IMAGES, STEPS, Asked, said, train
from support.trials import with_training


def files_of(place: Path, attempts: Sequence[int]) -> dict[str, bytes]:
    endings = tuple(f"-attempt-{attempt:03d}.safetensors" for attempt in attempts)
    return {path.name: path.read_bytes() for path in place.iterdir() if path.name.endswith(endings)}


@pytest.mark.parametrize("begun", [0, 1, 2])
def test_an_attempt_that_was_given_up_and_comes_back_changes_nothing(tmp_path: Path, begun: int) -> None:
    """The first attempt does an epoch after everything that the second does, and at last goes on to its end."""
    config = with_training(IMAGES, epochs=4)
    whole = {report.epoch: said(report) for report in train(config)}
    stale = train(config, checkpoints=tmp_path, attempt=1)
    told = {report.epoch: said(report) for report in islice(stale, begun)}
    for report in train(config, checkpoints=tmp_path, attempt=2):
        told[report.epoch] = said(report)
        kept = files_of(tmp_path, (2,))
        assert str(report.checkpoint) in kept
        for _ in islice(stale, 1 if report.epoch < 3 else None):
            assert files_of(tmp_path, (2,)) == kept
            found = checkpoint.newest(tmp_path, config)
            assert found is not None
            assert found.checkpoint_id.name == report.checkpoint
        third = next(train(config, checkpoints=copied(tmp_path, str(report.epoch)), attempt=3))
        assert said(third) == said(report)
    assert told == whole


def copied(place: Path, name: str) -> Path:
    folder = place / "copies" / name
    folder.mkdir(parents=True)
    for path in place.glob("*.safetensors"):
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.parametrize("at", [0, 2, STEPS + 2])
def test_an_attempt_that_wakes_in_the_middle_of_an_epoch_changes_nothing(tmp_path: Path, at: int) -> None:
    config = with_training(IMAGES, epochs=3)
    whole = [said(report) for report in train(config)]
    frozen, told = Asked(at), list[tuple[object, ...]]()

    def wakes() -> bool:
        """Let the second attempt take the trial over and be killed, then go on as if nothing had been."""
        if frozen():
            told.extend(said(report) for report in islice(train(config, checkpoints=tmp_path, attempt=2), 2))
        return False

    woken = train(config, checkpoints=tmp_path, attempt=1, pause=wakes)
    first = [said(report) for report in islice(woken, 1 if at < STEPS else 2)]
    assert told == whole[:2]
    kept = files_of(tmp_path, (2,))
    assert len(kept) == 2
    first += [said(report) for report in woken]
    assert files_of(tmp_path, (2,)) == kept
    assert len(files_of(tmp_path, (1,))) == 2
    assert first == whole
    third = [said(report) for report in train(config, checkpoints=tmp_path, attempt=3)]
    assert third == whole[1:]
    assert files_of(tmp_path, (1, 2)) == {}


def test_an_attempt_that_begins_anew_does_not_build_on_one_that_was_given_up(tmp_path: Path) -> None:
    def wakes() -> bool:
        with pytest.raises(PausedError, match="after 0 epochs and 0 steps"):
            next(train(IMAGES, checkpoints=tmp_path, attempt=2, pause=Asked(0)))
        return False

    next(train(IMAGES, checkpoints=tmp_path, attempt=1, pause=wakes))
    found = checkpoint.newest(tmp_path, IMAGES)
    assert found is not None
    assert (found.checkpoint_id, found.report) == (checkpoint.CheckpointId(attempt=2, epoch=0), None)
    assert [said(r) for r in train(IMAGES, checkpoints=tmp_path, attempt=3)] == [said(r) for r in train(IMAGES)]
