"""A recurrent model of words; it saves its best epoch, anneals the rate otherwise, and tests what it saved."""

import argparse
import math

import torch
from torch import nn
from torch.nn.functional import cross_entropy

parser = argparse.ArgumentParser()
parser.add_argument("--nhid", type=int, default=16)
parser.add_argument("--lr", type=float, default=5.0)
parser.add_argument("--dropout", type=float, default=0.2)
parser.add_argument("--clip", type=float, default=0.25)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--seed", type=int, default=1111)
parser.add_argument("--save", default="model.pt", help="path to save the final model")
args = parser.parse_args()
torch.manual_seed(args.seed)

WORDS, LENGTH = 24, 16


def corpus(count, seed):
    """Words of a Markov chain: each has four successors."""
    draw = torch.Generator().manual_seed(seed)
    text = [0]
    for step in torch.randint(4, (count,), generator=draw).tolist():
        text.append((5 * text[-1] + 7 * step + 1) % WORDS)
    return torch.tensor(text)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, args.nhid)
        self.drop = nn.Dropout(args.dropout)
        self.rnn = nn.LSTM(args.nhid, args.nhid)
        self.decoder = nn.Linear(args.nhid, WORDS)

    def forward(self, x, hidden=None):
        output, hidden = self.rnn(self.drop(self.embedding(x)), hidden)
        return self.decoder(self.drop(output)), hidden


def batches(data, columns=8):
    rows = (len(data) - 1) // columns
    inputs = data[: rows * columns].reshape(columns, rows).T
    targets = data[1 : rows * columns + 1].reshape(columns, rows).T
    return [(inputs[i : i + LENGTH], targets[i : i + LENGTH]) for i in range(0, rows, LENGTH)]


@torch.no_grad()
def evaluate(data):
    model.eval()
    losses = [cross_entropy(model(x)[0].flatten(0, 1), y.flatten()).item() for x, y in batches(data)]
    return sum(losses) / len(losses)


train_data, val_data, test_data = corpus(4000, 1), corpus(1200, 2), corpus(1200, 3)
model = Model()
lr, best_val_loss = args.lr, None
for epoch in range(1, args.epochs + 1):
    model.train()
    hidden = None
    for x, y in batches(train_data):
        model.zero_grad()
        output, hidden = model(x, None if hidden is None or hidden[0].shape[1] != x.shape[1] else hidden)
        hidden = tuple(each.detach() for each in hidden)
        cross_entropy(output.flatten(0, 1), y.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
    val_loss = evaluate(val_data)
    print("-" * 89)
    print(f"| end of epoch {epoch:3d} | valid loss {val_loss:5.4f} | valid ppl {math.exp(val_loss):8.2f}")
    print("-" * 89)
    if not best_val_loss or val_loss < best_val_loss:
        with open(args.save, "wb") as f:
            torch.save(model, f)
        best_val_loss = val_loss
    else:
        lr /= 4.0
with open(args.save, "rb") as f:
    model = torch.load(f, weights_only=False)
test_loss = evaluate(test_data)
print("=" * 89)
print(f"| End of training | test loss {test_loss:5.4f} | test ppl {math.exp(test_loss):8.2f}")
print("=" * 89)
