"""Data-parallel training as a function, whose study file says `processes: 2`."""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train(config, run):
    dist.init_process_group("gloo")
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y)
    data = TensorDataset(x[:1200], y[:1200])
    sampler = DistributedSampler(data, seed=run.seed)
    model = DistributedDataParallel(run.build(nn.Sequential, nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    run.keep(model=model, optimizer=optimizer)
    for epoch in run.epochs():
        sampler.set_epoch(epoch)
        for inputs, labels in DataLoader(data, batch_size=50, sampler=sampler):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        with torch.no_grad():
            accuracy = (model.module(x[1200:]).argmax(1) == y[1200:]).float().mean().item()
        yield {"val_accuracy": accuracy}
    dist.destroy_process_group()
