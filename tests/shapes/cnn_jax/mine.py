"""A convolutional network in JAX with its own momentum, on 8 x 8 digits."""

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

X, Y = load_digits(return_X_y=True)
X = (X / 16).reshape(-1, 8, 8, 1).astype("float32")
TRAIN, VAL, TEST = slice(1000), slice(1000, 1400), slice(1400, None)


def init(key, width):
    one, two = jax.random.split(key)
    conv, dense = (
        jax.random.normal(one, (3, 3, 1, width)) / 3,
        jax.random.normal(two, (9 * width, 10)) / (3 * width**0.5),
    )
    return {"conv": conv, "bias": jnp.zeros(width), "dense": dense}


def logits(params, x):
    x = jax.lax.conv_general_dilated(x, params["conv"], (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.nn.relu(x + params["bias"]).reshape(len(x), -1) @ params["dense"]


def loss(params, x, y):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits(params, x)), y[:, None], axis=1).mean()


@jax.jit
def step(params, momentum, x, y, lr):
    value, gradient = jax.value_and_grad(loss)(params, x, y)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
    return jax.tree.map(lambda p, m: p - lr * m, params, momentum), momentum, value


def accuracy(params, part):
    return float((logits(params, X[part]).argmax(1) == Y[part]).mean())


def train(config, run):
    params = init(jax.random.key(run.seed), width=config["width"])
    state = run.keep(model=params, momentum=jax.tree.map(jnp.zeros_like, params))
    for _ in run.epochs():
        for rows in np.array_split(np.random.permutation(1000), 20):
            state.model, state.momentum, value = step(state.model, state.momentum, X[rows], Y[rows], config["lr"])
        yield {"train_loss": float(value), "val_accuracy": accuracy(state.model, VAL)}


def test(params, config):
    return {"test_accuracy": accuracy(params, TEST)}
