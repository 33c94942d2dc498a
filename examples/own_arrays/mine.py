"""A task from arrays: how far has diabetes progressed a year later? Scored by R² over the whole split."""

from sklearn.datasets import load_diabetes
from sklearn.metrics import r2_score
from sklearn.model_selection import train_test_split
from torch import nn

import ablate

x, y = load_diabetes(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(x / x.std(), (y - y.mean()) / y.std(), random_state=0)
diabetes = ablate.Task(
    train=(x_train, y_train),
    test=(x_test, y_test),
    loss="mse",
    metrics={"r2": lambda scores, targets: r2_score(targets, scores)},
)


class Mlp(nn.Sequential):
    takes = "samples"  # rows [B, 10], as they are in the array

    def __init__(self, config, shape):
        hidden = config.options["hidden"]
        super().__init__(nn.Linear(10, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, shape.outputs))
