"""Tiny ImageNet and ImageNet: layouts, streams of images, keyed augmentation, and everything that can be wrong."""

from __future__ import annotations

import hashlib
import io
import multiprocessing
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from ablate.base.errors import DataError, RequestError, TrialError
from ablate.core.registry import read_task
from ablate.engine.models.model_config import InputShape
from ablate.engine.tasks import Data, archives, fetch, load_task
from ablate.engine.tasks.base import Stream
from ablate.engine.tasks.images import image_stream, imagenet
from ablate.engine.tasks.images.image_stream import ImageStream, decode
from support.entries import refusal
from support.file_server import serving
from support.joined import join

WNIDS = ("n01443537", "n01629819", "n02123045")


def _jpeg(path: Path, seed: int, size: tuple[int, int] = (64, 64)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    small = np.random.default_rng(seed).integers(256, size=(5, 5, 3), dtype=np.uint8)
    Image.fromarray(small).resize(size[::-1], Image.Resampling.BICUBIC).save(path, quality=95)


def _task(name: str = "tiny_imagenet", **fields: object) -> imagenet.StreamedTask:
    options = {"workers": 0, **fields.pop("options", {})}  # type: ignore[dict-item]
    task = load_task(read_task({"task": name, "patch": 16, "options": options, **fields}))
    assert isinstance(task, imagenet.StreamedTask)
    return task


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Three classes, written out of order, of four training and two test images."""
    root = tmp_path / "tiny-imagenet-200"
    rows = []
    for label, wnid in enumerate(WNIDS):
        for i in range(4):
            _jpeg(root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", 10 * label + i)
        for i in range(2):
            name = f"val_{3 * i + 2 - label}.JPEG"
            _jpeg(root / "val" / "images" / name, 100 + 10 * label + i)
            rows.append(f"{name}\t{wnid}\t0\t1\t32\t62")
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("none")
    (root / "val" / "val_annotations.txt").write_text("\n".join(reversed(rows)) + "\n")
    (root / "wnids.txt").write_text("\n".join(reversed(WNIDS)) + "\n")
    words = ["n01443537\tgoldfish, Carassius auratus", "n01629819\tnewt", "n02123045\tnewt, other", "n09\tunused"]
    (root / "words.txt").write_text("\n".join(words) + "\n")
    return tmp_path


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Two classes in torchvision's layout, with images of different sizes."""
    root = tmp_path / "imagenet"
    for label, wnid in enumerate(WNIDS[:2]):
        for i, size in enumerate([(40, 60), (90, 50), (48, 48)]):
            _jpeg(root / "train" / wnid / f"{wnid}_{i}.JPEG", 10 * label + i, size)
        _jpeg(root / "val" / wnid / "ILSVRC2012_val_0.JPEG", 100 + label, (50, 70))
    (root / "meta.bin").write_bytes(b"never read")
    return tmp_path


def _all(stream: object, index: Sequence[Sequence[int]], *, batch: int, keys: Sequence[int] | None) -> Tensor:
    assert isinstance(stream, Stream)
    return torch.cat(list(stream.batches(torch.tensor(index), batch, keys)), dim=1)


def _stream(data: Data, **fields: object) -> ImageStream:
    assert isinstance(data.train_inputs, ImageStream)
    return ImageStream(**{**vars(data.train_inputs), **fields})


class TestTinyImageNet:
    def test_images_and_targets_are_where_the_lists_say(self, tiny: Path) -> None:
        data = _task().load(tiny)
        assert data.train_targets.tolist() == [0] * 4 + [1] * 4 + [2] * 4
        assert data.test_targets.tolist() == [2, 2, 1, 1, 0, 0]
        assert data.class_names == ("goldfish", "n01629819", "n02123045")
        assert data.train_inputs.shape == (12, 16, 768)
        root = tiny / "tiny-imagenet-200"
        rows = [line.split("\t")[0] for line in (root / "val" / "val_annotations.txt").read_text().splitlines()]
        for stream, paths in [
            (data.train_inputs, [root / "train" / w / "images" / f"{w}_{i}.JPEG" for w in WNIDS for i in range(4)]),
            (data.test_inputs, [root / "val" / "images" / row for row in rows]),
        ]:
            got = _all(stream, [list(range(len(paths)))], batch=5, keys=None)[0]
            for patches, path in zip(got, paths, strict=True):
                pixels = join(patches[None], (16, 16), (64, 64))[0].numpy()
                assert np.array_equal(pixels, np.asarray(Image.open(path)))

    def test_tokens_are_normalised_by_the_published_constants(self, tiny: Path) -> None:
        data = _task().load(tiny)
        patches = _all(data.train_inputs, [[3]], batch=1, keys=None)
        expected = v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])(
            join(patches[0], (16, 16), (64, 64)).permute(0, 3, 1, 2).double() / 255
        )
        tokens = data.tokens(patches, torch.float64)
        torch.testing.assert_close(join(tokens[0], (16, 16), (64, 64)), expected.permute(0, 2, 3, 1))

    def test_the_shape_without_files_is_the_published_one(self, tmp_path: Path) -> None:
        expected = InputShape(tokens=16, features=768, outputs=200, train_samples=100_000, patch=(16, 16))
        assert _task().shape(tmp_path) == expected
        vit = InputShape(tokens=196, features=768, outputs=200, train_samples=100_000, patch=(16, 16))
        assert _task(image_size=224).shape(tmp_path) == vit

    def test_a_subset_of_classes_is_counted(self, tiny: Path) -> None:
        assert _task().shape(tiny) == InputShape(tokens=16, features=768, outputs=3, train_samples=12, patch=(16, 16))
        (tiny / "tiny-imagenet-200" / "wnids.txt").write_text(f"{WNIDS[0]}\n{WNIDS[2]}\n")
        data = _task().load(tiny)
        assert _task().shape(tiny).outputs == 2
        assert data.train_targets.tolist() == [0] * 4 + [1] * 4
        assert data.test_targets.tolist() == [1, 1, 0, 0]

    @pytest.mark.parametrize(
        ("spoil", "rule"),
        [
            ("wnids.txt", r"is not in .* \(looked for tiny-imagenet-200/wnids.txt\).*ablate data fetch tiny_imagenet"),
            (f"train/{WNIDS[1]}", f"looked for tiny-imagenet-200/train/{WNIDS[1]}/images"),
            ("val/images/val_1.JPEG", "val_annotations.txt: names val/images/val_1.JPEG, which is missing"),
            (f"train/{WNIDS[0]}/images/*", rf"train/{WNIDS[0]}/images: holds no images \(.jpg"),
        ],
    )
    def test_what_is_missing_is_named(self, tiny: Path, spoil: str, rule: str) -> None:
        for path in list((tiny / "tiny-imagenet-200").glob(spoil)):
            path.rename(tiny / f"away-{path.name}")
        with pytest.raises(DataError, match=rule) as caught:
            _task().check(tiny)
        assert "\n" not in str(caught.value)

    def test_annotations_of_a_class_that_is_not_there(self, tiny: Path) -> None:
        path = tiny / "tiny-imagenet-200" / "val" / "val_annotations.txt"
        path.write_text(path.read_text().replace(WNIDS[1], "n999"))
        with pytest.raises(DataError, match=r"names the class 'n999', which is neither in wnids.txt nor in train"):
            _task().load(tiny)

    def test_a_single_class(self, tiny: Path) -> None:
        (tiny / "tiny-imagenet-200" / "wnids.txt").write_text(WNIDS[0])
        with pytest.raises(DataError, match=r"wnids.txt: names 1 classes, two or more are needed"):
            _task().check(tiny)


class TestImageNet:
    def test_images_and_targets_of_torchvisions_layout(self, large: Path) -> None:
        task = _task("imagenet", image_size=32)
        data = task.load(large)
        assert data.train_targets.tolist() == [0, 0, 0, 1, 1, 1]
        assert data.test_targets.tolist() == [0, 1]
        assert data.class_names == WNIDS[:2]
        assert task.shape(large) == InputShape(tokens=4, features=768, outputs=2, train_samples=6, patch=(16, 16))

    def test_the_shape_without_files_is_that_of_the_papers(self, tmp_path: Path) -> None:
        expected = InputShape(tokens=196, features=768, outputs=1000, train_samples=1_281_167, patch=(16, 16))
        assert _task("imagenet").shape(tmp_path) == expected

    def test_absent_and_incomplete_folders_say_the_layout(self, large: Path, tmp_path: Path) -> None:
        layout = r"cannot be downloaded .*imagenet/train/<class>/\*.JPEG and imagenet/val/<class>/\*.JPEG"
        with pytest.raises(DataError, match=f"data set imagenet: {tmp_path}/none/imagenet does not exist. It {layout}"):
            fetch("imagenet", tmp_path / "none")
        (large / "imagenet" / "train" / "n999").mkdir()
        with pytest.raises(DataError, match=f"imagenet is damaged .val/n999: missing.*{layout}"):
            _task("imagenet").check(large)
        (large / "imagenet" / "val" / "n999").mkdir()
        with pytest.raises(DataError, match=r"is damaged .train/n999: holds no images"):
            _task("imagenet").check(large)

    def test_evaluation_is_torchvisions_resize_and_centre_crop(self, large: Path) -> None:
        data = _task("imagenet", image_size=[48, 32], patch=[16, 8]).load(large)
        reference = v2.Compose([v2.Resize(round(48 * 256 / 224)), v2.CenterCrop([48, 32])])
        got = _all(data.train_inputs, [[2, 1, 0]], batch=2, keys=None)[0]
        for patches, i in zip(got, [2, 1, 0], strict=True):
            path = large / "imagenet" / "train" / WNIDS[0] / f"{WNIDS[0]}_{i}.JPEG"
            image = torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1)
            assert torch.equal(join(patches[None], (16, 8), (48, 32))[0].permute(2, 0, 1), reference(image))


class TestAugmentation:
    def test_workers_batches_and_neighbours_change_nothing(self, tiny: Path) -> None:
        data = _task().load(tiny)
        index = [[0, 5, 2, 9, 7], [9, 0, 1, 2, 3]]
        alone = _all(_stream(data), index, batch=2, keys=[11, 12])
        ahead = _all(_stream(data, workers=2), index, batch=3, keys=[11, 12])
        assert torch.equal(alone, ahead)
        other = _all(_stream(data), [[2, 0]], batch=1, keys=[11])
        assert torch.equal(other[0], alone[0, [2, 0]])

    def test_keys_make_the_difference(self, tiny: Path) -> None:
        stream = _task().load(tiny).train_inputs
        got = _all(stream, [[4, 4], [4, 6]], batch=2, keys=[1, 2])
        assert torch.equal(got[0, 0], got[0, 1])
        assert not torch.equal(got[0, 0], got[1, 0])
        assert torch.equal(got, _all(stream, [[4, 4], [4, 6]], batch=1, keys=[1, 2]))
        plain = _all(stream, [[4]], batch=1, keys=None)
        assert not torch.equal(got[0, 0], plain[0, 0])

    def test_a_crop_is_one_of_torchvisions(self, tiny: Path) -> None:
        stream = _task().load(tiny).train_inputs
        image = decode(tiny / "tiny-imagenet-200" / "train" / WNIDS[1] / "images" / f"{WNIDS[1]}_0.JPEG")
        got = join(_all(stream, [[4]], batch=1, keys=[77])[0], (16, 16), (64, 64))[0].permute(2, 0, 1)
        reference = v2.Compose([v2.RandomResizedCrop(64), v2.RandomHorizontalFlip()])
        with torch.random.fork_rng(devices=[]):
            digest = hashlib.blake2b(b"77 4", digest_size=8).digest()
            torch.manual_seed(int.from_bytes(digest, "little") // 2)
            assert torch.equal(got, reference(image))

    @pytest.mark.parametrize("workers", [0, 1])
    def test_the_global_generator_is_left_alone(self, tiny: Path, workers: int) -> None:
        stream = _stream(_task().load(tiny), workers=workers)
        before = torch.get_rng_state()
        _all(stream, [[0, 1]], batch=2, keys=[1])
        assert torch.equal(torch.get_rng_state(), before)

    def test_without_augmentation_keys_do_nothing(self, tiny: Path) -> None:
        stream = _task(options={"augment": False}).load(tiny).train_inputs
        plain = _all(stream, [[3, 8], [3, 8]], batch=2, keys=None)
        assert torch.equal(_all(stream, [[3, 8], [3, 8]], batch=2, keys=[5, 6]), plain)

    def test_replicates_that_see_the_same_share_it(self, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        read: list[Path] = []
        monkeypatch.setattr(image_stream, "decode", lambda path: read.append(path) or decode(path))
        stream = _task().load(tiny).test_inputs
        assert isinstance(stream, Stream)
        index = torch.arange(6).expand(4, -1)
        first, second = stream.batches(index, 4, None)
        assert (first.shape, second.shape) == ((4, 4, 16, 768), (4, 2, 16, 768))
        assert len(read) == 6
        assert torch.equal(first[0], first[3])


class TestWorkers:
    def test_they_start_late_and_end_with_the_iterator(self, tiny: Path) -> None:
        before = multiprocessing.active_children()
        batches = _stream(_task().load(tiny), workers=2).batches(torch.arange(12)[None], 1, [3])
        assert multiprocessing.active_children() == before
        next(batches)
        assert len(multiprocessing.active_children()) == len(before) + 2
        batches.close()  # type: ignore[attr-defined]
        assert multiprocessing.active_children() == before

    def test_large_batches_come_in_pieces(self, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        stream = _stream(_task().load(tiny), workers=2)
        index = [[0, 5, 2, 9, 7], [9, 0, 1, 2, 3]]
        whole = _all(stream, index, batch=5, keys=[1, 2])
        monkeypatch.setattr(image_stream, "PIECE_BYTES", 3 * 64 * 64 * 3)
        assert torch.equal(_all(stream, index, batch=5, keys=[1, 2]), whole)

    @pytest.mark.parametrize("workers", [0, 1])
    def test_a_damaged_image_is_named_in_one_line(self, tiny: Path, workers: int) -> None:
        path = tiny / "tiny-imagenet-200" / "train" / WNIDS[0] / "images" / f"{WNIDS[0]}_2.JPEG"
        path.write_bytes(path.read_bytes()[:600])
        stream = _stream(_task().load(tiny), workers=workers)
        with pytest.raises(DataError, match=f"image {path} cannot be read: .*[Tt]runcated") as caught:
            _all(stream, [[0, 1, 2, 3]], batch=2, keys=[1])
        assert "\n" not in str(caught.value)
        path.write_text("no")
        with pytest.raises(DataError, match=f"image {path} cannot be read: not an image"):
            _all(stream, [[2]], batch=1, keys=None)
        assert not multiprocessing.active_children()

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a transfer that was cut
    def test_a_process_that_dies_is_an_error_of_the_trial(self, tiny: Path) -> None:
        batches = _stream(_task().load(tiny), workers=1).batches(torch.arange(12)[None], 1, [3])
        next(batches)
        (worker,) = multiprocessing.active_children()
        worker.kill()
        with pytest.raises(TrialError, match=r"a process that reads images ended: .*workers: 0"):
            list(batches)

    @pytest.mark.parametrize("mode", ["L", "CMYK", "P", "RGBA"])
    def test_every_kind_of_image_becomes_rgb(self, tmp_path: Path, mode: str) -> None:
        path = tmp_path / "image"
        image = Image.fromarray(np.full((4, 6, 3), (51, 51, 51), dtype=np.uint8)).convert(mode)
        image.save(path, format="JPEG" if mode in ("L", "CMYK") else "PNG")
        pixels = decode(path)
        assert pixels.shape == (3, 4, 6)
        assert (pixels.int() - 51).abs().max() <= 2


class TestRequests:
    @pytest.mark.parametrize(
        ("fields", "rule"),
        [
            (
                {"options": {"worker": 2}},
                "options.worker: this key is not known. Did you mean 'workers'? Known: a",
            ),
            ({"options": {"workers": -1}}, "options.workers = -1: Input should be greater than or equal to 0"),
            ({"options": {"workers": True}}, "options.workers = True: Input should be a valid integer"),
            ({"options": {"augment": "no"}}, "options.augment = 'no': Input should be a valid boolean"),
            (
                {"path": "x"},
                "path = 'x': task tiny_imagenet does not have this setting. Did you mean 'patch'?",
            ),
        ],
    )
    def test_what_is_not_used_is_refused(self, fields: dict[str, object], rule: str) -> None:
        assert f"study:3: datasets.a.{rule}" in refusal(task="tiny_imagenet", **fields)

    def test_a_patch_that_does_not_fit(self, tmp_path: Path) -> None:
        with pytest.raises(
            RequestError, match=r"tiny_imagenet: patch 7x7 does not divide the 64x64 image .possible: 1"
        ):
            _task(patch=7).shape(tmp_path)


def _zip(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder served on this machine in place of the public address."""
    folder = tmp_path / "served"
    folder.mkdir()
    with serving(folder, monkeypatch) as address:
        monkeypatch.setattr(imagenet, "TINY_URL", f"{address}tiny.zip")
        yield folder / "tiny.zip"


class TestFetch:
    def _publish(self, served: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        served.write_bytes(content)
        monkeypatch.setattr(imagenet, "TINY_MD5", hashlib.md5(content, usedforsecurity=False).hexdigest())

    def _whole(self, tiny: Path) -> dict[str, bytes]:
        return {str(path.relative_to(tiny)): path.read_bytes() for path in tiny.rglob("*") if path.is_file()}

    def test_the_archive_is_extracted_and_a_damaged_folder_mended(
        self, tiny: Path, served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entries = {k: v for k, v in self._whole(tiny).items() if k.startswith("tiny-imagenet-200/")}
        self._publish(served, _zip(entries), monkeypatch)
        target = tmp_path / "new"
        assert fetch("tiny_imagenet", target) == target / "tiny-imagenet-200"
        assert self._whole(target) == entries
        (target / "tiny-imagenet-200" / "wnids.txt").unlink()
        (target / "tiny-imagenet-200" / "mine.txt").write_text("stays")
        fetch("tiny_imagenet", target)
        assert self._whole(target) == entries | {"tiny-imagenet-200/mine.txt": b"stays"}
        served.unlink()
        fetch("tiny_imagenet", target)

    @pytest.mark.parametrize("name", ["../evil", "tiny-imagenet-200/../../evil", "/evil", "other/x", "..\\evil"])
    def test_paths_that_lead_outside_are_refused(
        self, served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        self._publish(served, _zip({"tiny-imagenet-200/wnids.txt": b"x", name: b"x"}), monkeypatch)
        with pytest.raises(DataError, match="which is not below tiny-imagenet-200: nothing was extracted"):
            fetch("tiny_imagenet", tmp_path / "new")
        assert list((tmp_path / "new").iterdir()) == []
        assert not list(tmp_path.rglob("evil"))

    def test_failures_take_one_line_and_leave_nothing(
        self, served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for content, rule in [(None, "404"), (b"no zip", "not a zip file"), (b"other", "MD5 sum is .* not 0")]:
            if content is not None:
                self._publish(served, content, monkeypatch)
            if content == b"other":
                monkeypatch.setattr(imagenet, "TINY_MD5", "0")
            with pytest.raises(DataError, match=f"cannot download tiny_imagenet into .*{rule}.*ablate data fetch") as c:
                fetch("tiny_imagenet", tmp_path / "new")
            assert "\n" not in str(c.value)
        assert list((tmp_path / "new").iterdir()) == []

    def test_a_server_that_falls_silent(self, tmp_path: Path) -> None:
        import socket

        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            with pytest.raises(OSError, match="timed out"):
                archives.download(f"http://127.0.0.1:{silent.getsockname()[1]}/x", tmp_path / "x", silence=0.2)
