"""What the distributed checks share: the model and its data, the optimizers of a case, how results are compared."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

import optim
from optim.lr_scheduler import CosineDecayLR, LinearLR, SequentialLR
from optim.weight_decay_scheduler import CosineDecayWD
from tests.optim.problems import ours
from tests.optim.rows import BY_ID, FULLEST, Row
from tests.optim.signatures import MATRICES

Optimizers = Sequence[optim.Optimizer]
BATCH = 8  # rows of a whole batch, which 2 and 4 processes share evenly
STEPS = 3
SAVED = (0, STEPS)  # the steps after which there is a checkpoint
LAST = max(SAVED) + STEPS


@dataclasses.dataclass(frozen=True)
class Case:
    row: Row
    compiled: bool = False  # the backend does not matter here: what is new is that groups hold tensors, and the graph
    scheduled: bool = False

    @property
    def bound(self) -> float:
        """A step of several processes differs from that of one in the order of its sums: of a gradient, and of a norm.

        Muon rounds what it makes orthogonal to bfloat16, where the last bit of a float64 can turn into a whole 2^-9: a
        step of lr * 0.2 * sqrt(7) = 0.0106 may then differ by some 2^-8 of that in a few elements, ten of them by 4e-4.
        Where ranks orthogonalize their own rows instead of the whole matrix, a single step is off by 1e-3 to 1e-2.
        """
        return 4e-4 if self.row.name in MATRICES else 1e-10


# All with as much state as they can have. And some without state, without a first moment, with a rate from the
# step count, with several groups (SGD's with other keys than one another), with 0-dim tensors as hyperparameters, and
# under schedules.
BY_OPTIMIZER = {row.name: Case(row) for row in FULLEST}
MORE = ("SGD-lr", "Adafactor-warmup_init", "SGD-groups_momentum_or_not", "AdamW-groups", "AdamW-tensors")
SAVING = {
    **BY_OPTIMIZER,
    **{name: Case(BY_ID[name]) for name in MORE},
}
WHOLE_TENSOR = ("Adafactor", "Lamb", "Muon", "NorMuon")  # their updates depend on more than an element
CASES = {
    **SAVING,
    **{f"{name} compiled": Case(BY_ID[f"{name}-tensors"], True) for name in ("AdamW", "Adafactor")},
    **{f"{name} scheduled": Case(BY_OPTIMIZER[name].row, scheduled=True) for name in ("AdamW", "SGD", "Muon", "Rprop")},
}


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


@functools.cache
def mesh(*shape: int) -> DeviceMesh:
    return init_device_mesh(
        "cpu", shape or (dist.get_world_size(),), mesh_dim_names=("data", "tensor")[: len(shape or "1")]
    )


def shard(model: nn.Module, **options: Any) -> nn.Module:
    """One layer by itself, then the rest with the model: it takes one collective operation for each."""
    options.setdefault("mesh", mesh())
    fully_shard(next(model.children()), **options)
    fully_shard(model, **options)
    return model


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a step, for all ranks together."""
    generator = torch.Generator().manual_seed(100 + step)
    x = torch.randn(BATCH, 5, generator=generator, dtype=torch.float64)
    return x, torch.sin(x.sum(1, keepdim=True)) * 3


def train(model: nn.Module, optimizers: Optimizers, first: int, last: int, after: Callable[[int], Any] = id) -> None:
    """Steps first..last (counted from 1) on this rank's share of the data; `after(step)` is called after each."""
    ddp = isinstance(model, nn.parallel.DistributedDataParallel)
    shared = ddp or any(isinstance(p, DTensor) for p in model.parameters())
    rank, world = (dist.get_rank(), dist.get_world_size()) if shared else (0, 1)
    for step in range(first, last + 1):
        x, y = (part.chunk(world)[rank] for part in batch(step))
        (model(x) - y).square().mean().backward()
        update(optimizers)
        after(step)


def update(optimizers: Optimizers) -> None:
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def optimizers_of(
    name: str, model: nn.Module, other_lr: bool = False, compiled: bool = True, **precision: Any
) -> list[optim.Optimizer]:
    """The optimizer of a case, of Muon with AdamW for what is no matrix. `other_lr`: not the rate of the case."""
    case, params = CASES[name], list(model.parameters())
    row = case.row
    if other_lr and row.arguments["lr"] is not None:
        row = dataclasses.replace(row, kwargs={**row.kwargs, "lr": row.arguments["lr"] * 3})
    made = [ours(row, [p for p in params if p.ndim >= 2 or row.name not in MATRICES], **precision)]
    if row.name in MATRICES:
        rest = [p for p in params if p.ndim < 2]
        made[0].add_param_group({"params": rest, "algorithm": "adamw", "lr": 0.06 if other_lr else 0.02})
    for optimizer in made:
        if case.compiled and compiled:
            optimizer.compile(backend="eager")
        if case.scheduled:
            parts = [LinearLR(optimizer, 0.0, 0.01, 2), CosineDecayLR(optimizer, 0.01, 0.001, STEPS)]
            schedulers = [SequentialLR(optimizer, parts, [2])]
            schedulers += [CosineDecayWD(optimizer, 0.1, 0.0, STEPS)] if "weight_decay" in optimizer.defaults else []
            optimizer.register_step_post_hook(lambda *_, each=schedulers: [one.step() for one in each])
    return made


@functools.cache
def alone(name: str) -> dict[int, dict[str, Tensor]]:
    """The uncompiled run of a single process on the whole batch, without a break: what there is after each step."""
    model = Network()
    optimizers = optimizers_of(name, model, compiled=False)
    taken = {0: copies(model, optimizers)}
    train(model, optimizers, 1, LAST, lambda step: taken.__setitem__(step, copies(model, optimizers)))
    return taken


def named(model: nn.Module, optimizers: Iterable[optim.Optimizer]) -> dict[str, Tensor]:
    """All parameters, buffers and states by name."""
    states = {p: state for optimizer in optimizers for p, state in optimizer.state.items()}
    found = {}
    for name, p in chain(model.named_parameters(), model.named_buffers()):
        found[name] = p.detach()
        found.update((f"{name}: {key}", value) for key, value in states.get(p, {}).items())
    return found


def local(x: Any) -> Any:
    return x.to_local() if isinstance(x, DTensor) else x


def copies(model: nn.Module, optimizers: Iterable[optim.Optimizer]) -> dict[str, Tensor]:
    """Of what this rank has of all parameters and states."""
    return {name: local(x).clone() for name, x in named(model, optimizers).items()}


def part(whole: Tensor, like: Tensor) -> Tensor:
    """What this rank must have of a whole tensor that is distributed as `like` is."""
    for i, placement in enumerate(like.placements if isinstance(like, DTensor) else ()):
        count, place = like.device_mesh.size(i), like.device_mesh.get_local_rank(i)
        assert placement.is_replicate() or isinstance(placement, Shard), placement
        if isinstance(placement, Shard):
            chunks = whole.chunk(count, placement.dim)
            whole = chunks[place] if place < len(chunks) else whole.narrow(placement.dim, 0, 0)
    return whole


def assert_parts(model: nn.Module, optimizers: Optimizers, whole: dict[str, Tensor], most: float) -> None:
    """This rank has its part of what a single process has."""
    mine = named(model, optimizers)
    assert mine.keys() == whole.keys(), sorted(mine.keys() ^ whole.keys())
    assert all(x.shape == whole[name].shape for name, x in mine.items())
    assert_alike({k: local(x) for k, x in mine.items()}, {k: part(whole[k], x) for k, x in mine.items()}, most)


def assert_alike(mine: dict[str, Tensor], other: dict[str, Tensor], most: float) -> None:
    """|mine - other| <= most * max(1, |other|) for every element; to the bit where `most` is 0."""
    assert mine.keys() == other.keys(), sorted(mine.keys() ^ other.keys())
    for key, x in mine.items():
        y = other[key]
        assert x.shape == y.shape and x.dtype == y.dtype, (key, x.shape, y.shape, x.dtype, y.dtype)
        error = ((x - y).abs() / y.abs().clamp(min=1)).max().item() if x.numel() else 0.0
        assert error <= most, f"{key} is off by {error:.3g}, allowed {most}"
