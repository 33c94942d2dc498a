"""XGBoost with early stopping on scikit-learn's breast cancer data."""

import xgboost
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import log_loss

X, Y = load_breast_cancer(return_X_y=True)
TRAIN, VAL, TEST = (xgboost.DMatrix(X[part], Y[part]) for part in (slice(300), slice(300, 430), slice(430, None)))


def train():
    params = {
        "objective": "binary:logistic",
        "eval_metric": "logloss",
        "eta": 0.1,
        "max_depth": 4,
        "subsample": 0.5,
        "nthread": 1,
        "seed": 0,
    }
    return xgboost.train(params, TRAIN, 200, evals=[(VAL, "val")], early_stopping_rounds=10)


def test(model):
    print("test_logloss", log_loss(TEST.get_label(), model.predict(TEST)))


if __name__ == "__main__":
    test(train())
