"""What the distributed programs share: the model and its data, the optimizers, how results are compared and told."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

import optim
from tests.optim.problems import ours
from tests.optim.rows import BY_ID, FULLEST, Row

BATCH = 8  # rows of a whole batch, which 1, 2 and 4 processes share evenly
STEPS = 10
SAVED = (0, 5)  # the steps after which there is a checkpoint
LAST = max(SAVED) + STEPS

# A step of several processes differs from that of one in the order of its sums: of a gradient, and of a norm.
BOUND = 1e-10
# Muon rounds what it makes orthogonal to bfloat16, where the last bit of a float64 can turn into a whole 2^-9: a step
# of lr * 0.2 * sqrt(7) = 0.0106 may then differ by some 2^-8 of that in a few elements, ten of them by 4e-4. Where
# ranks orthogonalize their own rows instead of the whole matrix, a single step is off by 1e-3 to 1e-2.
MUON_BOUND = 4e-4


@dataclasses.dataclass(frozen=True)
class Case:
    row: Row
    compiled: bool = False  # the backend does not matter here: what is new is that groups hold tensors, and the graph

    @property
    def bound(self) -> float:
        return MUON_BOUND if self.row.name == "Muon" else BOUND


# The fifteen with as much state as they can have.
FIFTEEN: dict[str, Case] = {row.name: Case(row) for row in FULLEST}
# And some without state, without a first moment, with a rate from the step count, with several groups (SGD's with other
# keys than one another), with 0-dim tensors as hyperparameters, and with an update that is compiled.
MORE = ("SGD-lr", "Adafactor-warmup_init", "SGD-groups_momentum_or_not", "AdamW-groups", "AdamW-tensors")
COMPILED = {f"{name} compiled": Case(BY_ID[f"{name}-tensors"], True) for name in ("AdamW", "Adafactor", "Lamb", "Muon")}
CASES = FIFTEEN | {name: Case(BY_ID[name]) for name in MORE} | COMPILED
SAVING = [name for name in CASES if name not in COMPILED or name == "AdamW compiled"]  # it takes time to compile anew
WHOLE_TENSOR = ("Adafactor", "Lamb", "Muon")  # their updates depend on more than an element


class Network(nn.Module):
    """Odd sizes, which no number of ranks divides; biases of 3 and 1 elements leave some of the ranks with none."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(5, 7, dtype=torch.float64)
        self.second = nn.Linear(7, 3, dtype=torch.float64)
        # Three dimensions, for the optimizers that treat matrices differently from vectors.
        self.mix = nn.Parameter(torch.randn(3, 2, 3, dtype=torch.float64))
        self.last = nn.Linear(3, 1, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.second(torch.tanh(self.first(x))))
        y: Tensor = self.last(torch.tanh(torch.einsum("ni,ijk->nk", x, self.mix)))
        return y


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a step, for all ranks together."""
    generator = torch.Generator().manual_seed(100 + step)
    x = torch.randn(BATCH, 5, generator=generator, dtype=torch.float64)
    return x, torch.sin(x.sum(1, keepdim=True)) * 3


def train(model: nn.Module, optimizers: Sequence[optim.Optimizer], first: int, last: int, after: Any = None) -> None:
    """Steps first..last (counted from 1) on this rank's share of the data; `after(step)` is called after each."""
    shared = isinstance(model, nn.parallel.DistributedDataParallel) or any(
        is_distributed(p) for p in model.parameters()
    )
    rank, world = (dist.get_rank(), dist.get_world_size()) if shared else (0, 1)
    for step in range(first, last + 1):
        x, y = (part.chunk(world)[rank] for part in batch(step))
        (model(x) - y).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if after is not None:
            after(step)


def optimizers_of(name: str, model: nn.Module, other_lr: bool = False) -> list[optim.Optimizer]:
    """The optimizer of a case, and with Muon an AdamW for what is no matrix. `other_lr`: not the rate of the case."""
    case, params = CASES[name], list(model.parameters())
    row = case.row
    if other_lr and row.arguments["lr"] is not None:
        row = dataclasses.replace(row, kwargs={**row.kwargs, "lr": row.arguments["lr"] * 3})
    if row.name == "Muon":
        vectors = optim.AdamW([p for p in params if p.ndim < 2], lr=0.06 if other_lr else 0.02)
        made = [ours(row, [p for p in params if p.ndim >= 2]), vectors]
    else:
        made = [ours(row, params)]
    if case.compiled:
        for optimizer in made:
            optimizer.compile(backend="eager")
    return made


@functools.cache
def alone(name: str) -> dict[int, dict[str, Tensor]]:
    """The run of a single process on the whole batch, without a break: what there is after each step."""
    model = Network()
    optimizers = optimizers_of(name, model)
    taken = {0: copies(model, optimizers)}
    train(model, optimizers, 1, LAST, lambda step: taken.__setitem__(step, copies(model, optimizers)))
    return taken


def is_distributed(x: Any) -> bool:
    return isinstance(x, DTensor)


def named(model: nn.Module, optimizers: Iterable[optim.Optimizer]) -> dict[str, Tensor]:
    """All parameters and states by name."""
    states = {p: state for optimizer in optimizers for p, state in optimizer.state.items()}
    found = {}
    for name, p in model.named_parameters():
        found[name] = p.detach()
        found.update((f"{name}: {key}", value) for key, value in states[p].items())
    return found


def local(x: Tensor) -> Tensor:
    return x.to_local() if isinstance(x, DTensor) else x


def copies(model: nn.Module, optimizers: Iterable[optim.Optimizer]) -> dict[str, Tensor]:
    """Of what this rank has of all parameters and states."""
    return {name: local(x).clone() for name, x in named(model, optimizers).items()}


def part(whole: Tensor, like: Tensor) -> Tensor:
    """What this rank must have of a whole tensor that is distributed as `like` is."""
    if isinstance(like, DTensor):
        for i, placement in enumerate(like.placements):
            count, place = like.device_mesh.size(i), like.device_mesh.get_local_rank(i)
            assert placement.is_replicate() or isinstance(placement, Shard), placement
            if isinstance(placement, Shard):
                chunks = whole.chunk(count, placement.dim)
                whole = chunks[place] if place < len(chunks) else whole.narrow(placement.dim, 0, 0)
    return whole


def assert_parts(
    model: nn.Module, optimizers: Iterable[optim.Optimizer], whole: dict[str, Tensor], most: float
) -> None:
    """This rank has its part of what a single process has."""
    mine = named(model, optimizers)
    assert mine.keys() == whole.keys(), sorted(mine.keys() ^ whole.keys())
    assert all(x.shape == whole[name].shape for name, x in mine.items())
    assert_alike({k: local(x) for k, x in mine.items()}, {k: part(whole[k], x) for k, x in mine.items()}, most)


def assert_alike(mine: dict[str, Tensor], other: dict[str, Tensor], most: float) -> None:
    """|mine - other| <= most * max(1, |other|) for every element; to the bit where `most` is 0."""
    assert mine.keys() == other.keys(), sorted(mine.keys() ^ other.keys())
    wrong = []
    for key, x in mine.items():
        y = other[key]
        assert x.shape == y.shape and x.dtype == y.dtype, (key, x.shape, y.shape, x.dtype, y.dtype)
        assert bool(x.isfinite().all()), (key, x)
        error = ((x - y).abs() / y.abs().clamp(min=1)).max().item() if x.numel() else 0.0
        if error > most:
            wrong.append(f"{key} is off by {error:.3g}")
    assert not wrong, f"allowed {most}; " + "; ".join(wrong)


def start() -> int:
    """Join the others. Returns how many processes there are."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    return dist.get_world_size()
