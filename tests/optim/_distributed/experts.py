"""A mixture of experts: each rank has experts of its own, and no token reaches some of them for a while."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn

import optim
from tests.optim._distributed.checkpoints import content, read
from tests.optim._distributed.common import (
    BATCH,
    CASES,
    LAST,
    SAVED,
    STEPS,
    assert_alike,
    batch,
    copies,
    named,
    optimizers_of,
)

EXPERTS = 4
# When an expert gets its first token: two of them never have a gradient before a checkpoint after step 0, one even
# before that after step 5.
FIRST_TOKEN = (1, 3, 1, 6)
# Each rank has other parameters in its group, so the values of a group are saved by parameter.
FORM = "flattened"

UNINTERRUPTED: dict[tuple[str, int], dict[str, Tensor]] = {}


class Mixture(nn.Module):
    """The trunk is the same on all ranks, the experts are dealt out. There is a frozen parameter, too."""

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.scale = nn.Parameter(torch.randn(5, dtype=torch.float64), requires_grad=False)
        self.trunk = nn.Linear(5, 3, dtype=torch.float64)
        made = {str(i): nn.Linear(3, 1, dtype=torch.float64) for i in range(EXPERTS)}
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


def train(model: Mixture, optimizers: list[Any], first: int, last: int, alone: bool = False) -> None:
    for step in range(first, last + 1):
        loss = model.loss(step)
        if isinstance(loss, Tensor):
            loss.backward()
        if not alone:
            for p in model.trunk.parameters():
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(p.grad)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def keys(model: Mixture, optimizers: list[Any]) -> set[tuple[str, ...]]:
    """The names of the states of each kind of parameter, whichever expert's it is."""
    states = {p: state for optimizer in optimizers for p, state in optimizer.state.items()}
    return {(re.sub(r"\d", "i", name), *sorted(states.get(p, {}))) for name, p in model.named_parameters()}


def keys_everywhere(model: Mixture, optimizers: list[Any]) -> list[set[tuple[str, ...]]]:
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, keys(model, optimizers))
    return everyone


def keys_of_torch(name: str, folder: Path) -> None:
    """What this is about: torch makes the state of an expert along with its first gradient."""
    model = here()
    optimizers = [torch.optim.AdamW(model.parameters())]
    train(model, optimizers, 1, 2)
    first, second = keys_everywhere(model, optimizers)
    assert first != second


def save(name: str, folder: Path) -> None:
    """Experts without tokens have the keys of the others."""
    model = here()
    optimizers = optimizers_of(name, model)
    for step in range(LAST + 1):
        train(model, optimizers, step, step) if step else None
        UNINTERRUPTED[name, step] = copies(model, optimizers)
        if step in SAVED:
            assert_same_keys(model, optimizers)
            assert all(p.grad is None for p in model.experts.parameters())
            dcp.save(content(model, optimizers, FORM), checkpoint_id=folder / f"experts-{name}-{step}")
            assert_alike(copies(model, optimizers), UNINTERRUPTED[name, step], 0)
    assert_equals_one_process(name, model, optimizers, LAST)


def assert_same_keys(model: Mixture, optimizers: list[optim.Optimizer]) -> None:
    """On all ranks, for all experts."""
    first, *others = keys_everywhere(model, optimizers)
    assert all(other == first for other in others), (first, others)
    assert len(first) == 5, first  # scale, the trunk's two, an expert's two: no expert's keys differ from another's


def load(name: str, folder: Path) -> None:
    for at in SAVED:
        model = here()
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(9.0)
        optimizers = optimizers_of(name, model, other_lr=True)
        read(model, optimizers, FORM, folder / f"experts-{name}-{at}")
        assert_same_keys(model, optimizers)
        assert_equals_one_process(name, model, optimizers, at)
        train(model, optimizers, at + 1, at + STEPS)
        assert_equals_one_process(name, model, optimizers, at + STEPS)
        if dist.get_world_size() == 2:
            assert_alike(copies(model, optimizers), UNINTERRUPTED[name, at + STEPS], 0)


def assert_equals_one_process(name: str, model: Mixture, optimizers: list[optim.Optimizer], step: int) -> None:
    whole = Mixture()
    theirs = optimizers_of(name, whole)
    train(whole, theirs, 1, step, alone=True)
    mine = named(model, optimizers)
    other = {key: value for key, value in copies(whole, theirs).items() if key in mine}
    assert_alike(mine, other, CASES[name].bound if step else 0)
