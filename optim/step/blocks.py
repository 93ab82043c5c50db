"""Blocks of tensors that fit into a core's cache, for eager steps on the CPU.

An update written as operations on lists reads and writes all tensors once for each operation, and the time of a step is
the time of its memory traffic. On a block, only the first operation reads memory: the later ones find their operands in
the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..base.tensor_lists import Tensors
from .work import Work

BLOCK = 1 << 18  # elements: few enough for the caches, and enough for the calls on them to cost little
LIST = 1 << 26  # elements that are stepped in float32 together, elsewhere


def by_layout(work: Work) -> list[tuple[Work, bool]]:
    """The work in up to two parts: of contiguous tensors (True), and of others.

    Where an update goes by elements, the order of the dimensions does not matter: it is that in the parameter's memory.
    """
    columns = work.columns()
    if all(all(map(Tensor.is_contiguous, column)) for column in columns):
        return [(work, True)]
    if work.optimizer_class.elementwise:
        orders = [sorted(range(p.dim()), key=p.stride, reverse=True) for p in work.params]
        columns = [[x.permute(order) for x, order in zip(column, orders)] for column in columns]
        work = work.with_columns(columns)
        if work.low is not None:
            places = [x._replace(dims=[x.dims[d] for d in order]) for x, order in zip(work.low.places, orders)]
            work = work._replace(low=work.low._replace(places=places))
    good = [all(column[i].is_contiguous() for column in columns if column) for i in range(len(work.params))]
    parts = [(work.selected([i for i, x in enumerate(good) if x is kind]), kind) for kind in (True, False)]
    return [(part, kind) for part, kind in parts if part.params]


def blocks(columns: list[Tensors]) -> Iterator[tuple[list[int], Sequence[Tensors], int]]:
    """The contiguous tensors of the columns in blocks of about `BLOCK` elements: large ones split, small joined.

    Each with the indices of its tensors, and the place in them where it begins.
    """
    batch: list[int] = []
    filled = 0
    for i, first in enumerate(columns[0]):
        count = first.numel()
        if filled + count > BLOCK and filled:
            yield batch, [[column[j] for j in batch] if column else [] for column in columns], 0
            batch, filled = [], 0
        if count > BLOCK:
            split = [torch.split(column[i].view(-1), BLOCK) if column else () for column in columns]
            for j in range(len(split[0])):
                yield [i], [[parts[j]] if parts else [] for parts in split], j * BLOCK
        elif count:
            batch.append(i)
            filled += count
    if filled:
        yield batch, [[column[j] for j in batch] if column else [] for column in columns], 0


def limited(work: Work) -> list[Work]:
    """The work in parts whose copies in float32 are no larger than a block on the CPU, or a list elsewhere.

    But for single tensors that are larger.
    """
    if work.low is None:
        return [work]
    limit, parts, filled = (BLOCK if work.params[0].is_cpu else LIST), [[0]], work.params[0].numel()
    for i, p in enumerate(work.params[1:], 1):
        filled += p.numel()
        if filled > limit:
            parts.append([])
            filled = p.numel()
        parts[-1].append(i)
    return [work.selected(part) for part in parts] if len(parts) > 1 else [work]
