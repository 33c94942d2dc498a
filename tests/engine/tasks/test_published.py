"""MNIST, Fashion-MNIST and CIFAR: real files, synthetic archives in the official layout, damaged and missing ones."""

from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import socket
import struct
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from ablate.base.errors import DataError, RegistryError, RequestError
from ablate.engine.models.model_config import InputShape
from ablate.engine.tasks import available, fetch, load_task
from ablate.engine.tasks.images import published as mnist
from support.entries import entry
from support.file_server import serving
from support.joined import join
from support.paths import REPOSITORY

REAL = Path(os.environ.get("ABLATE_DATA") or REPOSITORY.parent / "shared" / "data")
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
FOLDERS = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}


def _real(name: str) -> Path:
    if not (REAL / FOLDERS[name] / "raw" / FILES[0]).is_file():
        pytest.skip(f"the real {name} is not in {REAL} (set ABLATE_DATA)")
    return REAL


class TestRealFiles:
    @pytest.mark.parametrize(
        ("name", "labels"), [("mnist", [5, 0, 4, 1, 9]), ("fashion_mnist", [9, 0, 0, 3, 0])], ids=FOLDERS
    )
    def test_data_equal_torchvisions_and_the_published_constants(self, name: str, labels: list[int]) -> None:
        import torchvision.datasets

        task = load_task(entry(task=name, patch=7))
        data = task.load(_real(name))
        assert data.train_targets[:5].tolist() == labels
        assert data.train_inputs.dtype == torch.uint8
        assert task.shape(None) == InputShape(
            tokens=16,
            features=49,
            outputs=10,
            train_samples=60_000,
            test_samples=10_000,
            patch=(7, 7),
        )
        reader = getattr(torchvision.datasets, FOLDERS[name])
        for train, inputs, targets in [
            (True, data.train_inputs, data.train_targets),
            (False, data.test_inputs, data.test_targets),
        ]:
            reference = reader(str(REAL), train=train, download=False)
            assert torch.equal(join(inputs, (7, 7), (28, 28))[..., 0], reference.data)
            assert torch.equal(targets, reference.targets)
        assert [c.split(" - ")[0] for c in reader.classes] == list(data.class_names)
        counts = data.train_inputs.reshape(-1).bincount(minlength=256).double()
        values = torch.arange(256, dtype=torch.float64) * data.scale + data.shift
        mean = (counts * values).sum() / counts.sum()
        assert mean.item() == pytest.approx(0, abs=2e-4)
        assert (counts * (values - mean) ** 2).sum() / counts.sum() == pytest.approx(1, abs=4e-4)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with an MNIST of 12 train and 6 test images, which the task then expects."""
    images = replace(mnist.MNIST.images, train_samples=12, test_samples=6)
    published = replace(mnist.MNIST, images=images)
    monkeypatch.setattr(mnist, "build_mnist", partial(mnist.IdxTask, published=published))
    folder = tmp_path / "data"
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    random = np.random.default_rng(0)
    for part, n in [("train", 12), ("t10k", 6)]:
        pixels, labels = random.integers(256, size=28 * 28 * n, dtype=np.uint8), np.arange(n, dtype=np.uint8) % 10
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 0x803, n, 28, 28) + pixels.tobytes())
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, n) + labels.tobytes())
    return folder


def _swap(path: Path, place: int, new: bytes) -> None:
    old = path.read_bytes()
    path.write_bytes(old[:place] + new + old[place + len(new) :])


class TestDamagedIdx:
    def test_the_small_one_is_whole(self, small: Path) -> None:
        data = load_task(entry(task="mnist")).load(small)
        assert data.train_targets.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]

    @pytest.mark.parametrize(
        ("file", "place", "new", "rule"),
        [
            (FILES[0], 0, b"\x1f\x8b", "train-images-idx3-ubyte: not an idx file of this kind"),
            (FILES[2], 4, b"\0\0\0\7", "t10k-images-idx3-ubyte: its header does not say 6 x 28 x 28"),
            (FILES[1], 9, b"\x0c", "train-labels-idx1-ubyte: holds label 12, the last class is 9"),
        ],
    )
    def test_wrong_bytes(self, small: Path, file: str, place: int, new: bytes, rule: str) -> None:
        _swap(small / "MNIST" / "raw" / file, place, new)
        with pytest.raises(DataError, match=f"mnist in .* is damaged .*{rule}.*ablate data fetch mnist --data-dir"):
            load_task(entry(task="mnist")).check(small)

    @pytest.mark.parametrize("length", [0, 3, 17, 9423, 9425])
    def test_cut_off_and_overlong_files(self, small: Path, length: int) -> None:
        path = small / "MNIST" / "raw" / FILES[0]
        path.write_bytes((path.read_bytes() + b"\0")[:length])
        with pytest.raises(
            DataError, match=r"images-idx3-ubyte: (not an idx|its header|17 bytes|9,42[35] bytes, not 9,424)"
        ):
            load_task(entry(task="mnist")).load(small)

    def test_every_fault_is_named_in_one_line(self, small: Path) -> None:
        raw = small / "MNIST" / "raw"
        (raw / FILES[0]).write_bytes(b"")
        (raw / FILES[3]).unlink()
        with pytest.raises(DataError, match=f"looked for MNIST/raw/{FILES[3]}.*damaged.*{FILES[0]}") as caught:
            load_task(entry(task="mnist")).check(small)
        assert "\n" not in str(caught.value)

    def test_a_file_that_may_not_be_read(self, small: Path) -> None:
        path = small / "MNIST" / "raw" / FILES[1]
        path.chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("this user may read every file")
        with pytest.raises(DataError, match=r"mnist in .* cannot be read: .*Permission denied"):
            load_task(entry(task="mnist")).check(small)


class TestAbsent:
    @pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10", "cifar100"])
    def test_one_line_names_the_folder_and_the_command(self, name: str, tmp_path: Path) -> None:
        folder = tmp_path / "no where"
        command = f"ablate data fetch {name} --data-dir '{folder}'"
        with pytest.raises(DataError, match=f"is not in {folder}, which does not exist .*: {command}") as caught:
            load_task(entry(task=name)).check(folder)
        assert "\n" not in str(caught.value)

    def test_a_file_in_place_of_the_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(DataError, match=f"is not in {tmp_path}/file, which is not a folder"):
            load_task(entry(task="mnist")).check(tmp_path / "file")

    def test_a_folder_from_the_environment_is_not_repeated(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ABLATE_DATA", str(tmp_path))
        with pytest.raises(DataError, match=rf"mnist is not in {tmp_path} \(looked.*data fetch mnist \(or"):
            load_task(entry(task="mnist")).load(None)

    def test_the_list_says_what_is_there(self, small: Path) -> None:
        (small / "cifar-100-python").mkdir()
        (small / "cifar-100-python" / "train").write_bytes(b"12345")
        found = {entry.name: entry for entry in available(small)}
        assert [(name, entry.present) for name, entry in found.items()][:5] == [
            ("digits", True),
            ("mnist", True),
            ("fashion_mnist", False),
            ("cifar10", False),
            ("cifar100", False),
        ]
        assert found["mnist"].path == small / "MNIST" / "raw"
        assert found["mnist"].size_bytes == 16 * 2 + 8 * 2 + 18 * (28 * 28 + 1)
        assert found["cifar100"].size_bytes == 5
        assert {"tiny_shakespeare", "multi30k_de_en", "multi30k_en_de"} < set(found)
        assert "sort" not in found


Batch = tuple[np.ndarray, list[int]]


def _write_cifar(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Batch]:
    """Write archives in the official layout: rows of 1024 red, 1024 green and 1024 blue values."""
    import torchvision.datasets

    reader = getattr(torchvision.datasets, name.upper())
    random = np.random.default_rng(1)
    written: dict[str, Batch] = {}
    sums: dict[str, str] = {}
    (folder / reader.base_folder).mkdir(parents=True)
    key = "labels" if name == "cifar10" else "fine_labels"
    for file, _ in [*reader.train_list, *reader.test_list]:
        written[file] = (random.integers(256, size=(4, 3072), dtype=np.uint8), random.integers(10, size=4).tolist())
        sums[file] = _dump(folder / reader.base_folder / file, {"data": written[file][0], key: written[file][1]})
    meta = reader.meta["filename"]
    sums[meta] = _dump(folder / reader.base_folder / meta, {reader.meta["key"]: ["any"] * 10})
    for part in ("train_list", "test_list"):
        monkeypatch.setattr(reader, part, [(file, sums[file]) for file, _ in getattr(reader, part)])
    monkeypatch.setattr(reader, "meta", reader.meta | {"md5": sums[meta]})
    return written


def _dump(path: Path, content: object) -> str:
    path.write_bytes(pickle.dumps(content, protocol=2))
    return _md5(path)


def _md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


class _Planted:
    """A pickle that makes a file when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
class TestCifar:
    def test_planted_images_come_back_in_colour(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        written = _write_cifar(tmp_path, name, monkeypatch)
        data = load_task(entry(task=name, patch=(8, 16))).load(tmp_path)
        *train, test = written.values()
        for inputs, targets, batches in [
            (data.train_inputs, data.train_targets, train),
            (data.test_inputs, data.test_targets, [test]),
        ]:
            planes = np.concatenate([rows for rows, _ in batches]).reshape(-1, 3, 32, 32)
            assert inputs.shape == (len(planes), 8, 8 * 16 * 3)
            assert np.array_equal(join(inputs, (8, 16), (32, 32)).permute(0, 3, 1, 2).numpy(), planes)
            assert targets.tolist() == [label for _, labels in batches for label in labels]
        last = data.train_inputs[0, 0, :3].double()
        expected = (last / 255 - torch.tensor(_MEANS[name])) / torch.tensor(_STDS[name])
        torch.testing.assert_close(data.tokens(data.train_inputs, torch.float64)[0, 0, :3], expected.double())

    def test_other_bytes_are_never_unpickled(self, name: str, tmp_path: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            written = _write_cifar(tmp_path, name, patch)
        folder = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}[name]
        (tmp_path / folder / next(iter(written))).write_bytes(pickle.dumps(_Planted(tmp_path / "code ran")))
        with pytest.raises(DataError, match=f"{name} in .* is damaged .*MD5 sum is not the published one"):
            load_task(entry(task=name)).load(tmp_path)
        assert not (tmp_path / "code ran").exists()

    def test_the_shape_needs_no_files(self, name: str) -> None:
        shape = load_task(entry(task=name, patch=8)).shape(Path("/nowhere"))
        outputs = 10 if name == "cifar10" else 100
        assert shape == InputShape(
            tokens=16,
            features=192,
            outputs=outputs,
            train_samples=50_000,
            test_samples=10_000,
            patch=(8, 8),
        )


# Per channel of [0, 1] pixels over the 50,000 train images, as usually printed.
_MEANS = {"cifar10": [0.4914, 0.4822, 0.4465], "cifar100": [0.5071, 0.4865, 0.4409]}
_STDS = {"cifar10": [0.2470, 0.2435, 0.2616], "cifar100": [0.2673, 0.2564, 0.2762]}


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """A folder served on this machine, and its address."""
    folder = tmp_path / "served"
    folder.mkdir()
    with serving(folder, monkeypatch) as address:
        yield folder, address


def _serve_mnist(small: Path, folder: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torchvision.datasets

    resources = []
    for file in FILES:
        packed = folder / f"{file}.gz"
        packed.write_bytes(gzip.compress((small / "MNIST" / "raw" / file).read_bytes()))
        resources.append((packed.name, _md5(packed)))
    monkeypatch.setattr(torchvision.datasets.MNIST, "resources", resources)
    monkeypatch.setattr(torchvision.datasets.MNIST, "mirrors", [address])


class TestFetch:
    def test_an_absent_set_is_downloaded(
        self, small: Path, served: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _serve_mnist(small, *served, monkeypatch)
        target = tmp_path / "new" / "folder"
        assert fetch("mnist", target) == target / "MNIST" / "raw"
        assert all((target / "MNIST/raw" / f).read_bytes() == (small / "MNIST/raw" / f).read_bytes() for f in FILES)

    def test_a_damaged_file_is_mended(
        self, small: Path, served: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _serve_mnist(small, *served, monkeypatch)
        path = small / "MNIST" / "raw" / FILES[0]
        whole = path.read_bytes()
        path.write_bytes(whole[:1000])
        fetch("mnist", small)
        assert path.read_bytes() == whole

    def test_cifar_is_unpacked(self, served: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import torchvision.datasets

        folder, address = served
        _write_cifar(tmp_path / "made", "cifar100", monkeypatch)
        archive = folder / "cifar-100-python.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(tmp_path / "made" / "cifar-100-python", "cifar-100-python")
        monkeypatch.setattr(torchvision.datasets.CIFAR100, "url", address + archive.name)
        monkeypatch.setattr(torchvision.datasets.CIFAR100, "tgz_md5", _md5(archive))
        assert fetch("cifar100", tmp_path / "data") == tmp_path / "data" / "cifar-100-python"
        assert len(load_task(entry(task="cifar100")).load(tmp_path / "data").train_inputs) == 4

    def test_no_network_is_said_in_one_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import torchvision.datasets

        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            monkeypatch.setattr(torchvision.datasets.MNIST, "mirrors", [f"http://127.0.0.1:{taken.getsockname()[1]}/"])
            monkeypatch.setenv("no_proxy", "127.0.0.1")
            with pytest.raises(DataError, match=r"cannot download mnist into .*refused.*or copy .*MNIST/raw") as caught:
                fetch("mnist", tmp_path / "new")
        assert "\n" not in str(caught.value)

    def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(DataError, match=r"cannot make the data folder .*/file/below: Not a directory"):
            fetch("mnist", tmp_path / "file" / "below")

    def test_what_has_nothing_to_download(self) -> None:
        assert fetch("digits").name == "digits.csv.gz"
        with pytest.raises(RequestError, match="image_folder has nothing to download"):
            fetch("image_folder")
        with pytest.raises(RegistryError, match="Did you mean 'fashion_mnist'"):
            fetch("fashion-mnist")
