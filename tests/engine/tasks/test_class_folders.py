"""What else is below a folder of classes: links, pipes, names of other encodings, and equal files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ablate.base.errors import DataError
from ablate.engine.tasks.images.class_folders import class_names
from ablate.engine.tasks.images.image_stream import decode
from support.commands import LOCAL, run

STUDY = """
study: pets
datasets: {d: {task: image_folder, path: pets, patch: 4, validation: 0.2}}
model: {width: 8, depth: 1, heads: 1}
training: {epochs: 1, learning_rate: {float: [1e-3, 1e-2], log: true}}
budget: {trials: 1}
confirm: null
"""


def fill(folder: Path, *, first: int, count: int = 6) -> None:
    """Write `count` images, each of one value: first, first + 1, ..."""
    folder.mkdir(parents=True)
    for i in range(count):
        Image.fromarray(np.full((8, 8, 3), first + i, dtype=np.uint8)).save(folder / f"{i}.png")


@pytest.fixture
def pets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two classes of six images, and a study of them in the working directory."""
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "data" / "pets" / "cat", first=0)
    fill(tmp_path / "data" / "pets" / "dog", first=100)
    Path("s.yaml").write_text(STUDY)
    return tmp_path / "data" / "pets"


def search(capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the exit code of the study, and what it says."""
    code, out, err = run(capfd, "search", "s.yaml", "--data-dir", "data", *LOCAL)
    return code, (out + err).strip()


def twice(pets: Path) -> None:
    (pets / "cat" / "deep").mkdir()
    for name in ("a", "b"):
        (pets / "cat" / name).symlink_to("deep")


def diamonds(pets: Path) -> None:
    for i in range(40):
        (pets / "cat" / f"d{i}").mkdir()
        for name in ("l", "r"):
            (pets / "cat" / f"d{i}" / name).symlink_to(f"../d{i + 1}")


FAULTS: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "parent": (lambda pets: (pets / "cat" / "up").symlink_to(".."), ["cat/up: a link to ", "remove the link"]),
    "above the data set": (lambda pets: (pets / "dog" / "up").symlink_to("../../.."), ["dog/up: a link to "]),
    "itself": (lambda pets: (pets / "cat" / "me").symlink_to("."), ["cat/me: a link to "]),
    "a class": (lambda pets: (pets / "all").symlink_to("."), ["all: a link to "]),
    "twice": (twice, ["a link to ", "2 images cannot be read"]),
    "many ways": (diamonds, ["a link to "]),
    "all at once": (
        lambda pets: (
            os.mkfifo(pets / "cat" / "pipe.png"),
            (pets / "cat" / "null.png").symlink_to("/dev/null"),
            (pets / "dog" / "gone.png").symlink_to("/nowhere.png"),
            (pets / "dog" / "gone").symlink_to("/nowhere"),
            (pets / "dog" / "self.png").symlink_to("self.png"),
            (pets / "emu").symlink_to("/nowhere"),
            (pets / "dog" / "page.jpg").write_text("<html>"),
        ),
        [
            "7 images cannot be read",
            "cat/null.png: not a regular file",
            "cat/pipe.png: not a regular file",
            "dog/gone: No such file",
            "dog/gone.png: No such file",
            "dog/page.jpg: not an image",
            "dog/self.png: Too many levels",
            "emu: No such file",
        ],
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_no_image_is_listed_in_one_line(name: str, pets: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spoil, says = FAULTS[name]
    spoil(pets)
    code, said = search(capfd)
    assert code == 2
    assert len(said.splitlines()) == 1
    assert not [each for each in says if each not in said]


REPEATED: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "two classes": (
        lambda pets: shutil.copy(pets / "train" / "cat" / "0.png", pets / "train" / "dog" / "x.png"),
        ["1 sample has two classes (such as train/cat/0.png and train/dog/x.png)"],
    ),
    "test is train": (
        lambda pets: (pets / "test").symlink_to("train"),
        ["12 samples of test are in train too (such as test/cat/0.png and train/cat/0.png)"],
    ),
    "hard link": (
        lambda pets: (fill(pets / "val" / "cat", first=50), os.link(pets / "train/cat/1.png", pets / "val/cat/9.png")),
        ["1 sample of validation is in train too (such as val/cat/9.png and train/cat/1.png)"],
    ),
    "nothing": (lambda pets: fill(pets / "test" / "cat", first=50), []),
}


@pytest.mark.parametrize("name", REPEATED)
def test_equal_files_in_two_splits_or_classes_are_remarked(
    name: str, pets: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (pets / "train").mkdir()
    for label in ("cat", "dog"):
        (pets / label).rename(pets / "train" / label)
    spoil, says = REPEATED[name]
    spoil(pets)
    code, said = search(capfd)
    assert code == 0
    assert [line.partition("d: ")[2] for line in said.splitlines() if "Note: d:" in line] == [
        each if "classes" in each else f"{each}, so its numbers look better than they are" for each in says
    ]


def test_hidden_folders_inside_a_class_are_passed_over(pets: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(pets / "dog", pets / "cat" / ".ipynb_checkpoints")
    code, said = search(capfd)
    assert code == 0
    assert "two classes" not in said


def test_a_class_of_another_encoding_has_a_name_that_can_be_written(
    pets: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (pets / "cat").rename(pets / os.fsdecode(b"gr\xfcn"))
    assert search(capfd)[0] == 0
    assert class_names(["a", os.fsdecode(b"gr\xfcn"), "ü\n"]) == ("a", r"gr\xfcn", "ü\n")
    with pytest.raises(DataError, match="two folders of classes are both called"):
        class_names([os.fsdecode(b"\xfc"), r"\xfc"])


def test_a_photograph_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "0.jpg")
    with pytest.raises(DataError, match=r"0.jpg cannot be read: not a regular file"):
        decode(tmp_path / "0.jpg")
