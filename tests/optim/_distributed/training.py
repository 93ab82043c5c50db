"""Training on several processes equals training on one."""

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
from torch.distributed.tensor import DTensor

import optim
from tests.optim._distributed.common import (
    CASES,
    STEPS,
    Network,
    alone,
    assert_parts,
    copies,
    local,
    optimizers_of,
    train,
)


def ddp(name: str, folder: Path) -> None:
    """As a single process on the whole batch, after every step; and all ranks have the same bits."""
    model = Network()
    wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizers = optimizers_of(name, model)
    taken = [bits(model, optimizers)]

    def after(step: int) -> None:
        taken.append(bits(model, optimizers))
        assert_parts(model, optimizers, alone(name)[step], CASES[name].bound)

    train(wrapped, optimizers, 1, STEPS, after)
    mine = torch.stack(taken)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    assert all(torch.equal(mine, other) for other in everyone)


def bits(model: nn.Module, optimizers: list[optim.Optimizer]) -> Tensor:
    """All parameters and states in a row; float64 holds the float32 of a counter exactly."""
    return torch.cat([x.reshape(-1).double() for x in copies(model, optimizers).values()])


@functools.cache
def mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def shard(model: nn.Module, **options: Any) -> nn.Module:
    """One layer by itself, then the rest with the model: it takes one collective operation for each."""
    options.setdefault("mesh", mesh())
    fully_shard(next(model.children()), **options)
    fully_shard(model, **options)
    return model


def sharded(name: str, folder: Path, **options: Any) -> None:
    """By rows, unless the options say otherwise: ranks have parts of what one process has, no state is made anew."""
    model = shard(Network(), **options)
    optimizers = optimizers_of(name, model)
    assert_distributed(optimizers)
    before = [(id(value), local(value).data_ptr()) for value in tensors(optimizers)]
    assert_parts(model, optimizers, alone(name)[0], 0)
    train(
        model,
        optimizers,
        1,
        STEPS,
        lambda step: assert_parts(model, optimizers, alone(name)[step], CASES[name].bound),
    )
    assert_distributed(optimizers)
    assert [(id(value), local(value).data_ptr()) for value in tensors(optimizers)] == before


def tensors(optimizers: list[optim.Optimizer]) -> list[Tensor]:
    return [value for one in optimizers for state in one.state.values() for value in state.values()]


def parameters(optimizers: list[optim.Optimizer]) -> list[Tensor]:
    groups = itertools.chain.from_iterable(one.param_groups for one in optimizers)
    return list(itertools.chain.from_iterable(group["params"] for group in groups))


def assert_distributed(optimizers: list[optim.Optimizer]) -> None:
    """Parameters are distributed, so are the states, and those of the parameter's shape in the same way."""
    for optimizer in optimizers:
        for p in parameters([optimizer]):
            assert isinstance(p, DTensor)
            for key, value in optimizer.state[p].items():
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
