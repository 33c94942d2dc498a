"""A perceptron whose layers a tuner suggests as it goes: the width of each layer that there is."""

import torch
from sklearn.datasets import load_digits
from torch import nn

X, Y = load_digits(return_X_y=True)
X, Y = torch.tensor(X, dtype=torch.float32) / 16, torch.tensor(Y)


def define_model(config):
    layers, width = [], 64
    for i in range(config["n_layers"]):
        units = config[f"n_units_l{i}"]
        layers += [nn.Linear(width, units), nn.ReLU(), nn.Dropout(config[f"dropout_l{i}"])]
        width = units
    return nn.Sequential(*layers, nn.Linear(width, 10))


def objective(config, run):
    model = run.build(define_model, config)
    optimizer = getattr(torch.optim, config["optimizer"])(model.parameters(), lr=config["lr"])
    run.keep(model=model, optimizer=optimizer)
    for _ in run.epochs():
        model.train()
        for rows in torch.randperm(1200).split(60):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(X[rows]), Y[rows]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            accuracy = (model(X[1200:]).argmax(1) == Y[1200:]).float().mean().item()
        yield {"val_accuracy": accuracy}
