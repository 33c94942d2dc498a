"""A training script as people write it: a perceptron on 8 x 8 digits, with switches for its parts."""

import argparse
from itertools import pairwise

import numpy as np
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--standardize", action="store_true", help="give every pixel mean 0 and variance 1")
parser.add_argument("--hidden", action="store_true", help="a hidden layer of 32 units")
parser.add_argument("--ema", action="store_true", help="evaluate a moving average of the weights")
options = parser.parse_args()

draw = np.random.default_rng(options.seed)
x, y = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(x))  # the same split for every seed
train, val, test = order[:1000], order[1000:1400], order[1400:]
if options.standardize:
    x = (x - x[train].mean(0)) / (x[train].std(0) + 1e-6)
sizes = [64, *([32] if options.hidden else []), 10]
weights = [draw.normal(0, below**-0.5, (below, above)) for below, above in pairwise(sizes)]
average = [w.copy() for w in weights]


def layers(x, weights):
    found = [x]
    for w in weights[:-1]:
        found.append(np.maximum(found[-1] @ w, 0))
    return [*found, found[-1] @ weights[-1]]


def accuracy(rows):
    used = average if options.ema else weights
    return 100 * np.mean(layers(x[rows], used)[-1].argmax(1) == y[rows])


for epoch in range(options.epochs):
    for rows in np.array_split(draw.permutation(train), 32):
        *inputs, scores = layers(x[rows], weights)
        shares = np.exp(scores - scores.max(1, keepdims=True))
        gradient = (shares / shares.sum(1, keepdims=True) - np.eye(10)[y[rows]]) / len(rows)
        for i in reversed(range(len(weights))):
            step = inputs[i].T @ gradient
            gradient = (gradient @ weights[i].T) * (inputs[i] > 0)
            weights[i] -= options.lr * step
        average = [mean + 0.02 * (w - mean) for mean, w in zip(average, weights, strict=True)]
    print(f"epoch {epoch + 1}/{options.epochs}: validation accuracy {accuracy(val):.2f}%", flush=True)
print(f"test accuracy {accuracy(test):.2f}%")
