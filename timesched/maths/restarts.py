"""Cycles of which each lasts `growth` times as long as the previous one. Their starts are in a table."""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction

import torch
from torch import Tensor

from timesched.maths import ops
from timesched.maths.counts import Counts, Points, Resolved, Span, nearest_float, split
from timesched.maths.ops import Value
from timesched.maths.positions import Frame
from timesched.time.units import Exact, TimeError, exact_number
from timesched.time.value import TimeLike

MIN_GROWTH = Fraction("1.1")  # the starts up to 2**63 then make a table of a few hundred entries


def check_growth(name: str, growth: float) -> None:
    """Raise `TimeError`, which begins with `name`, for a growth that is neither 1 nor at least 1.1."""
    if growth != 1 and exact_number(growth) < MIN_GROWTH:
        raise TimeError(f"{name}={growth}: this growth is too small. Pass 1 for equal cycles, or at least 1.1.")


def cycle_progress(frame: Frame, first: TimeLike, growth: float) -> Resolved:
    """The fraction of the current cycle that is done. The first cycle lasts until `first`, and each later one `growth`
    times as long as the previous one.
    """
    if growth == 1:
        return frame.period(first).done
    end = frame.period_end(first)
    return Cycles(end.index, end.count, Fraction(exact_number(growth))).done


class Cycles:
    """Growing cycles of a counter: the fraction of the current cycle that is done, from 0 to 1.

    The starts up to 2**63 are in a table, which is searched.
    """

    __slots__ = ("_spans", "_starts", "_tables", "index")

    def __init__(self, index: int, length: Exact, growth: Fraction) -> None:
        self.index = index
        starts: list[Fraction] = []
        lengths: list[Fraction] = []
        start, length = Fraction(0), Fraction(length)
        while start < 2**63:
            starts.append(start)
            lengths.append(length)
            start, length = start + length, length * growth
        self._starts = Points(starts)
        self._spans = [Span(index, start, length) for start, length in zip(starts, lengths)]
        whole_starts, rests = zip(*map(split, starts))
        self._tables = (
            ops.constant([int(whole) for whole in whole_starts], torch.int64),
            ops.constant(rests, torch.float64),
            ops.constant(list(map(nearest_float, lengths)), torch.float64),
        )

    def done(self, counts: Counts) -> Value:
        """The fraction of the current cycle that is done."""
        count = counts[self.index]
        if type(count) is int:  # the case of a training loop
            return self._spans[bisect_right(self._starts.firsts, count) - 1].done(counts)
        i = self._starts.passed(count) - 1
        if not isinstance(count, Tensor):
            return self._spans[i].done(counts)
        whole, rest, length = [ops.pick(table, i) for table in self._tables]
        return ops.clip((ops.to_double(count - whole) - rest) / length)
