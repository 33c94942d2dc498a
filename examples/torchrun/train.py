"""Data-parallel training as people start it by torchrun: gloo on a CPU, NCCL on GPUs."""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
options = parser.parse_args()

gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if gpu else "gloo")
rank, device = dist.get_rank(), torch.device("cuda", dist.get_rank()) if gpu else torch.device("cpu")
torch.manual_seed(options.seed)

x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y)
train = TensorDataset(x[:1200], y[:1200])
sampler = DistributedSampler(train, seed=options.seed)
loader = DataLoader(train, batch_size=32, sampler=sampler)
net = nn.Sequential(nn.Linear(64, options.width), nn.ReLU(), nn.Linear(options.width, 10)).to(device)
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=options.lr)
first, file = 1, options.folder / "last.pt"
if file.exists():  # what a killed run has left
    saved = torch.load(file, weights_only=True, map_location=device)
    net.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["epoch"] + 1


def accuracy(rows):
    with torch.no_grad():
        return (net(x[rows].to(device)).argmax(1).cpu() == y[rows]).float().mean().item()


for epoch in range(first, options.epochs + 1):
    sampler.set_epoch(epoch)
    for inputs, labels in loader:
        optimizer.zero_grad()
        cross_entropy(model(inputs.to(device)), labels.to(device)).backward()
        optimizer.step()
    if rank == 0:
        seen = accuracy(slice(1200, 1500))
        print(f"epoch {epoch}: accuracy {seen:.4f} of {dist.get_world_size()} processes", flush=True)
        options.folder.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, part)
        part.replace(file)
if rank == 0:
    print(f"test accuracy {accuracy(slice(1500, None)):.4f}", flush=True)
dist.destroy_process_group()
