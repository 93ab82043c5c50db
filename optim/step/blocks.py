"""Parts of a work that are stepped one after the other.

In eager steps on the CPU, the parts are blocks that fit into a core's cache. Elsewhere, they are lists whose copies in
float32 take limited memory. An update written as operations on lists reads and writes all tensors once for each
operation, and the time of a step is the time of its memory traffic. On a block, only the first operation reads memory:
the later operations find their operands in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..base.tensor_lists import Columns, Piece, select
from .work import Work

BLOCK = 1 << 18  # elements: few enough for the caches, and enough that the calls cost little
LIST = 1 << 26  # elements that are stepped together in float32, on other devices


def needs_blocks(work: Work) -> bool:
    """Whether contiguous tensors are stepped in blocks: on the CPU, if they are copied to float32 or fill several."""
    p = work.columns["p"]
    is_large = work.widening is not None or sum(map(Tensor.numel, p)) > BLOCK
    return is_large and work.algorithm.elementwise and p[0].is_cpu


def blocks(columns: Columns) -> Iterator[Piece]:
    """The contiguous tensors of the columns in blocks of at most `BLOCK` elements: large ones split, small joined."""
    joined: list[int] = []
    filled = 0
    for i, p in enumerate(columns["p"]):
        size = p.numel()
        if filled + size > BLOCK and filled:
            yield _whole_tensors(columns, joined)
            joined, filled = [], 0
        if size > BLOCK:
            parts = {name: torch.split(xs[i].view(-1), BLOCK) for name, xs in columns.items()}
            for j, start in enumerate(range(0, size, BLOCK)):
                yield Piece({name: [xs[j]] for name, xs in parts.items()}, [i], start)
        elif size:
            joined.append(i)
            filled += size
    if filled:
        yield _whole_tensors(columns, joined)


def _whole_tensors(columns: Columns, indices: list[int]) -> Piece:
    return Piece({name: select(xs, indices) for name, xs in columns.items()}, indices)


def split_work(work: Work) -> list[Work]:
    """The work in parts whose copies in float32 have at most `BLOCK` elements on the CPU, or `LIST` elsewhere.

    A larger tensor is a part by itself.
    """
    if work.widening is None:
        return [work]
    params = work.columns["p"]
    limit = BLOCK if params[0].is_cpu else LIST
    parts: list[list[int]] = [[]]
    filled = 0
    for i, p in enumerate(params):
        if parts[-1] and filled + p.numel() > limit:
            parts.append([])
            filled = 0
        parts[-1].append(i)
        filled += p.numel()
    return [work.select(part) for part in parts] if len(parts) > 1 else [work]
