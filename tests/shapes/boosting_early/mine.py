"""XGBoost with early stopping on scikit-learn's breast cancer data."""

import xgboost
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import log_loss

from ablate.functions.xgboost import fit

X, Y = load_breast_cancer(return_X_y=True)
TRAIN, VAL, TEST = (xgboost.DMatrix(X[part], Y[part]) for part in (slice(300), slice(300, 430), slice(430, None)))


def train(config, run):
    params = {
        "objective": "binary:logistic",
        "eval_metric": "logloss",
        "eta": config["eta"],
        "max_depth": config["depth"],
        "subsample": 0.5,
        "nthread": 1,
        "seed": 0,
    }
    fit(run, params, TRAIN, rounds=10, evals=[(VAL, "val")])


def test(model, config):
    return {"test_logloss": log_loss(TEST.get_label(), model.predict(TEST))}
