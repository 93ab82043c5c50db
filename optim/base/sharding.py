"""Distributed tensors (DTensor): what the execution and the update rules do with them.

torch's module for them is imported only where there is one, as it takes a third of the time that torch itself takes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

DISTRIBUTED: tuple[type, ...] = ()  # the class DTensor, once there is one


class Placement(NamedTuple):
    """How the parameters of a piece of work are distributed."""

    mesh: Any
    placements: Any
    full: list[tuple[Any, Any]]  # of each parameter, the shape and the strides of the full tensor


def notice_dtensor(x: Any) -> None:
    """Know distributed tensors from now on, if `x` is one. To be called with whatever comes from outside."""
    global DISTRIBUTED  # noqa: PLW0603  # a graph of torch 2.7 can neither import the class nor ask for an attribute
    if not DISTRIBUTED and type(x) is not Parameter and type(x) is not Tensor and hasattr(x, "placements"):
        from torch.distributed.tensor import DTensor

        DISTRIBUTED = (DTensor,)


def distribution(x: Any) -> tuple[Any, Any] | None:
    """The mesh and the placements of a distributed tensor, None for any other."""
    return (x.device_mesh, x.placements) if isinstance(x, DISTRIBUTED) else None  # type: ignore[attr-defined]  # DTensor


def local(x: Any, p: Any) -> Tensor:
    """The shard of `x` that this rank holds, distributed as the parameter `p` is."""
    if distribution(x) is None:
        return x  # type: ignore[no-any-return]  # then it is a tensor
    if x.placements != p.placements:  # a gradient that is yet to be summed up
        x = x.redistribute(placements=p.placements)
    return x.to_local()  # type: ignore[no-any-return]  # DTensor's methods are untyped


def full_tensor(x: Any) -> Tensor:
    """All of `x`, on every rank."""
    return x if distribution(x) is None else x.full_tensor()  # type: ignore[no-any-return]  # as above


def distributed_as(x: Tensor, other: Any) -> Tensor:
    """`x`, which every rank has in full, distributed as `other` is."""
    found = distribution(other)
    if found is None:
        return x
    from torch.distributed.tensor import DTensor, Replicate

    replicated = DTensor.from_local(x, found[0], [Replicate()] * found[0].ndim, run_check=False)
    return replicated.redistribute(*found)


def sum_over_ranks(x: Tensor, placement: Placement | None, dims: Any = None) -> Tensor:
    """The sum over the ranks that hold different shards: shards of these dimensions, or of any."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    if placement is None:
        return x
    pending = [
        Replicate() if dim is None or (dims is not None and dim not in dims) else Partial()
        for dim in map(shard_dim, placement.placements)
    ]
    if all(one.is_replicate() for one in pending):
        return x
    return DTensor.from_local(x, placement.mesh, pending, run_check=False).full_tensor()


def splitting_mesh_dims(placement: Placement) -> list[int]:
    """The dimensions of the device mesh along which tensors are split among several ranks."""
    mesh, placements = placement.mesh, placement.placements
    return [i for i, each in enumerate(placements) if shard_dim(each) is not None and mesh.size(i) > 1]


def shard_dim(placement: Any) -> int | None:
    """The dimension that is split. (A strided shard of torch 2.13 does not call itself a shard.)"""
    return None if placement.is_replicate() else placement.dim


def from_local(x: Tensor, placement: Placement | None, i: int) -> Tensor:
    """The distributed tensor with the local shard `x`, for the `i`-th parameter of a piece of work."""
    if placement is None:
        return x
    from torch.distributed.tensor import DTensor

    shape, stride = placement.full[i]
    return DTensor.from_local(x, placement.mesh, placement.placements, run_check=False, shape=shape, stride=stride)


def placed_as(x: Tensor, p: Any) -> Tensor:
    """The tensor with the local shard `x`, distributed as `p` is."""
    found = distribution(p)
    return x if found is None else from_local(x, Placement(*found, [(p.shape, p.stride())]), 0)


def offsets(p: Any) -> tuple[Any, Any]:
    """The shape of the shard of `p` that this rank holds, and where it begins in each dimension of the full tensor."""
    found = distribution(p)
    if found is None:
        return p.shape, [0] * p.dim()
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return compute_local_shape_and_global_offset(p.shape, *found)


def of_rows(placement: Placement, dims: int) -> Placement:
    """How numbers for each row lie: tensors that are split likewise in the first dimensions, and have 1 for others."""
    from torch.distributed.tensor import Replicate

    kept = [x if x.is_replicate() or x.dim < dims else Replicate() for x in placement.placements]
    full = []
    for shape, _ in placement.full:
        rows = torch.Size((*shape[:dims], *[1] * (len(shape) - dims)))
        full.append((rows, tuple(rows[i + 1 :].numel() for i in range(len(rows)))))
    return Placement(placement.mesh, tuple(kept), full)


def zeros_of_rows(p: Any, dims: int, dtype: torch.dtype) -> Tensor:
    """Zeros for each row of `p`: 1 for all but the first dimensions, split among the ranks as `p` is."""
    here, found = local(p.detach(), p), distribution(p)
    zeros = here.new_zeros((*here.shape[:dims], *[1] * (p.dim() - dims)), dtype=dtype)
    return from_local(zeros, found and of_rows(Placement(*found, [(p.shape, p.stride())]), dims), 0)


def zeros_without_dim(p: Any, dim: int, dtype: torch.dtype) -> Tensor:
    """Zeros of the shape of `p` without the dimension `dim` (counted from 0), split among the ranks as `p` is.

    torch 2.7 forgets that shards are strided when it sums over another dimension.
    """
    here = torch.zeros_like(local(p.detach(), p).sum(dim), dtype=dtype)
    found = distribution(p)
    if found is None:
        return here
    from torch.distributed.tensor import DTensor, Replicate

    mesh, placements = found
    kept = []
    for placement in placements:
        at = shard_dim(placement)
        if at is None or at == dim:
            kept.append(Replicate())
        else:
            kept.append(placement if at < dim else _of_the_dim_before(placement))
    shape = (*p.shape[:dim], *p.shape[dim + 1 :])
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(here, mesh, kept, run_check=False, shape=torch.Size(shape), stride=stride)


def _of_the_dim_before(placement: Any) -> Any:
    """The same shard, of the dimension before."""
    from torch.distributed.tensor import Shard

    if type(placement) is Shard:
        return Shard(placement.dim - 1)
    return type(placement)(placement.dim - 1, split_factor=placement.split_factor)
