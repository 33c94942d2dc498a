"""A perceptron whose layers a tuner suggests as it goes: the width of each layer that there is."""

import random

import torch
from sklearn.datasets import load_digits
from torch import nn

X, Y = load_digits(return_X_y=True)
X, Y = torch.tensor(X, dtype=torch.float32) / 16, torch.tensor(Y)


class Trial:
    """Draws at random, in place of a tuner."""

    def suggest_int(self, name, low, high):
        return random.randint(low, high)

    def suggest_float(self, name, low, high):
        return random.uniform(low, high)

    def suggest_categorical(self, name, choices):
        return random.choice(choices)


def define_model(trial):
    layers, width = [], 64
    for i in range(trial.suggest_int("n_layers", 1, 3)):
        units = trial.suggest_int(f"n_units_l{i}", 4, 64)
        layers += [nn.Linear(width, units), nn.ReLU(), nn.Dropout(trial.suggest_float(f"dropout_l{i}", 0.1, 0.4))]
        width = units
    return nn.Sequential(*layers, nn.Linear(width, 10))


def objective(trial):
    model = define_model(trial)
    name = trial.suggest_categorical("optimizer", ["Adam", "SGD"])
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=trial.suggest_float("lr", 1e-3, 1e-1))
    for epoch in range(4):
        model.train()
        for rows in torch.randperm(1200).split(60):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(X[rows]), Y[rows]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            accuracy = (model(X[1200:]).argmax(1) == Y[1200:]).float().mean().item()
        print(f"epoch {epoch}: accuracy {accuracy:.4f}")
    return accuracy


if __name__ == "__main__":
    print(max(objective(Trial()) for _ in range(4)))
