"""Multi30k: tokens against sacreBLEU's, loss against KLDivLoss, BLEU against sacreBLEU's command, bad files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
from torch.nn import functional as F

from ablate.base.errors import DataError, RequestError
from ablate.engine.tasks import Task, fetch, load_task
from ablate.engine.tasks.base import Decoded, Fetchable, shared_part
from ablate.engine.tasks.text import translation
from ablate.engine.tasks.text.bleu import bleu
from ablate.engine.tasks.text.smoothing import smoothed_divergence
from ablate.engine.tasks.text.vocabulary import END, PAD, SPECIALS, START, UNKNOWN, Vocabulary, detokenise, tokenise
from support.entries import entry, is_not_had, refusal
from support.operations import count_calls
from support.paths import REPOSITORY

REAL = Path(os.environ.get("ABLATE_DATA") or REPOSITORY.parent / "shared" / "data")
NAMES = {"multi30k_de_en": ("de", "en"), "multi30k_en_de": ("en", "de")}
GERMAN = [
    "Ein Hund läuft.",
    "Ein Hund läuft, und ein Hund schläft.",
    "Zwei Hunde schlafen!",
    "Ein Hund läuft.",
    "Zwei Katzen schlafen.",
]
ENGLISH = ["A dog runs.", "A dog runs and the dog's asleep.", "Two dogs sleep!", "A dog  runs. ", "Two cats sleep."]


@pytest.fixture
def real() -> Path:
    """The real files."""
    if not (REAL / "multi30k" / "train.de").is_file():
        pytest.skip(f"the real multi30k is not in {REAL} (set ABLATE_DATA)")
    return REAL


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with five sentences for training, four for validation and two for test, which the task expects."""
    monkeypatch.setattr(translation, "SENTENCES", {"train": 5, "validation": 4, "test": 2})
    (tmp_path / "multi30k").mkdir()
    for language, lines in [("de", GERMAN), ("en", ENGLISH)]:
        for file, part in [("train", lines), ("val", lines[1:]), ("test_2016_flickr", lines[3:])]:
            path = tmp_path / "multi30k" / f"{file}.{language}"
            path.write_text("".join(f"{line}\n" for line in part), encoding="utf-8")
    return tmp_path


def _task(name: str = "multi30k_de_en", *, share: float = 1.0) -> translation.Translation:
    task = load_task(entry(task=name, share=share))
    assert isinstance(task, translation.Translation)
    return task


def _lines(folder: Path, file: str) -> list[str]:
    with (folder / "multi30k" / file).open(encoding="utf-8") as lines:
        return [line.removesuffix("\n") for line in lines]


class TestTokens:
    @pytest.mark.parametrize(
        ("text", "tokens"),
        [
            ("A man's dog, isn't it?", ["A", "man", "'s", "dog", ",", "isn't", "it", "?"]),
            ('The "big" T-Shirt (red).', ["The", '"', "big", '"', "T-Shirt", "(", "red", ")", "."]),
            ("Limonade- und „Eis“-Stand – 2,52 $", None),
            ("Tools &amp; Tea at 11:27 in the U.S.", None),
            ("#5's head; 50% off: 1,000 der/die", None),
        ],
    )
    def test_a_sentence_is_taken_apart_and_put_together(self, text: str, tokens: list[str] | None) -> None:
        found = tokenise(text)
        assert tokens is None or found == tokens
        assert "".join(found) == "".join(text.split())
        assert tokenise(detokenise(found)) == found
        if tokens is not None:
            assert detokenise(found) == text

    @pytest.mark.services
    @pytest.mark.parametrize("language", ["de", "en"])
    def test_what_bleu_sees_is_hardly_changed(self, real: Path, language: str) -> None:
        bleus_tokens = Tokenizer13a()
        lines = _lines(real, f"train.{language}")[::5] + _lines(real, f"test_2016_flickr.{language}")
        same = [bleus_tokens(detokenise(tokenise(line))) == bleus_tokens(line) for line in lines]
        assert sum(same) / len(same) >= 0.997
        [score] = bleu([[detokenise(tokenise(line)) for line in lines]], lines)
        assert score > 99.9

    def test_a_vocabulary_counts_like_a_counter(self) -> None:
        texts = [tokenise(line) for line in ENGLISH]
        counts = Counter(token for text in texts for token in text)
        vocabulary = Vocabulary.of(texts, at_least=2)
        assert set(vocabulary.words) == {word for word, n in counts.items() if n >= 2}
        assert [counts[word] for word in vocabulary.words] == sorted(
            (counts[w] for w in vocabulary.words), reverse=True
        )
        assert len(vocabulary) == SPECIALS + len(vocabulary.words)
        ids = vocabulary.encode(["dog", "runs", "unheard", "."])
        assert ids[2] == UNKNOWN
        assert vocabulary.decode([START, *ids, END, ids[0], PAD]) == "dog runs ⁇."
        assert Tokenizer13a()("dog ⁇.").split() == ["dog", "⁇", "."]


def _batch(*lead: int, classes: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    logits = 3 * torch.randn(*lead, 3, 5, classes, generator=generator, dtype=torch.float64)
    targets = torch.randint(1, classes, (*lead, 3, 5), generator=generator)
    targets[..., 1, 3:] = PAD
    return logits, targets


def _reference(logits: torch.Tensor, targets: torch.Tensor, smoothing: float) -> torch.Tensor:
    """The distribution written out, word by word, into torch's own loss."""
    classes = logits.shape[-1]
    wanted = torch.full_like(logits, smoothing / (classes - 2))
    wanted[..., PAD] = 0
    wanted.scatter_(-1, targets.unsqueeze(-1), 1 - smoothing)
    losses = torch.nn.KLDivLoss(reduction="none")(logits.log_softmax(-1), wanted).sum(-1)
    return losses * (targets != PAD)


class TestLoss:
    @pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.8])
    def test_loss_and_gradient_equal_those_of_kldivloss(self, smoothing: float) -> None:
        logits, targets = _batch()
        ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
        got, expected = _task().loss(ours, targets.to(torch.int16), smoothing), _reference(theirs, targets, smoothing)
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
        weights = torch.arange(15.0, dtype=torch.float64).view(3, 5)
        torch.testing.assert_close(
            torch.autograd.grad((got * weights).sum(), ours),
            torch.autograd.grad((expected * weights).sum(), theirs),
            rtol=1e-12,
            atol=1e-12,
        )

    def test_without_smoothing_it_is_the_cross_entropy(self) -> None:
        logits, targets = _batch()
        expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD, reduction="none")
        torch.testing.assert_close(_task().loss(logits, targets).flatten(), expected, rtol=1e-13, atol=1e-13)

    def test_rows_have_a_smoothing_each(self) -> None:
        logits, targets = _batch(3)
        smoothing = [0.0, 0.1, 0.5]
        rows = logits.clone().requires_grad_()
        got = _task().loss(rows, targets, torch.tensor(smoothing, dtype=torch.float64).unsqueeze(1))
        expected = torch.stack([_reference(logits[r], targets[r], smoothing[r]) for r in range(3)])
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
        [gradient] = torch.autograd.grad(got.sum(), rows)
        for r in range(3):
            one = logits[r].clone().requires_grad_()
            [alone] = torch.autograd.grad(_task().loss(one, targets[r], smoothing[r]).sum(), one)
            torch.testing.assert_close(gradient[r], alone, rtol=1e-12, atol=1e-12)

    def test_targets_shared_by_all_replicates(self) -> None:
        logits, _ = _batch(2)
        shared = _batch()[1]
        got = smoothed_divergence(logits, shared, 0.1, pad=PAD)
        assert torch.equal(got, smoothed_divergence(logits, shared.repeat(2, 1, 1), 0.1, pad=PAD))

    def test_half_precision_is_widened_and_keeps_its_gradients_type(self) -> None:
        logits, targets = _batch()
        half = logits.to(torch.bfloat16).requires_grad_()
        got = _task().loss(half, targets, 0.1)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), _reference(half.double(), targets, 0.1), rtol=1e-5, atol=1e-5)
        assert torch.autograd.grad(got.sum(), half)[0].dtype == torch.bfloat16

    def test_accuracy_skips_padding(self) -> None:
        targets = torch.tensor([[4, 5, END, PAD]], dtype=torch.int16)
        logits = F.one_hot(torch.tensor([[4, 6, END, PAD]]), 7).float()
        assert _task().metrics(logits, targets)["accuracy"].tolist() == [[1, 0, 1, 0]]


class TestData:
    def test_the_ids_of_a_small_corpus(self, small: Path) -> None:
        task = _task()
        assert isinstance(task, Task)
        assert isinstance(task, Decoded)
        assert isinstance(task, Fetchable)
        data = task.load(small)
        shape = task.shape(small)
        assert isinstance(data.train_inputs, torch.Tensor)
        assert data.train_inputs.dtype == data.train_targets.dtype == torch.int16
        assert data.train_inputs.shape == (5, shape.source_tokens) == (5, 9)
        assert data.train_targets.shape == (5, shape.tokens) == (5, 10)
        assert (data.ids, data.pad, data.start, data.end, data.window) == (True, 0, 1, 2, 0)
        assert (shape.inputs, shape.output, shape.causal, shape.pad) == ("ids", "token", True, 0)
        words = ["dog", ".", "A", "runs", "Two", "sleep"]
        known = {word: SPECIALS + i for i, word in enumerate(sorted(words, key=lambda w: (-_count(w), w)))}
        assert shape.outputs == shape.features == SPECIALS + len(words)
        expected = [
            known.get(token, UNKNOWN) for token in ("A", "dog", "runs", "and", "the", "dog", "'s", "asleep", ".")
        ]
        assert data.train_targets[1].tolist() == [*expected, END]
        assert data.train_targets[0].tolist() == [known["A"], known["dog"], known["runs"], known["."], END, *[PAD] * 5]
        assert data.validation_targets is not None
        assert torch.equal(data.validation_targets, data.train_targets[1:])
        assert torch.equal(data.test_targets, data.train_targets[3:])

    @pytest.mark.parametrize("part", ["val", "test_2016_flickr"])
    def test_the_longest_sentence_may_be_one_that_is_not_trained_on(self, small: Path, part: str) -> None:
        for language, line in (("de", "Ein Hund läuft" + " und läuft" * 9), ("en", "A dog runs" + " and runs" * 8)):
            lines = [*_lines(small, f"{part}.{language}")[:-1], line]
            (small / "multi30k" / f"{part}.{language}").write_text("".join(f"{one}\n" for one in lines))
        data, shape = _task().load(small), _task().shape(small)
        assert (shape.source_tokens, shape.tokens) == (21, 20)
        split = {"val": "validation", "test_2016_flickr": "test"}[part]
        found = {name: (inputs, targets) for name, inputs, targets in data.splits()}
        assert {(x.shape[1], y.shape[1]) for x, y in found.values()} == {(21, 20)}
        assert int(found[split][0][-1, -1]) != PAD  # type: ignore[index]
        assert int(found[split][1][-1, -1]) == END

    def test_text_comes_back(self, small: Path) -> None:
        task = _task()
        assert task.decode(_task("multi30k_en_de").encode("Two dogs sleep", small), small) == "Two ⁇ sleep"
        data = task.load(small)
        assert isinstance(data.train_inputs, torch.Tensor)
        assert task.encode("Ein Hund läuft.", small) == data.train_inputs[0, :4].tolist()
        with pytest.raises(RequestError, match="multi30k_de_en: there is no word in ' '"):
            task.encode(" ", small)

    @pytest.mark.services
    @pytest.mark.parametrize("name", NAMES)
    def test_the_shape_without_files_is_that_of_the_real_ones(self, real: Path, name: str) -> None:
        task = _task(name)
        data, calls = count_calls(lambda: task.load(real))
        assert calls < 5_000_000, "at most 80 for each of 62,000 lines"
        shape = task.shape(real)
        assert shape == task.shape(Path("/nowhere"))
        assert isinstance(data.train_inputs, torch.Tensor)
        for split, inputs, targets in data.splits():
            assert isinstance(inputs, torch.Tensor)
            assert len(inputs) == {"train": 29_000, "validation": 1_014, "test": 1_000}[split]
            assert (inputs[:, 0] != PAD).all()
            assert ((targets == END).sum(1) == 1).all()
            assert not ((targets == START) | (targets >= shape.outputs)).any()
        assert int(data.train_inputs.max()) == shape.source_features - 1
        assert int(data.train_targets.max()) == shape.outputs - 1
        # Nothing is cut off: the longest sentence of all fills its row.
        parts = [inputs for _, inputs, _ in data.splits()]
        assert any((part[:, -1] != PAD).any() for part in parts)  # type: ignore[index]
        for row in (0, 17, 999):
            source = _lines(real, f"test_2016_flickr.{NAMES[name][0]}")[row]
            known = [
                token for token, i in zip(tokenise(source), task.encode(source, real), strict=True) if i != UNKNOWN
            ]
            assert len(known) > 0.5 * len(tokenise(source))

    def test_a_changed_file_is_read_again(self, small: Path) -> None:
        before = _task().references(small, "test")
        (small / "multi30k" / "test_2016_flickr.en").write_text("A\nB\n")
        assert before == ENGLISH[3:]
        assert _task().references(small, "test") == ["A", "B"]


def _count(word: str) -> int:
    return sum(tokenise(line).count(word) for line in ENGLISH)


def _writes(
    texts: list[list[str]], task: translation.Translation, folder: Path
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a decoder whose replicates write `texts`, as far as the vocabulary has their words."""
    vocabulary = task._corpus(folder, task.target).vocabulary
    rows = [[[*vocabulary.encode(tokenise(text)), END] for text in replicate] for replicate in texts]
    longest = max(len(ids) for replicate in rows for ids in replicate)
    filled = torch.tensor([[ids + [PAD] * (longest - len(ids)) for ids in replicate] for replicate in rows])

    def decode(source: torch.Tensor) -> torch.Tensor:
        assert len(source) == filled.shape[1]
        return filled

    return decode


class TestBleu:
    def test_it_equals_sacrebleus_own_command(self, tmp_path: Path) -> None:
        references = ["A dog runs in the green grass.", "Two men's hats, 2.5 m apart!", 'He says "no" (twice).', "x"]
        written = [
            ["A dog runs on green grass.", "Two men's hats 2.5 m apart!", 'He says "no" twice.', ""],
            ["The cat runs in the green grass.", "two Men's hats, 2.5 m apart!", "He ⁇ no.", "x y"],
        ]
        (tmp_path / "references").write_text("".join(f"{line}\n" for line in references), encoding="utf-8")
        for texts, score in zip(written, bleu(written, references), strict=True):
            (tmp_path / "written").write_text("".join(f"{line}\n" for line in texts), encoding="utf-8")
            command = [sys.executable, "-m", "sacrebleu", "references", "-i", "written", "-b", "-w", "6"]
            printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
            assert score == pytest.approx(float(printed), abs=1e-6)
            assert 10 < score < 90

    def test_every_replicate_is_judged_by_the_lines_of_the_part(self, small: Path) -> None:
        task, data = _task(), _task().load(small)
        lines = ENGLISH[1:]
        perfect = [line.replace("and the dog's asleep", "and") for line in lines]
        decode = _writes([perfect, lines[::-1]], task, small)
        # Words that the vocabulary lacks are written as unknown.
        expected = bleu(task.hypotheses(decode, small, "validation"), lines)
        assert task.corpus_metrics(decode, data, "validation") == {"bleu": expected}
        assert expected[0] > 2 * expected[1]
        assert task.references(small, "validation") == lines

    def test_under_protocol_paper_the_lines_of_the_test_part_count(self, small: Path) -> None:
        task, data = _task(), _task().load(small)
        judged = replace(data, validation_inputs=data.test_inputs, validation_targets=data.test_targets)
        decode = _writes([["A dog runs.", "Two sleep."]], task, small)
        got = task.corpus_metrics(decode, judged, "validation")
        assert (
            got
            == task.corpus_metrics(decode, data, "test")
            == {"bleu": bleu([["A dog runs.", "Two sleep."]], ENGLISH[3:])}
        )

    def test_a_share_is_judged_by_its_own_lines(self, small: Path) -> None:
        task, data = _task(share=0.5), _task().load(small)
        index = shared_part(4, 0.5)
        assert index.tolist() == [0, 2]
        lines = [ENGLISH[1], ENGLISH[3]]
        assert task.references(small, "validation") == lines
        assert data.validation_inputs is not None
        assert data.validation_targets is not None
        assert isinstance(data.validation_inputs, torch.Tensor)
        judged = replace(
            data, validation_inputs=data.validation_inputs[index], validation_targets=data.validation_targets[index]
        )
        decode = _writes([["A dog runs and", "A dog runs."]], task, small)
        expected = bleu(task.hypotheses(decode, small, "validation"), lines)
        assert task.corpus_metrics(decode, judged, "validation") == {"bleu": expected}

    def test_other_data_are_refused(self, small: Path) -> None:
        task, data = _task(), _task().load(small)
        assert isinstance(data.test_inputs, torch.Tensor)
        other = replace(data, test_inputs=data.test_inputs.flip(0))
        with pytest.raises(DataError, match=r"task multi30k_de_en: the test data are not those of .*multi30k"):
            task.corpus_metrics(_writes([["A", "A"]], task, small), other, "test")
        plain = load_task(entry(task="copy")).load(None)
        with pytest.raises(DataError, match="multi30k_de_en: test data are Data, which it did not load"):
            task.corpus_metrics(_writes([["A", "A"]], task, small), plain, "test")


class TestFaults:
    @pytest.mark.parametrize(
        ("content", "rule"),
        [
            (b"A\n", "1 lines, not 2"),
            (b"A\nB\nC\n", "3 lines, not 2"),
            (b"A\n \n", "line 2 is empty"),
            (b"A\n\xff\n", "not UTF-8 text"),
        ],
    )
    def test_a_damaged_file(self, small: Path, content: bytes, rule: str) -> None:
        (small / "multi30k" / "test_2016_flickr.en").write_bytes(content)
        for call in (_task().check, _task().load):
            with pytest.raises(
                DataError, match=rf"is damaged \(multi30k/test_2016_flickr.en: {rule}\)\. It has no last"
            ):
                call(small)
        assert _task().shape(small).outputs == 6_228

    def test_nothing_there_says_which_files_go_where(self, tmp_path: Path) -> None:
        folder = tmp_path / "none"
        for call in (_task().check, lambda place: fetch("multi30k_de_en", place)):
            with pytest.raises(
                DataError,
                match=rf"not in {folder}.*looked for multi30k/train.de and 5 more.*put train, val and test_2016_flickr,"
                rf" each as .de and .en .* into {folder}/multi30k \(or name",
            ) as caught:
                call(folder)
            assert "\n" not in str(caught.value)

    def test_a_whole_folder_has_nothing_to_fetch(self, small: Path) -> None:
        assert fetch("multi30k_de_en", small) == small / "multi30k"

    def test_fields_without_a_meaning_are_refused(self) -> None:
        for field, value in [("length", 8), ("patch", 7), ("path", "x"), ("options", {"a": 1}), ("image_size", 8)]:
            said = refusal(task="multi30k_en_de", **{field: value})
            assert is_not_had(said, "multi30k_en_de", field)
