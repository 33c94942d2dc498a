"""Small networks in the shapes of public ones, to leave parts of them out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ClosureNet(nn.Module):
    """Calls two layers of a ModuleDict through a function that was made in __init__."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"up": nn.Linear(8, 16), "down": nn.Linear(16, 8)})
        parts: Any = self.parts
        self.mlp: Callable[[Tensor], Tensor] = lambda x: parts["down"](parts["up"](x).relu())
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.mlp(x))
        return scores


class ClosureBlock(nn.Module):
    """A block of minGPT's shape: its MLP is a ModuleDict that a lambda holds."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.Linear(width, width)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})
        m: Any = self.mlp
        self.mlpf: Callable[[Tensor], Tensor] = lambda x: m.c_proj(F.gelu(m.c_fc(x)))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        added: Tensor = x + self.mlpf(self.ln_2(x))
        return added


class ClosureGPT(nn.Module):
    """Token and position embeddings, blocks, head; ids [B, T] to scores [B, T, 11]."""

    def __init__(self, width: int = 8, length: int = 5) -> None:
        super().__init__()
        self.transformer: Any = nn.ModuleDict(
            {
                "wte": nn.Embedding(11, width),
                "wpe": nn.Embedding(length, width),
                "h": nn.ModuleList(ClosureBlock(width) for _ in range(2)),
            }
        )
        self.lm_head = nn.Linear(width, 11, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)[None]
        x = self.transformer["wte"](ids) + self.transformer["wpe"](places)
        for block in self.transformer["h"]:
            x = block(x)
        scores: Tensor = self.lm_head(x)
        return scores


@dataclass
class Encoded:
    """What a BERT-shaped encoder returns."""

    hidden: Tensor
    weights: Tensor | None = None


class BertLayer(nn.Module):
    """Attention that returns a pair, and an MLP in two modules, the first of which is wider."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = BertAttention(width)
        self.intermediate = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU())
        self.output = nn.Linear(3 * width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Encoded:
        mixed, weights = self.attention(hidden_states=x, mask=mask)
        x = x + mixed
        return Encoded(hidden=x + self.output(self.intermediate(x)), weights=weights)


class BertAttention(nn.Module):
    """Uniform attention with a value projection and dropout; returns (output, weights)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.value, self.dropout = nn.Linear(width, width), nn.Dropout(0.5)

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        tokens = hidden_states.shape[1]
        weights = torch.full((hidden_states.shape[0], tokens, tokens), 1 / tokens)
        return self.dropout(weights @ self.value(hidden_states)), weights


class Bert(nn.Module):
    """Layers whose outputs are dataclasses, then a head; x [B, T, 6] to [B, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(BertLayer(6) for _ in range(2))
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).hidden
        scores: Tensor = self.head(x.mean(1))
        return scores


class SimpleViT(nn.Module):
    """Patches with a position embedding that is a parameter, and a plain tensor; x [B, 4, 6] to [B, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 6)
        self.pos_embed = nn.Parameter(torch.randn(1, 4, 6))
        self.register_buffer("scale", torch.ones(6))
        self.plain = torch.ones(6)
        self.mlp = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) * self.scale + self.pos_embed
        scores: Tensor = self.head((x + self.mlp(x)).mean(1))
        return scores
