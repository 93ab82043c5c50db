"""The schedule that goes through points. Each point is reached by a shape of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from timesched.maths import Frame, UnsuitableRun, shapes
from timesched.maths.counts import Resolved
from timesched.rules import Choice, NonNegativeTime, Number
from timesched.schedulers.schedule import Schedule
from timesched.time.units import TimeError
from timesched.time.value import Time

__all__ = ["PiecewiseScheduler"]

_RULES = (NonNegativeTime(), Number(), Choice(tuple(shapes.DECAYS)))  # of a point's time, value and shape
Point = tuple[Time, float, str]


def _read_points(name: str, value: Any) -> tuple[Point, ...]:
    points: list[Point] = []
    for i, point in enumerate(value if _is_list(value) else ()):
        parts = tuple(point) if _is_list(point) else ()
        if len(parts) not in (2, 3):
            raise TimeError(f"{name}[{i}]={point!r}: this is not a point. Pass [time, value] or [time, value, shape].")
        items = zip(_RULES, (*parts, "linear"))
        points.append(tuple(rule.read(f"{name}[{i}][{j}]", part) for j, (rule, part) in enumerate(items)))
    if not points:
        raise TimeError(f"{name}={value!r}: there are no points. Pass a list such as [['0ba', 0.0], ['10ba', 1.0]].")
    for (earlier, start, _), (later, end, shape) in pairwise(points):
        shapes.check_decay(f"{name} at {later}", shape, start, end)
        if earlier.unit is later.unit and earlier.exact > later.exact:
            raise TimeError(f"{name}={value!r}: {earlier} is listed before {later}. Put the points in order.")
    return tuple(points)


def _is_list(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes))


@dataclass(frozen=True, eq=False, repr=False)
class PiecewiseScheduler(Schedule):
    """Through points in time. The first value holds before the first point, and the last value after the last point.

    Formula:
        x = (t - t0) / (t1 - t0)
        y = (
            a + (b - a) * x if shape == "linear"
            else b + (a - b) * (1 + cos(pi * x)) / 2 if shape == "cosine"
            else b + (a - b) * (1 - x ** 0.5) if shape == "1-sqrt"
            else b + (a - b) * (1 - x ** 2) if shape == "1-square"
            else b + (a - b) * (0.5 ** x - 0.5) / 0.5 if shape == "exponential"
            else a ** (1 - x) * b ** x if shape == "geometric"
            else 1 / (x / b + (1 - x) / a) if shape == "harmonic"
            else None
        )

    `t` is the time since the start of the run, between the points (`t0`, `a`) and (`t1`, `b`). `x` is the fraction of
    the way that is done, `shape` the shape of the second point, and `y` the multiplier.

    Args:
        points: a list of `[time, value]` or `[time, value, shape]`, in the order of their times, in any units. If
            several points have the same time, the last one holds. A shape is the way to a point: "linear" (the
            default), "cosine", "1-sqrt", "1-square", "exponential", "geometric" or "harmonic"; the last two need values
            above 0 at both ends. The shape of the first point has no effect.

    Raises:
        ValueError: a point is not such a list, or its time or value is outside its range. A call raises it if the
            points are not in order on this run, or if their times do not convert to each other.

    >>> from timesched import Horizon
    >>> schedule = PiecewiseScheduler(
    ...     [["0ba", 0.0], ["10ba", 1.0], ["0.8dur", 1.0], ["1dur", 0.25, "geometric"]]
    ... )
    >>> [schedule.at(t, Horizon("100ba")) for t in ("5ba", "50ba", "90ba", "100ba")]
    [0.5, 1.0, 0.5, 0.25]

    Source: arXiv:2503.02844, whose "infinite" learning rates go through such points.
    """

    points: Sequence[Sequence[Any]] = field(metadata={"read": _read_points})

    def resolve(self, frame: Frame) -> Resolved:
        marks = [frame.mark(when, note="point") for when, _, _ in self.points]
        for before, mark in pairwise(marks):
            if frame.change(before.count, before.unit, mark.unit) > mark.count:
                raise UnsuitableRun(
                    f"{self!r}: on this run {before.time} comes after {mark.time}, which is listed after it. Put the "
                    f"points in order."
                )
        points = zip(marks, self.points)
        return shapes.piecewise(frame, [(mark, value, shapes.decay_shape(shape)) for mark, (_, value, shape) in points])
