"""A GPT that sorts digits, with a Trainer that owns the loop and calls back; a block calls its MLP by a closure."""

from collections import defaultdict

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, RandomSampler

LENGTH, DIGITS = 5, 3


class SortDataset(Dataset):
    """Digits, and the same digits sorted."""

    def __init__(self, split, count):
        draw = torch.Generator().manual_seed(1 if split == "train" else 2)
        digits = torch.randint(DIGITS, (count, LENGTH), generator=draw)
        self.rows = torch.cat([digits, digits.sort(1).values], dim=1)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        x, y = self.rows[i][:-1], self.rows[i][1:].clone()
        y[: LENGTH - 1] = -1
        return x, y


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, 2, batch_first=True)
        c_fc, c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp = nn.ModuleDict({"c_fc": c_fc, "act": nn.GELU(), "c_proj": c_proj, "dropout": nn.Dropout(0.1)})
        m = self.mlp
        self.mlpf = lambda x: m["dropout"](m["c_proj"](m["act"](m["c_fc"](x))))
        self.register_buffer("mask", torch.ones(2 * LENGTH - 1, 2 * LENGTH - 1, dtype=torch.bool).triu(1))

    def forward(self, x):
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, attn_mask=self.mask, need_weights=False)[0]
        return x + self.mlpf(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, width=16, layers=2):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(DIGITS, width),
                "wpe": nn.Embedding(2 * LENGTH - 1, width),
                "h": nn.ModuleList(Block(width) for _ in range(layers)),
                "ln_f": nn.LayerNorm(width),
            }
        )
        self.lm_head = nn.Linear(width, DIGITS, bias=False)

    def forward(self, x, targets=None):
        parts = self.transformer
        h = parts["wte"](x) + parts["wpe"](torch.arange(x.shape[1], device=x.device))
        for block in parts["h"]:
            h = block(h)
        logits = self.lm_head(parts["ln_f"](h))
        return logits, cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


class Trainer:
    """Trains for a number of batches."""

    def __init__(self, model, dataset, learning_rate, max_iters=80):
        self.model, self.dataset, self.learning_rate, self.max_iters = model, dataset, learning_rate, max_iters
        self.callbacks = defaultdict(list)

    def add_callback(self, event, callback):
        self.callbacks[event].append(callback)

    def run(self):
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.learning_rate)
        sampler = RandomSampler(self.dataset, replacement=True, num_samples=10_000)
        batches = iter(DataLoader(self.dataset, batch_size=32, sampler=sampler))
        self.model.train()
        self.iter_num = 0
        while self.iter_num < self.max_iters:
            self.iter_num += 1
            _, self.loss = self.model(*next(batches))
            self.model.zero_grad(set_to_none=True)
            self.loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            for callback in self.callbacks["on_batch_end"]:
                callback(self)


@torch.no_grad()
def evaluate(model):
    model.eval()
    rows = SortDataset("test", 500)
    _, loss = model(*map(torch.stack, zip(*(rows[i] for i in range(len(rows))), strict=True)))
    model.train()
    return loss.item()


def train(config, run):
    model = run.build(GPT, width=config["width"], layers=2)
    trainer = Trainer(model, SortDataset("train", 2000), learning_rate=config["lr"])

    def on_batch_end(trainer):
        if trainer.iter_num % 20 == 0:
            run.report({"train_loss": trainer.loss.item(), "val_loss": evaluate(model)}, step=trainer.iter_num)

    trainer.add_callback("on_batch_end", on_batch_end)
    trainer.run()
