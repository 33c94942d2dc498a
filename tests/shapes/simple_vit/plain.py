"""A small vision transformer with a learnt code of positions, and a plain training loop."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.to_qkv(self.norm(x)).chunk(3, -1))
        weights = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
        return self.to_out((weights @ v).transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    def __init__(self, dim, depth, heads):
        super().__init__()
        self.layers = nn.ModuleList()
        for _ in range(depth):
            mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
            self.layers.append(nn.ModuleList([Attention(dim, heads), mlp]))

    def forward(self, x):
        for attention, mlp in self.layers:
            x = attention(x) + x
            x = mlp(x) + x
        return x


class SimpleViT(nn.Module):
    def __init__(self, dim=32, depth=2, heads=4):
        super().__init__()
        self.to_patch_embedding = nn.Linear(4, dim)
        self.pos_embedding = nn.Parameter(0.02 * torch.randn(16, dim))
        self.transformer = Transformer(dim, depth, heads)
        self.linear_head = nn.Linear(dim, 10)

    def forward(self, x):
        patches = x.unfold(1, 2, 2).unfold(2, 2, 2).flatten(3).flatten(1, 2)
        x = self.to_patch_embedding(patches) + self.pos_embedding
        return self.linear_head(self.transformer(x).mean(1))


def load():
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x, dtype=torch.float32).reshape(-1, 8, 8) / 16, torch.tensor(y)
    return [TensorDataset(x[part], y[part]) for part in (slice(1000), slice(1000, 1400), slice(1400, None))]


@torch.no_grad()
def accuracy(model, data):
    x, y = data.tensors
    return (model(x).argmax(1) == y).float().mean().item()


def train():
    train_set, val_set, _ = load()
    torch.manual_seed(0)
    model = SimpleViT(dim=32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(4):
        for x, y in DataLoader(train_set, batch_size=50, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        print(f"epoch {epoch}: accuracy {accuracy(model, val_set):.4f}")
    return model


def test(model):
    print(f"test accuracy {accuracy(model, load()[2]):.4f}")


if __name__ == "__main__":
    test(train())
