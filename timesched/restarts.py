"""Cycles that each last `growth` times as long as the one before: where they start, without walking through them."""

from __future__ import annotations

import math
from bisect import bisect_right
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from timesched import ops
from timesched.ops import Value
from timesched.phases import Counts, nearest
from timesched.units import Exact

_BITS = 256  # of the fixed point in which starts and lengths are kept; a start errs by less than 2**-200, downwards
_ONE = 1 << _BITS
_SHORTEST = Fraction(1, 1 << 64)  # counts in the first cycle, so that the fixed point holds its length to 57 digits
_TABLE = 4096  # cycles whose starts are kept; with a growth of 1.02 or more they reach past any 64-bit count


class Cycles:
    """Growing or shrinking cycles of a counter: the fraction of the current one that is done, in [0, 1).

    The starts of the first 4096 cycles are exact, in a table that is searched. Past the table, where only a growth
    within 2 % of 1 gets, they come from the closed form of the geometric sum in float64, compared with the count.
    Shrinking cycles end at `limit`, the sum of them all.
    """

    __slots__ = ("_excess", "_log", "_nears", "_starts", "_steps", "_tables", "limit", "slot")

    def __init__(self, slot: int, length: Exact, growth: Fraction) -> None:
        if length < _SHORTEST:
            raise ValueError(f"The first cycle lasts {float(length):.3g} counts of this run: it has to be longer.")
        self.slot = slot
        self.limit = length / (1 - growth) if growth < 1 else None
        self._starts: list[int] = []
        self._steps: list[int] = []
        start, step = 0, (length.numerator << _BITS) // length.denominator
        while len(self._starts) < _TABLE and start >> _BITS < 2**63 and step:
            self._starts.append(start)
            self._steps.append(step)
            start += step
            step = step * growth.numerator // growth.denominator
        self._excess = float(growth - 1)
        self._log = math.log1p(self._excess) if self._is_cut else 0.0
        self._nears = [nearest(Fraction(start, _ONE)) for start in self._starts]
        self._tables = (
            torch.tensor([min(-(-start >> _BITS), 2**63 - 1) for start in self._starts]),
            torch.tensor(self._nears, dtype=torch.float64),
            torch.tensor([start >> _BITS for start in self._starts]),
            torch.tensor([start % _ONE / _ONE for start in self._starts], dtype=torch.float64),
            torch.tensor([step / _ONE for step in self._steps], dtype=torch.float64),
        )

    @property
    def _is_cut(self) -> bool:
        return len(self._starts) == _TABLE

    def done(self, counts: Counts) -> Value:
        """The fraction of the current cycle that is done, for counts below the limit."""
        count = counts[self.slot]
        x = self._in_tensor(count) if isinstance(count, Tensor) else self._in_number(count)
        return ops.clip(self._past_table(x) if self._is_cut else x)

    def _in_number(self, count: Any) -> float:
        exact = Fraction(count)
        scaled = (exact.numerator << _BITS) // exact.denominator
        i = (bisect_right(self._nears, count) if type(count) is float else bisect_right(self._starts, scaled)) - 1
        return (scaled - self._starts[i]) / self._steps[i]

    def _in_tensor(self, count: Tensor) -> Value:
        firsts, nears, whole, part, step = (table.to(count.device) for table in self._tables)
        i = torch.bucketize(count, nears if count.is_floating_point() else firsts, right=True) - 1
        return (ops.real(count - whole[i]) - part[i]) / step[i]

    def _past_table(self, x: Value) -> Value:
        """`x` counts lengths of the table's last cycle from its start: below 1 it is the fraction done already."""
        n = ops.floor(ops.log1p(x * self._excess) / self._log)
        n = ops.where(self._sum(n + 1.0) <= x, n + 1.0, n)
        n = ops.where(self._sum(n) > x, n - 1.0, n)
        later = (x - self._sum(n)) / (ops.expm1(n * self._log) + 1.0)
        return ops.where(x < 1.0, x, later)

    def _sum(self, n: Value) -> Value:
        return ops.expm1(n * self._log) / self._excess
