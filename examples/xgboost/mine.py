"""XGBoost on scikit-learn's breast cancer data: 5 rounds are a report, and a killed trial continues."""

import xgboost as xgb
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from ablate.functions.xgboost import fit


def load(part):
    x, y = load_breast_cancer(return_X_y=True)
    x_rest, x_test, y_rest, y_test = train_test_split(x, y, test_size=120, random_state=0, stratify=y)
    x_train, x_val, y_train, y_val = train_test_split(x_rest, y_rest, test_size=100, random_state=0, stratify=y_rest)
    return xgb.DMatrix(*{"train": (x_train, y_train), "val": (x_val, y_val), "test": (x_test, y_test)}[part])


def train(config, run):
    params = {"objective": "binary:logistic", "eval_metric": ["logloss", "auc"], "nthread": 1, **config}
    fit(run, params, load("train"), rounds=5, evals=[(load("val"), "val")], verbose_eval=False)  # for xgb.train


def test(model, config):
    found = model.eval(load("test"), "test").split("\t")[1:]  # [0]	test-logloss:0.1	test-auc:0.9
    return {name.replace("-", "_"): float(value) for name, value in (each.split(":") for each in found)}
