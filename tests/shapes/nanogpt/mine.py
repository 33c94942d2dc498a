"""A small GPT of characters: steps with gradient accumulation, a warm-up, and a checkpoint at each evaluation."""

import math
import os
import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy

out_dir = "out"
init_from = "scratch"  # or resume
eval_interval, eval_iters, max_iters = 20, 5, 60
gradient_accumulation_steps, batch_size, block_size = 2, 8, 16
n_layer, n_head, n_embd = 2, 2, 16
learning_rate, warmup_iters, seed = 1e-2, 10, 1337
for word in sys.argv[1:]:  # --name=value
    name, _, value = word.removeprefix("--").partition("=")
    if name not in globals():
        raise ValueError(f"Unknown config key: {name}")
    globals()[name] = type(globals()[name])(value)

torch.manual_seed(seed)
os.makedirs(out_dir, exist_ok=True)
text = [0]
for step in torch.randint(3, (6000,), generator=torch.Generator().manual_seed(0)).tolist():
    text.append((7 * text[-1] + 5 * step + 1) % 20)
data = torch.tensor(text)
train_data, val_data = data[:5000], data[5000:]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn = nn.MultiheadAttention(n_embd, n_head, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))
        self.register_buffer("mask", torch.ones(block_size, block_size, dtype=torch.bool).triu(1))

    def forward(self, x):
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, attn_mask=self.mask, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(20, n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.Sequential(*(Block() for _ in range(n_layer)))
        self.lm_head = nn.Linear(n_embd, 20)

    def forward(self, x, y):
        logits = self.lm_head(self.h(self.wte(x) + self.wpe(torch.arange(block_size))))
        return cross_entropy(logits.flatten(0, 1), y.flatten())


def get_batch(split):
    data = train_data if split == "train" else val_data
    ix = torch.randint(len(data) - block_size, (batch_size,))
    return torch.stack([data[i : i + block_size] for i in ix]), torch.stack(
        [data[i + 1 : i + 1 + block_size] for i in ix]
    )


@torch.no_grad()
def estimate_loss():
    return {s: sum(model(*get_batch(s)).item() for _ in range(eval_iters)) / eval_iters for s in ("train", "val")}


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
iter_num = 0
if init_from == "resume":
    print(f"Resuming training from {out_dir}")
    checkpoint = torch.load(os.path.join(out_dir, "ckpt.pt"))
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]

while True:
    torch.manual_seed(seed + iter_num)  # a resumed run draws the batches of one that was not killed
    warm = min(1.0, (iter_num + 1) / (warmup_iters + 1))
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * warm * 0.5 * (1 + math.cos(math.pi * iter_num / (max_iters + 1)))
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        if iter_num > 0:
            checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num}
            torch.save(checkpoint, os.path.join(out_dir, "ckpt.pt"))
    for _ in range(gradient_accumulation_steps):
        loss = model(*get_batch("train")) / gradient_accumulation_steps
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % 10 == 0:
        print(f"iter {iter_num}: loss {loss.item() * gradient_accumulation_steps:.4f}")
    iter_num += 1
    if iter_num > max_iters:
        break
