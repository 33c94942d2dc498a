"""Lists of digits: reverse, sort, subtract from 9, swap halves, copy (paper B, section 4.1); nothing to download."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ablate.base.errors import RequestError
from ablate.base.randomness import stream
from ablate.engine.models.model_config import InputShape
from ablate.engine.tasks.base import Data
from ablate.engine.tasks.task_config import SequenceConfig
from ablate.engine.tasks.text.tokens import TokenPrediction

DIGITS = 10
LENGTH = 16  # the shortest of the paper's 16, 64 and 128
REMARKED = 0.1  # share of test lists among the training lists above which a remark is made
SAMPLES = {"train": 50_000, "test": 10_000}  # chosen here: the paper gives no sizes


class ListTask(TokenPrediction):
    """Lists of random digits 0 to 9 and their transformation, one target per token."""

    def __init__(self, config: SequenceConfig, rule: Callable[[Tensor], Tensor]) -> None:
        self.length = config.length or LENGTH
        self.train_lists = min(SAMPLES["train"] * config.share, config.train_limit or SAMPLES["train"])
        self.rule = rule

    def shape(self, data_dir: Path | None) -> InputShape:
        """Return the model's input shape."""
        return InputShape(
            tokens=self.length,
            features=DIGITS,
            outputs=DIGITS,
            train_samples=SAMPLES["train"],
            inputs="ids",
            output="token",
        )

    def check(self, data_dir: Path | None) -> None:
        """Do nothing: the lists are generated, not read."""

    def remarks(self, data_dir: Path | None) -> tuple[str, ...]:
        """State the share of test lists that are also training lists, if it exceeds REMARKED."""
        known = 1 - (1 - float(DIGITS) ** -self.length) ** self.train_lists
        if known <= REMARKED:
            return ()
        seen = f"about {known:.0%} of the test lists of length {self.length} are training lists too"
        return (f"{seen}; take length 6 or more",)

    def load(self, data_dir: Path | None) -> Data:
        """Return both splits as uint8 [n, T]."""
        train, test = draw(self.length, "train"), draw(self.length, "test")
        return Data(
            train_inputs=train,
            train_targets=self.rule(train),
            test_inputs=test,
            test_targets=self.rule(test),
            ids=True,
        )


def draw(length: int, split: str) -> Tensor:
    """Return the lists of `split`, uint8 [n, length]: the same for all five tasks, every study and every seed."""
    n = SAMPLES[split]
    # NumPy guarantees that raw bits never change; of 2^64 values no digit has more than one above its share.
    bits = stream(0, "lists", 0, "split", length, split).bit_generator.random_raw(n * length)
    return torch.from_numpy((bits % DIGITS).astype(np.uint8)).reshape(n, length)


def sort(lists: Tensor) -> Tensor:
    """Return `lists` [n, T] in ascending order."""
    return torch.from_numpy(np.sort(lists.numpy(), axis=1, kind="stable"))


def sub(lists: Tensor) -> Tensor:
    """Return 9 less each digit of `lists` [n, T]."""
    return 9 - lists


def swap(lists: Tensor) -> Tensor:
    """Return `lists` [n, T] with the second half before the first; T is even."""
    return lists.roll(lists.shape[1] // 2, dims=1)


build_reverse = partial(ListTask, rule=torch.fliplr)


build_sort = partial(ListTask, rule=sort)


build_sub = partial(ListTask, rule=sub)


def build_swap(config: SequenceConfig) -> ListTask:
    """Return the task `swap`; raise RequestError if the length is odd."""
    task = ListTask(config, swap)
    if task.length % 2:
        raise RequestError(f"task {config.task}: length={task.length} is odd, and halves are swapped; take an even one")
    return task


build_copy = partial(ListTask, rule=torch.clone)
