"""Positions on a counter: points, the spans between them, periods, and stages: one function after another.

Each of them receives the tuple of counts that a schedule reads, and uses the count at its own `index`. A count can be
an int or a Fraction, which is computed exactly and rounded once. It can also be a float or a tensor: one formula
computes both in double precision.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from timesched.maths import ops
from timesched.maths.ops import Value
from timesched.run.horizon import Horizon, Position
from timesched.time.units import Counter, Exact, TimeError, TimeUnit, exact_number, unit_of
from timesched.time.value import Time, TimeLike

Counts = tuple[Any, ...]
Resolved = Callable[[Counts], Value]

EXACT_TYPES = (int, Fraction)  # counts of these types are computed exactly
_INT64_MAX = 2**63 - 1
_MAX_DENOMINATOR = 2**10  # the denominator of a period by which a count up to 2**53 is multiplied in int64


class UnsuitableRun(ValueError):
    """A schedule does not fit this run, although all units convert: the schedule works on another run."""


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
        if isinstance(count, EXACT_TYPES):
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
        if isinstance(count, EXACT_TYPES):
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
        if isinstance(count, EXACT_TYPES):
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
        if isinstance(count, EXACT_TYPES):
            return float(count * q % p / p)
        if self._whole and _is_int64(count):
            return ops.to_double(torch.remainder(count * q, p)) / p
        return ops.clip((ops.to_double(count) * q - self.complete(counts) * p) / p)


def _is_int64(count: Value) -> bool:
    return isinstance(count, Tensor) and not count.is_floating_point()


class Points:
    """Sorted points of one counter, and the number of points that a count has reached."""

    __slots__ = ("_first_tensor", "_firsts", "_near_tensor", "_nears", "_points")

    def __init__(self, points: Sequence[Exact]) -> None:
        self._points = points
        self._firsts = [math.ceil(point) for point in points]  # the first whole count that reaches each point
        self._nears = [nearest_float(point) for point in points]
        self._first_tensor = ops.constant([min(first, _INT64_MAX) for first in self._firsts], torch.int64)
        self._near_tensor = ops.constant(self._nears, torch.float64)

    def passed(self, count: Value) -> Any:
        """The number of points that a count has reached: an int, or an int64 tensor."""
        if type(count) is int:
            return bisect_right(self._firsts, count)
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
    index = marks[0].index
    has_one_counter = all(mark.index == index for mark in marks)
    firsts, passed = [mark.first for mark in marks], Points([mark.count for mark in marks]).passed

    def value(counts: Counts) -> Value:
        count = counts[index]
        if has_one_counter and type(count) is int:  # the case of a training loop
            return functions[bisect_right(firsts, count)](counts)
        if has_one_counter and not isinstance(count, Tensor):
            return functions[passed(count)](counts)
        are_reached = [mark.reached(counts) for mark in marks]
        if all(type(is_reached) is bool for is_reached in are_reached):
            last = max((i for i, is_reached in enumerate(are_reached, start=1) if is_reached), default=0)
            return functions[last](counts)
        result = functions[0](counts)
        for is_reached, function in zip(are_reached, functions[1:]):
            result = ops.where(is_reached, function(counts), result)
        return result

    return value


@dataclass
class Usage:
    """What a schedule asked of its frames: the counters that it reads, and the named points of its phases."""

    counters: list[Counter] = field(default_factory=list)
    notes: list[tuple[str, Mark]] = field(default_factory=list)

    def index(self, counter: Counter) -> int:
        """The index of a counter's count in the tuple of counts; a new counter is added at the end."""
        if counter not in self.counters:
            self.counters.append(counter)
        return self.counters.index(counter)


@dataclass(frozen=True)
class Frame:
    """The positions of a schedule's times on one run, and the counters that the schedule reads to compare with them.

    `Schedule.resolve` receives a frame, and asks it for marks, spans and periods. `resolve` returns a function of the
    counts at a moment, and passes these counts to the marks, spans and periods.

    With `unit`, every time is converted to that unit, and its counter is the only one. Without `unit`, each time is
    read on its own counter. `section`: the schedule is a part of a sequence, so it need not reach the end of the run.
    `start`: the position on the run at which the counts of this frame begin; None for its start.
    `usage`: what the schedule asked of this frame, and of the frames that are made from it.

    >>> frame = Frame(Horizon("100ba"))
    >>> start, end = frame.mark("0.1dur"), frame.mark("50ba")
    >>> decay = frame.between(start, end)
    >>> counts = (20,)  # of batches: the only counter that the times above ask for
    >>> start.reached(counts), decay.done(counts), decay.left(counts)
    (True, 0.25, 0.75)
    """

    horizon: Horizon
    unit: TimeUnit | None = None
    section: bool = False
    start: Position | None = None
    usage: Usage = field(default_factory=Usage)

    def __post_init__(self) -> None:
        if self.unit is not None:
            self.usage.index(self.unit)

    def note(self, name: str, mark: Mark) -> None:
        """Keep a point under a name. `Schedule.marks` returns all of them."""
        if mark.count:
            self.usage.notes.append((name, mark))

    def mark(self, time: TimeLike, scale: bool = True, note: str = "") -> Mark:
        """The point on its counter at which a time of the schedule is reached. It is kept under the name `note`.

        `scale=False`: the scale-schedule ratio does not move the point. The end of a warmup is such a point.
        """
        count, counter = self.horizon.place(time, scale)
        if self.unit is not None:
            count, counter = self.change(count, unit_of(counter), self.unit), self.unit
        mark = Mark(self.usage.index(counter), unit_of(counter), count)
        if note:
            self.note(note, mark)
        return mark

    def run_mark(self, time: TimeLike) -> Mark:
        """The point at which a time of the run is reached, wherever on the run the schedule begins."""
        mark = self.mark(time)
        return mark.at(mark.count - self._start_in(mark.unit))

    def ordered_marks(self, milestones: Sequence[TimeLike], note: str) -> list[Mark]:
        """The points at which milestones are reached. Raises `TimeError` where the points of one counter decrease."""
        marks = [self.mark(milestone, note=note) for milestone in milestones]
        for before, mark in pairwise(marks):
            if before.index == mark.index and before.count > mark.count:
                raise TimeError(
                    f"milestones={list(map(str, milestones))}: on this run {before.time} comes after {mark.time}, "
                    f"which is listed after it. Put the milestones in order."
                )
        return marks

    def span(self, time: TimeLike, scale: bool = True, note: str = "") -> Span:
        """The span from 0 to a time of the schedule. Its end is kept under the name `note`.

        `scale=False`: the scale-schedule ratio does not stretch it.
        """
        end = self.mark(time, scale, note)
        return Span(end.index, 0, end.count)

    def between(self, start: Mark, end: Mark) -> Span:
        """The span from one mark to another, on the counter of the second. It never begins if its length is 0."""
        for argument in (start, end):
            if not isinstance(argument, Mark):
                raise TypeError(f"Frame.between: {argument!r} is a count. Pass marks: end.at(count) makes one.")
        first = self.change(start.count, start.unit, end.unit)
        return Span(end.index, first, end.count - first, empty=0.0)

    def change(self, count: Exact, old: TimeUnit, new: TimeUnit) -> Exact:
        """A position of the schedule, converted to another unit."""
        return self.horizon.change(count, old, new, self.start)

    def after(self, start: Mark, time: TimeLike) -> Exact:
        """The count at the end of a phase that begins at a mark and is as long as a time of the schedule."""
        first = self._start_in(start.unit)
        return exact_number(self.horizon.after(first + start.count, start.unit, time) - first)

    def before(self, end: Mark, time: TimeLike) -> Exact:
        """The count at the start of a phase that ends at a mark and is as long as a time of the schedule."""
        first = self._start_in(end.unit)
        return exact_number(self.horizon.before(first + end.count, end.unit, time) - first)

    def _start_in(self, unit: TimeUnit) -> Exact:
        """The position on the run at which the counts of this frame begin."""
        return 0 if self.start is None else self.horizon.change(*self.start, unit)

    def length(self, time: TimeLike, unit: TimeUnit) -> Exact:
        """The length of a time of the schedule in a unit, wherever it begins."""
        count, counter = self.horizon.place(time)
        if count and not self.horizon.conversion_factors.is_fixed(unit_of(counter), unit):
            raise UnsuitableRun(
                f"{time}: under a batch-size schedule, the length of this time in {unit.value!r} varies. Write the "
                f"times of this schedule in one unit."
            )
        return self.horizon.change(count, counter, unit)

    def value_at(self, mark: Mark, resolve: Callable[[Frame], Resolved]) -> float:
        """The value at a mark of the function that `resolve` makes for a frame like this one."""
        inner = replace(self, usage=Usage())
        function = resolve(inner)
        return float(function(tuple(self._counts_at(mark, inner.usage.counters))))

    def _counts_at(self, mark: Mark, counters: Sequence[Counter]) -> list[Exact]:
        """The counts of several counters at a mark."""
        return [exact_number(self.change(mark.count, mark.unit, unit_of(counter))) for counter in counters]

    def check_covers_run(self, t_max: TimeLike, schedule: object) -> None:
        """Raise `UnsuitableRun` if the run continues after the end of a schedule. In a sequence it may."""
        if not self.section and self.horizon.falls_short(t_max):
            raise UnsuitableRun(
                f"t_max {t_max} must be greater than or equal to max_duration {self.horizon.max_duration}: "
                f"{schedule!r} ends before the run. Pass t_max='1dur', or a longer time. To keep the last value to the "
                f"end of the run, pass SequenceScheduler([schedule], []) in its place."
            )

    def resolve_later(self, start: Mark, resolve: Callable[[Frame], Resolved]) -> Resolved:
        """The function that `resolve` makes for a frame that starts at a mark. Before the mark, its value at 0."""
        position = self._start_in(start.unit) + start.count, start.unit
        inner = replace(self, section=True, start=position, usage=Usage())
        function = resolve(inner)
        for name, mark in inner.usage.notes:
            self.note(name, mark.at(mark.count + self.change(start.count, start.unit, mark.unit)))
        counters = inner.usage.counters
        starts = self._counts_at(start, counters)
        elapsed_counts = [_elapsed(self.usage.index(counter), first) for counter, first in zip(counters, starts)]
        return lambda counts: function(tuple([elapsed(counts) for elapsed in elapsed_counts]))

    def period_end(self, time: TimeLike, note: str = "period") -> Mark:
        """The end of a period that begins at 0. A period of length 0, as on a run of length 0, gets length 1."""
        mark = self.mark(time)
        end = mark if mark.count else mark.at(1)
        self.note(note, end)
        return end

    def period(self, time: TimeLike) -> Period:
        """The periods whose length is a time of the schedule."""
        end = self.period_end(time)
        return Period(end.index, end.count)


def resolve_in_unit(unit: TimeUnit, horizon: Horizon, resolve: Callable[[Frame], Resolved]) -> Resolved:
    """The function that `resolve` makes for a frame, as a function of counts in one unit.

    Under a batch-size schedule each time stays on its own counter, so the value is the run's value at this position.
    """
    if horizon.conversion_factors.is_fixed(TimeUnit.BATCH, TimeUnit.SAMPLE):
        return resolve(Frame(horizon, unit))
    frame = Frame(horizon)
    function = resolve(frame)
    units = list(map(unit_of, frame.usage.counters))
    if units in ([], [unit]):
        return function
    for counter_unit in units:
        horizon.change(1, unit, counter_unit)  # raises where a conversion factor is missing

    def value(counts: Counts) -> Value:
        count = counts[0]
        if not isinstance(count, Tensor):
            count = exact_number(count)
            return function(tuple([exact_number(horizon.change(count, unit, counter_unit)) for counter_unit in units]))
        if torch.compiler.is_compiling() or count.requires_grad:
            raise TimeError(
                f"unit={unit.value!r}: under a batch-size schedule, these counts are converted on the host: not in a "
                f"graph, and not with a gradient. Pass numbers, or counts in the unit of the schedule's times."
            )
        values = [value((number,)) for number in count.flatten().tolist()]
        return torch.tensor(values, dtype=torch.float64, device=count.device).reshape(count.shape)

    return value


def _elapsed(index: int, first: Exact) -> Callable[[Counts], Value]:
    """The distance of a count from an earlier count; 0 before that count."""
    whole, fraction = split(first)  # here, as no graph holds a Fraction

    def elapsed(counts: Counts) -> Value:
        count = counts[index]
        if isinstance(count, EXACT_TYPES):
            return max(count - first, 0)
        if _is_int64(count) and type(whole) is int and not fraction:
            return torch.clamp(count - whole, min=0)
        rest = _subtract(count, whole) - fraction
        return torch.clamp(rest, min=0.0) if isinstance(rest, Tensor) else max(rest, 0.0)

    return elapsed


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
