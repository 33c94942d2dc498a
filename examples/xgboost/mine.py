"""XGBoost on scikit-learn's breast cancer data: 5 rounds are a report, and a killed trial continues."""

import xgboost as xgb
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from ablate.functions.xgboost import fit

x, y = load_breast_cancer(return_X_y=True)
x, test_x, y, test_y = train_test_split(x, y, test_size=120, random_state=0, stratify=y)


def train(config, run):
    part, held = (each.indices for each in run.split(range(len(y)), 0.2))  # each seed holds out other rows
    params = {"objective": "binary:logistic", "eval_metric": "logloss", "nthread": 1, **config}
    data, val = xgb.DMatrix(x[part], y[part]), xgb.DMatrix(x[held], y[held])
    fit(run, params, data, rounds=5, evals=[(val, "val")], verbose_eval=False)  # in place of xgb.train(params, data, …)


def test(model, config):
    return {"test_logloss": log_loss(test_y, model.predict(xgb.DMatrix(test_x)))}
