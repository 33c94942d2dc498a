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


def train():
    scores = []
    for train, val in StratifiedKFold(5, shuffle=True, random_state=0).split(X, Y):
        scores.append(pipeline(1.0, 0.01).fit(X[train], Y[train]).score(X[val], Y[val]))
        print(f"fold {len(scores)}: {scores[-1]:.4f}, mean {sum(scores) / len(scores):.4f}")


def test():
    print(f"test {pipeline(1.0, 0.01).fit(X, Y).score(X_TEST, Y_TEST):.4f}")


if __name__ == "__main__":
    train()
    test()
