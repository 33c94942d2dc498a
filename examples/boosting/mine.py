"""Gradient boosting of scikit-learn on its breast cancer data: 10 stages of 10 rounds."""

from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

ROUNDS = 10


def load(part):
    x, y = load_breast_cancer(return_X_y=True)
    x_rest, x_test, y_rest, y_test = train_test_split(x, y, test_size=120, random_state=0, stratify=y)
    x_train, x_val, y_train, y_val = train_test_split(x_rest, y_rest, test_size=100, random_state=0, stratify=y_rest)
    return {"train": (x_train, y_train), "val": (x_val, y_val), "test": (x_test, y_test)}[part]


def loss(model, part):
    x, y = load(part)
    return log_loss(y, model.predict_proba(x))


class Boosting(HistGradientBoostingClassifier):
    """What a checkpoint holds is the number of rounds: fitting again grows the same trees."""

    def save(self, folder):
        (folder / "rounds").write_text(str(self.n_iter_))

    def load(self, folder):
        self.set_params(max_iter=int((folder / "rounds").read_text())).fit(*load("train"))


def train(config, run):
    model = Boosting(
        learning_rate=config["learning_rate"],
        max_leaf_nodes=config["leaves"],
        max_features=config["features"],
        early_stopping=False,
        warm_start=True,
        random_state=run.seed,
    )
    run.keep(model=model)
    for stage in run.epochs():
        model.set_params(max_iter=ROUNDS * stage)
        model.fit(*load("train"))
        yield {"val_log_loss": loss(model, "val")}


def test(model, config):
    return {"test_log_loss": loss(model, "test")}
