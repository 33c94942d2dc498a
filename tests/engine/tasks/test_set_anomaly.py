"""The odd one out of ten: sets against their definition, features against torchvision, the kept file, the weights."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from ablate.base.errors import DataError
from ablate.core.registry import read_task
from ablate.engine.models import build
from ablate.engine.models.model_config import InputShape, ModelConfig
from ablate.engine.tasks import Data, fetch, load_task
from ablate.engine.tasks.base import Stream
from ablate.engine.tasks.sets import set_anomaly
from ablate.engine.tasks.sets.anomaly_sets import GAMMA, AnomalySets, _mix, members
from ablate.engine.tasks.sets.set_anomaly import SetAnomaly
from support.entries import entry, is_not_had, refusal

CLASSES, EACH, TESTED = (3, 41, 99), 30, 10  # labels that occur, images of each in train and in test


def _sets(labels: Tensor, name: str = "train") -> AnomalySets:
    """Sets whose features are the image's number and its label."""
    values = torch.stack([torch.arange(len(labels)), labels], dim=1)
    return AnomalySets(features=values, members=members(labels, name=name), name=name)


LABELS = torch.arange(60) % 4  # 15 images of each of four classes, in turn


class TestSets:
    @pytest.mark.parametrize("keys", [None, [0, 1], [-5, 2**80]])
    def test_each_image_is_the_anomaly_of_one_set_beside_nine_of_another_class(self, keys: list[int] | None) -> None:
        sets = _sets(LABELS)
        index = torch.stack([torch.arange(60), torch.arange(60).flip(0)])
        for row, images in zip(index.tolist(), sets.images(index, keys).tolist(), strict=True):
            for anomaly, chosen in zip(row, images, strict=True):
                place = int(sets.places[anomaly])
                assert chosen[place] == anomaly
                beside = chosen[:place] + chosen[place + 1 :]
                assert len(set(beside)) == 9
                (other,) = {int(LABELS[i]) for i in beside}
                assert other != LABELS[anomaly]

    def test_features_are_those_of_the_images(self) -> None:
        sets, index = _sets(LABELS), torch.tensor([[4, 9, 30], [1, 1, 2]])
        batches = list(sets.batches(index, 2, [8, 9]))
        assert [tuple(batch.shape) for batch in batches] == [(2, 2, 10, 2), (2, 1, 10, 2)]
        got = torch.cat(batches, dim=1)
        assert torch.equal(got[..., 0], sets.images(index, [8, 9]))
        assert torch.equal(got[..., 1], LABELS[sets.images(index, [8, 9])])

    def test_a_set_depends_on_its_key_and_image_alone(self) -> None:
        sets, whole = _sets(LABELS), torch.arange(60).expand(2, -1)
        both = sets.images(whole, [1, 2])
        assert torch.equal(sets.images(torch.tensor([[7, 3]]), [2])[0], both[1, [7, 3]])
        assert torch.equal(both, sets.images(whole, [1, 2]))
        assert (both[0] != both[1]).any(-1).float().mean() > 0.9
        assert (both[0] != _sets(LABELS, "test").images(whole[:1], [1])[0]).any(-1).float().mean() > 0.9
        assert torch.equal(sets.images(whole, None)[0], sets.images(whole, None)[1])

    def test_replicates_that_see_the_same_share_it(self) -> None:
        (batch,) = _sets(LABELS).batches(torch.arange(5).expand(3, -1), 5, None)
        assert batch.stride(0) == 0

    def test_every_class_image_and_place_is_equally_likely(self) -> None:
        keys, sets = range(3000), _sets(LABELS)
        images = sets.images(torch.full((3000, 1), 5), keys)[:, 0]
        beside = images[images != 5].view(3000, 9)
        assert scipy.stats.chisquare(LABELS[beside[:, 0]].bincount()[[0, 2, 3]]).pvalue > 0.001
        counts = beside.flatten().bincount(minlength=60)[LABELS != 1]
        # 9 of 15 are drawn without repetition, which makes counts vary less than chi-square takes them to
        assert scipy.stats.chisquare(counts).pvalue > 0.001
        places = _sets(torch.arange(5000) % 4).places.bincount(minlength=10)
        assert scipy.stats.chisquare(places).pvalue > 0.001

    def test_pairs_of_images_are_drawn_together_as_often_as_they_should(self) -> None:
        sets = _sets(torch.arange(20) // 10)  # nine of ten: one is left out, equally often
        images = sets.images(torch.zeros(5000, 1, dtype=torch.int64), range(5000))[:, 0]
        left_out = 145 - images.sum(1)
        assert scipy.stats.chisquare(left_out.bincount()[10:]).pvalue > 0.001

    def test_a_class_of_nine_is_taken_whole(self) -> None:
        images = _sets(torch.arange(18) // 9).images(torch.arange(18)[None], [3])[0]
        assert [sorted(set(row) - {i}) for i, row in enumerate(images.tolist())] == [
            list(range(9, 18)) if i < 9 else list(range(9)) for i in range(18)
        ]

    @pytest.mark.parametrize("labels", [[0] * 20, [0] * 20 + [1] * 8])
    def test_too_few_images(self, labels: list[int]) -> None:
        with pytest.raises(DataError, match=r"some part has [12] classes of (20|8) images or more; a set needs two"):
            members(torch.tensor(labels), name="some part")

    def test_the_generator_gives_the_published_numbers(self) -> None:
        """The first outputs of Vigna's splitmix64.c from the state 1234567."""
        states = np.array([1234567], dtype=np.uint64) + np.arange(3, dtype=np.uint64) * GAMMA
        assert _mix(states).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def _dump(path: Path, content: object) -> str:
    path.write_bytes(pickle.dumps(content, protocol=2))
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ResNet-34 that has learnt nothing, its last layer included."""
    from torchvision.models import resnet34

    path = tmp_path_factory.mktemp("weights") / "random.safetensors"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        save_file(resnet34(weights=None).state_dict(), path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data folder with a CIFAR-100 of three classes, in the official layout."""
    from torchvision.datasets import CIFAR100 as READER

    path, random, sums = tmp_path_factory.mktemp("data"), np.random.default_rng(0), {}
    (path / READER.base_folder).mkdir()
    for part, each in [("train", EACH), ("test", TESTED)]:
        labels = random.permutation(np.repeat(CLASSES, each)).tolist()
        pixels = random.integers(256, size=(len(labels), 3072), dtype=np.uint8)
        sums[part] = _dump(path / READER.base_folder / part, {"data": pixels, "fine_labels": labels})
    names = {"fine_label_names": [f"class {i}" for i in range(100)]}
    sums["meta"] = _dump(path / READER.base_folder / "meta", names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(READER, "train_list", [["train", sums["train"]]])
        patch.setattr(READER, "test_list", [["test", sums["test"]]])
        patch.setattr(READER, "meta", READER.meta | {"md5": sums["meta"]})
        yield path


def _task(weights: Path | None, **fields: object) -> SetAnomaly:
    path = {} if weights is None else {"path": str(weights)}
    config = {"task": "set_anomaly", "image_size": 32, "validation": 0.3, **path, **fields}
    task = load_task(read_task(config))
    assert isinstance(task, SetAnomaly)
    return task


@pytest.fixture(scope="module")
def data(folder: Path, weights: Path) -> Data:
    return _task(weights).load(folder)


def _features(data: Data) -> list[AnomalySets]:
    parts = [inputs for _, inputs, _ in data.splits()]
    assert all(isinstance(part, AnomalySets) for part in parts)
    return parts  # type: ignore[return-value]


@pytest.fixture
def away(folder: Path, data: Data) -> Iterator[Path]:
    """The data folder with CIFAR-100 taken out of it, and kept features in it."""
    place = folder / "cifar-100-python"
    place.rename(folder / "elsewhere")
    yield folder
    (folder / "elsewhere").rename(place)


class TestData:
    @pytest.mark.services
    def test_parts_share_no_image_and_a_share_of_each_class_is_held_out(self, data: Data) -> None:
        train, test, validation = _features(data)
        assert (train.shape, test.shape, validation.shape) == ((63, 10, 512), (30, 10, 512), (27, 10, 512))
        assert validation.members.counts.tolist() == [9, 9, 9]
        together = torch.cat([train.features, validation.features])
        assert len(together.unique(dim=0)) == 90

    def test_half_of_each_class_may_be_held_out(self, folder: Path, weights: Path) -> None:
        train, _, validation = _features(_task(weights, validation=0.5).load(folder))
        assert train.members.counts.tolist() == validation.members.counts.tolist() == [15, 15, 15]
        assert len(torch.cat([train.features, validation.features]).unique(dim=0)) == 90

    def test_targets_are_the_places_of_the_anomalies(self, data: Data) -> None:
        for _, inputs, targets in data.splits():
            assert isinstance(inputs, AnomalySets)
            index = torch.arange(len(inputs))
            images = inputs.images(index[None], [4])[0]
            assert torch.equal(images.gather(1, targets[:, None])[:, 0], index)

    def test_tokens_are_normalised_over_the_train_part(self, data: Data) -> None:
        tokens = data.tokens(_features(data)[0].features, torch.float64)
        torch.testing.assert_close(tokens.mean(0), torch.zeros(512, dtype=torch.float64), rtol=0, atol=1e-9)
        deviation = tokens.std(0, correction=0)
        torch.testing.assert_close(
            deviation[deviation > 0], torch.ones(int((deviation > 0).sum()), dtype=torch.float64)
        )

    @pytest.mark.services
    @pytest.mark.parametrize("size", [32, 48])
    def test_features_are_torchvisions_pooled_output(self, folder: Path, weights: Path, size: int) -> None:
        from torchvision.datasets import CIFAR100 as READER
        from torchvision.models import resnet34
        from torchvision.transforms import v2

        got = _features(_task(weights, image_size=size).load(folder))[1].features[:4]
        network = resnet34(weights=None).eval()
        network.load_state_dict(load_file(weights))
        pooled: list[Tensor] = []
        network.avgpool.register_forward_hook(lambda *seen: pooled.append(seen[2]))
        prepare = v2.Compose(
            [
                v2.ToImage(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Resize((size, size)),
                v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
            ]
        )
        images = READER(str(folder), train=False)
        with torch.inference_mode():
            network(torch.stack([prepare(images[i][0]) for i in range(4)]))
        torch.testing.assert_close(got.float(), pooled[0].flatten(1), rtol=2e-3, atol=2e-3)

    def test_loss_and_accuracy_are_those_of_the_set(self, weights: Path) -> None:
        task, scores = _task(weights), torch.randn(3, 4, 10, generator=torch.Generator().manual_seed(0))
        targets = torch.tensor([[1, 2, 3, 4]] * 3)
        expected = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="none").view(3, 4)
        torch.testing.assert_close(task.loss(scores, targets, 0.0), expected)
        assert torch.equal(task.metrics(scores, targets)["accuracy"], (scores.argmax(-1) == targets).float())

    def test_the_shape_needs_no_files(self) -> None:
        expected = InputShape(
            tokens=10, features=512, outputs=10, train_samples=45_000, output="set", ships_validation=True
        )
        assert load_task(entry(task="set_anomaly")).shape(Path("/nowhere")) == expected

    def test_a_model_of_sets_follows_the_order_of_images(self, data: Data) -> None:
        shape = InputShape(tokens=10, features=512, outputs=10, train_samples=50_000, output="set")
        model = build(ModelConfig(width=16, depth=2, heads=2, position="none", mlp=32), shape).eval()
        inputs = data.test_inputs
        assert isinstance(inputs, Stream)
        tokens = data.tokens(next(inputs.batches(torch.arange(6)[None], 6, None))[0])
        order = torch.randperm(10, generator=torch.Generator().manual_seed(1))
        with torch.inference_mode():
            scores = model(tokens)
            assert scores.shape == (6, 10)
            torch.testing.assert_close(model(tokens[:, order]), scores[:, order])


class TestKeptFeatures:
    def test_kept_features_need_neither_images_nor_the_network(
        self, away: Path, weights: Path, data: Data, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(set_anomaly, "compute", lambda *_: pytest.fail("computed again"))
        _task(weights).check(away)
        again = _task(weights).load(away)
        for old, new in zip(_features(data), _features(again), strict=True):
            assert torch.equal(old.features, new.features)

    @pytest.mark.parametrize("damage", ["flip", "cut", "text"])
    def test_a_damaged_file_is_computed_again(
        self, folder: Path, weights: Path, data: Data, damage: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = _task(weights).kept_file(folder)
        whole = path.read_bytes()
        flipped = whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:]
        path.write_bytes({"flip": flipped, "cut": whole[:3000], "text": b"none"}[damage])
        again = _task(weights).load(folder)
        assert f"features in {path} " in caplog.text
        assert torch.equal(_features(again)[0].features, _features(data)[0].features)
        assert path.read_bytes() == whole
        assert not [p for p in path.parent.iterdir() if p.suffix != ".safetensors" and p.name != ".lock"]

    def test_a_damaged_file_without_images_says_how_to_get_them(
        self, away: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = _task(weights).kept_file(away)
        whole = path.read_bytes()
        path.write_bytes(whole[:3000])
        with pytest.raises(DataError, match=r"cifar100 is not in .*ablate data fetch cifar100"):
            _task(weights).check(away)
        path.write_bytes(whole)

    def test_other_weights_and_sizes_have_their_own_file(self, folder: Path, weights: Path, tmp_path: Path) -> None:
        other = tmp_path / "other.safetensors"
        save_file({name: value + 1 for name, value in load_file(weights).items()}, other)
        files = {_task(w, image_size=s).kept_file(folder) for w in (weights, other) for s in (32, [32, 64])}
        assert len(files) == 4
        default = _task(None, image_size=None).kept_file(folder)
        assert default == folder / "set_anomaly" / "resnet34-b627a593-224x224.safetensors"

    def test_a_folder_that_may_not_be_written(
        self, folder: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(set_anomaly.os, "access", lambda *_: False)
        with pytest.raises(DataError, match=r"features cannot be written to .*ablate data fetch set_anomaly"):
            _task(weights, image_size=40).check(folder)


class _Planted:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


class TestWeights:
    def test_a_file_of_torchs_own_kind_is_the_same(self, weights: Path, tmp_path: Path) -> None:
        state = {name: value for name, value in load_file(weights).items() if "batches_tracked" not in name}
        torch.save(state, tmp_path / "w.pth")
        got, expected = set_anomaly.read_weights(tmp_path / "w.pth"), set_anomaly.read_weights(weights)
        assert set(got) == set(expected)
        assert not any(name.startswith("fc.") for name in got)
        assert all(torch.equal(got[name], expected[name]) for name in state if not name.startswith("fc."))

    def test_no_code_of_a_file_is_run(self, tmp_path: Path) -> None:
        path = tmp_path / "w.pt"
        torch.save({"conv1.weight": _Planted(tmp_path / "code ran")}, path)
        with pytest.raises(DataError, match=f"weights {path} cannot be read") as caught:
            set_anomaly.read_weights(path)
        assert not (tmp_path / "code ran").exists()
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("change", "rule"),
        [
            ({"conv1.weight": torch.zeros(64, 3, 3, 3)}, r"conv1.weight is 64x3x3x3, which should be 64x3x7x7"),
            ({"conv1.weight": None}, r"not torchvision's resnet34: conv1.weight is missing, which should be"),
            ({"layer9.x": torch.zeros(2)}, r"layer9.x is 2, which it does not have"),
        ],
    )
    def test_another_network(self, weights: Path, tmp_path: Path, change: dict[str, Tensor], rule: str) -> None:
        state = {name: value for name, value in (load_file(weights) | change).items() if value is not None}
        save_file(state, tmp_path / "w.safetensors")
        with pytest.raises(DataError, match=rule):
            set_anomaly.read_weights(tmp_path / "w.safetensors")

    @pytest.mark.parametrize(
        ("name", "content", "rule"),
        [
            ("w.bin", b"", "the file must end in .safetensors, .pt or .pth"),
            ("w.safetensors", b"no", "cannot be read"),
            ("w.pth", b"no", "cannot be read"),
            ("w.pth", None, "must hold a state dict"),
        ],
    )
    def test_other_files(self, tmp_path: Path, name: str, content: bytes | None, rule: str) -> None:
        if content is None:
            torch.save([torch.zeros(2)], tmp_path / name)
        else:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=f"weights {tmp_path / name}.*{rule}"):
            set_anomaly.read_weights(tmp_path / name)

    def test_absent_weights_are_said_in_one_line(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.hub, "get_dir", lambda: str(folder / "no hub"))
        with pytest.raises(DataError, match=r"resnet34-b627a593.pth does not exist. .*ablate data fetch set_anomaly"):
            _task(None).check(folder)
        with pytest.raises(DataError, match=r"weights .*mine.pth cannot be read: .*No such file"):
            _task(Path("mine.pth")).check(folder)

    def test_published_weights_that_are_damaged(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = folder / "hub" / "checkpoints" / "resnet34-b627a593.pth"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"damaged")
        monkeypatch.setattr(torch.hub, "get_dir", lambda: str(folder / "hub"))
        with pytest.raises(DataError, match=f"weights {path} are damaged: their SHA-256 sum is not b627a593"):
            _task(None).load(folder)

    def test_options_are_refused(self, weights: Path) -> None:
        said = refusal(task="set_anomaly", path=str(weights), options={"workers": 2})
        assert is_not_had(said, "set_anomaly", "options")


class TestFetch:
    @pytest.mark.services
    def test_weights_are_downloaded_and_features_computed(
        self, folder: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        torch.save(load_file(weights), tmp_path / "published.pth")
        digest = hashlib.sha256((tmp_path / "published.pth").read_bytes()).hexdigest()[:8]
        monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "no hub"))
        monkeypatch.setattr(set_anomaly, "SIZE", (32, 32))
        monkeypatch.setattr(set_anomaly, "WEIGHTS_URL", (tmp_path / "published.pth").as_uri())
        with pytest.raises(
            DataError, match=r"cannot download the weights .*SHA-256 sum .* is not b627a593.*data fetch"
        ):
            fetch("set_anomaly", folder)
        monkeypatch.setattr(set_anomaly, "WEIGHTS_SUM", digest)
        assert fetch("set_anomaly", folder) == folder / "set_anomaly"
        assert (folder / "set_anomaly" / f"resnet34-{digest}-32x32.safetensors").is_file()
        (folder / "set_anomaly" / "published.pth").unlink()
        load_task(entry(task="set_anomaly", validation=0.3)).check(folder)
