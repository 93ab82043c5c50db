"""Muon on several ranks, without redundant work: each matrix is made orthogonal on one of the ranks that share it.

That rank, its owner, is sent the shards of its direction, and sends back those of its step: one exchange there and one
back for each batch of matrices. Where every rank has all of a matrix, as under DDP, there is only the one back.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..base.sharding import shard_dim
from ..base.tensor_lists import Tensors, copy_, lerp_
from ..precision.options import as_dtype
from ..step.execution import begin
from ..step.work import Factors, Work
from .matrices import blocks_of, directions, matrix, move, steps
from .newton_schulz import TOGETHER

BATCH = 1 << 24  # elements that a rank makes orthogonal between two exchanges; a matrix may have more
OVERHEAD = 1 << 30  # multiplications, in the time of the three launches of an iteration on a GPU, some 10 microseconds


class Shared(NamedTuple):
    """A matrix that ranks share, or a stack of them."""

    work: int  # the number of its work, and its place there
    place: int
    dim: int | None  # the dimension that is split; None: every rank has all
    shapes: tuple[torch.Size, ...]  # of the full direction, and of the second moments
    cost: int  # of an iteration


Batch = list[list[Shared]]  # what each rank owns
Held = dict[Shared, list[Tensor]]  # the direction, later the step, and the second moments


def take(works: list[Work], group: Any, own: Callable[..., Any]) -> tuple[list[Work], bool]:
    """Take the steps of the matrices that ranks share: parameters that are DTensors, and others if there is a group.

    Gives the work that is left, and whether it has matrices that every rank has to compute. `own` is `own_steps`, or
    that compiled.
    """
    left, everywhere = [], False
    shared: dict[Any, tuple[Any, list[Shared]]] = {}
    for number, work in enumerate(works):
        if "ns_coefficients" not in work.hyper or (work.placement is None and group is None):
            left.append(work)
            continue
        rest, dtype = [], _sent_as(work)
        for i in range(len(work.columns["p"])):
            by, dim = _split(work, i, group)
            if by is None:
                rest.append(i)
                everywhere |= dim is not None
            else:
                alike = by.group_name, work.columns["p"][i].device, dim is None, dtype
                shared.setdefault(alike, (by, []))[1].append(_shared(work, number, i, dim))
        left += [work.selected(rest) if len(rest) < len(work.columns["p"]) else work] if rest else []
    for (*_, same, dtype), (by, entries) in shared.items():
        for batch in batches(entries, by.size()):
            _take(works, batch, by, same, dtype, own)
    return left, everywhere


def _split(work: Work, i: int, group: Any) -> tuple[Any, int | None]:
    """The process group that shares a matrix, if any, and the dimension that is split, if any."""
    if work.placement is None:
        return group, None
    from torch.distributed.tensor import Shard

    mesh, placements, full = work.placement
    split = [j for j, x in enumerate(placements) if shard_dim(x) is not None and mesh.size(j) > 1]
    kept = len(matrix(full[i][0], work.hyper)[0])
    if all(placements[j].dim < kept for j in split):
        return None, None  # matrices of a stack are here
    kind = placements[split[0]]
    alone = len(split) == 1 and type(kind) is Shard and ("beta2" not in work.hyper or kind.dim <= kept)
    return mesh.get_group(split[0]) if alone else None, kind.dim


def _shared(work: Work, number: int, i: int, dim: int | None) -> Shared:
    shape = work.placement.full[i][0] if work.placement else work.columns["p"][i].shape
    stack, rows, columns = matrix(shape, work.hyper)
    of_rows = torch.Size((*stack, rows, *[1] * (len(shape) - len(stack) - 1)))
    sides = [(min(size, columns), max(size, columns)) for size in blocks_of(rows, work.hyper)]
    cost = math.prod(stack) * sum(OVERHEAD + a * a * (a + 2 * b) for a, b in sides)
    return Shared(number, i, dim, (shape, of_rows) if "beta2" in work.hyper else (shape,), cost)


def _sent_as(work: Work) -> torch.dtype:
    """The dtype of what is sent: that of the iterations, with which they begin and end, if no other number follows."""
    p = work.columns["p"][0]
    dtype = torch.float32 if work.widening else p.dtype
    if "beta2" in work.hyper:
        return torch.promote_types(dtype, work.columns["variance_neuron"][0].dtype)
    narrow = as_dtype(work.hyper["ns_dtype"]) or (torch.float32 if p.is_cpu else torch.bfloat16)
    return narrow if narrow.itemsize < dtype.itemsize and not work.hyper.get("split_sizes") else dtype


def batches(entries: Iterable[Shared], ranks: int) -> list[Batch]:
    """The most costly first, each for the rank that has least to do."""
    queues: list[Batch] = [[] for _ in range(ranks)]
    loads, filled = [(0, rank) for rank in range(ranks)], [BATCH + 1] * ranks
    for x in sorted(entries, key=lambda x: -x.cost):
        load, rank = loads[0]
        heapq.heapreplace(loads, (load + x.cost, rank))
        size = x.shapes[0].numel() * (ranks if x.dim is None else 1)  # as all ranks receive all of it
        if filled[rank] + size > BATCH:
            queues[rank].append([])
            filled[rank] = 0
        queues[rank][-1].append(x)
        filled[rank] += size
    return [[queue[i] if i < len(queue) else [] for queue in queues] for i in range(max(map(len, queues)))]


def _take(works: list[Work], batch: Batch, group: Any, same: bool, dtype: torch.dtype, own: Any) -> None:
    """The step of a batch."""
    alike: dict[Any, list[Shared]] = {}
    for x in chain.from_iterable(batch):
        alike.setdefault((x.work, x.shapes[0]), []).append(x)
    mine = set(batch[dist.get_rank(group)])
    held: Held = {}
    parts = []
    for (number, shape), some in alike.items():
        h, f, piece = begin(works[number].selected([x.place for x in some]), own is own_steps)
        columns = piece.read()
        g, buffer = columns["g"], columns["momentum_buffer"]
        variance = [columns["variance_neuron"]] if "variance_neuron" in columns else []
        lerp_(buffer, g, f["one_minus_momentum"])
        here = [i for i, x in enumerate(some) if x in mine or not same]
        if here:
            found = directions(h, [g[i] for i in here], [buffer[i] for i in here])
            held.update((some[i], [y, *(v[i] for v in variance)]) for i, y in zip(here, found))
        parts.append((h, f, shape, some, columns["p"], variance, piece))
    empty = torch.empty(0, dtype=dtype, device=columns["p"][0].device)
    if not same:
        held = _gathered(batch, held, group, empty)
    _replace_by_steps(held, [(h, f, [x for x in some if x in held]) for h, f, _, some, *_ in parts], own)
    held = _scattered(batch, held, group, same, empty)
    for h, _, shape, some, p, variance, piece in parts:
        for moments in variance:
            copy_(moments, [held[x][1] for x in some])
        move(h, p, [held[x][0].to(p[0].dtype) for x in some], shape)
        piece.write_back()


def _replace_by_steps(
    held: Held, parts: Sequence[tuple[Factors, Factors, list[Shared]]], own: Callable[..., Any]
) -> None:
    """Directions that this rank owns by the steps."""
    tensors = [(h, f, [held[x][0] for x in xs], [y for x in xs for y in held[x][1:]]) for h, f, xs in parts if xs]
    made = own(tensors) if tensors else []
    for x, step in zip(chain.from_iterable(xs for *_, xs in parts), made):
        held[x][0] = step


def own_steps(parts: Sequence[tuple[Factors, Factors, Tensors, Tensors]]) -> list[Tensor]:
    """The steps of whole matrices, in lists of one shape; updates their second moments in place."""
    found: list[Tensor] = []
    for h, f, whole, moments in parts:
        count = max(1, TOGETHER // max(1, whole[0].numel()))
        for i in range(0, len(whole), count):
            found += steps(h, f, whole[i : i + count], moments[i : i + count])
    return found


def _sizes(size: int, ranks: int) -> list[int]:
    """What each rank has of a dimension that is split."""
    most = -(-size // ranks)
    return [max(0, min(most, size - rank * most)) for rank in range(ranks)]


def _shard(x: Shared, shape: torch.Size, rank: int, ranks: int) -> torch.Size:
    """The shape of what a rank has."""
    if x.dim is None:
        return shape
    return torch.Size((*shape[: x.dim], _sizes(shape[x.dim], ranks)[rank], *shape[x.dim + 1 :]))


def _gathered(batch: Batch, held: Held, group: Any, empty: Tensor) -> Held:
    """All of what this rank owns, from the shards of all ranks."""
    mine, ranks = batch[dist.get_rank(group)], len(batch)
    shapes = [[_shard(x, shape, rank, ranks) for x in mine for shape in x.shapes] for rank in range(ranks)]
    found = zip(*_exchange([[y for x in xs for y in held[x]] for xs in batch], shapes, group, empty))
    return {x: [torch.cat(next(found), x.dim or 0).to(y.dtype) for y in held[x]] for x in mine}


def _scattered(batch: Batch, held: Held, group: Any, same: bool, empty: Tensor) -> Held:
    """What this rank is to have, from the owners."""
    rank, ranks = dist.get_rank(group), len(batch)
    pieces = [
        [y] * ranks if x.dim is None else torch.split(y, _sizes(y.shape[x.dim], ranks), x.dim)
        for x in batch[rank]
        for y in held[x]
    ]
    shapes = [[_shard(x, shape, rank, ranks) for x in xs for shape in x.shapes] for xs in batch]
    found = _exchange([[piece[i] for piece in pieces] for i in range(ranks)], shapes, group, empty, same)
    return {x: [next(ys) for _ in x.shapes] for xs, ys in zip(batch, map(iter, found)) for x in xs}


def _exchange(
    sent: list[list[Tensor]], shapes: list[list[torch.Size]], group: Any, empty: Tensor, same: bool = False
) -> list[list[Tensor]]:
    """Send tensors to each rank, or the same to all; those that came from each, which have these shapes."""
    sizes = [[shape.numel() for shape in each] for each in shapes]
    expected = list(map(sum, sizes))
    most = max(expected)
    if same:
        sent = [[*sent[0], empty.new_empty(most - expected[dist.get_rank(group)])]]  # as all have to be equally long
    message = torch.cat([empty, *(x.reshape(-1).to(empty.dtype) for xs in sent for x in xs)])
    if same:
        received = [empty.new_empty(most) for _ in expected]
        dist.all_gather(received, message, group=group)
    else:
        flat = empty.new_empty(sum(expected))
        dist.all_to_all_single(flat, message, expected, [sum(map(torch.numel, xs)) for xs in sent], group=group)
        received = list(torch.split(flat, expected))
    parts = [torch.split(x[:n], each) for x, n, each in zip(received, expected, sizes)]
    return [list(map(Tensor.view, xs, each)) for xs, each in zip(parts, shapes)]


def checked(group: Any) -> Any:
    """A process group, or None where there are no other ranks. Raises `TypeError` for anything else."""
    if not group:
        return None
    found = dist.group.WORLD if group is True else group
    if not isinstance(found, dist.ProcessGroup):
        raise TypeError(
            f"process_group={group!r}: pass a group of torch.distributed that this rank is in, or True for the default "
            "one, after init_process_group()."
        )
    return found if found.size() > 1 else None
