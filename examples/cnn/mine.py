"""A CNN with BatchNorm and random augmentation on a part of Fashion-MNIST."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, random_split
from torchvision.datasets import FashionMNIST
from torchvision.transforms import v2

EPOCHS = 3
PLAIN = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.286], [0.353])]
AUGMENTED = [v2.RandomCrop(28, padding=2), v2.RandomHorizontalFlip(), *PLAIN]


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(*self.block(1, width), *self.block(width, 2 * width), nn.Flatten())
        self.head = nn.Linear(2 * width * 7 * 7, 10)

    def block(self, inputs, outputs):
        yield from (nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))

    def forward(self, x):
        return self.head(self.body(x))


def load(train, transforms, samples):
    images = FashionMNIST(os.environ["ABLATE_DATA"], train=train, transform=v2.Compose(transforms))
    return Subset(images, range(samples))


def split(transforms):
    return random_split(load(True, transforms, 800), [600, 200], torch.Generator().manual_seed(0))


@torch.no_grad()
def accuracy(model, data):
    model.eval()
    correct = sum((model(x).argmax(1) == y).sum().item() for x, y in DataLoader(data, batch_size=200))
    model.train()
    return correct / len(data)


def train(config, run):
    train_set, _ = split(AUGMENTED)
    _, val_set = split(PLAIN)
    loader = DataLoader(train_set, batch_size=50, shuffle=True, num_workers=2)
    model = run.build(Net, width=config["width"])
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    run.keep(model=model, optimizer=optimizer, scheduler=scheduler)
    for _ in run.epochs():
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        scheduler.step()
        yield {"val_accuracy": accuracy(model, val_set)}


def test(model, config):
    return {"test_accuracy": accuracy(model, load(False, PLAIN, 500))}
