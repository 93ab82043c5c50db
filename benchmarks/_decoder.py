"""What the benchmarks of training train: a small transformer that predicts the bytes of Python's help topics.

The text differs between versions of Python, and so do the losses.
"""

from __future__ import annotations

from collections.abc import Iterator
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """Causal attention and a network of two layers, each added to what went in."""

    def __init__(self, width: int, heads: int, activation: nn.Module) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), activation, nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.before_attention(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.before_mlp(x))  # type: ignore[no-any-return]  # modules are untyped


class Decoder(nn.Module):
    """A transformer of two blocks, with torch's default initialisation."""

    def __init__(self, width: int, heads: int, context: int, activation: nn.Module) -> None:
        super().__init__()
        self.byte, self.place = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(Block(width, heads, activation), Block(width, heads, activation))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.byte(x) + self.place.weight)))  # type: ignore[no-any-return]  # likewise

    def loss(self, windows: Tensor) -> Tensor:
        """The mean cross entropy of all bytes but the first, in float32."""
        logits = self(windows[:, :-1])
        return functional.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())

    @torch.no_grad()
    def mean_loss(self, windows: Tensor) -> float:
        """The same of many windows, some at a time."""
        parts = torch.split(windows, 64)
        return sum([self.loss(part).item() * len(part) for part in parts]) / len(windows)


def text(context: int) -> tuple[Tensor, Tensor]:
    """The bytes to learn, and the last tenth, in windows, to measure with."""
    joined = "".join(topics[name] for name in sorted(topics)).encode()
    every = torch.frombuffer(bytearray(joined), dtype=torch.uint8).long()
    learned = len(every) * 9 // 10
    return every[:learned], every[learned:].unfold(0, context + 1, context)


def batches(learned: Tensor, context: int, size: int, seed: int) -> Iterator[Tensor]:
    """Batches of windows from anywhere in the text, without end."""
    generator = torch.Generator().manual_seed(seed)
    window = torch.arange(context + 1)
    while True:
        starts = torch.randint(len(learned) - context, (size, 1), generator=generator)
        yield learned[starts + window]
