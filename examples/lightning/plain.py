"""A Lightning module and its data module on the 8 x 8 digits of scikit-learn."""

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

EPOCHS = 6


class Net(L.LightningModule):
    def __init__(self, width, lr):
        super().__init__()
        self.lr = lr
        self.layers = nn.Sequential(
            nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 10)
        )

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self.layers(x), y)
        self.log("train_loss", loss, on_epoch=True, on_step=False)
        return loss

    def validation_step(self, batch, index):
        self.log("val_accuracy", self.accuracy(batch))

    def test_step(self, batch, index):
        self.log("test_accuracy", self.accuracy(batch))

    def accuracy(self, batch):
        x, y = batch
        return (self.layers(x).argmax(1) == y).float().mean()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=self.lr, total_steps=steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Digits(L.LightningDataModule):
    def setup(self, stage):
        digits = load_digits()
        data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
        rest, self.test_set = random_split(data, [1400, 397], torch.Generator().manual_seed(0))
        self.train_set, self.val_set = random_split(rest, [1200, 200])

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=64, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=200)

    def test_dataloader(self):
        return DataLoader(self.test_set, batch_size=397)


def trainer():
    return L.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def train():
    model = Net(width=32, lr=1e-2)
    trainer().fit(model, Digits())
    return model


def test(model):
    [found] = trainer().test(model, Digits(), verbose=False)
    print(found)


if __name__ == "__main__":
    test(train())
