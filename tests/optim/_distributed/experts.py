"""A mixture of experts: each rank has experts of its own, and no token reaches some of them for a while."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn

from tests.optim._distributed.checkpoints import content, fill, read
from tests.optim._distributed.common import (
    BATCH,
    CASES,
    LAST,
    SAVED,
    STEPS,
    Optimizers,
    assert_alike,
    batch,
    copies,
    named,
    optimizers_of,
    update,
)

# When each of the four gets its first token: one of them has no gradient before the last checkpoint.
FIRST_TOKEN = (1, 2, 1, STEPS + 1)
FORM = "flattened"  # each rank has other parameters in its group, so the values of a group are saved by parameter

UNINTERRUPTED: dict[tuple[str, int], dict[str, Tensor]] = {}


class Mixture(nn.Module):
    """The trunk is the same on all ranks, the experts are dealt out. There is a frozen parameter, too."""

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.scale = nn.Parameter(torch.randn(5, dtype=torch.float64), requires_grad=False)
        self.trunk = nn.Linear(5, 3, dtype=torch.float64)
        made = {str(i): nn.Linear(3, 1, dtype=torch.float64) for i in range(len(FIRST_TOKEN))}
        self.experts = nn.ModuleDict({name: made[name] for name in made if int(name) % world == rank})

    def loss(self, step: int) -> Tensor | float:
        """The part of the loss that comes from the tokens of these experts."""
        x, y = batch(step)
        there = [i for i, first in enumerate(FIRST_TOKEN) if step >= first]
        total: Tensor | float = 0.0
        for name, expert in self.experts.items():
            if int(name) in there:
                mine = slice(there.index(int(name)), BATCH, len(there))
                hidden = torch.tanh(self.trunk(x[mine] * self.scale))
                total = total + (expert(hidden) - y[mine]).square().sum() / BATCH
        return total


def here() -> Mixture:
    return Mixture(dist.get_rank(), dist.get_world_size())


def train(model: Mixture, optimizers: Optimizers, first: int, last: int, alone: bool = False) -> None:
    for step in range(first, last + 1):
        loss = model.loss(step)
        if isinstance(loss, Tensor):
            loss.backward()
        for p in () if alone else model.trunk.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad)
        update(optimizers)


def keys_everywhere(model: Mixture, optimizers: Sequence[Any]) -> list[set[tuple[str, ...]]]:
    """On each rank, the names of the states of each kind of parameter, whichever expert's it is."""
    states = {p: state for optimizer in optimizers for p, state in optimizer.state.items()}
    mine = {(re.sub(r"\d", "i", name), *sorted(states.get(p, {}))) for name, p in model.named_parameters()}
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def keys_of_torch(name: str, folder: Path) -> None:
    """What this is about: torch makes the state of an expert along with its first gradient."""
    model = here()
    optimizers: Any = [torch.optim.AdamW(model.parameters())]
    train(model, optimizers, 1, 2)
    first, second = keys_everywhere(model, optimizers)
    assert first != second


def save(name: str, folder: Path) -> None:
    """Experts without tokens have the keys of the others."""
    model = here()
    optimizers = optimizers_of(name, model)
    for step in range(LAST + 1):
        train(model, optimizers, max(step, 1), step)
        UNINTERRUPTED[name, step] = copies(model, optimizers)
        if step in SAVED:
            assert_same_keys(model, optimizers)
            dcp.save(content(model, optimizers, FORM), checkpoint_id=folder / f"experts-{name}-{step}")
            assert_alike(copies(model, optimizers), UNINTERRUPTED[name, step], 0)
    assert_equals_one_process(name, model, optimizers, LAST)


def assert_same_keys(model: Mixture, optimizers: Optimizers) -> None:
    """On all ranks, for all experts: there are those of scale, of the trunk's two and of an expert's two."""
    first, *others = keys_everywhere(model, optimizers)
    assert all(other == first for other in others) and len(first) == 5, (first, others)


def load(name: str, folder: Path, saved: Sequence[int] = SAVED) -> None:
    for at in saved:
        model = here()
        fill(model)
        optimizers = optimizers_of(name, model, other_lr=True)
        read(model, optimizers, FORM, folder / f"experts-{name}-{at}")
        assert_same_keys(model, optimizers)
        assert_equals_one_process(name, model, optimizers, at)
        train(model, optimizers, at + 1, at + STEPS)
        assert_equals_one_process(name, model, optimizers, at + STEPS)
        if dist.get_world_size() == 2:
            assert_alike(copies(model, optimizers), UNINTERRUPTED[name, at + STEPS], 0)


def assert_equals_one_process(name: str, model: Mixture, optimizers: Optimizers, step: int) -> None:
    whole = Mixture()
    theirs = optimizers_of(name, whole)
    train(whole, theirs, 1, step, alone=True)
    mine = named(model, optimizers)
    other = {key: value for key, value in copies(whole, theirs).items() if key in mine}
    assert_alike(mine, other, CASES[name].bound if step else 0)
