"""Tiny Shakespeare: the real file against plain Python, missing and damaged files, the download."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ablate.base.errors import DataError, RequestError
from ablate.engine.models.model_config import InputShape
from ablate.engine.tasks import Fetchable, Task, fetch, load_task
from ablate.engine.tasks.base import Written
from ablate.engine.tasks.text import characters
from ablate.engine.tasks.text.tokens import WINDOW_PAD
from support.entries import entry, is_not_had, refusal
from support.file_server import serving
from support.operations import count_calls
from support.paths import REPOSITORY

REAL = Path(os.environ.get("ABLATE_DATA") or REPOSITORY.parent / "shared" / "data")
NAME = "tiny_shakespeare"


@pytest.fixture
def real() -> str:
    """The real text."""
    path = REAL / "tinyshakespeare" / "input.txt"
    if not path.is_file():
        pytest.skip(f"the real {NAME} is not in {REAL} (set ABLATE_DATA)")
    return path.read_text(encoding="ascii")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with a text of 1,000 characters, which the task then expects."""
    text = ("First Citizen:\nBefore we proceed any further, hear me speak.\n\n" * 20)[:1000]
    monkeypatch.setattr(characters, "CHARACTERS", 1000)
    monkeypatch.setattr(characters, "TRAIN_CHARACTERS", 900)
    monkeypatch.setattr(characters, "SHA256", hashlib.sha256(text.encode()).hexdigest())
    folder = tmp_path / "data"
    (folder / "tinyshakespeare").mkdir(parents=True)
    (folder / "tinyshakespeare" / "input.txt").write_text(text)
    return folder


def _task(length: int = 8) -> Task:
    return load_task(entry(task=NAME, length=length))


class TestRealFile:
    def test_the_counts_of_the_paper_and_the_symbols(self, real: str) -> None:
        assert len(real) == characters.CHARACTERS == 1_115_394
        assert "".join(sorted(set(real))) == characters.SYMBOLS
        assert len(characters.SYMBOLS) == 65

    @pytest.mark.parametrize("length", [8, 32, 64])
    def test_windows_of_the_train_part_and_the_whole_test_part_once(self, real: str, length: int) -> None:
        task = _task(length)
        data = task.load(REAL)
        split = int(0.9 * len(real))
        assert isinstance(data.train_inputs, torch.Tensor)
        assert isinstance(task, Written)
        for place in (0, 1, 500_000, split - length - 1):
            assert task.decode(data.train_inputs[place].tolist(), None) == real[place : place + length]
            assert task.decode(data.train_targets[place].tolist(), None) == real[place + 1 : place + 1 + length]
        assert len(data.train_inputs) == split - length
        counted = data.test_targets != WINDOW_PAD
        assert task.decode(data.test_targets[counted].tolist(), None) == real[split + 1 :]
        assert task.shape(None) == InputShape(
            tokens=length,
            features=65,
            outputs=65,
            train_samples=split - length,
            inputs="ids",
            output="token",
            causal=True,
            window=length,
        )
        assert (data.ids, data.pad, data.window) == (True, WINDOW_PAD, length)

    def test_loading_is_quick_and_copies_no_windows(self, real: str) -> None:
        data, calls = count_calls(lambda: _task(64).load(REAL))
        assert calls < 10_000, "not one for each character"
        assert isinstance(data.train_inputs, torch.Tensor)
        assert data.train_inputs.untyped_storage().nbytes() == len(real)


class TestWritten:
    def test_text_comes_back(self) -> None:
        task = _task()
        assert isinstance(task, Written)
        text = "O, wherefore art thou?\n- 3 'tis & $!"
        assert task.decode(task.encode(text, None), None) == text
        with pytest.raises(RequestError, match=r"tiny_shakespeare: the character 'é' is not known\. Known: .*xyz"):
            task.encode("fiancée", None)


class TestFaults:
    def test_a_missing_file(self, tmp_path: Path) -> None:
        folder = tmp_path / "no where"
        command = f"ablate data fetch {NAME} --data-dir '{folder}'"
        with pytest.raises(DataError, match=f"looked for tinyshakespeare/input.txt.* {command}") as caught:
            _task().check(folder)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("edit", "rule"),
        [
            (lambda content: content[:-1], "999 bytes, not 1,000"),
            (lambda content: content + b"\n", "1,001 bytes, not 1,000"),
            (lambda content: b"?" + content[1:], "its SHA-256 sum is not the published one"),
        ],
    )
    def test_a_damaged_file(self, small: Path, edit: object, rule: str) -> None:
        path = small / "tinyshakespeare" / "input.txt"
        path.write_bytes(edit(path.read_bytes()))  # type: ignore[operator]
        for call in (_task().check, _task().load):
            with pytest.raises(DataError, match=f"{NAME} in .* is damaged .*input.txt: {rule}.*ablate data fetch"):
                call(small)

    def test_a_file_that_may_not_be_read(self, small: Path) -> None:
        path = small / "tinyshakespeare" / "input.txt"
        path.chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("this user may read every file")
        with pytest.raises(DataError, match=f"{NAME} in .* cannot be read: .*Permission denied"):
            _task().check(small)

    def test_fields_without_a_meaning_and_long_windows_are_refused(self) -> None:
        assert is_not_had(refusal(task=NAME, path="x"), NAME, "path")
        with pytest.raises(RequestError, match=r"length=111,540 does not fit .* take at most 111,539"):
            _task(111_540)

    def test_it_can_be_listed(self, small: Path) -> None:
        task = _task()
        assert isinstance(task, Fetchable)
        assert task.location(small) == small / "tinyshakespeare" / "input.txt"
        assert task.location(small).is_file()


@pytest.fixture
def served(small: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the small text, served on this machine in place of the published address."""
    folder = small / "tinyshakespeare"
    with serving(folder, monkeypatch) as address:
        monkeypatch.setattr(characters, "ADDRESS", f"{address}input.txt")
        yield folder


class TestFetch:
    def test_an_absent_file_is_downloaded_and_a_damaged_one_replaced(self, served: Path, tmp_path: Path) -> None:
        target = tmp_path / "new" / "folder"
        path = fetch(NAME, target)
        assert path.read_bytes() == (served / "input.txt").read_bytes()
        path.write_bytes(b"damaged")
        assert fetch(NAME, target).read_bytes() == (served / "input.txt").read_bytes()
        assert [file.name for file in path.parent.iterdir()] == ["input.txt"]

    def test_other_content_is_not_written(self, served: Path, tmp_path: Path) -> None:
        (served / "input.txt").write_text("not Shakespeare")
        with pytest.raises(
            DataError, match=r"no longer holds tiny_shakespeare: 15 bytes, not 1,000; nothing was written"
        ):
            fetch(NAME, tmp_path / "new")
        assert not (tmp_path / "new" / "tinyshakespeare").exists()

    def test_no_network_is_said_in_one_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            monkeypatch.setattr(characters, "ADDRESS", f"http://127.0.0.1:{taken.getsockname()[1]}/input.txt")
            monkeypatch.setenv("no_proxy", "127.0.0.1")
            with pytest.raises(DataError, match=rf"cannot download {NAME} .*refused.*or copy the file") as caught:
                fetch(NAME, tmp_path / "new")
        assert "\n" not in str(caught.value)

    def test_a_whole_file_is_left_alone(self, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(characters, "ADDRESS", "http://127.0.0.1:1/never")
        assert fetch(NAME, small) == small / "tinyshakespeare" / "input.txt"
