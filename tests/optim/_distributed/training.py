"""Training on several processes equals training on one, however the parameters are distributed."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.optim._distributed.common import (
    CASES,
    STEPS,
    Network,
    Optimizers,
    alone,
    assert_alike,
    assert_parts,
    batch,
    copies,
    local,
    mesh,
    named,
    optimizers_of,
    shard,
    train,
    update,
)
from tests.optim.problems import flat

HALF = STEPS // 2


def ddp(name: str, folder: Path) -> None:
    """As a single process on the whole batch, after every step; and all ranks have the same bits."""
    model = Network()
    wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizers = optimizers_of(name, model)

    def after(step: int) -> None:
        mine = torch.cat([x.reshape(-1).double() for x in copies(model, optimizers).values()])
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, mine)
        assert all(torch.equal(mine, other) for other in everyone)
        assert_parts(model, optimizers, alone(name)[step], CASES[name].bound)

    after(0)
    train(wrapped, optimizers, 1, STEPS, after)


def sharded(name: str, folder: Path, **options: Any) -> None:
    """By rows, unless the options say otherwise: ranks have parts of what one process has, no state is made anew."""
    model = shard(Network(), **options)
    optimizers = optimizers_of(name, model)
    assert_distributed(optimizers)
    tensors = [value for one in optimizers for state in one.state.values() for value in state.values()]
    before = [(id(value), local(value).data_ptr()) for value in tensors]

    def after(step: int) -> None:
        assert_parts(model, optimizers, alone(name)[step], CASES[name].bound if step else 0)

    after(0)
    train(model, optimizers, 1, STEPS, after)
    assert_distributed(optimizers)
    tensors = [value for one in optimizers for state in one.state.values() for value in state.values()]
    assert [(id(value), local(value).data_ptr()) for value in tensors] == before


def assert_distributed(optimizers: Optimizers) -> None:
    """Parameters are distributed, so are the states, and those of the parameter's shape in the same way."""
    for p, state in itertools.chain.from_iterable(one.state.items() for one in optimizers):
        assert isinstance(p, DTensor)
        for key, value in state.items():
            assert value.grad_fn is None and not value.requires_grad, key
            if value.ndim:
                assert isinstance(value, DTensor) and value.device_mesh == p.device_mesh, key
                assert not any(placement.is_partial() for placement in value.placements), key
            if value.ndim and value.shape == p.shape:
                assert value.placements == p.placements, (key, value.placements, p.placements)
                assert local(value).shape == local(p).shape, key


def some_ranks_are_empty(name: str, folder: Path) -> None:
    """The model is one in which shards are uneven, and some ranks have nothing of a parameter."""
    sizes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(sizes, {k: local(p).numel() for k, p in shard(Network()).named_parameters()})
    shards = {name: [size[name] for size in sizes] for name in sizes[0]}
    assert all(len(set(counts)) > 1 for counts in shards.values()), shards
    assert [min(counts) for counts in shards.values()].count(0) >= 2, shards


def by_columns(name: str, folder: Path) -> None:
    """By columns where they come out even, as fully_shard wants columns to, else by rows."""

    def placement(p: nn.Parameter) -> Shard | None:
        return Shard(1) if p.ndim > 1 and p.shape[1] % dist.get_world_size() == 0 else None

    sharded(name, folder, shard_placement_fn=placement)


def hybrid(name: str, folder: Path) -> None:
    """By rows in each of two groups of processes, which repeat one another."""
    sharded(name, folder, mesh=mesh(2, 2))


def placed(name: str, folder: Path) -> None:
    """Without fully_shard: parameters in all kinds of places, some of them in none, with gradients yet to be summed."""
    rows, columns, copied = Shard(0), Shard(1), Replicate()
    pairs = [(copied, rows), (rows, copied), (rows, columns), (columns, rows), (copied, copied), (rows, rows), None]
    kinds = itertools.cycle(pairs)
    model, whole = Network(), Network()
    for layer in model.modules():
        for key, p in list(layer.named_parameters(recurse=False)):
            kind: Any = next(kinds)
            if kind is not None:
                kind = [copied if x is columns and p.ndim < 2 else x for x in kind]
                layer.register_parameter(key, nn.Parameter(distribute_tensor(p.detach(), mesh(2, 2), kind)))
    optimizers, other = optimizers_of(name, model), optimizers_of(name, whole)
    for step in range(1, HALF + 1):
        x, y = batch(step)
        (whole(x) - y).square().mean().backward()
        for p, q in zip(model.parameters(), whole.parameters()):
            p.grad = part_of_the_gradient(p, q.grad)
        update([*other, *optimizers])
        assert_parts(model, optimizers, alone(name)[step], CASES[name].bound)


def part_of_the_gradient(p: Tensor, whole: Tensor | None) -> Tensor | None:
    """Where ranks repeat a parameter, each has a part of the sum that is its gradient: a half or a quarter of it."""
    if whole is None or not isinstance(p, DTensor):
        return whole
    kind = [Partial() if placement.is_replicate() else placement for placement in p.placements]
    share = 0.5 ** sum(placement.is_partial() for placement in kind)
    there = distribute_tensor(whole * share, p.device_mesh, p.placements).to_local()
    return DTensor.from_local(there, p.device_mesh, kind, run_check=False, shape=whole.shape, stride=whole.stride())


class Block(nn.Sequential):
    """Even sizes, as columns are split and then rows."""

    def __init__(self) -> None:
        torch.manual_seed(2)
        super().__init__(nn.Linear(5, 8, dtype=torch.float64), nn.Tanh(), nn.Linear(8, 4, dtype=torch.float64))


def tensor_parallel(name: str, folder: Path) -> None:
    """Each layer split between two ranks, which both fully_shard with two others: rows are dealt out in strides."""
    model, whole = Block(), Block()
    parallelize_module(model, mesh(2, 2)["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh(2, 2)["data"])
    optimizers, other = optimizers_of(name, model), optimizers_of(name, whole)
    assert all(isinstance(p, DTensor) and p.device_mesh.ndim == 2 for one in optimizers for p in flat(one))
    for step in range(1, HALF + 1):
        x, y = batch(step)
        mine = slice(mesh(2, 2).get_local_rank("data"), None, 2)
        (model(x[mine]) - y[mine]).square().mean().backward()
        (whole(x) - y).square().mean().backward()
        update([*other, *optimizers])
        found = named(model, optimizers)
        gathered = {key: x.full_tensor() if isinstance(x, DTensor) else x for key, x in found.items()}
        assert_alike(gathered, copies(whole, other), CASES[name].bound)
