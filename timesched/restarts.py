"""Cycles that each last `growth` times as long as the one before: where they start, without walking through them."""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction

import torch
from torch import Tensor

from timesched import ops
from timesched.ops import Value
from timesched.positions import Counts, Frame, Mark, Resolved, nearest, switch
from timesched.time.units import Exact, TimeError
from timesched.time.value import TimeLike

_BITS = 256  # of the fixed point in which starts and lengths are kept; a start errs by less than 2**-200, downwards
_ONE = 1 << _BITS
_SHORTEST = Fraction(1, 1 << 64)  # counts in the first cycle, so that the fixed point holds its length to 57 digits
_TABLE = 4096  # cycles whose starts are kept; with a growth of 1.02 or more they reach past any 64-bit count


def restarting(frame: Frame, first: TimeLike, growth: float, name: str = "t_mult") -> Resolved:
    """The fraction done of the current cycle, where the first lasts until `first` and each next one `growth` times as
    long; 1 from the time on towards which shrinking cycles tend.

    Raises `ValueError`, which calls the growth `name`, where the run may go on after the last cycle of the table: only
    a growth near 1 has so many.
    """
    if growth == 1:
        return frame.period(first).done
    mark = frame.mark(first, note="period")
    cycles = Cycles(mark.counter, mark.count, Fraction(str(growth)))
    if not cycles.complete:
        _check_reach(frame, mark, cycles.end, f"{name}={growth}")
    if cycles.limit is None:
        return cycles.done
    last = Mark(mark.counter, mark.unit, cycles.limit)
    frame.note("end", last)
    return switch(last, cycles.done, lambda counts: 1.0)


def _check_reach(frame: Frame, mark: Mark, end: Fraction, growth: str) -> None:
    try:
        count, unit = frame.horizon.locate("1dur", scale=False)
        run = frame.horizon.change(count, unit, mark.unit)
        if run < end:
            return
        length = f"lasts {float(run):.6g}{mark.unit.value}"
    except ValueError:  # not known, or not in this unit
        length = "has no length known in that unit"
    raise TimeError(
        f"{growth} is too near to 1 for this run: at most {_TABLE} cycles are computed, which end at "
        f"{float(end):.6g}{mark.unit.value}, and the run {length}. Use 1 for equal cycles, a factor further from 1, a "
        f"longer first cycle, or a shorter run, whose max_duration is known."
    )


class Cycles:
    """Growing or shrinking cycles of a counter: the fraction of the current one that is done, from 0 to 1.

    The starts are in a table of at most 4096 cycles that is searched. It is `complete` where no 64-bit count is past
    its `end`, or where the cycles after it are shorter than 2**-256 counts; past it, the fraction is 1. Shrinking
    cycles end at `limit`, the sum of them all.
    """

    __slots__ = ("_fractions", "_nears", "_starts", "_steps", "_tables", "complete", "counter", "end", "limit")

    def __init__(self, counter: int, length: Exact, growth: Fraction) -> None:
        if length < _SHORTEST:
            raise ValueError(f"The first cycle lasts {float(length):.3g} counts of this run: it has to be longer.")
        self.counter = counter
        self.limit = length / (1 - growth) if growth < 1 else None
        self._starts: list[int] = []
        self._steps: list[int] = []
        start, step = 0, (length.numerator << _BITS) // length.denominator
        while len(self._starts) < _TABLE and start >> _BITS < 2**63 and step:
            self._starts.append(start)
            self._steps.append(step)
            start += step
            step = step * growth.numerator // growth.denominator
        self.complete = start >> _BITS >= 2**63 or not step
        self.end = Fraction(start, _ONE)
        self._nears = [nearest(Fraction(start, _ONE)) for start in self._starts]
        self._fractions = [_two_floats(start % _ONE) for start in self._starts]
        self._tables = (
            ops.table([min(-(-start >> _BITS), 2**63 - 1) for start in self._starts], torch.int64),
            ops.table(self._nears, torch.float64),
            ops.table([start >> _BITS for start in self._starts], torch.int64),
            ops.table([high for high, _ in self._fractions], torch.float64),
            ops.table([low for _, low in self._fractions], torch.float64),
            ops.table([step / _ONE for step in self._steps], torch.float64),
        )

    def done(self, counts: Counts) -> Value:
        """The fraction of the current cycle that is done, for counts below the limit."""
        count = counts[self.counter]
        if type(count) is int or isinstance(count, Fraction):
            scaled = (count.numerator << _BITS) // count.denominator
            k = bisect_right(self._starts, scaled) - 1
            left, step = scaled - self._starts[k], self._steps[k]
            return left / step if left < step else 1.0
        if isinstance(count, Tensor):
            firsts, nears, *tables = self._tables
            i = ops.how_many(nears if count.is_floating_point() else firsts, count) - 1
            whole, high, low, length = (ops.pick(table, i) for table in tables)
            return ops.clip((ops.real(count - whole) - high - low) / length)
        k = bisect_right(self._nears, count) - 1
        first, second = self._fractions[k]
        return ops.clip((count - (self._starts[k] >> _BITS) - first - second) / (self._steps[k] / _ONE))


def _two_floats(fraction: int) -> tuple[float, float]:
    """The fractional digits of a start, as two floats: one is not exact enough for cycles much shorter than a count."""
    high = fraction / _ONE
    return high, (fraction - int(Fraction(high) * _ONE)) / _ONE
