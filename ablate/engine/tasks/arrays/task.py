"""`ablate.Task`: a task from a user's arrays, with any loss, and metrics over a whole split."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ablate.base.errors import DataError, RequestError, TrialError, did_you_mean
from ablate.base.randomness import stream
from ablate.base.redaction import error_text
from ablate.core.config import TaskConfig
from ablate.engine.models.settings import InputShape
from ablate.engine.tasks.arrays import losses
from ablate.engine.tasks.arrays.reading import Columns, Part, read_part, text_names
from ablate.engine.tasks.base import TEST_SHARE, Data, stratified_split
from ablate.engine.tasks.images.patches import ImageSet, affine, cut, input_shape, possible_patches
from ablate.engine.tasks.repeats import Place, repeats

Metric = Callable[[Tensor, Tensor], Any]
LOSSES = ("cross_entropy", "mse", "bce")
KINDS = ("rows", "tokens", "images", "ids")
CHANNELS = (1, 3, 4)
DEFAULT_PATCH = (4, 4)  # of `OwnTaskConfig`
SPLIT_KEY = "arrays"
NAMED = 5  # classes named in a remark
RESERVED = ("loss", "accuracy")


@dataclass(frozen=True, kw_only=True)
class _Parts:
    train: Part
    test: Part
    validation: Part | None = None
    names: tuple[str, ...] = ()

    def targets(self) -> Tensor:
        """Return the targets of the training part."""
        assert isinstance(self.train.targets, Tensor)
        return self.train.targets

    def items(self) -> list[tuple[str, Part]]:
        """Return the name and content of each part that is there."""
        there = {"train": self.train, "test": self.test, "validation": self.validation}
        return [(name, part) for name, part in there.items() if part is not None]


class Task:
    """A data set of arrays with its loss and metrics; a study file names it by import path, `task: "mine:data"`.

    `train`, `test` and `validation` are pairs (inputs, targets) of arrays, torch Datasets of pairs, columns by name
    (`columns=(INPUTS, TARGETS)`), or functions that return one of these, which are called when the data are needed.
    Without `test` a fixed fifth of `train` is held out for it. Inputs are rows [n, F], tokens [n, T, F], images
    [n, C, H, W], [n, H, W, C] or [n, H, W], or ids [n, T]; `inputs` says which where the shape does not. `loss` is
    "cross_entropy", "mse", "bce" (targets 0 or 1 for each output) or a function of (scores, targets) that returns the
    mean or one value per sample. `metrics` are functions of (scores, targets) over a whole split, such as those of
    torchmetrics; they reach the study as `val_NAME` and `test_NAME`. `outputs` is the number of scores, which targets
    tell unless the loss is a function. Raises RequestError for what is wrong in a call, DataError for the data.
    """

    def __init__(
        self,
        train: Any,
        test: Any = None,
        *,
        validation: Any = None,
        loss: str | Metric | None = None,
        metrics: Mapping[str, Metric] | None = None,
        outputs: int | None = None,
        inputs: str | None = None,
        columns: Columns = None,
        class_names: Sequence[str] = (),
    ) -> None:
        if isinstance(loss, str) and loss not in LOSSES:
            raise RequestError(f"Task: loss {loss!r} is not known. {did_you_mean(loss, LOSSES)} Or give a function")
        if inputs is not None and inputs not in KINDS:
            raise RequestError(f"Task: inputs {inputs!r} is not known. {did_you_mean(inputs, KINDS)}")
        if train is None or (outputs is not None and outputs < 1):
            raise RequestError(
                "Task: train is None" if train is None else f"Task: outputs is {outputs}, it is at least 1"
            )
        for name, metric in (metrics or {}).items():
            if name in RESERVED:
                raise RequestError(f"Task: a metric cannot be called {name!r}, which every trial reports: rename it")
            if not name.isidentifier() or not callable(metric):
                raise RequestError(f"Task: metric {name!r} is {metric!r}: give a name and a function")
        self.config: TaskConfig | None = None
        self.split_names = tuple(metrics or {})
        self._sources, self._columns = (train, test, validation), columns
        self._loss, self._metrics, self._outputs, self._inputs = loss, dict(metrics or {}), outputs, inputs
        self._class_names = tuple(class_names)

    def __call__(self, config: TaskConfig) -> Task:
        """Return this task with the settings of a study's data set; the arrays are shared."""
        self._parts  # noqa: B018 - read once, before it is copied
        made = copy.copy(self)
        made.config = config
        return made

    @cached_property
    def _parts(self) -> _Parts:
        names = ("train", "test", "validation")
        read = {n: read_part(s, n, self._columns) for n, s in zip(names, self._sources, strict=True) if s is not None}
        words = text_names(read)
        found = {name: part.numbered(words) for name, part in read.items()}
        if "test" not in found:
            found["train"], found["test"] = _held_out(found["train"])
        for name, part in found.items():
            if (part.inputs.dtype == torch.uint8) != (found["train"].inputs.dtype == torch.uint8):
                types = f"{part.inputs.dtype}, those of train {found['train'].inputs.dtype}"
                raise DataError(f"Task: {name} inputs are {types}: give both alike, they are scaled by one rule")
        return _Parts(**found, names=words)

    @cached_property
    def loss_name(self) -> str | None:
        """The name of the loss, or None if it is a function."""
        if self._loss is None:
            return "mse" if self._parts.targets().is_floating_point() else "cross_entropy"
        return self._loss if isinstance(self._loss, str) else None

    @cached_property
    def kind(self) -> str:
        """What the inputs are: one of KINDS."""
        if self._inputs is not None:
            return self._inputs
        inputs = self._parts.train.inputs
        known = {1: "rows", 2: "images" if inputs.dtype == torch.uint8 else "tokens", 3: "images"}
        whole = not inputs.is_floating_point() and inputs.dtype != torch.uint8
        if inputs.ndim - 1 not in known or (inputs.ndim == 2 and whole):
            shape = ", ".join(map(str, inputs.shape[1:]))
            kind = "whole numbers" if whole else "numbers"
            raise DataError(f"Task: an input has the shape [{shape}] of {kind}: say inputs= one of {', '.join(KINDS)}")
        return known[inputs.ndim - 1]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes; numbers where none were given."""
        if self._class_names or self._parts.names:
            return self._class_names or self._parts.names
        flat = self.loss_name == "cross_entropy" and self._parts.targets().ndim == 1
        return tuple(map(str, range(self.outputs))) if flat else ()

    @cached_property
    def outputs(self) -> int:
        """The number of scores M of a sample, or of one of its targets."""
        if self._outputs is not None:
            return self._outputs
        targets = self._parts.targets()
        if targets.is_floating_point() or self.loss_name in ("mse", "bce"):
            return int(targets.shape[1]) if targets.ndim > 1 else 1
        if int(targets.min()) < 0:
            raise DataError(f"Task: a target is {int(targets.min())}: classes are whole numbers from 0")
        return max(int(targets.max()) + 1, len(self._parts.names))

    def shape(self, data_dir: Path | None) -> InputShape:
        """Return the model's input shape; raise RequestError if the patch does not divide the images."""
        train, ships = self._parts.train, self._parts.validation is not None
        sample = tuple(train.inputs.shape[1:])
        common: dict[str, Any] = {
            "outputs": self.outputs,
            "train_samples": len(train.inputs),
            "test_samples": len(self._parts.test.inputs),
            "ships_validation": ships,
        }
        per_token = self.kind in ("tokens", "ids") and tuple(train.targets.shape[1:2]) == sample[:1]
        common |= {"output": "token"} if per_token and self.loss_name == "cross_entropy" else {}
        if self.kind == "images":
            return input_shape(self._images(), self._patch()).model_copy(update=common)
        if self.kind == "ids":
            return InputShape(tokens=sample[0], features=int(train.inputs.max()) + 1, inputs="ids", **common)
        if self.kind == "rows":
            return InputShape(tokens=math.prod(sample), features=1, sample=sample, **common)
        return InputShape(tokens=sample[0], features=math.prod(sample[1:]), sample=sample, **common)

    def check(self, data_dir: Path | None) -> None:
        """Raise DataError or RequestError unless `load` will succeed."""
        self.load(data_dir)

    def remarks(self, data_dir: Path | None) -> tuple[str, ...]:
        """Return what is said of equal samples in two splits or two classes, and of numbers that no class has."""
        places, targets = [], self._parts.targets()
        one_class = self.loss_name == "cross_entropy" and targets.ndim == 1
        for part, found in self._parts.items():
            labels = torch.as_tensor(found.targets).tolist() if one_class else [None] * len(found.inputs)
            rows = found.inputs.flatten(1).contiguous().view(torch.uint8).numpy()  # bytes: NumPy has no bfloat16
            for i, (row, label) in enumerate(zip(rows, labels, strict=True)):
                place = Place(part=part, label=label, name=f"{part} {i}")
                places.append((hashlib.blake2b(row, digest_size=16).digest(), place))
        absent = sorted(set(range(self.outputs)) - set(targets.tolist())) if one_class else []
        few = ", ".join(map(str, absent[:NAMED])) + (", …" if len(absent) > NAMED else "")
        unused = f"no training sample has the class {few}; the network has {self.outputs} outputs"
        return (*([unused] if absent else []), *repeats(places))

    def load(self, data_dir: Path | None) -> Data:
        """Return the data; images of bytes are scaled to mean 0 and deviation 1 per channel, others are not changed.

        Raises DataError for ids and classes that the training part's network does not have.
        """
        self.shape(data_dir)
        for name, part in self._parts.items():
            self._check_part(name, part)
        parts = self._parts
        made: dict[str, Any] = {}
        for name, part in parts.items():
            made |= {f"{name}_inputs": self._tokens(part.inputs), f"{name}_targets": part.targets}
        scale, shift = self._affine()
        image = (lambda i: (i.height, i.width, i.channels))(self._images()) if self.kind == "images" else None
        return Data(
            **made,
            scale=scale,
            shift=shift,
            image=image,
            ids=self.kind == "ids",
            class_names=self.class_names,
            real_targets=parts.targets().is_floating_point(),
        )

    def loss(self, logits: Tensor, targets: Tensor, label_smoothing: float | Tensor = 0.0) -> Tensor:
        """Return the loss of each target [R, B, ...]; a mean over a batch counts for each of its targets.

        `logits` are [R, B, ...], `targets` [R, B, ...]. Raises TrialError if the loss fails or has another shape.
        """
        name = self.loss_name
        function = losses.NAMED[name] if name is not None else losses.plain(self._loss)
        smoothing = losses.per_row(label_smoothing, len(logits))
        if name != "cross_entropy" and any(smoothing):
            raise TrialError("label_smoothing is for the loss cross_entropy; set it to 0")
        if name == "cross_entropy":
            logits = torch.stack([self._arranged(s, t) for s, t in zip(logits, targets, strict=True)])
        rows = zip(logits, targets, smoothing, strict=True)
        return torch.stack([losses.each_target(function, s, t, smooth) for s, t, smooth in rows])

    def metrics(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return `accuracy` of each target for cross-entropy; other tasks have none but those over a whole split."""
        if self.loss_name != "cross_entropy":
            return {}
        pairs = zip(logits, targets, strict=True)
        return {"accuracy": torch.stack([losses.correct(self._arranged(s, t), t) for s, t in pairs])}

    def split_metrics(self, scores: Tensor, targets: Tensor) -> dict[str, float]:
        """Return the metrics of one replicate over a split, from all its scores [n, ...] and targets [n, ...].

        Raises TrialError if a metric fails or returns no number.
        """
        scores, targets = losses.matching(scores, targets)
        found = {}
        for name, metric in self._metrics.items():
            try:
                found[name] = float(losses.over_split(metric, scores, targets))
            except Exception as error:  # a user's metric may fail in any way
                raise TrialError(f"metric {name} failed: {error_text(error, first_line=True)}") from error
        return found

    def _check_part(self, name: str, part: Part) -> None:
        """Raise DataError for values that a network of this task cannot read or score."""
        targets, train = part.targets, self._parts.train.inputs
        assert isinstance(targets, Tensor)
        missing = (
            int((~torch.isfinite(targets)).reshape(len(targets), -1).any(1).sum()) if targets.is_floating_point() else 0
        )
        if missing and self.loss_name is not None:  # a loss of the user's own may leave them out
            raise DataError(
                f"Task: {name} targets are NaN or infinite in {missing:,} of {len(targets):,} samples: remove these"
                " samples, fill them, or give a loss that leaves them out"
            )
        if self.kind == "ids" and (part.inputs.is_floating_point() or not _within(part.inputs, int(train.max()) + 1)):
            known = f"whole numbers from 0 to {int(train.max())}, the greatest of train"
            raise DataError(f"Task: {name} inputs are ids, and not all are {known}")
        if self.loss_name == "cross_entropy" and targets.is_floating_point():
            raise DataError(f"Task: {name} targets are {targets.dtype}: cross_entropy takes classes as whole numbers")
        if self.loss_name == "cross_entropy" and not _within(targets, self.outputs):
            raise DataError(f"Task: {name} has classes outside 0 to {self.outputs - 1}, those of train")

    def _arranged(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Return scores [B, ...] with the classes on the second axis; those of tokens are the last axis."""
        return scores.movedim(-1, 1) if self.kind != "images" and targets.ndim > 1 else scores

    def _images(self) -> ImageSet:
        train = self._parts.train
        _, height, width, channels = self._channels_last(train.inputs[:1]).shape
        names = tuple(map(str, range(self.outputs)))
        count = len(train.inputs)
        return ImageSet(
            name="images", height=height, width=width, channels=channels, class_names=names, train_samples=count
        )

    def _patch(self) -> tuple[int, int]:
        """Return the patch of the study file; where the default does not divide the images, a smaller one that does."""
        given, images = getattr(self.config, "patch", DEFAULT_PATCH), self._images()
        if tuple(given) != DEFAULT_PATCH:
            return int(given[0]), int(given[1])
        sides = zip((images.height, images.width), DEFAULT_PATCH, strict=True)
        high, wide = (max(n for n in possible_patches(side) if n <= most) for side, most in sides)
        return high, wide

    def _channels_last(self, inputs: Tensor) -> Tensor:
        """Return images [n, H, W, C]."""
        if inputs.ndim == 3:
            return inputs.unsqueeze(-1)
        first, last = inputs.shape[1] in CHANNELS, inputs.shape[-1] in CHANNELS
        if inputs.ndim != 4 or first == last:
            shape = ", ".join(map(str, inputs.shape[1:]))
            raise DataError(f"Task: images have the shape [{shape}]: give [n, C, H, W] or [n, H, W, C], C is 1, 3 or 4")
        return inputs.permute(0, 2, 3, 1) if first else inputs

    def _tokens(self, inputs: Tensor) -> Tensor:
        if self.kind == "images":
            return cut(self._channels_last(inputs), self._patch())
        if self.kind == "ids":
            return inputs
        return inputs.reshape(len(inputs), -1, 1) if self.kind == "rows" else inputs.flatten(2)

    def _affine(self) -> tuple[float | Tensor, float | Tensor]:
        inputs = self._parts.train.inputs
        if self.kind != "images" or inputs.dtype != torch.uint8:
            return 1.0, 0.0
        pixels = self._channels_last(inputs).flatten(0, 2).double()
        return affine(pixels.mean(0).tolist(), pixels.std(0).clamp(min=1.0).tolist(), self._patch())


def _within(values: Tensor, count: int) -> bool:
    """Return whether all values are from 0 to `count` - 1."""
    return int(values.min()) >= 0 and int(values.max()) < count


def _held_out(part: Part) -> tuple[Part, Part]:
    """Return a part without and with a fixed share of its samples, the same for every study: (train, test)."""
    assert isinstance(part.targets, Tensor)
    if len(part.targets) < 2:
        raise DataError("Task: train has 1 sample: none is left to train on beside the test part")
    if not part.targets.is_floating_point() and part.targets.ndim == 1:
        places = stratified_split(part.targets, key=SPLIT_KEY)
    else:
        bits = stream(0, SPLIT_KEY, 0, "split", "test").bit_generator.random_raw(len(part.targets))
        order = torch.from_numpy(np.argsort(bits, kind="stable"))
        count = max(round(TEST_SHARE * len(order)), 1)
        places = order[count:].sort().values, order[:count].sort().values
    train, test = (Part(inputs=part.inputs[i], targets=part.targets[i]) for i in places)
    return train, test
