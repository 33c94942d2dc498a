"""Data-parallel training as torchrun starts it, without checkpoints."""

import argparse

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(args.seed)
x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y)
data = TensorDataset(x[:1200], y[:1200])
sampler = DistributedSampler(data, seed=args.seed)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    for inputs, labels in DataLoader(data, batch_size=50, sampler=sampler):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        with torch.no_grad():
            accuracy = (model.module(x[1200:]).argmax(1) == y[1200:]).float().mean().item()
        print(f"epoch {epoch}: {100 * accuracy:.2f}% of {dist.get_world_size()} ranks", flush=True)
dist.destroy_process_group()
