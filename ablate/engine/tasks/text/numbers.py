"""The numbers 1 to 9999 in words, token by token (paper B, section 4.3); nothing to download."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from ablate.base.errors import RequestError, did_you_mean
from ablate.engine.tasks.base import Data
from ablate.engine.tasks.task_config import SequenceConfig
from ablate.engine.tasks.text.tokens import TextWindows, text_data

LENGTH = 16  # the shortest of the paper's 16, 32 and 64
BETWEEN = "."
FIRST, LEFT_OUT, LAST = 1, 8000, 9999  # without 8000 there are the 63,095 tokens of the paper
ONES = (
    *("", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
VOCABULARY = tuple(sorted({*filter(None, ONES + TENS), "hundred", "thousand", BETWEEN}))
IDS = {word: i for i, word in enumerate(VOCABULARY)}


class Numbers(TextWindows):
    """Consecutive numbers in words with a `.` between them; each token predicts the next one."""

    opening = "one"

    def __init__(self, config: SequenceConfig) -> None:
        super().__init__(config, LENGTH, symbols=len(VOCABULARY), train=len(texts()[0]), test=len(texts()[1]))

    def check(self, data_dir: Path | None) -> None:
        """Do nothing: the words are generated, not read."""

    def load(self, data_dir: Path | None) -> Data:
        """Return every window of the train part, and windows of the test part that do not overlap; uint8 [n, T]."""
        return text_data(*texts(), self.length)

    def encode(self, text: str, data_dir: Path | None) -> list[int]:
        """Return the ids of words and full stops; raise RequestError if a word is not in the vocabulary."""
        tokens = text.lower().replace("-", " ").replace(BETWEEN, f" {BETWEEN} ").split()
        for token in tokens:
            if token not in IDS:
                raise RequestError(f"numbers: the word {token!r} is not known. {did_you_mean(token, VOCABULARY)}")
        return [IDS[token] for token in tokens]

    def decode(self, ids: Sequence[int], data_dir: Path | None) -> str:
        """Return the words, with no blank before a full stop."""
        return " ".join(VOCABULARY[i] for i in ids).replace(f" {BETWEEN}", BETWEEN)


def words(number: int) -> list[str]:
    """Return `number` (1 to 9999) in words, without `and`: 2021 is two thousand twenty one."""
    thousands, rest = divmod(number, 1000)
    hundreds, rest = divmod(rest, 100)
    tens, ones = divmod(rest, 10) if rest >= 20 else (0, rest)
    said = [ONES[thousands], "thousand"] if thousands else []
    said += [ONES[hundreds], "hundred"] if hundreds else []
    return said + [word for word in (TENS[tens], ONES[ones]) if word]


@lru_cache
def texts() -> tuple[Tensor, Tensor]:
    """Return the ids of the train part, 1 to 7999 and the `.` after it, and of the test part, 8001 to 9999; uint8."""
    train = [token for number in range(FIRST, LEFT_OUT) for token in (*words(number), BETWEEN)]
    test = [token for number in range(LEFT_OUT + 1, LAST + 1) for token in (*words(number), BETWEEN)][:-1]
    return _ids(train), _ids(test)


def _ids(tokens: Sequence[str]) -> Tensor:
    return torch.tensor([IDS[token] for token in tokens], dtype=torch.uint8)


build = Numbers
