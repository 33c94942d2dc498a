"""Made-up texts, pairs of texts and a judge of what is written, for the tests of training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ablate.core.config import TaskConfig
from ablate.core.trial import TrialConfig, TrialKey
from ablate.engine.models.model_config import InputShape, ModelConfig
from ablate.engine.tasks import Data
from ablate.engine.training.train_config import TrainConfig
from support.entries import entry
from support.trials import family_trial

PAD, START, END, FIRST, VOCABULARY = 0, 1, 2, 3, 9
LONGEST = 7  # ids of a text, its end included


class Texts:
    """One class per token, padding left out, by torch's own cross-entropy."""

    pad = PAD

    def __init__(self, shape: InputShape, data: Data) -> None:
        self._shape, self._data = shape, data

    def shape(self, data_dir: Path | None) -> InputShape:
        return self._shape

    def check(self, data_dir: Path | None) -> None:
        pass

    def load(self, data_dir: Path | None) -> Data:
        return self._data

    def loss(self, logits: Tensor, targets: Tensor, label_smoothing: float | Tensor) -> Tensor:
        assert label_smoothing == 0
        return F.cross_entropy(logits.movedim(-1, 1), targets, reduction="none", ignore_index=PAD)

    def metrics(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {"accuracy": ((logits.argmax(-1) == targets) & (targets != PAD)).float()}


class Judged(Texts):
    """Texts that are also judged by the share of targets that a replicate writes to the last id."""

    corpus_names = ("exact",)

    def corpus_metrics(self, decode: Callable[[Tensor], Tensor], data: Data, part: str) -> dict[str, list[float]]:
        inputs, targets = getattr(data, f"{part}_inputs"), getattr(data, f"{part}_targets")
        written = decode(inputs)
        wide = F.pad(written, (0, targets.shape[1]), value=PAD)[..., : targets.shape[1]]
        return {"exact": (wide == targets).all(-1).double().mean(-1).tolist(), "size": [float(len(inputs))] * len(wide)}


def pairs(samples: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return source and target ids uint8 [n, LONGEST]: a target is its source, each id one higher, and an end."""
    generator = torch.Generator().manual_seed(seed)
    length = torch.randint(1, LONGEST, (samples,), generator=generator)
    words = torch.randint(FIRST, VOCABULARY - 1, (samples, LONGEST), generator=generator)
    place = torch.arange(LONGEST)
    source = words.masked_fill(place >= length[:, None], PAD)
    target = (words + 1).masked_fill(place >= length[:, None], PAD)
    return source.to(torch.uint8), target.scatter(1, length[:, None], END).to(torch.uint8)


def translation(samples: int = 90, *, shipped: bool = True) -> Data:
    """Return made-up pairs; `shipped`: with a validation part."""
    (inputs, targets), (test_inputs, test_targets) = pairs(samples, seed=0), pairs(20, seed=1)
    validation = pairs(24, seed=2) if shipped else (None, None)
    return Data(
        train_inputs=inputs,
        train_targets=targets,
        test_inputs=test_inputs,
        test_targets=test_targets,
        validation_inputs=validation[0],
        validation_targets=validation[1],
        ids=True,
        pad=PAD,
        start=START,
        end=END,
    )


def windows(tokens: int, length: int) -> Data:
    """Return all windows of one text whose ids count up, so that an id says where it stands: 1 at place 0."""
    text, test = torch.arange(1, tokens + 1), torch.arange(1, 4 * length + 1)
    return Data(
        train_inputs=text[:-1].unfold(0, length, 1),
        train_targets=text[1:].unfold(0, length, 1),
        test_inputs=test[:-1].unfold(0, length, length),
        test_targets=test[1:].unfold(0, length, length),
        ids=True,
        window=length,
    )


def drawn_windows() -> Data:
    """Return all windows of one text of ids that are drawn."""
    text = torch.randint(1, VOCABULARY, (150,), generator=torch.Generator().manual_seed(0))
    inputs, targets = text[:-1].unfold(0, LONGEST, 1), text[1:].unfold(0, LONGEST, 1)
    return Data(
        train_inputs=inputs, train_targets=targets, test_inputs=inputs, test_targets=targets, ids=True, window=LONGEST
    )


PAIR_SHAPE = InputShape(
    tokens=LONGEST,
    features=VOCABULARY,
    outputs=VOCABULARY,
    train_samples=90,
    inputs="ids",
    output="token",
    causal=True,
    source_tokens=LONGEST,
    source_features=VOCABULARY,
    pad=PAD,
)
TEXT_SHAPE = PAIR_SHAPE.model_copy(update={"source_tokens": 0, "source_features": 0})


def texts(samples: int = 60) -> Data:
    """Return texts to be carried on: the target is the text itself one place later, with padding."""
    _, ids = pairs(samples, seed=3)
    _, test = pairs(20, seed=4)
    return Data(
        train_inputs=F.pad(ids[:, :-1], (1, 0), value=START),
        train_targets=ids,
        test_inputs=F.pad(test[:, :-1], (1, 0), value=START),
        test_targets=test,
        ids=True,
        pad=PAD,
    )


def build_pairs(config: TaskConfig) -> Judged:
    return Judged(PAIR_SHAPE, translation())


def build_texts(config: TaskConfig) -> Texts:
    return Texts(TEXT_SHAPE, texts())


def build_windows(config: TaskConfig) -> Texts:
    return Texts(TEXT_SHAPE.model_copy(update={"window": LONGEST}), drawn_windows())


def trial(build: str, /, **changes: Any) -> TrialConfig:
    fields: dict[str, Any] = {
        "key": TrialKey(study="s", dataset="texts", number=0),
        "stage": "search",
        "model": ModelConfig(width=8, depth=1, mlp=8),
        "task": entry(task=f"{__name__}:{build}"),
        "train": TrainConfig(epochs=2, batch_size=16, learning_rate=1e-2),
        "seeds": (3, 4),
        "study_seed": 7,
    }
    return family_trial(**fields | changes)


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A Stream over a tensor that writes down what it is asked for and whether it was closed."""

    images: Tensor
    asked: list[tuple[int, ...] | None] = field(default_factory=list)
    closed: list[bool] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.images.shape)

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, index: Tensor, batch: int, keys: Sequence[int] | None) -> Iterator[Tensor]:
        self.asked.append(None if keys is None else tuple(keys))
        try:
            for part in torch.split(index, batch, dim=1):
                yield self.images[part]
        finally:
            self.closed.append(True)
