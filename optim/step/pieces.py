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
from torch import Tensor

from ..base.scalar_states import STEP
from ..base.tensor_lists import Columns, Piece, indices_by_size, select
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
    sizes = list(map(Tensor.numel, columns["p"]))
    for indices in indices_by_size(sizes, BLOCK):
        size = sizes[indices[0]]
        if size > BLOCK:  # then this tensor is in a list by itself
            parts = {name: torch.split(xs[indices[0]].view(-1), BLOCK) for name, xs in columns.items()}
            for j, start in enumerate(range(0, size, BLOCK)):
                yield Piece({name: [xs[j]] for name, xs in parts.items()}, indices, start)
        else:
            yield Piece({name: select(xs, indices) for name, xs in columns.items()}, indices)
