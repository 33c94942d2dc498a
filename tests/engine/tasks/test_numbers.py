"""Numbers in words: num2words as the reference, the paper's counts and example, and windows on a text."""

from __future__ import annotations

import pytest
import torch
from num2words import num2words

from ablate.base.errors import RequestError
from ablate.engine.models.model_config import InputShape
from ablate.engine.tasks import Data, Task, load_task
from ablate.engine.tasks.base import Written
from ablate.engine.tasks.text.numbers import VOCABULARY, texts, words
from ablate.engine.tasks.text.tokens import WINDOW_PAD, disjoint_windows, sliding_windows
from support.entries import entry, is_not_had, refusal


def _text(length: int = 16) -> Written:
    task = load_task(entry(task="numbers", length=length))
    assert isinstance(task, Written)
    return task


class TestWords:
    def test_every_number_equals_num2words(self) -> None:
        for number in range(1, 10_000):
            reference = num2words(number).replace(",", "").replace("-", " ").split()
            assert words(number) == [word for word in reference if word != "and"]

    def test_the_counts_of_the_paper(self) -> None:
        train, test = texts()
        assert len(VOCABULARY) == 30
        assert len(train) + len(test) == 63_095
        assert sorted(set(torch.cat([train, test]).tolist())) == list(range(30))

    def test_the_parts_meet_without_8000(self) -> None:
        train, test = texts()
        meeting = [VOCABULARY[i] for i in torch.cat([train[-7:], test[:4]]).tolist()]
        assert " ".join(meeting) == "seven thousand nine hundred ninety nine . eight thousand one ."
        assert VOCABULARY[test[-1]] == "nine"

    def test_the_papers_example(self) -> None:
        data = load_task(entry(task="numbers", length=3)).load(None)
        assert isinstance(data.train_inputs, torch.Tensor)
        context = [[VOCABULARY[i] for i in row] for row in data.train_inputs[:40].tolist()]
        following = [VOCABULARY[row[-1]] for row in data.train_targets[:40].tolist()]
        place = context.index(["thirteen", ".", "fourteen"])
        assert following[place] == "."
        assert (context[place + 3], following[place + 3]) == ([".", "fifteen", "."], "sixteen")


class TestTask:
    @pytest.mark.parametrize("length", [16, 32, 64])
    def test_the_shape_is_that_of_the_data(self, length: int) -> None:
        task = load_task(entry(task="numbers", length=length))
        assert isinstance(task, Task)
        data = task.load(None)
        assert task.shape(None) == InputShape(
            tokens=length,
            features=30,
            outputs=30,
            train_samples=len(data.train_inputs),
            inputs="ids",
            output="token",
            causal=True,
            window=length,
        )
        assert (data.ids, data.pad, data.window) == (True, WINDOW_PAD, length)
        assert data.train_inputs.shape == data.train_targets.shape == (len(texts()[0]) - length, length)

    def test_loss_and_accuracy_skip_what_another_window_counts(self) -> None:
        task = load_task(entry(task="numbers"))
        data = task.load(None)
        targets = data.test_targets[-2:]
        again = int((targets == WINDOW_PAD).sum())
        assert again == 16 * len(data.test_targets) - (len(texts()[1]) - 1)
        logits = torch.zeros(2, 16, 30)
        assert task.loss(logits, targets, 0.0).sum().item() == pytest.approx((32 - again) * torch.tensor(30.0).log())
        assert (task.loss(logits, targets, 0.1) == 0).sum() == again
        perfect = torch.nn.functional.one_hot(targets.long(), 256).float()
        assert task.metrics(perfect, targets)["accuracy"].sum() == 32 - again

    def test_what_does_not_fit_is_refused(self) -> None:
        assert load_task(entry(task="numbers", length=13_015)).load(None).test_inputs.shape == (1, 13_015)
        with pytest.raises(RequestError, match=r"length=13,016 does not fit .* 13,016 tokens; take at most 13,015"):
            load_task(entry(task="numbers", length=13_016))
        assert is_not_had(refusal(task="numbers", patch=7), "numbers", "patch")


class TestWritten:
    def test_text_comes_back(self) -> None:
        text = "nine thousand nine hundred ninety nine. twenty-one. "
        ids = _text().encode(text, None)
        assert [VOCABULARY[i] for i in ids[-3:]] == ["twenty", "one", "."]
        assert _text().decode(ids, None) == "nine thousand nine hundred ninety nine. twenty one."
        assert _text().encode(_text().decode(ids, None), None) == ids

    def test_another_word_is_refused(self) -> None:
        with pytest.raises(RequestError, match=r"numbers: the word 'fourty' is not known\. Did you mean 'forty'\?"):
            _text().encode("one. fourty", None)


class TestWindows:
    @pytest.mark.parametrize("length", [1, 2, 5, 7, 22, 23])
    @pytest.mark.parametrize("n", [24, 25, 29])
    def test_disjoint_windows_count_every_token_once(self, n: int, length: int) -> None:
        text = torch.arange(n, dtype=torch.uint8)
        inputs, targets = disjoint_windows(text, length)
        assert inputs.shape == targets.shape == (-(-(n - 1) // length), length)
        counted = targets != WINDOW_PAD
        assert targets[counted].tolist() == list(range(1, n))
        # A token is its own place here: each target follows its input, and each window is contiguous.
        assert torch.equal(targets[counted], inputs[counted] + 1)
        assert torch.equal(inputs, inputs[:, :1] + torch.arange(length, dtype=torch.uint8))

    def test_sliding_windows_are_views(self) -> None:
        text = torch.arange(10, dtype=torch.uint8)
        inputs, targets = sliding_windows(text, 4)
        assert inputs.tolist() == [list(range(i, i + 4)) for i in range(6)]
        assert targets.tolist() == [list(range(i + 1, i + 5)) for i in range(6)]
        assert inputs.untyped_storage().data_ptr() == targets.untyped_storage().data_ptr() == text.data_ptr()
        assert isinstance(load_task(entry(task="numbers")).load(None), Data)
