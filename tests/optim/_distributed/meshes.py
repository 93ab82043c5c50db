"""Parameters that are distributed in other ways than by rows over all processes."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import optim
from tests.optim._distributed.common import (
    CASES,
    STEPS,
    Network,
    alone,
    assert_alike,
    assert_parts,
    batch,
    copies,
    named,
    optimizers_of,
)
from tests.optim._distributed.training import parameters, sharded

HALF = STEPS // 2
NO_HYBRID = (
    "fully_shard of torch 2.7 cannot take the backward pass on a 2-dimensional mesh of CPUs: after the all-reduce it "
    "asserts that there is an event of a stream (_fsdp_param_group.py, post_backward: all_reduce_event is not None)"
    if torch.__version__.startswith("2.7.")
    else ""
)


@functools.cache
def two_by_two() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))


def columns(name: str, folder: Path) -> None:
    """By columns where they come out even, as fully_shard wants columns to, else by rows."""

    def placement(p: nn.Parameter) -> Shard | None:
        return Shard(1) if p.ndim > 1 and p.shape[1] % dist.get_world_size() == 0 else None

    sharded(name, folder, shard_placement_fn=placement)


def hybrid(name: str, folder: Path) -> None:
    """By rows in each of two groups of processes, which repeat one another."""
    sharded(name, folder, mesh=two_by_two())


def placed(name: str, folder: Path) -> None:
    """Without fully_shard: parameters in all kinds of places, some of them in none, with gradients yet to be summed."""
    kinds = itertools.cycle(
        [
            (Replicate(), Shard(0)),
            (Shard(0), Replicate()),
            (Shard(0), Shard(1)),
            (Shard(1), Shard(0)),
            (Replicate(), Replicate()),
            (Shard(0), Shard(0)),
            None,
        ]
    )
    model, whole = Network(), Network()
    for layer in model.modules():
        for key, p in list(layer.named_parameters(recurse=False)):
            kind = next(kinds)
            if kind is not None:
                kind = [Replicate() if x.is_shard(1) and p.ndim < 2 else x for x in kind]
                layer.register_parameter(key, nn.Parameter(distribute_tensor(p.detach(), two_by_two(), kind)))
    optimizers, other = optimizers_of(name, model), optimizers_of(name, whole)
    for step in range(1, HALF + 1):
        x, y = batch(step)
        (whole(x) - y).square().mean().backward()
        for p, q in zip(model.parameters(), whole.parameters()):
            p.grad = with_gradient(p, q.grad)
        for one in (*other, *optimizers):
            one.step()
            one.zero_grad()
        assert_alike(copies(whole, other), alone(name)[step], 0)
        assert_parts(model, optimizers, alone(name)[step], CASES[name].bound)


def with_gradient(p: Tensor, whole: Tensor | None) -> Tensor | None:
    """Where ranks repeat a parameter, each has a part of the sum that is its gradient: a half or a quarter of it."""
    if whole is None or not isinstance(p, DTensor):
        return whole
    kind = [Partial() if placement.is_replicate() else placement for placement in p.placements]
    share = 1.0
    for i, placement in enumerate(kind):
        share /= p.device_mesh.size(i) if placement.is_partial() else 1
    there = distribute_tensor(whole * share, p.device_mesh, p.placements)
    return DTensor.from_local(
        there.to_local(), p.device_mesh, kind, run_check=False, shape=whole.shape, stride=whole.stride()
    )


class Block(nn.Module):
    """Even sizes, as columns are split and then rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.up = nn.Linear(5, 8, dtype=torch.float64)
        self.down = nn.Linear(8, 4, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(torch.tanh(self.up(x)))
        return y


def tensor_parallel(name: str, folder: Path) -> None:
    """Each layer split between two ranks, which both fully_shard with two others: rows are dealt out in strides."""
    model, whole = Block(), Block()
    mesh = two_by_two()
    parallelize_module(model, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    optimizers, other = optimizers_of(name, model), optimizers_of(name, whole)
    assert all(isinstance(p, DTensor) and p.device_mesh.ndim == 2 for p in parameters(optimizers))
    for step in range(1, HALF + 1):
        x, y = batch(step)
        mine = slice(mesh.get_local_rank("data"), None, 2)
        (model(x[mine]) - y[mine]).square().mean().backward()
        (whole(x) - y).square().mean().backward()
        for one in (*other, *optimizers):
            one.step()
            one.zero_grad()
        assert_alike(gathered(model, optimizers), copies(whole, other), CASES[name].bound)


def gathered(model: nn.Module, optimizers: list[optim.Optimizer]) -> dict[str, Any]:
    return {
        key: x.full_tensor() if isinstance(x, DTensor) else x.clone() for key, x in named(model, optimizers).items()
    }
