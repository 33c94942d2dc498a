"""A network in JAX on the 8 x 8 digits of scikit-learn: its parameters and moments are kept as trees of arrays."""

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

BATCH = 100


def load(part):
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    chosen = order[{"train": slice(0, 1200), "val": slice(1200, 1400), "test": slice(1400, None)}[part]]
    return digits.data[chosen] / 16, digits.target[chosen]


def layers(key, sizes):
    keys = jax.random.split(key, len(sizes) - 1)
    shapes = zip(keys, sizes[:-1], sizes[1:], strict=True)
    return [{"w": jax.random.normal(k, (i, o)) * (2 / i) ** 0.5, "b": jnp.zeros(o)} for k, i, o in shapes]


def scores(params, x):
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def loss(params, x, y):
    return -jnp.take_along_axis(jax.nn.log_softmax(scores(params, x)), y[:, None], axis=1).mean()


@jax.jit
def step(params, moments, x, y, lr):
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, jax.grad(loss)(params, x, y))
    return jax.tree.map(lambda p, m: p - lr * m, params, moments), moments


def accuracy(params, part):
    x, y = load(part)
    return float((scores(params, x).argmax(1) == y).mean())


def train(config, run):
    x, y = load("train")
    params = layers(jax.random.key(run.seed), [64, config["width"], 10])
    state = run.keep(model=params, moments=jax.tree.map(jnp.zeros_like, params))
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    for _ in run.epochs():
        order = run.stream("order").permutation(len(x))
        for batch in order.reshape(-1, BATCH):
            state.model, state.moments = step(state.model, state.moments, x[batch], y[batch], config["lr"])
        yield {"val_accuracy": accuracy(state.model, "val"), "params": size}


def test(model, config):
    return {"test_accuracy": accuracy(model, "test")}
