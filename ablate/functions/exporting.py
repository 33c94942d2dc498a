"""Writes what `run.keep` has kept as files for other programs: safetensors, JSON, or the files of a library."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from ablate.base.errors import CheckpointError
from ablate.functions.keeping import FILES, decode, tensor_of, write_inside

RESERVED = ("config", "settings")  # names of files of an export itself


def write_kept(states: Mapping[str, Any], tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Write each kept object of one seed into `folder`.

    A `state_dict` of tensors is NAME.safetensors with its own paths. Files that an object saved are as they were:
    one that is called NAME.… is in `folder`, all others are in NAME/. Anything else is NAME.json, in which
    `{"tensor": PATH}` stands for a tensor of NAME.safetensors. Raises CheckpointError for a damaged state.
    """
    for name, state in states.items():
        try:
            _write(quote(name, safe=" ").replace(".", "%2E"), name, state, tensors, folder)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"run.keep({name}=...): what the checkpoint holds cannot be written: {error}"
            ) from error


def _write(file: str, name: str, state: Any, tensors: Mapping[str, Tensor], folder: Path) -> None:
    file = f"kept-{file}" if file in RESERVED else file
    if isinstance(state, dict) and FILES in state:
        files = decode(state[FILES], tensors)
        alone = len(files) == 1 and next(iter(files)).startswith(f"{file}.")
        for path, content in files.items():
            write_inside(folder if alone else folder / file, path, content)
        return
    found: dict[str, Tensor] = {}
    shown = _plain(_value(state), found, tensors, name)
    if not _is_flat(shown):
        text = json.dumps(shown, indent=1, ensure_ascii=False)
        (folder / f"{file}.json").write_text(f"{text}\n", encoding="utf-8")
    if found:
        save_file({path: tensor.contiguous() for path, tensor in found.items()}, folder / f"{file}.safetensors")


def _value(state: Any) -> Any:
    """Return the state without the wrapping of a value (`ablate.functions.state.Value.stored`)."""
    if isinstance(state, dict) and list(state) == ["dict"] and len(state["dict"]) in (1, 2):
        inner = dict(state["dict"])
        if list(inner) == ["value"]:
            return inner["value"]
        if list(inner) == ["leaves", "names"]:
            return {
                "dict": [[name, {"leaf": [leaf, dtype]}] for leaf, (name, dtype) in zip(*inner.values(), strict=True)]
            }
    return state


def _plain(state: Any, found: dict[str, Tensor], tensors: Mapping[str, Tensor], at: str) -> Any:
    """Return what `encode` made as plain JSON; add its tensors to `found` by their path in the kept object."""
    if isinstance(state, list):
        return [_plain(item, found, tensors, f"{at}.{index}") for index, item in enumerate(state)]
    if not isinstance(state, dict):
        return state
    ((kind, content),) = state.items()
    if kind in ("tensor", "array", "bytes", "leaf"):
        tensor = _leaf(content[0], content[1], tensors) if kind == "leaf" else _tensor(state, tensors)
        if not isinstance(tensor, Tensor):
            return tensor
        path = at.partition(".")[2] or at
        found[path] = tensor
        return {"tensor": path}
    if kind == "scalar":
        value = decode(state, tensors).item()
        return value if not isinstance(value, float) or math.isfinite(value) else repr(value)
    if kind == "float":
        return content
    if kind in ("dict", "OrderedDict", "Counter", "defaultdict"):
        pairs = [(decode(key, tensors), value) for key, value in content]
        return {str(key): _plain(value, found, tensors, f"{at}.{key}") for key, value in pairs}
    items = content[1] if kind == "bounded" else content
    return [_plain(item, found, tensors, f"{at}.{index}") for index, item in enumerate(items)]


def _tensor(state: dict[str, Any], tensors: Mapping[str, Tensor]) -> Tensor:
    value = decode(state, tensors)
    if isinstance(value, Tensor):
        return value
    array = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=True))


def _leaf(leaf: Any, dtype: str, tensors: Mapping[str, Tensor]) -> Any:
    """Return an array of JAX as a tensor; another leaf of its tree as it is, None for one that is not kept."""
    if not isinstance(leaf, list):
        return None if leaf is None else decode(leaf, tensors)["plain"]
    content, shape = (decode(part, tensors) for part in leaf)
    return tensor_of(content, getattr(torch, dtype)).reshape(shape)


def _is_flat(shown: Any) -> bool:
    """Return whether all that is kept are tensors by path, or one tensor, so that nothing is left for JSON."""
    if isinstance(shown, dict) and list(shown) == ["tensor"] and isinstance(shown["tensor"], str):
        return True
    return (
        isinstance(shown, dict)
        and bool(shown)
        and all(isinstance(value, dict) and value == {"tensor": name} for name, value in shown.items())
    )
