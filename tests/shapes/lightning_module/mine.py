"""A LightningModule in the form of a widely used template: it is given its network and makers, and saves them."""

from functools import partial

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchmetrics import MaxMetric, MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from ablate.functions.lightning import fit


class SimpleDenseNet(nn.Module):
    def __init__(self, size=32):
        super().__init__()
        self.model = nn.Sequential(
            nn.Linear(64, size), nn.BatchNorm1d(size), nn.ReLU(), nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 10)
        )

    def forward(self, x):
        return self.model(x.flatten(1))


class DigitsModule(L.LightningModule):
    def __init__(self, net, optimizer, scheduler):
        super().__init__()
        self.save_hyperparameters(logger=False)
        self.net = net
        self.criterion = nn.CrossEntropyLoss()
        self.val_acc, self.test_acc = MulticlassAccuracy(10), MulticlassAccuracy(10)
        self.train_loss, self.val_acc_best = MeanMetric(), MaxMetric()

    def training_step(self, batch, index):
        x, y = batch
        loss = self.criterion(self.net(x), y)
        self.train_loss(loss)
        self.log("train/loss", self.train_loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.val_acc(self.net(x), y)
        self.log("val/acc", self.val_acc, on_step=False, on_epoch=True)

    def on_validation_epoch_end(self):
        self.val_acc_best(self.val_acc.compute())
        self.log("val/acc_best", self.val_acc_best.compute(), sync_dist=True)

    def test_step(self, batch, index):
        x, y = batch
        self.test_acc(self.net(x), y)
        self.log("test/acc", self.test_acc, on_step=False, on_epoch=True)

    def configure_optimizers(self):
        optimizer = self.hparams.optimizer(params=self.parameters())
        scheduler = self.hparams.scheduler(optimizer=optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val/acc"}}


class DigitsDataModule(L.LightningDataModule):
    def setup(self, stage):
        x, y = load_digits(return_X_y=True)
        data = TensorDataset(torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y))
        self.parts = random_split(data, [1000, 400, 397], torch.Generator().manual_seed(42))

    def train_dataloader(self):
        return DataLoader(self.parts[0], batch_size=64, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.parts[1], batch_size=200)

    def test_dataloader(self):
        return DataLoader(self.parts[2], batch_size=200)


def trainer():
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return L.Trainer(max_epochs=4, accelerator="cpu", enable_checkpointing=False, **quiet)


def train(config, run):
    model = run.build(
        DigitsModule,
        net=SimpleDenseNet(size=config["size"]),
        optimizer=partial(torch.optim.Adam, lr=config["lr"], weight_decay=0.0),
        scheduler=partial(torch.optim.lr_scheduler.ReduceLROnPlateau, mode="max", factor=0.1, patience=1),
    )
    yield from fit(run, trainer(), model, DigitsDataModule(), names={"val/acc": "val_accuracy"})


def test(model, config):
    [found] = trainer().test(model, DigitsDataModule(), verbose=False)
    return {"test_accuracy": found["test/acc"]}
