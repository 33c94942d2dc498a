"""Lists of digits: each rule against plain Python, one draw for all tasks, and loss and metrics per token."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from ablate.base.errors import RequestError
from ablate.engine.models.model_config import InputShape
from ablate.engine.tasks import Task, load_task
from ablate.engine.tasks.text.lists import draw
from ablate.engine.tasks.text.tokens import TokenPrediction
from support.entries import entry, is_not_had, refusal
from support.operations import count_calls

RULES: dict[str, Callable[[list[int]], list[int]]] = {
    "reverse": lambda digits: [digits[-1 - i] for i in range(len(digits))],
    "sort": sorted,
    "sub": lambda digits: [9 - digit for digit in digits],
    "swap": lambda digits: digits[len(digits) // 2 :] + digits[: len(digits) // 2],
    "copy": list,
}
# The examples of paper B, section 4.1.
PRINTED = {
    "reverse": ([4, 3, 9, 8, 1], [1, 8, 9, 3, 4]),
    "sort": ([4, 3, 9, 8, 1], [1, 3, 4, 8, 9]),
    "sub": ([4, 3, 9, 8, 1], [5, 6, 0, 1, 8]),
    "swap": ([4, 3, 9, 8, 1, 7], [8, 1, 7, 4, 3, 9]),
    "copy": ([4, 3, 9, 8, 1], [4, 3, 9, 8, 1]),
}


@pytest.mark.parametrize("name", RULES)
class TestRules:
    def test_the_papers_example(self, name: str) -> None:
        given, expected = PRINTED[name]
        task = load_task(entry(task=name, length=len(given)))
        assert task.rule(torch.tensor([given], dtype=torch.uint8)).tolist() == [expected]  # type: ignore[attr-defined]

    @pytest.mark.services
    @pytest.mark.parametrize("length", [2, 16])
    def test_every_split_equals_plain_python(self, name: str, length: int) -> None:
        data = load_task(entry(task=name, length=length)).load(None)
        for _, inputs, targets in data.splits():
            assert isinstance(inputs, torch.Tensor)
            assert inputs.dtype == targets.dtype == torch.uint8
            assert targets.tolist() == [RULES[name](row) for row in inputs.tolist()]

    def test_the_shape_is_that_of_the_data(self, name: str) -> None:
        task = load_task(entry(task=name))
        assert isinstance(task, Task)
        assert task.shape(None) == InputShape(
            tokens=16, features=10, outputs=10, train_samples=50_000, inputs="ids", output="token"
        )
        data = task.load(None)
        assert (data.train_inputs.shape, data.test_inputs.shape) == ((50_000, 16), (10_000, 16))
        assert data.tokens(data.test_inputs[:2]).dtype == torch.int64
        assert (data.pad, data.window) == (None, 0)

    def test_fields_without_a_meaning_are_refused(self, name: str) -> None:
        for field, value in [("image_size", 8), ("path", "x"), ("patch", 7), ("options", {"a": 1})]:
            assert is_not_had(refusal(task=name, **{field: value}), name, field)


class TestDraw:
    def test_the_lists_are_the_same_for_ever(self) -> None:
        digest = hashlib.sha256(draw(16, "train").numpy().tobytes()).hexdigest()
        assert digest == "24949887c90cafdf11489ff514f4d58688e004a48b1225cde11523939386f715"

    def test_all_tasks_have_the_same_lists_and_splits_and_lengths_have_others(self) -> None:
        inputs = [load_task(entry(task=name, length=16)).load(None).train_inputs for name in RULES]
        assert all(torch.equal(inputs[0], other) for other in inputs[1:])  # type: ignore[arg-type]
        train = set(map(tuple, draw(16, "train").tolist()))
        assert len(train) == 50_000
        assert not train & set(map(tuple, draw(16, "test").tolist()))
        assert draw(18, "train")[0, :16].tolist() != draw(16, "train")[0].tolist()

    def test_digits_are_even_at_every_place(self) -> None:
        lists = draw(16, "train").long()
        for place in lists.T:
            counts = place.bincount(minlength=10).double()
            # Chi square with 9 degrees of freedom: above 40 once in 100,000.
            assert ((counts - 5000) ** 2 / 5000).sum() < 40

    def test_the_longest_of_the_paper_loads_quickly(self) -> None:
        _, calls = count_calls(lambda: load_task(entry(task="sort", length=128)).load(None))
        assert calls < 10_000, "not one for each of 50,000 lists"

    def test_an_odd_list_has_no_halves(self) -> None:
        with pytest.raises(RequestError, match="task swap: length=15 is odd"):
            load_task(entry(task="swap", length=15))


class _Padded(TokenPrediction):
    pad = 255


def _batch(*lead: int, outputs: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    logits = 4 * torch.randn(*lead, 3, 4, outputs, generator=generator, dtype=torch.float64)
    targets = torch.randint(outputs, (*lead, 3, 4), generator=generator)
    targets[..., 1, 2:] = 255
    return logits, targets


class TestTokenPrediction:
    @pytest.mark.parametrize("smoothing", [0.0, 0.2])
    def test_the_loss_equals_that_of_torch(self, smoothing: float) -> None:
        logits, targets = _batch()
        expected = F.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=255, label_smoothing=smoothing, reduction="none"
        )
        got = _Padded().loss(logits, targets.to(torch.uint8), smoothing)
        torch.testing.assert_close(got.flatten(), expected, rtol=1e-13, atol=1e-13)

    def test_rows_have_a_smoothing_each(self) -> None:
        logits, targets = _batch(2)
        smoothing = torch.tensor([[0.0], [0.3]], dtype=torch.float64)
        rows = [_Padded().loss(logits[r], targets[r], float(smoothing[r])) for r in range(2)]
        torch.testing.assert_close(_Padded().loss(logits, targets, smoothing), torch.stack(rows))
        shared = _Padded().loss(logits, targets[0], smoothing)
        torch.testing.assert_close(shared, _Padded().loss(logits, targets[:1].repeat(2, 1, 1), smoothing))

    def test_half_precision_is_widened(self) -> None:
        logits, targets = _batch()
        half = logits.to(torch.bfloat16)
        got = _Padded().loss(half, targets)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), _Padded().loss(half.double(), targets), rtol=1e-6, atol=1e-6)

    def test_accuracy_counts_right_tokens_but_no_padding(self) -> None:
        targets = torch.tensor([[0, 1, 255], [2, 2, 2]], dtype=torch.uint8)
        logits = F.one_hot(torch.tensor([[0, 0, 1], [2, 1, 2]]), 256).float()
        assert _Padded().metrics(logits, targets)["accuracy"].tolist() == [[1, 0, 0], [1, 0, 1]]
        assert TokenPrediction().metrics(logits, targets.new_full((2, 3), 1))["accuracy"].tolist() == [
            [0, 0, 1],
            [0, 1, 0],
        ]
