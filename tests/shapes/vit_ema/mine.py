"""A vision transformer with an average of its weights, a warm-up and loaders with two workers."""

import copy

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    """Digits; those for training are shifted at random."""

    def __init__(self, part, augment=False):
        x, y = load_digits(return_X_y=True)
        rows = {"train": slice(800), "val": slice(800, 1200), "test": slice(1200, None)}[part]
        self.x, self.y = torch.tensor(x[rows], dtype=torch.float32).reshape(-1, 8, 8) / 16, torch.tensor(y[rows])
        self.augment = augment

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        x = self.x[i]
        if self.augment:
            x = x.roll(int(torch.randint(-1, 2, ())), dims=1)
        return x, self.y[i]


class Block(nn.Module):
    def __init__(self, dim, drop_path):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * dim, dim))
        self.drop_path = drop_path

    def forward(self, x):
        keep = torch.rand(2, len(x), 1, 1) >= self.drop_path if self.training else torch.ones(2, 1, 1, 1)
        y = self.norm1(x)
        x = x + keep[0] * self.attn(y, y, y, need_weights=False)[0]
        return x + keep[1] * self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    def __init__(self, embed_dim=32, depth=2, drop_path=0.1):
        super().__init__()
        self.patch_embed = nn.Conv2d(1, embed_dim, 2, stride=2)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 17, embed_dim))
        self.blocks = nn.Sequential(*(Block(embed_dim, drop_path) for _ in range(depth)))
        self.norm = nn.LayerNorm(embed_dim)
        self.head = nn.Linear(embed_dim, 10)

    def forward(self, x):
        x = self.patch_embed(x[:, None]).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x)).mean(1))


class ModelEma(nn.Module):
    def __init__(self, model, decay=0.9):
        super().__init__()
        self.module, self.decay = copy.deepcopy(model).eval(), decay

    @torch.no_grad()
    def update(self, model):
        for mean, value in zip(self.module.state_dict().values(), model.state_dict().values(), strict=True):
            mean.lerp_(value, 1 - self.decay)


@torch.no_grad()
def accuracy(model, part):
    model.eval()
    loader = DataLoader(Digits(part), batch_size=200)
    return sum((model(x).argmax(1) == y).sum().item() for x, y in loader) / len(loader.dataset)


def train(config, run):
    model = run.build(VisionTransformer, embed_dim=32, drop_path=config["drop_path"])
    ema = ModelEma(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.3, 1.0, total_iters=2)
    run.keep(net=model, model=ema, optimizer=optimizer, scheduler=scheduler)
    loader = DataLoader(Digits("train", augment=True), batch_size=20, shuffle=True, num_workers=2)
    for _ in run.epochs():
        model.train()
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.update(model)
        scheduler.step()
        yield {"val_raw_accuracy": accuracy(model, "val"), "val_accuracy": accuracy(ema.module, "val")}


def test(ema, config):
    return {"test_accuracy": accuracy(ema.module, "test")}
