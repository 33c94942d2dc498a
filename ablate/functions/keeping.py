"""The state of what `run.keep` keeps, as tensors and JSON without pickle; and of modules and global generators."""

from __future__ import annotations

import math
import random
import tempfile
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from ablate.base.errors import TrialError
from ablate.functions.state import Holder, Value

FILES = "files"  # the state of an object that saves itself into a folder
_PLAIN = (str, int, bool, type(None))
_MAPPINGS: dict[str, Callable[..., Any]] = {
    "dict": dict,
    "OrderedDict": OrderedDict,
    "Counter": lambda pairs: Counter(dict(pairs)),
    "defaultdict": dict,
}
_SEQUENCES: dict[str, Callable[..., Any]] = {"list": list, "tuple": tuple, "set": set, "deque": deque}


def check_keepable(name: str, thing: object) -> None:
    """Raise TrialError unless `thing` is a value, or has one of the two pairs of methods by which it is kept."""
    pairs = (("state_dict", "load_state_dict"), ("save", "load"))
    if isinstance(thing, torch.Generator) or any(all(callable(getattr(thing, m, None)) for m in p) for p in pairs):
        return
    if isinstance(thing, Value):
        get_state(name, thing)
        return
    raise TrialError(
        f"run.keep({name}=...): a {type(thing).__name__} cannot be kept. Numbers, text, arrays, lists and dictionaries"
        " are kept, and objects that have state_dict and load_state_dict, or save(folder) and load(folder)"
    )


def get_state(name: str, thing: Any) -> tuple[Any, dict[str, Tensor]]:
    """Return the state of a kept object as JSON and the tensors that it names; raise TrialError for another type."""
    tensors: dict[str, Tensor] = {}
    if isinstance(thing, torch.Generator):
        return encode(thing.get_state(), f"{name}", tensors), tensors
    if isinstance(thing, Value):
        return encode(thing.stored(), name, tensors), tensors
    if hasattr(thing, "state_dict"):
        return encode(thing.state_dict(), name, tensors), tensors
    with tempfile.TemporaryDirectory(prefix="ablate-keep-") as folder:
        thing.save(Path(folder))
        found = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(Path(folder).rglob("*")) if p.is_file()}
    return {FILES: encode(found, name, tensors)}, tensors


def set_state(name: str, thing: Any, state: Any, tensors: Mapping[str, Tensor]) -> None:
    """Give a kept object the state that `get_state` returned; raise TrialError if it does not take it."""
    try:
        if isinstance(thing, torch.Generator):
            thing.set_state(decode(state, tensors))
        elif isinstance(thing, Value):
            thing.restore(decode(state, tensors))
        elif hasattr(thing, "load_state_dict"):
            thing.load_state_dict(decode(state, tensors))
        else:
            with tempfile.TemporaryDirectory(prefix="ablate-keep-") as folder:
                for path, content in decode(state[FILES], tensors).items():
                    write_inside(Path(folder), path, content)
                thing.load(Path(folder))
    except (KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
        raise TrialError(f"run.keep({name}=...): the checkpoint does not fit this object: {error}") from error


def write_inside(folder: Path, path: str, content: bytes) -> None:
    """Write a file of a checkpoint; raise ValueError for one outside of `folder`."""
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts or not parts.parts:
        raise ValueError(f"it names a file outside of its folder: {path!r}")
    place = folder / parts
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)


def encode(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Return `value` as JSON from which `decode` makes an equal one; its tensors go to `tensors` by `path`.

    Raises TrialError with the path for a type that has no such form.
    """
    if isinstance(value, bool) or type(value) in _PLAIN:
        return value
    if isinstance(value, Tensor | np.ndarray | bytes):
        return _array(value, path, tensors)
    if isinstance(value, np.generic):
        return {"scalar": _array(np.asarray(value), path, tensors)}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    kind = type(value).__name__
    if isinstance(value, Mapping) and kind in _MAPPINGS:
        pairs = [[encode(k, path, tensors), encode(v, f"{path}.{k}", tensors)] for k, v in value.items()]
        return {kind: pairs}
    if isinstance(value, list | tuple | set | deque) and kind in _SEQUENCES:
        items = [encode(item, f"{path}.{i}", tensors) for i, item in enumerate(value)]
        if isinstance(value, deque) and value.maxlen is not None:
            return {"bounded": [value.maxlen, items]}
        return items if kind == "list" else {kind: items}
    if isinstance(value, tuple):  # a named one: its fields suffice for state dictionaries
        return {"tuple": [encode(item, f"{path}.{i}", tensors) for i, item in enumerate(value)]}
    raise TrialError(
        f"run.keep: {path} is a {kind}, which no checkpoint can hold: numbers, text, tensors, arrays, and lists and"
        " dictionaries of them can be kept"
    )


def _array(value: Tensor | np.ndarray | bytes, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, bytes):
        tensors[path] = tensor_of(value)
        return {"bytes": path}
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject or value.dtype.kind in "USV" or isinstance(value, np.ma.MaskedArray):
            kind = "a mask" if isinstance(value, np.ma.MaskedArray) else value.dtype
            raise TrialError(f"run.keep: {path} is an array of {kind}, which no checkpoint can hold")
        raw = np.ascontiguousarray(value)
        tensors[path] = tensor_of(raw.tobytes())
        return {"array": [path, value.dtype.str, list(value.shape)]}
    if value.layout is not torch.strided or value.is_quantized:
        raise TrialError(f"run.keep: {path} is a tensor of layout {value.layout}, which no checkpoint can hold")
    tensors[path] = value.detach().cpu().contiguous().clone()
    return {"tensor": path}


def tensor_of(content: bytes, dtype: torch.dtype = torch.uint8) -> Tensor:
    """Return a tensor with one dimension that holds these bytes."""
    return torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0, dtype=dtype)


def decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return what `encode` was given; raise ValueError for other JSON."""
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content].clone()
    if kind == "bytes":
        return tensors[content].numpy().tobytes()
    if kind == "scalar":
        return decode(content, tensors)[()]
    if kind == "float":
        return float(content)
    if kind == "array":
        path, dtype, shape = content
        count = math.prod(shape)
        return np.frombuffer(tensors[path].numpy().tobytes(), dtype=dtype, count=count).reshape(shape).copy()
    if kind in _MAPPINGS:
        return _MAPPINGS[kind]((decode(k, tensors), decode(v, tensors)) for k, v in content)
    if kind == "bounded":
        return deque((decode(item, tensors) for item in content[1]), content[0])
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](decode(item, tensors) for item in content)
    raise ValueError(f"unknown kind {kind!r}")


@contextmanager
def unchanged_modules(thing: object) -> Iterator[None]:
    """Put a kept module back at the end: its parts, their attributes, and all parameters and buffers."""
    module = thing.now if isinstance(thing, Value | Holder) else thing
    if not isinstance(module, torch.nn.Module):
        yield
        return
    held = [each for part in module.modules() for each in (vars(part), *vars(part).values()) if isinstance(each, dict)]
    before = [(each, dict(each)) for each in held]
    made = [tensor for tensor in (*module.parameters(), *module.buffers()) if not is_lazy(tensor)]
    tensors = [(tensor, tensor.data, tensor.detach().clone(), tensor.requires_grad) for tensor in made]
    training = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for each, content in before:
            if [(key, id(value)) for key, value in each.items()] != [(k, id(value)) for k, value in content.items()]:
                each.clear()
                each.update(content)
        for part, flag in training:
            part.training = flag  # of a script module it is not in its dictionary
        for tensor, data, values, trained in tensors:
            try:
                data.copy_(values)
            except RuntimeError:  # an expanded one, whose elements share memory
                data = values
            tensor.data = data
            if tensor.requires_grad != trained:
                tensor.requires_grad = trained


def seed_globals(number: int) -> None:
    """Seed the generators that a user's code draws from without saying so: Python's, NumPy's and torch's."""
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)


@contextmanager
def unchanged_randomness() -> Iterator[None]:
    """Put these generators back at the end, and those of CUDA if it is in use."""
    used = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if used else []):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
