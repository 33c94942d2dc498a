"""Gradient boosting of scikit-learn on its breast cancer data: 10 stages of 10 rounds."""

from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

STAGES = 10
ROUNDS = 10


def load(part):
    x, y = load_breast_cancer(return_X_y=True)
    x_rest, x_test, y_rest, y_test = train_test_split(x, y, test_size=120, random_state=0, stratify=y)
    x_train, x_val, y_train, y_val = train_test_split(x_rest, y_rest, test_size=100, random_state=0, stratify=y_rest)
    return {"train": (x_train, y_train), "val": (x_val, y_val), "test": (x_test, y_test)}[part]


def loss(model, part):
    x, y = load(part)
    return log_loss(y, model.predict_proba(x))


def train():
    model = HistGradientBoostingClassifier(
        learning_rate=0.1,
        max_leaf_nodes=8,
        max_features=0.5,
        early_stopping=False,
        warm_start=True,
        random_state=0,
    )
    for stage in range(1, STAGES + 1):
        model.set_params(max_iter=ROUNDS * stage)
        model.fit(*load("train"))
        print("val_log_loss", loss(model, "val"))
    return model


def test(model):
    print("test_log_loss", loss(model, "test"))


if __name__ == "__main__":
    test(train())
