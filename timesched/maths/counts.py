"""Functions of counts: points on a counter, the spans between them, periods, and one function after another.

Each of them receives the tuple of counts that a schedule reads, and uses the count at its own `index`. There are three
kinds of counts, and a branch for each:

| count | computed |
|---|---|
| an int or a Fraction | exactly, and rounded once; an int, the count of a training loop, has the shortest way |
| an int64 tensor | in int64 as far as its numbers are whole, then in double precision |
| a float, or a float64 tensor | in double precision, by one formula for both |
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from timesched.maths import ops
from timesched.maths.ops import Value
from timesched.time.units import Exact, TimeUnit, exact_number
from timesched.time.value import Time

Counts = tuple[Any, ...]
Resolved = Callable[[Counts], Value]

_EXACT_TYPES = (int, Fraction)
_INT64_MAX = 2**63 - 1
_MAX_DENOMINATOR = 2**10  # the denominator of a period by which a count up to 2**53 is multiplied in int64


def _is_int64(count: Value) -> bool:
    return isinstance(count, Tensor) and not count.is_floating_point()


def nearest_float(count: Exact) -> float:
    """The float64 nearest to a count, but never a whole number below the count."""
    try:
        near = float(count)
    except OverflowError:
        return math.inf
    return math.nextafter(near, math.inf) if near < count and near.is_integer() else near


def split(count: Exact) -> tuple[int | float, float]:
    """A whole number and the rest, so that the whole number can be subtracted from an int64 count exactly."""
    whole = math.floor(count)
    return (whole if abs(whole) <= _INT64_MAX else nearest_float(whole)), float(count - whole)


def _subtract(count: Value, whole: int | float) -> Value:
    """`count - whole` in double precision. If both are int64, the difference is exact before it is rounded."""
    return ops.to_double(count - whole) if type(whole) is int else ops.to_double(count) - whole


class Mark:
    """A point on a counter, and whether a count has reached it."""

    __slots__ = ("count", "first", "index", "near", "unit")

    def __init__(self, index: int, unit: TimeUnit, count: Exact) -> None:
        self.index, self.unit, self.count = index, unit, exact_number(count)  # an int compares faster than a Fraction
        self.first = math.ceil(count)  # the first whole count that reaches it
        self.near = nearest_float(count)

    def at(self, count: Exact) -> Mark:
        """Another point on the same counter."""
        return Mark(self.index, self.unit, count)

    @property
    def time(self) -> Time:
        """The position of the mark, as a time of the run."""
        return Time._make(self.count, self.unit)

    def reached(self, counts: Counts) -> Any:
        """Whether the count is at the mark or after it: True, False, or a bool tensor."""
        count = counts[self.index]
        if isinstance(count, _EXACT_TYPES):
            return count >= self.count
        if _is_int64(count):
            return count >= min(self.first, _INT64_MAX)
        return count >= self.near


class Span:
    """A part of a counter between two counts: the fraction of it that is done, and the fraction left, both in [0, 1].

    In a span of length 0, the fraction done is `empty` at every count: 1.0, or 0.0 for a span that never begins.
    """

    __slots__ = ("_end", "_length", "_start", "_weights", "empty", "index")

    def __init__(self, index: int, start: Exact, length: Exact, empty: float = 1.0) -> None:
        self.index = index
        self.empty = empty
        # (count - start) / length as (a * count - b) / d in whole numbers: one rounding, the same for equal ratios
        a = Fraction(1) / length if length > 0 else Fraction(0)
        b = start * a
        d = math.lcm(a.denominator, b.denominator)
        self._weights = (int(a * d), int(b * d), d if length > 0 else 0)
        self._start = split(start)
        self._end = split(start + length)
        self._length = nearest_float(length)

    def done(self, counts: Counts, limit: bool = True) -> Value:
        """The fraction done. With `limit=False` it goes on past 1."""
        count = counts[self.index]
        a, b, d = self._weights
        if not d:
            return ops.to_double(count * 0) + self.empty
        if type(count) is int:  # the case of a training loop
            x = (a * count - b) / d
            if 0.0 <= x <= 1.0:
                return x
        elif isinstance(count, Fraction):
            x = float((a * count - b) / d)
        else:
            whole, fraction = self._start
            x = (_subtract(count, whole) - fraction if whole or fraction else ops.to_double(count)) / self._length
        return ops.clip(x) if limit else x

    def left(self, counts: Counts) -> Value:
        """The fraction left. It is as exact near the end as `done` is near the start."""
        count = counts[self.index]
        a, b, d = self._weights
        if not d:
            return 1.0 - self.done(counts)
        if isinstance(count, _EXACT_TYPES):
            return ops.clip(float((d + b - a * count) / d))
        whole, fraction = self._end
        return ops.clip((fraction - _subtract(count, whole)) / self._length)


class Period:
    """Equal periods of a counter, starting at 0: the number of complete ones, and the fraction of the current one."""

    __slots__ = ("_p", "_q", "_whole", "index")

    def __init__(self, index: int, length: Exact) -> None:
        self.index = index
        self._p, self._q = length.numerator, length.denominator
        # Whether an int64 count is divided in whole numbers.
        self._whole = self._q <= _MAX_DENOMINATOR and self._p <= _INT64_MAX

    def complete(self, counts: Counts) -> Any:
        """The number of complete periods: an int, or a float or tensor that holds a whole number."""
        count, p, q = counts[self.index], self._p, self._q
        if isinstance(count, _EXACT_TYPES):
            return count * q // p
        if self._whole and _is_int64(count):
            return torch.div(count * q, p, rounding_mode="floor")
        count = ops.to_double(count)
        n = ops.floor(count * q / p)  # may be one off: the quotients below are the periods' ends, rounded once
        n = ops.where(count >= (n + 1.0) * p / q, n + 1.0, n)
        return ops.where(count < n * p / q, n - 1.0, n)

    def done(self, counts: Counts) -> Value:
        """The fraction of the current period that is done, in [0, 1)."""
        count, p, q = counts[self.index], self._p, self._q
        if isinstance(count, _EXACT_TYPES):
            return float(count * q % p / p)
        if self._whole and _is_int64(count):
            return ops.to_double(torch.remainder(count * q, p)) / p
        return ops.clip((ops.to_double(count) * q - self.complete(counts) * p) / p)


class Points:
    """Sorted points of one counter, and the number of points that a count has reached."""

    __slots__ = ("_first_tensor", "_near_tensor", "_nears", "_points", "firsts")

    def __init__(self, points: Sequence[Exact]) -> None:
        self._points = points
        self.firsts = [math.ceil(point) for point in points]  # the first whole count that reaches each point
        self._nears = [nearest_float(point) for point in points]
        self._first_tensor = ops.constant([min(first, _INT64_MAX) for first in self.firsts], torch.int64)
        self._near_tensor = ops.constant(self._nears, torch.float64)

    def passed(self, count: Value) -> Any:
        """The number of points that a count has reached: an int, or an int64 tensor."""
        if type(count) is int:
            return bisect_right(self.firsts, count)
        if isinstance(count, Tensor):
            return ops.count_not_above(self._near_tensor if count.is_floating_point() else self._first_tensor, count)
        return bisect_right(self._points if isinstance(count, Fraction) else self._nears, count)


class Milestones:
    """Several points, on one or more counters, and the number of points that have been reached."""

    __slots__ = ("_points", "_total")

    def __init__(self, marks: list[Mark]) -> None:
        self._total = len(marks)
        counts_by_index: dict[int, list[Exact]] = {}
        for mark in sorted(marks, key=lambda mark: mark.count):
            counts_by_index.setdefault(mark.index, []).append(mark.count)
        self._points = [(index, Points(counts)) for index, counts in counts_by_index.items()]

    def __len__(self) -> int:
        return self._total

    def passed(self, counts: Counts) -> Any:
        """The number of points that have been reached: an int, or an int64 tensor."""
        total: Any = 0
        for index, points in self._points:
            total = total + points.passed(counts[index])
        return total


def stages(marks: list[Mark], functions: list[Resolved]) -> Resolved:
    """One function after another, each starting at its mark: of the marks that are reached, the last one counts.

    The marks of one counter must not decrease. If all marks are of one counter, the stage of a number is found by
    bisection. Otherwise, and for tensors, the marks are asked one after the other.
    """
    if marks and marks[0].count == 0:
        marks, functions = marks[1:], functions[1:]
    if not marks:
        return functions[0]

    def on_several_counters(counts: Counts) -> Value:
        are_reached = [mark.reached(counts) for mark in marks]
        if all(type(is_reached) is bool for is_reached in are_reached):
            last = max((i for i, is_reached in enumerate(are_reached, start=1) if is_reached), default=0)
            return functions[last](counts)
        result = functions[0](counts)
        for is_reached, function in zip(are_reached, functions[1:]):
            result = ops.where(is_reached, function(counts), result)
        return result

    index = marks[0].index
    if any(mark.index != index for mark in marks):
        return on_several_counters
    points = Points([mark.count for mark in marks])
    firsts, passed = points.firsts, points.passed

    def on_one_counter(counts: Counts) -> Value:
        count = counts[index]
        if type(count) is int:  # the case of a training loop
            return functions[bisect_right(firsts, count)](counts)
        return on_several_counters(counts) if isinstance(count, Tensor) else functions[passed(count)](counts)

    return on_one_counter


def elapsed_since(index: int, first: Exact) -> Callable[[Counts], Value]:
    """The distance of a count from an earlier count; 0 before that count."""
    whole, fraction = split(first)  # here, as no graph holds a Fraction

    def elapsed(counts: Counts) -> Value:
        count = counts[index]
        if isinstance(count, _EXACT_TYPES):
            return max(count - first, 0)
        if _is_int64(count) and type(whole) is int and not fraction:
            return torch.clamp(count - whole, min=0)
        rest = _subtract(count, whole) - fraction
        return torch.clamp(rest, min=0.0) if isinstance(rest, Tensor) else max(rest, 0.0)

    return elapsed
