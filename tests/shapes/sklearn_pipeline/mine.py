"""A pipeline of scikit-learn, scored by five folds and then on a test split."""

from sklearn.datasets import load_digits
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

X, Y = load_digits(return_X_y=True)
X, X_TEST, Y, Y_TEST = train_test_split(X[:1000], Y[:1000], test_size=200, random_state=0, stratify=Y[:1000])


def pipeline(c, gamma):
    return make_pipeline(StandardScaler(), SVC(C=c, gamma=gamma))


def train(config, run):
    state = run.keep(scores=[], model=None)
    folds = [*StratifiedKFold(5, shuffle=True, random_state=run.seed).split(X, Y)]
    for fold in run.epochs():
        train, val = folds[fold - 1]
        state.scores.append(pipeline(config["c"], config["gamma"]).fit(X[train], Y[train]).score(X[val], Y[val]))
        yield {"val_accuracy": sum(state.scores) / len(state.scores)}


def test(model, config):
    return {"test_accuracy": pipeline(config["c"], config["gamma"]).fit(X, Y).score(X_TEST, Y_TEST)}
