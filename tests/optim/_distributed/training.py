"""Training on several processes equals training on one."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

from tests.optim._distributed.common import Network, assert_alike, bound, optimizers_of, train, whole, STEPS

# How the parameters are spread, by the number of processes: by rows; by columns; by rows in each of two groups of
# two processes that repeat one another.
WAYS = {2: ("fsdp", "columns"), 4: ("fsdp", "hybrid")}


@functools.cache
def alone(case: str, last: int = STEPS) -> dict[int, dict[str, Tensor]]:
    """The run of a single process on the whole batch: what there is after each step."""
    model = Network()
    optimizers = optimizers_of(case, model)
    taken = {0: whole(model, optimizers)}
    train(model, optimizers, 1, last, lambda step: taken.__setitem__(step, whole(model, optimizers)))
    return taken


def ddp(case: str) -> None:
    model = Network()
    wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizers = optimizers_of(case, model)
    trajectory = {0: whole(model, optimizers)}
    train(wrapped, optimizers, 1, STEPS, lambda step: trajectory.__setitem__(step, whole(model, optimizers)))
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, trajectory)
    for step, there in trajectory.items():
        for other in everyone:
            assert_alike(other[step], there, 0)
        assert_alike(there, alone(case)[step], bound(case))


@functools.cache
def mesh(way: str = "fsdp") -> DeviceMesh:
    world = dist.get_world_size()
    if way == "hybrid":
        return init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    return init_device_mesh("cpu", (world,))


def shard(model: nn.Module, way: str = "fsdp") -> nn.Module:
    """Each layer by itself, then the rest, as models are sharded in practice."""

    def by_column(p: nn.Parameter) -> Shard | None:  # where they come out even, as FSDP wants columns to
        return Shard(1) if p.ndim > 1 and p.shape[1] % dist.get_world_size() == 0 else None

    options = {"mesh": mesh(way), "shard_placement_fn": by_column if way == "columns" else None}
    for layer in model.children():
        fully_shard(layer, **options)
    fully_shard(model, **options)
    return model


def sharded(case: str, way: str) -> None:
    model = shard(Network(), way)
    optimizers = optimizers_of(case, model)
    assert_distributed(optimizers)
    before = [id(value) for value in tensors(optimizers)]
    memory = [local(value).data_ptr() for value in tensors(optimizers)]
    assert_alike(whole(model, optimizers), alone(case)[0], 0)
    for step in range(1, STEPS + 1):
        train(model, optimizers, step, step)
        assert_alike(whole(model, optimizers), alone(case)[step], bound(case))
    assert_distributed(optimizers)
    assert [id(value) for value in tensors(optimizers)] == before
    assert [local(value).data_ptr() for value in tensors(optimizers)] == memory


def tensors(optimizers: list[Any]) -> list[Tensor]:
    return [value for one in optimizers for state in one.state.values() for value in state.values()]


def local(x: Tensor) -> Tensor:
    return x.to_local() if isinstance(x, DTensor) else x


def assert_distributed(optimizers: list[Any]) -> None:
    """Parameters are distributed, so are the states, and those of the parameter's shape in the same way."""
    for optimizer in optimizers:
        for p in itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups):
            assert isinstance(p, DTensor)
            for key, value in optimizer.state[p].items():
                if value.ndim:
                    assert isinstance(value, DTensor), key
                    assert value.device_mesh == p.device_mesh, key
                if value.ndim and value.shape == p.shape:
                    assert value.placements == p.placements, (key, value.placements, p.placements)
                    assert local(value).shape == local(p).shape, key
    empty = [p for one in optimizers for g in one.param_groups for p in g["params"] if local(p).numel() == 0]
    assert empty or dist.get_rank() == 0 or mesh().size() == 1, "the model is to leave some ranks without an element"
    assert not torch.is_grad_enabled() or all(local(value).grad_fn is None for value in tensors(optimizers))
