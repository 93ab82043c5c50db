"""Distributed tensors (DTensor): what the engine and the rules do with them.

torch's module for them is imported only where there is one, as it takes a third of the time that torch itself takes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

Spread = tuple[Any, Any, list[tuple[Any, Any]]]  # mesh, placements, and the shape and strides of each whole tensor
DISTRIBUTED: tuple[type, ...] = ()  # the class DTensor, once there is one


def notice(x: Any) -> None:
    """Know distributed tensors from now on, if `x` is one. To be called with whatever comes from outside."""
    global DISTRIBUTED  # noqa: PLW0603  # a graph of torch 2.7 can neither import the class nor ask for an attribute
    if not DISTRIBUTED and type(x) is not Parameter and type(x) is not Tensor and hasattr(x, "placements"):
        from torch.distributed.tensor import DTensor

        DISTRIBUTED = (DTensor,)


def distribution(x: Any) -> tuple[Any, Any] | None:
    """The mesh and the placements of a distributed tensor, None for any other."""
    return (x.device_mesh, x.placements) if isinstance(x, DISTRIBUTED) else None  # type: ignore[attr-defined]  # DTensor


def any_distributed(tensors: list[Tensor]) -> bool:
    """Whether one of the tensors is distributed."""
    return bool(DISTRIBUTED) and any(isinstance(x, DISTRIBUTED) for x in tensors)


def local(x: Any, p: Any) -> Tensor:
    """The part of `x` that is here, distributed as the parameter `p` is."""
    if distribution(x) is None:
        return x  # type: ignore[no-any-return]  # then it is a tensor
    if x.placements != p.placements:  # a gradient that is yet to be summed up
        x = x.redistribute(placements=p.placements)
    return x.to_local()  # type: ignore[no-any-return]  # DTensor's methods are untyped


def whole(x: Any) -> Tensor:
    """All of `x`, on every rank."""
    return x if distribution(x) is None else x.full_tensor()  # type: ignore[no-any-return]  # as above


def like(x: Tensor, other: Any) -> Tensor:
    """`x`, which every rank has, distributed as `other` is."""
    spread = distribution(other)
    if spread is None:
        return x
    from torch.distributed.tensor import DTensor, Replicate

    mesh, placements = spread
    everywhere = DTensor.from_local(x, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return everywhere.redistribute(mesh, placements)


def total(x: Tensor, spread: Spread | None, dims: Any = None) -> Tensor:
    """The sum over the ranks that hold different parts: parts of these dimensions, or of any."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    if spread is None:
        return x
    mesh, placements = spread[:2]
    pending = [
        Replicate() if dim is None or (dims is not None and dim not in dims) else Partial()
        for dim in map(split, placements)
    ]
    if all(placement.is_replicate() for placement in pending):
        return x
    return DTensor.from_local(x, mesh, pending, run_check=False).full_tensor()


def split(placement: Any) -> int | None:
    """The dimension that is split. (A strided shard of torch 2.13 does not call itself a shard.)"""
    return None if placement.is_replicate() else placement.dim


def joined(x: Tensor, spread: Spread | None, i: int) -> Tensor:
    """The distributed tensor with the local part `x`, for the `i`-th parameter of a piece of work."""
    if spread is None:
        return x
    from torch.distributed.tensor import DTensor

    mesh, placements, shapes = spread
    shape, stride = shapes[i]
    return DTensor.from_local(x, mesh, placements, run_check=False, shape=shape, stride=stride)


def zeros_without(p: Any, dim: int, dtype: torch.dtype) -> Tensor:
    """Zeros of the shape of `p` without the dimension `dim` (counted from 0), split among the ranks as `p` is.

    torch 2.7 forgets that shards are strided when it sums over another dimension.
    """
    here = torch.zeros_like(local(p.detach(), p).sum(dim), dtype=dtype)
    spread = distribution(p)
    if spread is None:
        return here
    from torch.distributed.tensor import DTensor, Replicate

    mesh, placements = spread
    kept = []
    for placement in placements:
        at = split(placement)
        if at is None or at == dim:
            kept.append(Replicate())
        else:
            kept.append(placement if at < dim else moved(placement))
    shape = (*p.shape[:dim], *p.shape[dim + 1 :])
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(here, mesh, kept, run_check=False, shape=torch.Size(shape), stride=stride)


def moved(placement: Any) -> Any:
    """The same for the dimension before."""
    from torch.distributed.tensor import Shard

    if type(placement) is Shard:
        return Shard(placement.dim - 1)
    return type(placement)(placement.dim - 1, split_factor=placement.split_factor)
