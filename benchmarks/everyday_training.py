"""Three scripts that somebody may have: XGBoost and LightGBM on made-up data, a small network on scikit-learn's digits.

Each is a generator of the validation loss: boosted trees after every 10 of 200 rounds, the network after each epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.distributions import CategoricalDistribution as Choice
from optuna.distributions import FloatDistribution as Float
from optuna.distributions import IntDistribution as Int
from sklearn.datasets import load_digits, make_classification

Array = NDArray[np.float64]
Settings = Mapping[str, Any]
Losses = tuple[float, ...]
REPORTS, ROUNDS = 20, 10
SPACES: dict[str, dict[str, BaseDistribution]] = {
    "xgb": {
        "eta": Float(0.003, 0.4, log=True),
        "max_depth": Int(2, 10),
        "subsample": Float(0.4, 1),
        "colsample": Float(0.4, 1),
        "reg_lambda": Float(1e-3, 100, log=True),
        "min_child_weight": Float(0.5, 30, log=True),
    },
    "lgb": {
        "learning_rate": Float(0.003, 0.4, log=True),
        "num_leaves": Int(3, 200, log=True),
        "min_child_samples": Int(2, 100, log=True),
        "feature_fraction": Float(0.4, 1),
        "bagging_fraction": Float(0.4, 1),
        "lambda_l2": Float(1e-3, 100, log=True),
    },
    "net": {
        "lr": Float(3e-4, 1.0, log=True),
        "momentum": Float(0, 0.98),
        "width": Int(4, 128, log=True),
        "batch": Choice([16, 32, 64, 128]),
        "decay": Float(1e-6, 1e-1, log=True),
        "schedule": Choice(["constant", "cosine", "step"]),
        "dropout": Float(0, 0.6),
    },
}


@dataclass(frozen=True, kw_only=True)
class Task:
    """A script: its space, the settings that it has, its number of reports, and its training."""

    space: str
    start: Settings
    steps: int
    train: Callable[[Settings], Iterator[float]]


@cache
def churn() -> tuple[Array, Array, Array, Array]:
    """Return 5,600 rows for training and 2,400 for validation; one class in five, 15% of the labels are noise."""
    x, y = make_classification(
        8000, 20, n_informative=6, n_redundant=4, n_clusters_per_class=3, weights=[0.8], flip_y=0.15, class_sep=0.8,
        random_state=1,
    )  # fmt: skip
    return _split(x, y)


@cache
def digits() -> tuple[Array, Array, Array, Array]:
    """Return scikit-learn's pictures of digits, seven tenths for training."""
    x, y = load_digits(return_X_y=True)
    return _split(x / 16, y)


def _split(x: Array, y: Array) -> tuple[Array, Array, Array, Array]:
    order = np.random.default_rng(7).permutation(len(y))
    cut = int(0.7 * len(y))
    return x[order[:cut]], y[order[:cut]], x[order[cut:]], y[order[cut:]]


def xgb(settings: Settings) -> Iterator[float]:
    """Yield XGBoost's log loss."""
    import xgboost

    x, y, vx, vy = churn()
    asked = {"objective": "binary:logistic", "eval_metric": "logloss", "nthread": 1, "seed": 0, "verbosity": 0}
    asked |= {key: value for key, value in settings.items() if key != "colsample"}
    valid = xgboost.DMatrix(vx, vy)
    train = xgboost.DMatrix(x, y)
    model = xgboost.Booster(asked | {"colsample_bytree": settings["colsample"]}, [train, valid])
    for report in range(REPORTS):
        for number in range(ROUNDS):
            model.update(train, ROUNDS * report + number)
        yield float(model.eval(valid).rpartition(":")[2])


def lgb(settings: Settings) -> Iterator[float]:
    """Yield LightGBM's log loss."""
    import lightgbm

    x, y, vx, vy = churn()
    quiet = {"num_threads": 1, "verbosity": -1}
    asked = {**settings, **quiet, "objective": "binary", "metric": "binary_logloss", "bagging_freq": 1, "seed": 0}
    train = lightgbm.Dataset(x, y, params=quiet)
    model = lightgbm.Booster(asked, train)
    model.add_valid(lightgbm.Dataset(vx, vy, reference=train, params=quiet), "valid")
    for _ in range(REPORTS):
        for _ in range(ROUNDS):
            model.update()
        yield float(model.eval_valid()[0][2])


def net(settings: Settings) -> Iterator[float]:
    """Yield the cross-entropy of a network of one hidden layer, which SGD trains with a schedule of its own."""
    import torch
    from torch import nn

    x, y, vx, vy = (torch.as_tensor(part) for part in digits())
    random = torch.Generator().manual_seed(0)
    epochs, batch, width = TASKS["net_digits"].steps, settings["batch"], settings["width"]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Dropout(settings["dropout"]), nn.Linear(width, 10))
    steps = epochs * math.ceil(len(y) / batch)
    by_name: dict[str, Callable[[float], float]] = {
        "constant": lambda share: 1.0,
        "cosine": lambda share: (1 + math.cos(math.pi * share)) / 2,
        "step": lambda share: 1.0 if share < 0.6 else 0.1 if share < 0.85 else 0.01,
    }
    wanted = {"lr": settings["lr"], "momentum": settings["momentum"], "weight_decay": settings["decay"]}
    optimizer = torch.optim.SGD(model.parameters(), **wanted)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: by_name[settings["schedule"]](step / steps))
    for _ in range(epochs):
        model.train()
        for part in torch.randperm(len(y), generator=random).split(batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[part].float()), y[part]).backward()
            optimizer.step()
            rate.step()
        with torch.no_grad():
            loss = float(nn.functional.cross_entropy(model.eval()(vx.float()), vy))
        yield min(loss, 10.0) if math.isfinite(loss) else 10.0


TASKS = {
    "xgb_churn": Task(
        space="xgb",
        start={
            "eta": 0.1, "max_depth": 4, "subsample": 0.8, "colsample": 0.8, "reg_lambda": 1.0, "min_child_weight": 1.0,
        },
        steps=REPORTS,
        train=xgb,
    ),
    "lgb_churn": Task(
        space="lgb",
        start={
            "learning_rate": 0.1, "num_leaves": 31, "min_child_samples": 20, "feature_fraction": 1.0,
            "bagging_fraction": 1.0, "lambda_l2": 1e-3,
        },
        steps=REPORTS,
        train=lgb,
    ),
    "net_digits": Task(
        space="net",
        start={
            "lr": 0.1, "momentum": 0.9, "width": 32, "batch": 32, "decay": 1e-4, "schedule": "cosine", "dropout": 0.0,
        },
        steps=15,
        train=net,
    ),
}  # fmt: skip
