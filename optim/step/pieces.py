"""The pieces of a part, which are updated one after the other.

A piece is the whole part, or a block of it that fits into a core's cache, in eager steps on the CPU. An update written
as operations on lists reads and writes all tensors once for each operation, and the time of a step is the time of its
memory traffic. On a block, only the first operation reads memory: the later operations find their operands in the
cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ..base.scalar_states import STEP
from ..base.tensor_lists import Columns, Piece, select
from ..precision.widened import WidenedStep
from .work import Work

BLOCK = 1 << 18  # elements: few enough for the caches, and enough that the calls cost little


def pieces(work: Work, in_blocks: bool) -> Iterable[Any]:
    """The pieces of a work: each a `Piece`, or a `WidenedPiece` if the work is widened.

    Write each piece back before you ask for the next one.
    """
    parts = _blocks(work.columns) if in_blocks else [Piece(work.columns, range(len(work.columns["p"])))]
    if work.widening is None:
        return parts
    return map(WidenedStep(work.widening, work.columns, work.scalars.get(STEP, [])).read, parts)


def _blocks(columns: Columns) -> Iterator[Piece]:
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
