"""Validation losses of a small transformer in bfloat16: what is lost without a precision option, and what each costs.

A decoder over bytes learns the text of Python's help topics, with torch's default initialisation and a constant lr, for
300 steps with AdamW, Lion, and Muon for the matrices of the blocks with AdamW for the rest. A row is a way to store
parameters and states, with its bytes per parameter, the loss in nats per byte of each seed, and how far their mean is
above that of float32. In all rows of a seed the initial values and the batches are the same; all but the first two
compute in bfloat16, so that the rows below differ in the storage alone. The text differs between versions of Python,
and so do the losses.

    python benchmarks/bf16_loss.py [--steps 300] [--seeds 2] [NAME ...]
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
import warnings
from collections.abc import Iterable
from pydoc_data.topics import topics
from typing import Any

import torch
from _timing import measuring
from torch import Tensor, nn
from torch.nn import functional

import optim

WIDTH, HEADS, LAYERS, CONTEXT, BATCH = 128, 4, 2, 64, 16
LR = {"AdamW": 1e-4, "Muon": 3e-4, "Lion": 3e-5}  # small steps, as late in a long run

# The states that may be in bfloat16 where numbers are rounded to the nearest.
AVERAGES: dict[str, Any] = {"AdamW": {"exp_avg": torch.bfloat16}, "Muon": torch.bfloat16, "Lion": torch.bfloat16}

WAYS: dict[str, dict[str, Any]] = {
    "float32": {},
    "float32, bfloat16 averages": {"state_dtype": AVERAGES},
    "bfloat16": {},
    "master weights": {"master_weights": True},
    "master weights, bfloat16 averages": {"master_weights": True, "state_dtype": AVERAGES},
    "both, bfloat16 states": {"master_weights": True, "stochastic_rounding": True, "state_dtype": torch.bfloat16},
    "stochastic rounding": {"stochastic_rounding": True},
    "stochastic, bfloat16 states": {"stochastic_rounding": True, "state_dtype": torch.bfloat16},
}


class Block(nn.Module):
    """Causal attention and a network of two layers, each added to what went in."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.before_attention(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.before_mlp(x))  # type: ignore[no-any-return]  # modules are untyped


class Decoder(nn.Module):
    """A transformer that predicts the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.byte, self.place = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.byte(x) + self.place.weight)))  # type: ignore[no-any-return]  # likewise

    def loss(self, windows: Tensor) -> Tensor:
        """The mean cross entropy of all bytes but the first, in float32."""
        logits = self(windows[:, :-1])
        return functional.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())


def text() -> tuple[Tensor, Tensor]:
    """The bytes to learn, and the last tenth, in windows, to measure with."""
    joined = "".join(topics[name] for name in sorted(topics)).encode()
    every = torch.frombuffer(bytearray(joined), dtype=torch.uint8).long()
    learned = len(every) * 9 // 10
    return every[:learned], every[learned:].unfold(0, CONTEXT + 1, CONTEXT)


def optimizers(name: str, model: Decoder, way: dict[str, Any]) -> list[torch.optim.Optimizer]:
    """What steps a model: two with Muon."""

    def made(kind: str, params: Iterable[Tensor], **more: Any) -> torch.optim.Optimizer:
        asked = way.get("state_dtype")
        precision = {**way, "state_dtype": asked[kind] if asked is AVERAGES else asked}
        optimizer: torch.optim.Optimizer = getattr(optim, kind)(
            params, lr=LR[name], weight_decay=0.0, **more, **precision
        )
        return optimizer

    if name != "Muon":
        return [made(name, model.parameters())]
    matrices = {p for p in model.blocks.parameters() if p.dim() == 2}
    chosen = [p for p in model.parameters() if p in matrices]
    rest = [p for p in model.parameters() if p not in matrices]
    return [made("Muon", chosen, adjust_lr_fn="match_rms_adamw"), made("AdamW", rest)]


def run(name: str, way: str, seed: int, steps: int) -> tuple[float, float]:
    """The bytes of parameter and states for each parameter, and the validation loss after training."""
    learned, measured = text()
    torch.manual_seed(seed)
    model = Decoder()
    if not way.startswith("float32"):
        model.bfloat16()
    used = optimizers(name, model, WAYS[way])
    batches = torch.Generator().manual_seed(seed)
    window = torch.arange(CONTEXT + 1)
    for _ in range(steps):
        starts = torch.randint(len(learned) - CONTEXT, (BATCH, 1), generator=batches)
        model.zero_grad()
        model.loss(learned[starts + window]).backward()  # type: ignore[no-untyped-call]  # torch's own
        for optimizer in used:
            optimizer.step()
    params = list(model.parameters())
    size = sum([p.nbytes for p in params]) + sum(map(optim.state_bytes, used))
    with torch.no_grad():
        total = sum([model.loss(part).item() * len(part) for part in measured.tensor_split(12)])
    return size / sum(p.numel() for p in params), total / len(measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(LR), metavar="NAME")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", ".*lose every update")
    start = time.monotonic()
    count = sum(p.numel() for p in Decoder().parameters())
    print(f"torch {torch.__version__}, Python {platform.python_version()}, CPU, one thread")
    print(f"{count:,} parameters, {options.steps} steps of {BATCH} x {CONTEXT} bytes")
    seeds = "".join(f"{f'seed {seed}':>9s}" for seed in range(options.seeds))
    for name in options.names:
        print(f"\n{f'{name}, lr {LR[name]}':34s}{'bytes':>6s}{seeds}{'mean':>9s}{'above float32':>15s}")
        first = 0.0
        for way in WAYS:
            with measuring(f"{name}, {way}"):
                found = [run(name, way, seed, options.steps) for seed in range(options.seeds)]
            losses = [loss for _, loss in found]
            mean = statistics.fmean(losses)
            first = first or mean
            columns = "".join(f"{loss:9.4f}" for loss in (*losses, mean))
            print(f"{way:34s}{found[0][0]:6.1f}{columns}{round(mean - first, 4) + 0.0:+15.4f}", flush=True)
    print(f"\n{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
