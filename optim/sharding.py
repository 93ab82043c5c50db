"""Distributed tensors (DTensor): what the engine and the rules do with them.

torch's module for them is imported only where there is one, as it takes a third of the time that torch itself takes.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import Parameter

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


def local(x: Any, p: Any) -> Tensor:
    """The part of `x` that is here, distributed as the parameter `p` is."""
    if distribution(x) is None:
        return x  # type: ignore[no-any-return]  # then it is a tensor
    if x.placements != p.placements:  # a gradient that is yet to be summed up
        x = x.redistribute(placements=p.placements)
    return x.to_local()  # type: ignore[no-any-return]  # DTensor's methods are untyped


def summed(x: Any) -> Tensor:
    """`x`, with a pending sum over the ranks carried out."""
    if distribution(x) is None or not any(placement.is_partial() for placement in x.placements):
        return x  # type: ignore[no-any-return]  # then it is a tensor
    from torch.distributed.tensor import Replicate

    placements = [Replicate() if placement.is_partial() else placement for placement in x.placements]
    return x.redistribute(placements=placements)  # type: ignore[no-any-return]  # DTensor's methods are untyped


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


def total(x: Tensor, spread: tuple[Any, Any]) -> Tensor:
    """The sum over the ranks that hold different parts, of a number for each tensor."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    mesh, placements = spread
    pending = [Partial() if placement.is_shard() else Replicate() for placement in placements]
    return DTensor.from_local(x, mesh, pending, run_check=False).full_tensor()
