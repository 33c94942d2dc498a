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


def train():
    params = init(jax.random.key(0), width=8)
    momentum = jax.tree.map(jnp.zeros_like, params)
    for epoch in range(4):
        for rows in np.array_split(np.random.permutation(1000), 20):
            params, momentum, value = step(params, momentum, X[rows], Y[rows], 0.05)
        print(f"epoch {epoch}: loss {value:.4f}, accuracy {accuracy(params, VAL):.4f}")
    return params


def test(params):
    print(f"test accuracy {accuracy(params, TEST):.4f}")


if __name__ == "__main__":
    test(train())
