"""The plan of a step, after gathering: each work is split into parts, and each part gets a route.

The route says how execution.py steps the part:

    ==================  ==============================================  ==============
    device              part                                            route
    ==================  ==============================================  ==============
    CPU and CUDA        torch has a fused kernel for it (fused.py)      by the kernel
    CPU and CUDA        any other                                       on numbers
    all other devices   any                                             on tensors
    ==================  ==============================================  ==============

On the CPU, large parts are stepped in blocks (pieces.py).

A prepared step keeps its routes, so parts and routes may depend only on the kind of the step (defined in __init__.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple, TypeAlias

from torch import Tensor

from ..base.tensor_lists import Tensors, indices_by_size, select
from .fused import Kernel
from .pieces import BLOCK
from .work import Work, convert_for_factors

LIST = 1 << 26  # elements that are stepped together in float32, on other devices than the CPU


class Route(NamedTuple):
    """How a part is stepped."""

    kernel: Kernel | None  # torch's kernel for the whole step
    in_blocks: bool
    on_numbers: bool = True  # False: on tensors, without a kernel and blocks


Part: TypeAlias = "tuple[Work, Route]"


def choose_routes(work: Work) -> list[Part]:
    """Split a gathered work into parts, each with its route."""
    if work.columns["p"][0].device.type not in ("cpu", "cuda"):
        return [(work, Route(None, in_blocks=False, on_numbers=False))]
    work = convert_for_factors(work, read_on_host=True)
    parts: list[Part] = []
    for layout_part, is_contiguous in _split_by_layout(work):
        in_blocks = is_contiguous and _needs_blocks(layout_part)
        for part in [layout_part] if in_blocks else _split_by_size(layout_part):
            fused: Kernel | None = part.algorithm.fused
            kernel = fused if is_contiguous and fused and fused.supports(part) else None
            # A kernel reads memory once, also without blocks. It needs blocks only for copies in float32.
            parts.append((part, Route(kernel, in_blocks and (kernel is None or part.widening is not None))))
    return parts


def _split_by_layout(work: Work) -> list[tuple[Work, bool]]:
    """Split the work into up to two parts: contiguous tensors (True), and other tensors.

    If an update is elementwise, the order of the dimensions does not matter. The tensors then use the order of the
    parameter's memory.
    """
    if _is_contiguous(chain.from_iterable(work.columns.values())):
        return [(work, True)]
    if work.algorithm.elementwise:
        work = _permute_to_memory_order(work)
    indices: dict[bool, list[int]] = {True: [], False: []}
    for i in range(len(work.columns["p"])):
        indices[_is_contiguous([column[i] for column in work.columns.values()])].append(i)
    return [(work.select(part), contiguous) for contiguous, part in indices.items() if part]


def _is_contiguous(xs: Iterable[Tensor]) -> bool:
    return all(map(Tensor.is_contiguous, xs))


def _permute_to_memory_order(work: Work) -> Work:
    """Replace tensors by views whose dimensions are in the order of the parameter's memory."""
    orders = [sorted(range(p.dim()), key=p.stride, reverse=True) for p in work.columns["p"]]
    work = work._replace(columns={name: _permute(xs, orders) for name, xs in work.columns.items()})
    if work.widening is not None:
        places = [place._replace(dims=select(place.dims, order)) for place, order in zip(work.widening.places, orders)]
        work = work._replace(widening=work.widening._replace(places=places))
    return work


def _permute(xs: Tensors, orders: list[list[int]]) -> Tensors:
    return [x.permute(order) for x, order in zip(xs, orders)]


def _needs_blocks(work: Work) -> bool:
    """Whether contiguous tensors are stepped in blocks: on the CPU, if they are copied to float32 or fill several."""
    p = work.columns["p"]
    is_large = work.widening is not None or sum(map(Tensor.numel, p)) > BLOCK
    return is_large and work.algorithm.elementwise and p[0].is_cpu


def _split_by_size(work: Work) -> list[Work]:
    """Split a work that is copied to float32, to limit the memory of the copies. A large tensor is a part by itself."""
    if work.widening is None:
        return [work]
    params = work.columns["p"]
    parts = indices_by_size(map(Tensor.numel, params), BLOCK if params[0].is_cpu else LIST)
    return [work.select(part) for part in parts] if len(parts) > 1 else [work]
