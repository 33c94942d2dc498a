"""Folders of images: layouts, sizes, colours, splits, and everything that can be wrong with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ablate.base.errors import DataError, RequestError
from ablate.core.registry import read_task
from ablate.engine.models.model_config import InputShape
from ablate.engine.tasks import load_task
from ablate.engine.tasks.images.image_folder import ImageFolder
from support.entries import entry
from support.joined import join


def _task(**fields: object) -> ImageFolder:
    task = load_task(read_task({"task": "image_folder", "path": "pets", "patch": 4, **fields}))
    assert isinstance(task, ImageFolder)
    return task


def _save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def _fill(folder: Path, *, count: int = 5, size: tuple[int, int] = (8, 12), grey: bool = False, first: int = 0) -> None:
    """Write `count` images to `folder`, each of one value: first, first + 1, ..."""
    for i in range(count):
        _save(folder / f"{i:03}.png", np.full(size if grey else (*size, 3), first + i, dtype=np.uint8))


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Two classes of colour images of 8x12 pixels: 10 cats of values 0.., 5 dogs of values 100.."""
    _fill(tmp_path / "pets" / "cat", count=10)
    _fill(tmp_path / "pets" / "dog", count=5, first=100)
    return tmp_path / "pets"


class TestLayouts:
    def test_without_splits_a_fifth_of_each_class_is_the_test_part(self, pets: Path) -> None:
        task = _task()
        data = task.load(pets.parent)
        assert task.shape(pets.parent) == InputShape(
            tokens=6, features=48, outputs=2, train_samples=12, test_samples=3, patch=(4, 4)
        )
        assert data.class_names == ("cat", "dog")
        assert data.test_targets.tolist() == [0, 0, 1]
        assert data.validation_inputs is None
        values = torch.cat([data.train_inputs, data.test_inputs])
        assert values.flatten(1).float().std(1).max() == 0
        assert sorted(values[:, 0, 0].tolist()) == [*range(10), *range(100, 105)]
        assert torch.equal(data.train_inputs[:, 0, 0] >= 100, data.train_targets == 1)
        assert torch.equal(_task().load(pets.parent).test_inputs, data.test_inputs)

    def test_splits_that_are_there_are_used(self, tmp_path: Path) -> None:
        for start, part in [(0, "train"), (50, "val"), (90, "test")]:
            _fill(tmp_path / "pets" / part / "cat", count=3, first=start)
            _fill(tmp_path / "pets" / part / "dog" / "deep" / "er", count=2, first=start + 10)
        data = _task().load(tmp_path)
        assert data.validation_inputs is not None
        assert data.validation_targets is not None
        assert data.train_inputs[:, 0, 0].tolist() == [0, 1, 2, 10, 11]
        assert data.validation_inputs[:, 0, 0].tolist() == [50, 51, 52, 60, 61]
        assert data.test_inputs[:, 0, 0].tolist() == [90, 91, 92, 100, 101]
        assert data.validation_targets.tolist() == data.test_targets.tolist() == [0, 0, 0, 1, 1]

    def test_a_test_part_is_held_out_where_only_train_and_val_are_there(self, tmp_path: Path) -> None:
        for part in ("train", "val"):
            _fill(tmp_path / "pets" / part / "cat")
            _fill(tmp_path / "pets" / part / "dog")
        data = _task().load(tmp_path)
        assert [len(targets) for _, _, targets in data.splits()] == [8, 2, 10]

    def test_an_absolute_path_needs_no_data_folder(self, pets: Path) -> None:
        assert _task(path=str(pets)).shape(None).train_samples == 12

    def test_hidden_and_other_files_are_passed_over(self, pets: Path) -> None:
        (pets / "cat" / "notes.txt").write_text("none")
        (pets / "cat" / "._001.png").write_bytes(b"none")
        (pets / ".cache").mkdir()
        _task().check(pets.parent)
        assert _task().shape(pets.parent).train_samples == 12


class TestPixels:
    def test_pixels_come_back_exactly_without_resizing(self, tmp_path: Path) -> None:
        random = np.random.default_rng(0)
        images = random.integers(256, size=(2, 2, 8, 12, 3), dtype=np.uint8)
        for label, i in np.ndindex(2, 2):
            _save(tmp_path / "pets" / "train" / str(label) / f"{i}.png", images[label, i])
            _save(tmp_path / "pets" / "test" / str(label) / f"{i}.bmp", images[label, i])
        data = _task(patch=[4, 6]).load(tmp_path)
        for inputs in (data.train_inputs, data.test_inputs):
            assert inputs.dtype == torch.uint8
            assert np.array_equal(join(inputs, (4, 6), (8, 12)).numpy(), images.reshape(4, 8, 12, 3))
        tokens = data.tokens(data.train_inputs, torch.float64)
        torch.testing.assert_close(tokens, data.train_inputs.double() / 127.5 - 1, rtol=0, atol=1e-12)

    def test_images_that_may_be_held_out_do_not_decide_how_others_are_scaled(self, tmp_path: Path) -> None:
        _fill(tmp_path / "pets" / "cat")
        _fill(tmp_path / "pets" / "dog", first=100)
        before = _task().load(tmp_path)
        _save(tmp_path / "pets" / "dog" / "999.png", np.full((8, 12, 3), 255, dtype=np.uint8))
        after = _task().load(tmp_path)
        assert len(after.train_targets) == len(before.train_targets) + 1
        assert torch.equal(torch.as_tensor(after.scale), torch.as_tensor(before.scale))
        assert torch.equal(torch.as_tensor(after.shift), torch.as_tensor(before.shift))

    def test_grey_images_have_one_channel_and_one_in_colour_makes_all_so(self, tmp_path: Path) -> None:
        _fill(tmp_path / "pets" / "cat", grey=True)
        _fill(tmp_path / "pets" / "dog", grey=True, first=100)
        assert _task().shape(tmp_path).features == 16
        assert _task().load(tmp_path).train_inputs.shape == (8, 6, 16)
        _fill(tmp_path / "pets" / "dog", count=1)
        assert _task().shape(tmp_path).features == 48
        assert _task().load(tmp_path).train_inputs.shape == (8, 6, 48)

    def test_transparent_and_palette_images_are_read_as_colour(self, tmp_path: Path) -> None:
        colour = np.full((8, 8, 3), (10, 200, 30), dtype=np.uint8)
        _save(tmp_path / "pets" / "train" / "a" / "0.png", np.dstack([colour, np.zeros((8, 8), dtype=np.uint8)]))
        for part, label in [("train", "b"), ("test", "a"), ("test", "b")]:
            folder = tmp_path / "pets" / part / label
            folder.mkdir(parents=True)
            Image.fromarray(colour).quantize(4).save(folder / "0.png", transparency=b"\x00\x80")
        data = _task().load(tmp_path)
        for inputs in (data.train_inputs, data.test_inputs):
            assert torch.unique(inputs.reshape(-1, 3), dim=0).tolist() == [[10, 200, 30]]

    def test_different_sizes_are_resized_as_pil_does(self, tmp_path: Path) -> None:
        random = np.random.default_rng(0)
        sizes = {"a": (16, 16), "b": (24, 10)}
        images = {name: random.integers(256, size=(*size, 3), dtype=np.uint8) for name, size in sizes.items()}
        for part in ("train", "test"):
            for name, pixels in images.items():
                _save(tmp_path / "pets" / part / name / "0.png", pixels)
        with pytest.raises(RequestError, match=r"2 sizes, from 16x16 to 24x10 \(height x width\); set image_size"):
            _task().shape(tmp_path)
        task = _task(image_size=[8, 12])
        assert task.shape(tmp_path).tokens == 6
        got = join(task.load(tmp_path).train_inputs, (4, 4), (8, 12)).numpy()
        for row, pixels in zip(got, images.values(), strict=True):
            small = Image.fromarray(pixels).resize((12, 8), Image.Resampling.BILINEAR)
            assert np.array_equal(row, np.asarray(small))

    def test_a_file_that_changed_is_read_again(self, pets: Path) -> None:
        assert _task().shape(pets.parent).tokens == 6
        for folder in ("cat", "dog"):
            _fill(pets / folder, count=10, size=(4, 4))
        assert _task().shape(pets.parent).tokens == 1


class TestBadFolders:
    def test_all_bad_files_are_listed_at_once(self, pets: Path) -> None:
        (pets / "cat" / "003.png").write_bytes(b"not an image")
        (pets / "dog" / "001.png").write_bytes(b"")
        Image.fromarray(np.zeros((8, 12), dtype=np.uint16)).save(pets / "dog" / "002.png")
        rule = (
            r"3 images cannot be read: cat/003.png: not an image; dog/001.png: .*; dog/002.png: pixels of kind 'I;16'"
        )
        for attempt in (_task().shape, _task().check, _task().load):
            with pytest.raises(DataError, match=rule) as caught:
                attempt(pets.parent)
            assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("suffix", ["png", "jpg"])
    def test_an_image_cut_off_after_its_header_is_found_by_the_check(self, pets: Path, suffix: str) -> None:
        path = pets / "cat" / f"whole.{suffix}"
        _save(path, np.random.default_rng(0).integers(256, size=(8, 12, 3), dtype=np.uint8))
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 4])
        with pytest.raises(DataError, match=rf"1 image cannot be read: cat/whole.{suffix}: .*[tT]runcated"):
            _task().check(pets.parent)

    def test_a_long_list_is_cut(self, pets: Path) -> None:
        for i in range(13):
            (pets / "dog" / f"{i}.jpg").write_bytes(b"no")
        with pytest.raises(
            DataError, match=r"13 images cannot be read: dog/0.jpg: .*dog/6.jpg: not an image; and 3 more$"
        ):
            _task().check(pets.parent)

    def test_an_absent_folder(self, tmp_path: Path) -> None:
        with pytest.raises(
            DataError, match=f"image_folder {tmp_path}/pets does not exist: 'path' is absolute or below"
        ):
            _task().check(tmp_path)

    def test_an_empty_folder_and_a_single_class(self, tmp_path: Path) -> None:
        (tmp_path / "pets").mkdir()
        with pytest.raises(DataError, match=r"needs two or more classes, a subfolder each; it has 0$"):
            _task().check(tmp_path)
        _fill(tmp_path / "pets" / "cat")
        with pytest.raises(DataError, match=r"it has 1 \(only 'cat'\)"):
            _task().check(tmp_path)

    def test_an_empty_class(self, pets: Path) -> None:
        (pets / "emu").mkdir()
        with pytest.raises(DataError, match=r"no images \(.jpg, .* in: emu$"):
            _task().check(pets.parent)

    def test_one_image_per_class_cannot_be_split(self, tmp_path: Path) -> None:
        _fill(tmp_path / "pets" / "cat", count=1)
        _fill(tmp_path / "pets" / "dog", count=1)
        with pytest.raises(DataError, match="one image per class is too few to hold out a test split"):
            _task().check(tmp_path)

    def test_splits_beside_classes_are_ambiguous(self, pets: Path) -> None:
        (pets / "test").mkdir()
        with pytest.raises(
            DataError, match="subfolders are classes, or train with val and test; found cat, dog beside"
        ):
            _task().check(pets.parent)

    def test_splits_without_train(self, tmp_path: Path) -> None:
        _fill(tmp_path / "pets" / "test" / "cat")
        with pytest.raises(DataError, match="train is missing"):
            _task().check(tmp_path)

    def test_a_class_that_train_does_not_have(self, tmp_path: Path) -> None:
        for place in ("train/cat", "train/dog", "test/cat", "test/cow"):
            _fill(tmp_path / "pets" / place)
        with pytest.raises(DataError, match="no such class in train: cow"):
            _task().check(tmp_path)

    def test_a_patch_that_does_not_fit_names_both_lists(self, pets: Path) -> None:
        with pytest.raises(
            RequestError, match=r"patch 5x5 .* 8x12 image \(possible: heights 1, 2, 4, 8; widths 1, 2, 3"
        ):
            _task(patch=5).check(pets.parent)

    def test_a_path_is_needed(self) -> None:
        with pytest.raises(RequestError, match="image_folder needs 'path'"):
            load_task(entry(task="image_folder")).shape(None)
