"""A large folder of images is decoded once: by names, sizes and times, and again where the array is damaged."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from PIL import Image

from ablate.engine.tasks import load_task
from ablate.engine.tasks.images import decoded as decoded_module
from ablate.engine.tasks.images import image_folder
from ablate.engine.tasks.images.decoded import CACHED_FROM, decode_all
from support.commands import run
from support.entries import entry

STUDY = "study: many\ndatasets: {photos: {task: image_folder, path: photos, patch: 2}}\nmodel: {width: 8, depth: 1}\n"


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two classes of tiny images, just enough to be kept, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for number in range(CACHED_FROM):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number:05}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)).save(path)
    return tmp_path / "photos"


def loaded(photos: Path) -> tuple[np.ndarray, int]:
    """Return the training images, and how many files were decoded for them."""
    task = load_task(entry(task="image_folder", path=str(photos), patch=2))
    decoded: list[Path] = []  # a mock's call_count loses calls of threads that run side by side
    original = image_folder._decode

    def decode(path: Path, out: np.ndarray) -> str:
        decoded.append(path)
        return original(path, out)

    with mock.patch.object(image_folder, "_decode", decode):
        data = task.load(None)
    return np.asarray(data.train_inputs), len(decoded)


@pytest.mark.services
def test_a_second_process_decodes_nothing(photos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "many.yaml"
    path.write_text(STUDY)
    place = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "ablate", "doctor", str(path), "--data-dir", str(tmp_path), "--runs-dir", "runs"]
    done = subprocess.run(command, cwd=tmp_path, env=place, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with mock.patch.object(image_folder, "_decode") as decode:
        code, out, _ = run(capfd, *command[3:])
    assert code == 0, out
    assert decode.call_count == 0


@pytest.mark.services
def test_the_array_is_known_by_size_and_time_and_made_again_where_it_is_damaged(
    photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, count = loaded(photos)
    assert count == CACHED_FROM
    again, count = loaded(photos)
    assert count == 0
    np.testing.assert_array_equal(again, first)
    (kept,) = (tmp_path / "cache").rglob("*.npy")
    for damaged in (kept.read_bytes()[:-40] + bytes(40), bytearray(kept.read_bytes()), b"", b"\x80\x04pickle" * 99):
        content = bytearray(damaged)
        if len(content) == kept.stat().st_size:
            content[200] ^= 1
        kept.write_bytes(content)
        again, count = loaded(photos)
        assert count == CACHED_FROM
        np.testing.assert_array_equal(again, first)
    assert "are damaged and are made again" in caplog.text
    os.utime(photos / "a" / "00000.png", ns=(1, 1))
    assert loaded(photos)[1] == CACHED_FROM
    assert loaded(photos)[1] == 0
    assert len(list((tmp_path / "cache").rglob("*.npy"))) == 1


@pytest.mark.services
def test_a_cache_that_cannot_be_written_is_done_without(
    photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("no folder")
    assert loaded(photos)[1] == CACHED_FROM
    assert "decoded images cannot be kept" in caplog.text


@pytest.mark.services
def test_a_link_in_the_cache_is_not_written_through(photos: Path, tmp_path: Path) -> None:
    loaded(photos)
    (kept,) = (tmp_path / "cache").rglob("*.npy")
    target = tmp_path / "precious"
    target.write_text("precious")
    kept.unlink()
    kept.symlink_to(target)
    loaded(photos)
    assert target.read_text() == "precious"


def test_decoding_says_how_far_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = [tmp_path / str(i) for i in range(3)]
    with caplog.at_level(logging.WARNING):
        decode_all(tmp_path, files, (1, 1, 1), lambda path, out: "", tell=0.0)
    assert [record.getMessage().split(": ")[1].split(",")[0] for record in caplog.records] == [
        f"decoded {n} of 3 images" for n in (1, 2, 3)
    ]
    assert decoded_module.TELL_SECONDS == 2.0
