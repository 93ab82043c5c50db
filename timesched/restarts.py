"""Cycles that each last `growth` times as long as the one before: where they start, without walking through them."""

from __future__ import annotations

import math
from bisect import bisect_right
from fractions import Fraction

import torch
from torch import Tensor

from timesched import ops
from timesched.ops import Value
from timesched.phases import Counts, Frame, Mark, Resolved, nearest, switch
from timesched.timevalue import TimeLike
from timesched.units import Exact

_BITS = 256  # of the fixed point in which starts and lengths are kept; a start errs by less than 2**-200, downwards
_ONE = 1 << _BITS
_SHORTEST = Fraction(1, 1 << 64)  # counts in the first cycle, so that the fixed point holds its length to 57 digits
_TABLE = 4096  # cycles whose starts are kept; with a growth of 1.02 or more they reach past any 64-bit count


def restarting(frame: Frame, first: TimeLike, growth: float) -> Resolved:
    """The fraction done of the current cycle, where the first lasts until `first` and each next one `growth` times as
    long; 1 from the time on towards which shrinking cycles tend.
    """
    if growth == 1:
        return frame.period(first).done
    mark = frame.mark(first)
    cycles = Cycles(mark.slot, mark.count, Fraction(str(growth)))
    if cycles.limit is None:
        return cycles.done
    return switch(Mark(mark.slot, mark.unit, cycles.limit), cycles.done, lambda counts: 1.0)


class Cycles:
    """Growing or shrinking cycles of a counter: the fraction of the current one that is done, in [0, 1).

    The starts of the first 4096 cycles are in a table that is searched. Past the table, where only a growth within 2 %
    of 1 gets, they come from the closed form of the geometric sum: exactly for an int or a Fraction, and for floats and
    tensors in float64, to 1e-5 of the value. Shrinking cycles end at `limit`, the sum of them all.
    """

    __slots__ = ("_excess", "_growth", "_log", "_nears", "_starts", "_steps", "_tables", "_whole", "limit", "slot")

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
        whole = length.denominator == growth.denominator == 1
        self._whole = [start >> _BITS for start in self._starts] if whole else []
        self._growth = growth
        self._excess = float(growth - 1)
        self._log = math.log(growth) if self._excess < -0.5 else math.log1p(self._excess)
        self._nears = [nearest(Fraction(start, _ONE)) for start in self._starts]
        with torch.device("cpu"):
            self._tables = (
                torch.tensor([min(-(-start >> _BITS), 2**63 - 1) for start in self._starts]),
                torch.tensor(self._nears, dtype=torch.float64),
                torch.tensor([start >> _BITS for start in self._starts]),
                torch.tensor([start % _ONE / _ONE for start in self._starts], dtype=torch.float64),
                torch.tensor([step / _ONE for step in self._steps], dtype=torch.float64),
            )

    def done(self, counts: Counts) -> Value:
        """The fraction of the current cycle that is done, for counts below the limit."""
        count = counts[self.slot]
        if type(count) is int and self._whole and count < self._whole[-1]:
            k = bisect_right(self._whole, count) - 1
            return (count - self._whole[k]) / (self._whole[k + 1] - self._whole[k])
        if type(count) is int or isinstance(count, Fraction):
            return ops.clip(self._exactly((count.numerator << _BITS) // count.denominator))
        if isinstance(count, Tensor):
            firsts, nears, whole, part, step = self._tables
            i = ops.how_many(nears if count.is_floating_point() else firsts, count) - 1
            x = (ops.real(count - ops.pick(whole, i)) - ops.pick(part, i)) / ops.pick(step, i)
        else:
            k = bisect_right(self._nears, count) - 1
            x = (count - (self._starts[k] >> _BITS) - self._starts[k] % _ONE / _ONE) / (self._steps[k] / _ONE)
        return ops.clip(self._past_table(x) if len(self._starts) == _TABLE else x)

    def _exactly(self, scaled: int) -> float:
        i = bisect_right(self._starts, scaled) - 1
        left, step = scaled - self._starts[i], self._steps[i]
        if left >= step:  # past the table: from its last cycle on, by the same closed form, in whole numbers
            over = Fraction(left, step) * (self._growth - 1)  # growth ** n, the length of the cycle, less 1
            near = math.log1p(over) if over > -0.5 else math.log(max(1 + over, Fraction(1, 1 << 2 * _BITS)))
            n = max(0, math.floor(near / self._log))
            first, end = self._sum_exactly(n, step), self._sum_exactly(n + 1, step)
            while first > left:
                n, first, end = n - 1, self._sum_exactly(n - 1, step), first
            while first < end <= left:
                n, first, end = n + 1, end, self._sum_exactly(n + 2, step)
            left, step = left - first, max(end - first, 1)
        return left / step

    def _sum_exactly(self, n: int, step: int) -> int:
        """The length of `n` cycles of which the first lasts `step`, by squaring: to 2**-400 of it."""
        power, base, left = 1 << 2 * _BITS, (self._growth.numerator << 2 * _BITS) // self._growth.denominator, n
        while left:
            if left & 1:
                power = power * base >> 2 * _BITS
            base = base * base >> 2 * _BITS
            left >>= 1
        over = self._growth - 1
        return step * (power - (1 << 2 * _BITS)) * over.denominator // over.numerator >> 2 * _BITS

    def _past_table(self, x: Value) -> Value:
        """`x` counts lengths of the table's last cycle from its start: below 1 it is the fraction done already."""
        over = ops.between(x * self._excess, -1.0 + 2.0**-53, math.inf)  # at the limit the logarithm ends
        n = ops.floor(ops.log1p(over) / self._log)
        n = ops.where(self._sum(n + 1.0) <= x, n + 1.0, n)
        n = ops.where(self._sum(n) > x, n - 1.0, n)
        later = (x - self._sum(n)) / ops.exp(n * self._log)
        return ops.where(x < 1.0, x, later)

    def _sum(self, n: Value) -> Value:
        return ops.expm1(n * self._log) / self._excess
