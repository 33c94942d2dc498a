"""Train a network on arrays. Put your data into `load` and your network into `network`; the rest may stay."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import TensorDataset


def load(part):  # inputs [n, 64] and classes [n] of "train" or "test"
    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x / 16, y, test_size=0.2, random_state=0)
    x, y = (x_train, y_train) if part == "train" else (x_test, y_test)
    return TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(y))


def network(width, dropout):
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 10))


def judge(model, samples):  # loss and accuracy of each sample
    x, y = (values.to(next(model.parameters()).device) for values in samples[:])
    model.eval()
    with torch.no_grad():
        scores = model(x)
    model.train()
    return nn.functional.cross_entropy(scores, y, reduction="none"), (scores.argmax(1) == y).float()


def train(config, run):  # config: the settings of a trial; run: one seed of it
    training, validation = run.split(load("train"), 0.1)
    model = run.build(network, config["width"], config["dropout"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"], weight_decay=config["weight_decay"])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=run.length)
    run.keep(model=model, optimizer=optimizer, schedule=schedule)  # what a killed trial continues with
    for _ in run.epochs():
        for x, y in run.loader(training, batch_size=config["batch_size"]):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.to(run.device)), y.to(run.device)).backward()
            optimizer.step()
        schedule.step()
        loss, accuracy = judge(model, validation)
        yield {"val_accuracy": accuracy.mean().item(), "val_loss": loss.mean().item()}


def test(model, config):  # once, for each seed of the networks that are confirmed
    loss, accuracy = judge(model, load("test"))
    return {"test_accuracy": accuracy, "test_loss": loss}


def size(config):  # before training: its parameters are counted
    return network(config["width"], config["dropout"])
