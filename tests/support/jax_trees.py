"""Keeps a tree of JAX and gives it back, in a process of its own: JAX warns of every fork of a process that has it."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ablate.base.errors import TrialError
from ablate.functions.run import Kept, Run


class Moments(NamedTuple):
    count: Any
    mean: Any


def tree(seed: int) -> Any:
    """Return a tree of several types of leaves."""
    key = jax.random.key(seed)
    values = jax.random.normal(key, (2, 3))
    weak = jnp.asarray(0.5 + seed)
    moments = Moments(jnp.asarray(seed), (weak, 7))
    return {"w": values, "half": values.astype(jnp.bfloat16), "key": key, "m": moments, "act": jax.nn.relu}


def bits(leaf: Any) -> bytes:
    """Return the bytes of an array, also of a key."""
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf).tobytes()


def a_run(found: Kept | None = None) -> Run:
    """Return a run, of a checkpoint if there is one."""
    return Run(study_seed=0, dataset="d", seed=1, length=3, found=found)


def main() -> None:
    """Check it, and print `equal`."""
    first = a_run()
    state = first.keep(tree=tree(0))
    state.tree = tree(3)
    kept = first.state()
    states = json.loads(json.dumps(dict(kept.states), allow_nan=False))
    found = Kept(epoch=2, states=states, tensors=kept.tensors)
    again = a_run(found).keep(tree=tree(0)).tree
    assert jax.tree.structure(again) == jax.tree.structure(tree(3))
    for one, other in zip(jax.tree.leaves(again), jax.tree.leaves(tree(3)), strict=True):
        if isinstance(other, jax.Array):
            assert one.dtype == other.dtype
            assert getattr(one, "weak_type", None) == getattr(other, "weak_type", None)
            assert bits(one) == bits(other)
        else:
            assert one == other
    try:
        a_run(found).keep(tree=[jnp.zeros(())])
    except TrialError as error:
        print("equal" if "the checkpoint has 7 leaves, the function makes 1" in str(error) else error)


if __name__ == "__main__":
    main()
