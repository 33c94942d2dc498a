"""Values that `run.keep` keeps: numbers, text, lists, dictionaries and arrays, also those of JAX."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

PLAIN = (bool, int, float, str, np.ndarray, np.generic)  # leaves of a tree that are stored beside JAX's arrays


class State:
    """The values that one call of `run.keep` keeps: `state.best` is read and set, and `state["best"]` is the same."""

    _values: dict[str, Any]

    def __init__(self, values: dict[str, Any]) -> None:
        object.__setattr__(self, "_values", values)

    def __getattr__(self, name: str) -> Any:
        try:
            return object.__getattribute__(self, "_values")[name]
        except KeyError:
            raise AttributeError(self._unknown(name)) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._values:
            raise AttributeError(self._unknown(name))
        self._values[name] = value

    def __getitem__(self, name: str) -> Any:
        """Return a value."""
        return getattr(self, name)

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a value."""
        setattr(self, name, value)

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(self._values)

    def __repr__(self) -> str:
        return f"State({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"

    def _unknown(self, name: str) -> str:
        return f"{name!r} is not kept: name it in run.keep. Kept: {', '.join(self._values) or 'nothing'}"


class Holder:
    """Keeps a model of a library that has its own way to save one; `test` is given the model."""

    def __init__(self, now: Any) -> None:
        self.now = now


class Attributes:
    """Keeps the plain attributes of a library's objects, such as how long a callback has seen nothing better."""

    def __init__(self, things: Iterable[Any]) -> None:
        self._things = list(things)
        self._found: list[dict[str, Any]] = []

    def state_dict(self) -> dict[str, Any]:
        """Return the attributes of each object."""
        return {"attributes": [{k: v for k, v in vars(each).items() if _is_plain(v)} for each in self._things]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold the attributes until `give`."""
        self._found = state["attributes"]

    def give(self) -> None:
        """Set what a checkpoint held: later than `load_state_dict`, as libraries set them anew when they begin."""
        for thing, found in zip(self._things, self._found, strict=False):
            vars(thing).update(found)


def _is_plain(value: Any) -> bool:
    arrays = isinstance(value, list) and all(isinstance(each, np.ndarray) for each in value)
    return value is None or isinstance(value, PLAIN) or arrays


class Value:
    """One value of a `State`, for the checkpoint."""

    def __init__(self, state: State, name: str) -> None:
        self._state, self._name = state, name

    @property
    def now(self) -> Any:
        """The value of now."""
        return self._state[self._name]

    def stored(self) -> Any:
        """Return what a checkpoint stores: the value itself, or the leaves of a tree with JAX's arrays."""
        return {"leaves": _leaves(self.now), "names": _names(self.now)} if _has_jax(self.now) else {"value": self.now}

    def restore(self, stored: Any) -> None:
        """Set what `stored` returned: a list, a dictionary or an array in place; what is inside of one is new.

        Raises ValueError if a tree has another structure than before.
        """
        old = self.now
        new = _tree(old, stored["leaves"]) if "leaves" in stored else _changed(old, stored["value"])
        self._state[self._name] = new


def _changed(old: Any, new: Any) -> Any:
    """Return `old` with the content of `new`, as other code may hold it; `new` if `old` cannot be changed in place."""
    same = type(old) is type(new)
    if same and isinstance(old, list):
        old[:] = new
    elif isinstance(old, dict) and isinstance(new, dict):
        old.clear()
        old.update(new)
    elif same and isinstance(old, set | deque):
        old.clear()
        old.update(new) if isinstance(old, set) else old.extend(new)
    elif _is_array(old) and _is_array(new) and (old.shape, old.dtype) == (new.shape, new.dtype):
        try:
            with torch.no_grad():
                old[...] = new
        except (ValueError, RuntimeError):  # a read-only array, an expanded tensor
            return new
    elif isinstance(old, tuple) and hasattr(old, "_fields") and len(old) == len(new):
        return type(old)(*new)
    else:
        return new
    return old


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | Tensor)


def _has_jax(value: Any) -> bool:
    jax: Any = sys.modules.get("jax")
    return jax is not None and any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value))


def _leaves(tree: Any) -> list[Any]:
    """Return the leaves as bytes and shape, or as they are; None for a leaf that a new call makes anew."""
    jax: Any = sys.modules["jax"]

    def stored(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array):
            plain = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
            return [plain.tobytes(), list(plain.shape)]
        return {"plain": leaf} if isinstance(leaf, PLAIN) else None

    return [stored(leaf) for leaf in jax.tree.leaves(tree)]


def _names(tree: Any) -> list[list[str]]:
    """Return the path of each leaf, and the type of its elements, for those who read a checkpoint without the code."""
    jax: Any = sys.modules["jax"]
    named = jax.tree_util.tree_flatten_with_path(tree)[0]
    kinds = [str(getattr(jax.random.key_data(leaf) if _is_key(leaf) else leaf, "dtype", "")) for _, leaf in named]
    paths = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in named]
    return [list(pair) for pair in zip(paths, kinds, strict=True)]


def _tree(old: Any, leaves: list[Any]) -> Any:
    """Return a tree of the structure and types of `old` with other leaves."""
    jax: Any = sys.modules["jax"]
    before = jax.tree.leaves(old)
    if len(before) != len(leaves):
        raise ValueError(f"the checkpoint has {len(leaves)} leaves, the function makes {len(before)}")

    def made(leaf: Any, stored: Any) -> Any:
        if not isinstance(stored, list):
            return leaf if stored is None else stored["plain"]
        content, shape = stored
        plain = jax.random.key_data(leaf) if _is_key(leaf) else leaf
        array = np.frombuffer(content, dtype=plain.dtype).reshape(shape)
        if _is_key(leaf):
            return jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf))
        if leaf.weak_type and leaf.ndim == 0:
            return jax.numpy.asarray(array.item())
        return jax.device_put(array, leaf.sharding) if len(leaf.devices()) > 1 else jax.numpy.asarray(array)

    found = [made(leaf, stored) for leaf, stored in zip(before, leaves, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(old), found)


def _is_key(leaf: Any) -> bool:
    jax: Any = sys.modules["jax"]
    return hasattr(leaf, "dtype") and bool(jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def is_value(thing: Any) -> bool:
    """Return whether a thing is kept as a value; objects with methods for their state are not."""
    if any(callable(getattr(thing, method, None)) for method in ("state_dict", "load")):
        return False
    return isinstance(thing, (*PLAIN, type(None), bytes, list, tuple, dict, set, deque, Tensor)) or _has_jax(thing)
