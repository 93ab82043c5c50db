"""Averages of weights on several processes equal those of one, are swapped in under FSDP, and load on other ranks."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.tensor import DTensor

import optim
from tests.optim._distributed.common import (
    Network,
    assert_alike,
    assert_parts,
    batch,
    copies,
    local,
    shard,
    train,
)
from timesched import Clock

KINDS = {"exponential": {"half_life": "30sp"}, "mean": {"start": "20sp"}, "share": {"half_life": 0.1}}
BUFFERS = "buffers"  # the kind of a model that has one, with an exponential average
KINDS[BUFFERS] = KINDS["exponential"]
FIRST, LAST, BOUND = 4, 7, 1e-10


class Buffered(Network):
    """With a buffer that each forward pass replaces, by the same values on all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_level", torch.zeros(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.running_level = self.running_level * 0.5 + 1
        return super().forward(x) + self.running_level.sum()


def network(kind: str) -> Network:
    return Buffered() if kind == BUFFERS else Network()


class Run:
    """A model, its optimizer, its clock, and an average of its weights."""

    def __init__(self, model: nn.Module, kind: str) -> None:
        self.model = model
        self.clock = Clock("200sp", samples_per_batch=8, process_group=False)
        self.optimizer = optim.AdamW(model.parameters(), lr=0.01)
        options = {**KINDS[kind], "buffers": model if kind == BUFFERS else None}
        self.average = optim.WeightAverage(model.parameters(), self.clock, **options)

    def train(self, first: int, last: int) -> None:
        train(self.model, [self.optimizer], first, last, self.after)

    def after(self, step: int) -> None:
        self.clock.tick()
        self.average.step()


@functools.cache
def alone(kind: str) -> tuple[dict[int, dict[str, Tensor]], dict[str, Tensor]]:
    """The run of one process: weights and averages after two steps, and what it evaluates with the average."""
    run, found = Run(network(kind), kind), {}
    for first, last in ((1, FIRST), (FIRST + 1, LAST)):
        run.train(first, last)
        found[last] = copies(run.model, [run.average])
    with run.average.swapped(), torch.no_grad():
        evaluated = run.model(batch(0)[0])
    return found, {"y": evaluated}


def sharded(kind: str, folder: Path) -> None:
    run = Run(shard(network(kind)), kind)
    for first, last in ((1, FIRST), (FIRST + 1, LAST)):
        run.train(first, last)
        assert_parts(run.model, [run.average], alone(kind)[0][last], BOUND)


def ddp(kind: str, folder: Path) -> None:
    model = network(kind)
    run = Run(model, kind)
    run.model = nn.parallel.DistributedDataParallel(model)
    run.train(1, LAST)
    assert_parts(model, [run.average], alone(kind)[0][LAST], BOUND)


def swapped(kind: str, folder: Path) -> None:
    """Evaluate, swap, evaluate, leave, train: FSDP gathers the averages, then the weights; bits as without."""
    plain, other = Run(shard(network(kind)), kind), Run(shard(network(kind)), kind)
    x = batch(0)[0]
    for run in (plain, other):
        run.train(1, LAST)
        with torch.no_grad():
            run.model(x)
    before = bits(other)
    with pytest.raises(ValueError, match="Pass the model"), other.average.swapped():
        pass
    with other.average.swapped(other.model), torch.no_grad():
        assert_alike({"y": local(other.model(x))}, alone(kind)[1], BOUND)
    assert_alike(bits(other), before, 0)
    with torch.no_grad():
        assert torch.equal(other.model(x), plain.model(x))
    for run in (plain, other):
        run.train(LAST + 1, LAST + 2)
    assert_alike(bits(other), bits(plain), 0)


def bits(run: Run) -> dict[str, Tensor]:
    """Buffers, shards of the weights, and shards of all averages; the model itself shows what it has gathered."""
    found = {name: x.clone() for name, x in run.model.named_buffers()}
    found |= {f"{i}": local(p.detach()).clone() for i, p in enumerate(run.average.param_groups[0]["params"])}
    return found | {f"{i} average": local(x["average"]).clone() for i, x in enumerate(run.average.state.values())}


def save(kind: str, folder: Path) -> None:
    """Under a key of its own, beside the model and its optimizer."""
    run = Run(shard(network(kind)), kind)
    run.train(1, FIRST)
    dcp.save(_content(run, kind), checkpoint_id=folder / f"average {kind}")


def load(kind: str, folder: Path) -> None:
    """On 2 and 4 processes, sharded, and whole."""
    for model in (shard(network(kind)), network(kind)):
        run = Run(model, kind)
        there = _content(run, kind)
        dcp.load(there, checkpoint_id=folder / f"average {kind}")
        model.load_state_dict(there["model"])
        set_optimizer_state_dict(model, run.optimizer, there["optimizer"])
        run.clock.load_state_dict(there["clock"])
        if kind != BUFFERS:
            set_optimizer_state_dict(model, run.average, there["average"])
        assert_parts(model, [run.average], alone(kind)[0][FIRST], BOUND)
        assert isinstance(next(iter(run.average.state)), DTensor) is isinstance(next(model.parameters()), DTensor)
        run.train(FIRST + 1, LAST)
        assert_parts(model, [run.average], alone(kind)[0][LAST], BOUND)


def _content(run: Run, kind: str) -> dict[str, object]:
    """What a checkpoint has. An average of buffers, which have no names there, is saved and loaded as it is."""
    return {
        "model": run.model.state_dict(),
        "optimizer": get_optimizer_state_dict(run.model, run.optimizer),
        "average": run.average if kind == BUFFERS else get_optimizer_state_dict(run.model, run.average),
        "clock": run.clock.state_dict(),
    }
