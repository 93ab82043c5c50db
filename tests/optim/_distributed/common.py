"""What the distributed programs share: the model and its data, the optimizers, and how results are compared and told."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import optim
from tests.optim.problems import ours
from tests.optim.rows import BY_ID, FULLEST, Row

BATCH = 8  # rows of a whole batch, which 1, 2 and 4 ranks share evenly
STEPS = 10
SAVED = (0, 5)  # the steps after which there is a checkpoint

# A step of several processes differs from that of one in the order of its sums: of a gradient, and of a norm.
BOUND = 1e-10
# Muon rounds what it makes orthogonal to bfloat16, where the last bit of a float64 can turn into a whole 2^-9: one step
# by lr * 0.2 * sqrt(7) = 0.0106 then differs by some 2^-8 of that in a few elements, ten of them by 4e-4. Where ranks
# orthogonalize their own rows instead of the whole matrix, or skip some, the difference is above 1e-2.
MUON_BOUND = 4e-4

# The fifteen with as much state as they can have; then without state, without a first moment, with a rate from the step
# count, with several groups (SGD's have other keys than one another), and with 0-dim tensors as hyperparameters.
CASES: dict[str, Row] = {row.name: row for row in FULLEST} | {
    name: BY_ID[name]
    for name in (
        "SGD-lr", "Adafactor-lr", "Adafactor-warmup_init", "Lamb-adam", "SGD-groups_momentum_or_not", "AdamW-groups",
        "SGD-tensors", "ASGD-tensors", "Adafactor-tensors", "AdamW-tensors", "Lamb-tensors", "Muon-tensors",
    )
}  # fmt: skip


def bound(case: str) -> float:
    return MUON_BOUND if CASES[case].name == "Muon" else BOUND


class Network(nn.Module):
    """Odd sizes, which no number of ranks divides; biases of 3 and 1 elements leave some of the ranks with none."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(5, 7, dtype=torch.float64)
        self.second = nn.Linear(7, 3, dtype=torch.float64)
        self.mix = Mix()
        self.last = nn.Linear(3, 1, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.mix(torch.tanh(self.second(torch.tanh(self.first(x))))))
        return y


class Mix(nn.Module):
    """A parameter of three dimensions, for the optimizers that treat matrices differently from vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 2, 3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(torch.einsum("ni,ijk->nk", x, self.weight))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a step, for all ranks together."""
    generator = torch.Generator().manual_seed(100 + step)
    x = torch.randn(BATCH, 5, generator=generator, dtype=torch.float64)
    return x, torch.sin(x.sum(1, keepdim=True)) * 3


def train(model: nn.Module, optimizers: Sequence[optim.Optimizer], first: int, last: int, after: Any = None) -> None:
    """Steps first..last (counted from 1) on this rank's share of the data; `after(step)` is called after each."""
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    if not distributed(model):
        rank, world = 0, 1
    for step in range(first, last + 1):
        x, y = (part.chunk(world)[rank] for part in batch(step))
        (model(x) - y).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if after is not None:
            after(step)


def distributed(model: nn.Module) -> bool:
    return isinstance(model, nn.parallel.DistributedDataParallel) or any(
        isinstance(p, DTensor) for p in model.parameters()
    )


def optimizers_of(case: str, model: nn.Module, other_lr: bool = False) -> list[optim.Optimizer]:
    """The optimizer of a case, and with Muon an AdamW for what is no matrix. `other_lr`: not the rate of the case."""
    row = CASES[case]
    if other_lr and row.arguments["lr"] is not None:
        row = dataclasses.replace(row, kwargs={**row.kwargs, "lr": row.arguments["lr"] * 3})
    params = list(model.parameters())
    if row.name != "Muon":
        return [ours(row, params)]
    vectors = optim.AdamW([p for p in params if p.ndim < 2], lr=0.06 if other_lr else 0.02)
    return [ours(row, [p for p in params if p.ndim >= 2]), vectors]


def whole(model: nn.Module, optimizers: Iterable[optim.Optimizer]) -> dict[str, Tensor]:
    """Copies of all parameters and states by name, gathered from the ranks: all of them must call this."""
    taken = {}
    states = {p: state for optimizer in optimizers for p, state in optimizer.state.items()}
    for name, p in model.named_parameters():
        name = name.removeprefix("module.")
        taken[name] = gathered(p)
        for key, value in states[p].items():
            taken[f"{name}: {key}"] = gathered(value)
    return taken


def gathered(x: Tensor) -> Tensor:
    return (x.full_tensor() if isinstance(x, DTensor) else x).detach().clone()


def assert_alike(mine: dict[str, Tensor], other: dict[str, Tensor], most: float) -> None:
    """|mine - other| <= most * max(1, |other|) for every element; to the bit where `most` is 0."""
    assert mine.keys() == other.keys(), sorted(mine.keys() ^ other.keys())
    wrong = []
    for key, x in mine.items():
        y = other[key]
        assert x.shape == y.shape and x.dtype == y.dtype, (key, x.shape, y.shape, x.dtype, y.dtype)
        assert bool(x.isfinite().all()), (key, x)
        error = ((x - y).abs() / y.abs().clamp(min=1)).max().item() if x.numel() else 0.0
        if error > most or (most == 0 and not torch.equal(x, y)):
            wrong.append(f"{key} is off by {error:.3g}")
    assert not wrong, f"allowed {most}; " + "; ".join(wrong)


class Report:
    """What became of each check, by name; a check that fails on one rank has failed on all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results: dict[str, str] = {}

    def check(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
            error = ""
        except Exception:
            error = f"rank {dist.get_rank()}: {traceback.format_exc()}"
            print(name, error, file=sys.stderr, sep="\n", flush=True)
        errors: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(errors, error)  # where the ranks went different ways, this ends the program
        self.results[name] = "\n".join(filter(None, errors))
        if dist.get_rank() == 0:
            self.path.write_text(json.dumps(self.results))


def start() -> tuple[int, int]:
    """Join the others. Returns the rank and the number of ranks."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
