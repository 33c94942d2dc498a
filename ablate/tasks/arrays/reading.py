"""Reads inputs and targets from arrays, a torch Dataset or named columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ablate.errors import DataError, did_you_mean

TARGETS = ("label", "labels", "target", "targets", "y")  # usual names of the column of targets


@dataclass(frozen=True, kw_only=True)
class Part:
    """One split: inputs and targets of as many samples; `names` are the classes of targets that were text."""

    inputs: Tensor
    targets: Tensor
    names: tuple[str, ...] = ()


def read_part(source: Any, name: str, columns: tuple[str, str] | None) -> Part:
    """Return the part that `source` holds, or returns when it is called.

    `source` is a pair of arrays, a torch Dataset of pairs, or columns by name (a dictionary, a pandas or Polars table,
    or a Hugging Face data set); `columns` names those of inputs and targets. Raises DataError with `name` for anything
    else.
    """
    found = source() if isinstance(source, Callable) and not hasattr(source, "__getitem__") else source  # type: ignore[arg-type]
    if isinstance(found, tuple | list) and len(found) == 2:
        inputs, targets = found
    elif isinstance(found, Mapping) or hasattr(found, "columns") or hasattr(found, "column_names"):
        inputs, targets = _columns(found, name, columns)
    elif hasattr(found, "__len__") and hasattr(found, "__getitem__"):
        inputs, targets = _items(found, name)
    else:
        raise DataError(
            f"Task: {name} is a {type(found).__name__}: give (inputs, targets), a Dataset of pairs, columns by name, or"
            " a function that returns one of them"
        )
    values, names = _targets(targets, name)
    part = Part(inputs=_tensor(inputs, f"{name} inputs"), targets=values, names=names)
    if len(part.inputs) != len(part.targets) or len(part.inputs) == 0:
        raise DataError(f"Task: {name} has {len(part.inputs)} inputs and {len(part.targets)} targets")
    return part


def _columns(table: Any, name: str, columns: tuple[str, str] | None) -> tuple[Any, Any]:
    known = [
        str(c) for c in (table if isinstance(table, Mapping) else getattr(table, "column_names", None) or table.columns)
    ]
    if columns is None:
        targets = [c for c in known if c in TARGETS]
        if len(known) != 2 or len(targets) != 1:
            raise DataError(f"Task: {name} has the columns {', '.join(known)}: say columns=(INPUTS, TARGETS)")
        columns = (next(c for c in known if c != targets[0]), targets[0])
    for column in columns:
        if column not in known:
            raise DataError(f"Task: {name} has no column {column!r}. {did_you_mean(column, known)}")
    return table[columns[0]], table[columns[1]]


def _items(dataset: Any, name: str) -> tuple[Any, Any]:
    """Return the stacked items of a Dataset; each is read once."""
    items = [dataset[i] for i in range(len(dataset))]
    if not items or not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
        raise DataError(f"Task: {name} is a Dataset whose items are not pairs (input, target)")
    inputs, targets = zip(*items, strict=True)
    return _stacked(inputs), _stacked(targets)


def _stacked(values: Sequence[Any]) -> Any:
    return torch.stack(list(values)) if isinstance(values[0], Tensor) else np.stack([np.asarray(v) for v in values])


def _targets(values: Any, name: str) -> tuple[Tensor, tuple[str, ...]]:
    """Return targets, and the class names if they are text: then a target is the place of its name in sorted order."""
    if not isinstance(values, Tensor):
        array = _array(values, f"{name} targets")
        if array.dtype.kind in "US":
            names, places = np.unique(array, return_inverse=True)
            return torch.from_numpy(places.reshape(array.shape)), tuple(str(n) for n in names)
    tensor = _tensor(values, f"{name} targets")
    return (tensor.long() if tensor.dtype == torch.bool else tensor), ()


def _array(values: Any, name: str) -> np.ndarray:
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O":
            kinds = {type(value) for value in array.flat}
            array = (
                np.asarray(array.tolist(), dtype=str) if kinds == {str} else np.stack([np.asarray(v) for v in array])
            )
    except (TypeError, ValueError) as error:
        raise DataError(f"Task: {name} are no array: {error}") from error
    return array


def _tensor(values: Any, name: str) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach().cpu()
    array = _array(values, name)
    if array.dtype.kind not in "buif":
        raise DataError(f"Task: {name} are {array.dtype}, not numbers")
    return torch.from_numpy(array.copy() if not array.flags.writeable else np.ascontiguousarray(array))
