"""Distributed tensors (DTensor): the operations that the execution and the update rules need.

torch's module for them is imported only where a program has one: the import takes a third as long as torch's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

DTENSOR_CLASSES: tuple[type, ...] = ()  # the class DTensor, once there is one


class FullTensor(NamedTuple):
    """The layout of a full tensor. Each rank has a shard of it."""

    shape: torch.Size
    stride: tuple[int, ...]


class Placement(NamedTuple):
    """How the parameters of a piece of work are distributed."""

    mesh: Any  # the device mesh
    placements: Any  # torch's `Shard(dim)`, `Replicate()` and so on: one for each dimension of the mesh
    full: list[FullTensor]  # one for each parameter

    def splitting_mesh_dims(self) -> list[int]:
        """The dimensions of the device mesh along which tensors are split among several ranks."""
        placements = enumerate(self.placements)
        return [i for i, x in placements if shard_dim(x) is not None and self.mesh.size(i) > 1]


def remember_dtensor(params: Iterable[Tensor]) -> None:
    """Remember the class DTensor if one of these is distributed. Call this with all parameters that a user passes."""
    global DTENSOR_CLASSES  # noqa: PLW0603  # a graph of torch 2.7 can neither import the class nor ask for an attribute
    if not DTENSOR_CLASSES and any(hasattr(p, "placements") for p in params if type(p) not in (Parameter, Tensor)):
        from torch.distributed.tensor import DTensor

        DTENSOR_CLASSES = (DTensor,)


# How a tensor is distributed


def distribution(x: object) -> tuple[Any, Any] | None:
    """The mesh and the placements of a distributed tensor; None for any other tensor."""
    return (x.device_mesh, x.placements) if isinstance(x, DTENSOR_CLASSES) else None  # type: ignore[attr-defined]  # DTensor


def make_placement(params: Sequence[Any]) -> Placement | None:
    """The placement of parameters that are all distributed alike; None if they are not distributed."""
    placed = distribution(params[0])
    return None if placed is None else Placement(*placed, [FullTensor(p.shape, p.stride()) for p in params])


def shard_dim(placement: Any) -> int | None:
    """The dimension of a tensor that is split; None if no dimension is.

    (A strided shard of torch 2.13 does not call itself a shard.)
    """
    return None if placement.is_replicate() else placement.dim


def shard_shape_and_offsets(p: Any) -> tuple[Any, Any]:
    """The shape of this rank's shard of `p`, and the index in the full tensor at which it begins in each dimension."""
    placed = distribution(p)
    if placed is None:
        return p.shape, [0] * p.dim()
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return compute_local_shape_and_global_offset(p.shape, *placed)


# Shards and full tensors


def local_shard(x: Any, p: Any) -> Tensor:
    """This rank's shard of `x`, distributed like the parameter `p`."""
    if distribution(x) is None:
        return x  # type: ignore[no-any-return]  # then it is a tensor
    if x.placements != p.placements:  # a gradient that is not summed up yet
        x = x.redistribute(placements=p.placements)
    return x.to_local()  # type: ignore[no-any-return]  # DTensor's methods are untyped


def local_shards(xs: Sequence[Tensor]) -> list[Tensor]:
    """This rank's shards of distributed tensors. Other tensors stay as they are."""
    has_shards = DTENSOR_CLASSES and any([isinstance(x, DTENSOR_CLASSES) for x in xs])
    return [local_shard(x, x) for x in xs] if has_shards else list(xs)


def full_tensor(x: Any) -> Tensor:
    """All of `x`, on every rank."""
    return x if distribution(x) is None else x.full_tensor()  # type: ignore[no-any-return]  # as above


def make_dtensor(x: Tensor, placement: Placement, i: int) -> Tensor:
    """The distributed tensor with the local shard `x`, placed like the `i`-th parameter of a piece of work."""
    from torch.distributed.tensor import DTensor

    shape, stride = placement.full[i]
    return DTensor.from_local(x, placement.mesh, placement.placements, run_check=False, shape=shape, stride=stride)


def make_dtensor_like(x: Tensor, p: object) -> Tensor:
    """The tensor with the local shard `x`, distributed like `p`."""
    placement = make_placement([p])
    return x if placement is None else make_dtensor(x, placement, 0)


def distribute_like(x: Tensor, other: object) -> Tensor:
    """`x`, which every rank has in full, distributed like `other`."""
    placed = distribution(other)
    if placed is None:
        return x
    from torch.distributed.tensor import DTensor, Replicate

    replicated = DTensor.from_local(x, placed[0], [Replicate()] * placed[0].ndim, run_check=False)
    return replicated.redistribute(*placed)


def sum_over_ranks(x: Tensor, placement: Placement, dim: int | None = None) -> Tensor:
    """The sum over the ranks that hold different shards: shards of the dimension `dim`, or of any."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    pending: list[Any] = []  # a `Partial` tensor is not summed up yet
    for split_dim in map(shard_dim, placement.placements):
        is_summed = split_dim is not None and dim in (None, split_dim)
        pending.append(Partial() if is_summed else Replicate())
    if all(sharding.is_replicate() for sharding in pending):
        return x
    return DTensor.from_local(x, placement.mesh, pending, run_check=False).full_tensor()


# States whose shape differs from the shape of the parameter


def row_placement(placement: Placement, dims: int) -> Placement:
    """The placement of a number for each row: like the parameters in the first `dims` dimensions, 1 in the others."""
    from torch.distributed.tensor import Replicate

    new_placements = [x if x.is_replicate() or x.dim < dims else Replicate() for x in placement.placements]
    full = []
    for shape, _ in placement.full:
        rows = torch.Size((*shape[:dims], *[1] * (len(shape) - dims)))
        full.append(FullTensor(rows, tuple(rows[i + 1 :].numel() for i in range(len(rows)))))
    return Placement(placement.mesh, tuple(new_placements), full)


def row_zeros(p: Any, dims: int, dtype: torch.dtype) -> Tensor:
    """Zeros for each row of `p`, of size 1 in all but the first `dims` dimensions, split among the ranks like `p`."""
    shard, placement = local_shard(p.detach(), p), make_placement([p])
    zeros = shard.new_zeros((*shard.shape[:dims], *[1] * (p.dim() - dims)), dtype=dtype)
    return zeros if placement is None else make_dtensor(zeros, row_placement(placement, dims), 0)


def zeros_without_dim(p: Any, dim: int, dtype: torch.dtype) -> Tensor:
    """Zeros of the shape of `p` without the dimension `dim` (counted from 0), split among the ranks like `p`.

    They are placed here, since torch 2.7 forgets that shards are strided when it sums over another dimension.
    """
    zeros = torch.zeros_like(local_shard(p.detach(), p).sum(dim), dtype=dtype)
    placed = distribution(p)
    if placed is None:
        return zeros
    from torch.distributed.tensor import DTensor, Replicate

    mesh, placements = placed
    new_placements = []
    for placement in placements:
        split_dim = shard_dim(placement)
        if split_dim is None or split_dim == dim:
            new_placements.append(Replicate())
        else:
            new_placements.append(placement if split_dim < dim else _shard_of_previous_dim(placement))
    shape = (*p.shape[:dim], *p.shape[dim + 1 :])
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(zeros, mesh, new_placements, run_check=False, shape=torch.Size(shape), stride=stride)


def _shard_of_previous_dim(placement: Any) -> Any:
    """The same shard of the previous dimension."""
    from torch.distributed.tensor import Shard

    if type(placement) is Shard:
        return Shard(placement.dim - 1)
    return type(placement)(placement.dim - 1, split_factor=placement.split_factor)
