"""What every task shares: loss, metrics, patches, splits, digits, and the way a task is found."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from ablate.base.errors import DataError, RegistryError, RequestError
from ablate.engine.models.model_config import InputShape
from ablate.engine.tasks import TASKS, Classification, Data, Task, data_folder, load_task
from ablate.engine.tasks.base import stratified_split
from ablate.engine.tasks.images.patches import cut
from support.entries import entry, is_not_had, refusal
from support.joined import join
from support.paths import REPOSITORY

DOCS = REPOSITORY / "docs" / "how_to" / "own_data_and_network.md"


def _batch(*lead: int, samples: int = 7, outputs: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = 4 * torch.randn(*lead, samples, outputs, generator=generator, dtype=torch.float64)
    return logits, torch.randint(outputs, (*lead, samples), generator=generator)


class TestLoss:
    @pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
    def test_one_replicate_equals_torch(self, smoothing: float) -> None:
        logits, targets = _batch()
        expected = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="none")
        torch.testing.assert_close(Classification().loss(logits, targets, smoothing), expected, rtol=1e-13, atol=1e-13)

    def test_rows_with_a_smoothing_each_equal_torch_row_by_row(self) -> None:
        logits, targets = _batch(3)
        smoothing = [0.0, 0.1, 0.5]
        rows = [
            F.cross_entropy(logits[r], targets[r], label_smoothing=smoothing[r], reduction="none") for r in range(3)
        ]
        got = Classification().loss(logits, targets, torch.tensor(smoothing, dtype=torch.float64).unsqueeze(1))
        torch.testing.assert_close(got, torch.stack(rows), rtol=1e-13, atol=1e-13)

    def test_the_gradient_equals_that_of_torch(self) -> None:
        logits, targets = _batch()
        ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
        got = torch.autograd.grad(Classification().loss(ours, targets, 0.2).mean(), ours)
        expected = torch.autograd.grad(F.cross_entropy(theirs, targets, label_smoothing=0.2), theirs)
        torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-15)

    def test_targets_shared_by_all_replicates_equal_repeated_ones(self) -> None:
        logits, _ = _batch(3)
        shared = torch.tensor([0, 1, 2, 3, 4, 0, 1])
        task = Classification()
        assert torch.equal(task.loss(logits, shared, 0.1), task.loss(logits, shared.repeat(3, 1), 0.1))
        assert torch.equal(
            task.metrics(logits, shared)["accuracy"], task.metrics(logits, shared.repeat(3, 1))["accuracy"]
        )

    def test_half_precision_is_widened(self) -> None:
        logits, targets = _batch()
        half = logits.to(torch.bfloat16)
        got = Classification().loss(half, targets, 0.1)
        expected = F.cross_entropy(half.double(), targets, label_smoothing=0.1, reduction="none")
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), expected, rtol=1e-6, atol=1e-6)

    def test_accuracy_of_a_planted_batch(self) -> None:
        targets = torch.tensor([[0, 1, 2], [2, 1, 0]])
        logits = F.one_hot(torch.tensor([[0, 1, 1], [2, 2, 2]]), 3).float()
        assert Classification().metrics(logits, targets)["accuracy"].tolist() == [[1, 1, 0], [1, 0, 0]]


class TestPatches:
    @pytest.mark.parametrize(("channels", "patch"), [(1, (2, 3)), (3, (4, 6)), (3, (1, 1)), (2, (8, 12))])
    def test_cut_equals_unfold_and_join_is_its_inverse(self, channels: int, patch: tuple[int, int]) -> None:
        images = torch.randint(256, (5, 8, 12, channels), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        patches = cut(images, patch)
        unfolded = F.unfold(images.permute(0, 3, 1, 2).double(), patch, stride=patch)
        channels_last = unfolded.reshape(5, channels, patch[0] * patch[1], -1).permute(0, 3, 2, 1).flatten(2)
        assert torch.equal(patches.double(), channels_last)
        assert patches.dtype == torch.uint8
        assert torch.equal(join(patches, patch, (8, 12)), images)

    def test_a_patch_that_does_not_fit_is_refused_with_the_possible_ones(self) -> None:
        task = load_task(entry(task="mnist", patch=5))
        with pytest.raises(RequestError, match=r"mnist: patch 5x5 .* 28x28 image \(possible: 1, 2, 4, 7, 14, 28\)"):
            task.shape(None)


class TestDigits:
    def test_both_parts_together_are_scikit_learns_images_exactly(self) -> None:
        from sklearn.datasets import load_digits

        data = load_task(entry(task="digits", patch=(2, 4))).load(None)
        reference = load_digits()
        train, test = _order(reference.target)
        for rows, inputs, targets in [
            (train, data.train_inputs, data.train_targets),
            (test, data.test_inputs, data.test_targets),
        ]:
            assert inputs.dtype == torch.uint8
            assert torch.equal(join(inputs, (2, 4), (8, 8))[..., 0].double(), torch.from_numpy(reference.images)[rows])
            assert torch.equal(targets, torch.from_numpy(reference.target)[rows])
        assert sorted(torch.cat([train, test]).tolist()) == list(range(1797))

    def test_the_split_is_the_same_for_ever(self) -> None:
        from sklearn.datasets import load_digits

        _, test = _order(load_digits().target)
        digest = hashlib.sha256(test.numpy().astype("<i8").tobytes()).hexdigest()
        assert digest == "e7966e0d058cad91407e02a972f94cc222935967cfd1a4ed1f8a3cab60324840"

    def test_the_shape_is_that_of_the_data_and_values_are_scaled_by_their_range_alone(self) -> None:
        task = load_task(entry(task="digits", patch=4))
        data = task.load(None)
        tokens = data.tokens(data.train_inputs, torch.float64)
        assert task.shape(None) == InputShape(
            tokens=4,
            features=16,
            outputs=10,
            train_samples=len(data.train_inputs),
            test_samples=359,
            patch=(4, 4),
        )
        assert tokens.shape == (1438, 4, 16)
        assert len(data.test_inputs) == 359
        assert torch.equal(tokens, data.train_inputs.double() / 8 - 1)


def _order(target: object) -> tuple[torch.Tensor, torch.Tensor]:
    return stratified_split(torch.as_tensor(target), key="digits")


class TestSplit:
    def test_every_class_gives_a_fifth_and_nothing_is_lost(self) -> None:
        targets = torch.tensor([0] * 50 + [1] * 10 + [2] * 2 + [3])
        train, test = stratified_split(targets, key="k")
        assert targets[test].bincount(minlength=4).tolist() == [10, 2, 1, 0]
        assert sorted(train.tolist() + test.tolist()) == list(range(len(targets)))

    def test_another_key_draws_another_split(self) -> None:
        targets = torch.zeros(100, dtype=torch.int64)
        assert stratified_split(targets, key="a")[1].tolist() != stratified_split(targets, key="b")[1].tolist()


class TestData:
    def test_tokens_of_colours_scale_each_channel(self) -> None:
        inputs = torch.tensor([[[0, 10, 20, 30]]], dtype=torch.uint8)
        data = _data(inputs, scale=torch.tensor([1.0, 0.1, 1.0, 0.1]), shift=torch.tensor([0.0, 1.0, 0.0, 1.0]))
        assert data.tokens(inputs, torch.float64).tolist() == [[[0, pytest.approx(2), 20, pytest.approx(4)]]]
        assert data.tokens(inputs, torch.bfloat16).dtype == torch.bfloat16

    def test_moving_moves_every_tensor(self) -> None:
        inputs = torch.zeros(1, 1, 4, dtype=torch.uint8)
        moved = _data(inputs, scale=torch.ones(4), names=()).to("meta")
        tensors = [v for v in vars(moved).values() if isinstance(v, torch.Tensor)]
        assert [t.device.type for t in tensors] == ["meta"] * 5

    @pytest.mark.parametrize(
        ("change", "rule"),
        [
            ({"train_targets": torch.zeros(2, dtype=torch.int64)}, "train has 1 inputs and 2 targets"),
            ({"test_inputs": torch.zeros(1, 9, 9)}, r"a sample of test has the shape \(9, 9\), one of train \(1, 4\)"),
            ({"test_targets": torch.zeros(1)}, "test targets are torch.float32"),
            ({"train_targets": torch.tensor([2])}, "train has targets outside 0 to 1"),
            ({"validation_inputs": torch.zeros(1, 1, 4)}, "belong together"),
        ],
    )
    def test_parts_that_do_not_belong_together_are_refused(self, change: dict[str, torch.Tensor], rule: str) -> None:
        good = vars(_data(torch.zeros(1, 1, 4, dtype=torch.uint8)))
        with pytest.raises(DataError, match=rule):
            Data(**(good | change))


def _data(inputs: torch.Tensor, names: tuple[str, ...] = ("a", "b"), **affine: torch.Tensor) -> Data:
    zeros = torch.zeros(len(inputs), dtype=torch.int64)
    return Data(
        train_inputs=inputs, train_targets=zeros, test_inputs=inputs, test_targets=zeros, class_names=names, **affine
    )


class TestLookup:
    def test_explicit_then_environment_then_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        monkeypatch.setenv("ABLATE_DATA", "~/env")
        monkeypatch.chdir(tmp_path)
        assert data_folder(Path("here")) == tmp_path / "here"
        assert data_folder() == tmp_path / "env"
        monkeypatch.setenv("ABLATE_DATA", "")
        assert data_folder() == tmp_path / "xdg" / "ablate" / "data"
        monkeypatch.setenv("XDG_CACHE_HOME", "relative")
        assert data_folder() == tmp_path / ".cache" / "ablate" / "data"
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert data_folder() == tmp_path / ".cache" / "ablate" / "data"

    @pytest.mark.parametrize("name", TASKS.names())
    def test_every_registered_task_is_one(self, name: str) -> None:
        assert isinstance(load_task(entry(task=name)), Task)

    def test_a_mistyped_name_is_answered_with_the_near_one(self) -> None:
        with pytest.raises(RegistryError, match="Did you mean 'mnist'"):
            load_task(entry(task="minst"))

    @pytest.mark.parametrize(
        ("field", "value"), [("image_size", 8), ("path", "x"), ("options", {"a": 1}), ("length", 5)]
    )
    def test_a_field_that_would_be_ignored_is_refused(self, field: str, value: object) -> None:
        assert is_not_had(refusal(task="digits", **{field: value}), "digits", field)
