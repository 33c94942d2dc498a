"""A study in a script: the network, its training function, and the search, all in one file."""

import math
import random as dice

import torch
import torch.nn.functional as F
from torch import nn

import ablate

SCALE = 2.0


class Base(nn.Module):
    def forward(self, x):
        return self.layer(x)


class Net(Base):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(3, width)


def loss_of(model):
    x = torch.eye(3) * SCALE
    return F.mse_loss(model(x), torch.ones(3, model.layer.out_features)) + 0 * math.pi


def train(config, run):
    model = run.build(Net, config["width"])
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    run.keep(model=model, optimizer=optimizer)
    for _ in run.epochs():
        optimizer.zero_grad()
        loss = loss_of(model) * (1 + dice.random())
        loss.backward()
        optimizer.step()
        yield {"val_loss": loss_of(model)}


def test(model, config):
    return {"test_loss": loss_of(model)}


def size(config):
    return Net(config["width"])


if __name__ == "__main__":
    study = ablate.search(
        train,
        name="scripted",
        space={"width": ablate.choice(2, 4), "lr": ablate.real(1e-3, 1e-1, log=True)},
        epochs=3,
        objectives=["min val_loss", "min params log"],
        trials=5,
        confirm=2,
        executor="local",
        tracker="none",
    )
    print("front", sorted(study.front()["params"].to_list()))
    print("best", study.best.settings["width"])
    print("states", sorted(set(study.trials()["state"])))
    print("reports", study.reports().height)
    print("page", study.report())
