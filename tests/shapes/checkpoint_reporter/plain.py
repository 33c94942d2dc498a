"""A script for a tuner of another kind: it continues from its checkpoint folder, and reports lines of JSON."""

import argparse
import json
import os
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier


def report(**metrics):
    print(f"[tune-metric]: {json.dumps(metrics)}", flush=True)


def load_checkpoint(folder, model):
    file = folder / "state.npz"
    if not file.exists():
        return 0
    state = np.load(file)
    model.coef_, model.intercept_, model.t_ = state["coef"], state["intercept"], float(state["t"])
    model.classes_ = np.arange(10)
    return int(state["epoch"])


def save_checkpoint(folder, model, epoch):
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "part", "wb") as file:
        np.savez(file, coef=model.coef_, intercept=model.intercept_, t=model.t_, epoch=epoch)
    os.replace(folder / "part", folder / "state.npz")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--st_checkpoint_dir", type=Path)
    args = parser.parse_args()
    x, y = load_digits(return_X_y=True)
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=args.lr, random_state=0)
    start = load_checkpoint(args.st_checkpoint_dir, model) if args.st_checkpoint_dir else 0
    for epoch in range(start + 1, args.epochs + 1):
        rows = np.random.default_rng(epoch).permutation(1200)
        model.partial_fit(x[rows] / 16, y[rows], classes=np.arange(10))
        if args.st_checkpoint_dir:
            save_checkpoint(args.st_checkpoint_dir, model, epoch)
        report(epoch=epoch, accuracy=model.score(x[1200:] / 16, y[1200:]))
