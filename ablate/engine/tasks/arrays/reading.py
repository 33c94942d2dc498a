"""Reads inputs and targets from arrays, a torch Dataset or named columns."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ablate.base.errors import DataError, did_you_mean
from ablate.base.redaction import error_text

TARGETS = ("label", "labels", "target", "targets", "y")  # usual names of the column of targets
Columns = tuple[str | Sequence[str] | None, str] | None


@dataclass(frozen=True, kw_only=True)
class Part:
    """One split: inputs and targets of as many samples; targets that are text are an array of text."""

    inputs: Tensor
    targets: Tensor | np.ndarray

    def numbered(self, names: tuple[str, ...]) -> Part:
        """Return the part with whole numbers in place of text: the place of each in `names`."""
        if isinstance(self.targets, Tensor):
            return self
        return Part(inputs=self.inputs, targets=torch.from_numpy(np.searchsorted(np.array(names), self.targets)))


def read_part(source: Any, name: str, columns: Columns) -> Part:
    """Return the part that `source` holds, or returns when it is called.

    `source` is a pair of arrays, a torch Dataset of pairs, or columns by name (a dictionary, a pandas or Polars table,
    or a Hugging Face data set). `columns` names those of inputs (one, several, or None for all others) and of targets.
    A Dataset that draws is read with generators seeded by a constant. Raises DataError with `name` for anything else.
    """
    with _seeded():
        inputs, targets = _pair(_called(source, name), name, columns)
    part = Part(inputs=_tensor(inputs, f"{name} inputs"), targets=_targets(targets, name))
    if len(part.inputs) != len(part.targets) or len(part.inputs) == 0:
        raise DataError(f"Task: {name} has {len(part.inputs)} inputs and {len(part.targets)} targets")
    return part


def text_names(parts: Mapping[str, Part]) -> tuple[str, ...]:
    """Return the class names of targets that are text, sorted; empty for numbers.

    Raises DataError for a class that `train` does not have.
    """
    words = {name: np.unique(part.targets) for name, part in parts.items() if isinstance(part.targets, np.ndarray)}
    if not words:
        return ()
    if len(words) < len(parts):
        raise DataError("Task: the targets of some parts are text, those of others numbers")
    for name, found in words.items():
        if unknown := sorted(set(found.tolist()) - set(words["train"].tolist())):
            raise DataError(f"Task: {name} has the class {unknown[0]!r}, which train does not have")
    return tuple(map(str, words["train"]))


def _called(source: Any, name: str) -> Any:
    if not callable(source) or hasattr(source, "__getitem__"):
        return source
    try:
        return source()
    except Exception as error:  # the user's code
        raise DataError(f"Task: {name} cannot be read: {error_text(error, first_line=True)}") from error


def _pair(found: Any, name: str, columns: Columns) -> tuple[Any, Any]:
    if isinstance(found, tuple | list) and len(found) == 2:
        return found[0], found[1]
    if isinstance(found, Mapping) or hasattr(found, "columns") or hasattr(found, "column_names"):
        return _columns(found, name, columns)
    if hasattr(found, "__len__") and hasattr(found, "__getitem__"):
        return _items(found, name)
    raise DataError(
        f"Task: {name} is a {type(found).__name__}: give (inputs, targets), a Dataset of pairs, columns by name, or a"
        " function that returns one of them"
    )


def _columns(table: Any, name: str, columns: Columns) -> tuple[Any, Any]:
    names = table if isinstance(table, Mapping) else getattr(table, "column_names", None) or table.columns
    known = [str(each) for each in names]
    if columns is None:
        usual = [column for column in known if column in TARGETS]
        if len(usual) != 1 or len(known) < 2:
            raise DataError(f"Task: {name} has the columns {', '.join(known)}: say columns=(INPUTS, TARGETS)")
        columns = (None, usual[0])
    inputs, target = columns
    chosen = [column for column in known if column != target] if inputs is None else inputs
    for column in ([chosen] if isinstance(chosen, str) else [*chosen], [target]):
        for each in column:
            if each not in known:
                raise DataError(f"Task: {name} has no column {each!r}. {did_you_mean(each, known)}")
    if isinstance(chosen, str) or len(chosen) == 1:
        return table[chosen if isinstance(chosen, str) else chosen[0]], table[target]
    return np.stack([np.asarray(table[column]) for column in chosen], axis=1), table[target]


def _items(dataset: Any, name: str) -> tuple[Any, Any]:
    """Return the stacked items of a Dataset; each is read once."""
    items = [dataset[i] for i in range(len(dataset))]
    if not items or not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
        raise DataError(f"Task: {name} is a Dataset whose items are not pairs (input, target)")
    inputs, targets = zip(*items, strict=True)
    return _stacked(inputs), _stacked(targets)


def _stacked(values: Sequence[Any]) -> Any:
    return torch.stack(list(values)) if isinstance(values[0], Tensor) else np.stack([np.asarray(v) for v in values])


@contextmanager
def _seeded() -> Iterator[None]:
    """Seed the global generators by a constant, so that every process reads the same data; restore them afterwards."""
    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(0)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


def _targets(values: Any, name: str) -> Tensor | np.ndarray:
    if not isinstance(values, Tensor):
        array = _array(values, f"{name} targets")
        if array.dtype.kind == "S":
            array = np.char.decode(array, "utf-8")
        if array.dtype.kind == "U":
            return array
    tensor = _tensor(values, f"{name} targets")
    tensor = tensor.long() if tensor.dtype == torch.bool else tensor
    return tensor[:, 0] if tensor.ndim == 2 and tensor.shape[1] == 1 else tensor


def _array(values: Any, name: str) -> np.ndarray:
    """Return values as an array of text or numbers; raise DataError for missing ones and other types."""
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O":
            if missing := sum(map(_is_missing, array.flat)):
                raise DataError(f"Task: {name} have {missing} missing values: remove these samples, or fill them")
            words = all(isinstance(value, str) for value in array.flat)
            array = array.astype(str) if words else np.stack([np.asarray(v) for v in array])
    except (TypeError, ValueError) as error:
        raise DataError(f"Task: {name} are no array: {error_text(error, first_line=True)}") from error
    return array


def _is_missing(value: object) -> bool:
    return value is None or (str(value) in ("nan", "<NA>", "NaT") and not isinstance(value, str))


def _tensor(values: Any, name: str) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach().cpu()
    array = _array(values, name)
    kind, size = array.dtype.kind, array.itemsize
    if kind not in "biuf":
        raise DataError(f"Task: {name} are {array.dtype}, not numbers")
    wide: Any = np.int64 if kind == "u" and size > 1 else np.float64 if size > 8 else array.dtype.newbyteorder("=")
    return torch.from_numpy(np.array(array, dtype=wide, order="C"))
