"""The shapes of schedules: a curve of `curves.py` over a phase of a run, as a function of the counts of the run.

Each shape is defined once, with any values at its ends. In a schedule of multipliers, one of the values is 1; in a
scheduler of learning rates, both are learning rates. `done` and `left` are fractions of a phase, as a `Span` or a
`Period` computes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import torch
from torch import Tensor

from timesched.maths import curves, ops
from timesched.maths.counts import Counts, Mark, Milestones, Period, Resolved, Span, stages
from timesched.maths.ops import Value
from timesched.maths.positions import Frame
from timesched.time.units import Exact, TimeError
from timesched.time.value import TimeLike

Shape = Callable[[Span, float, float], Resolved]  # over a span, from one value to another
Levels = tuple[float, float, float]  # the values at the start, at the top and at the end
Point = tuple[Mark, float, Shape | None]  # the mark, its value, and the shape of the way to it


def linear(done: Resolved, start: float, end: float) -> Resolved:
    """A straight line from `start` to `end`."""
    return _apply_curve(curves.mix, done, start, end)


def cosine(done: Resolved, start: float, end: float) -> Resolved:
    """The falling half of a cosine, from `start` to `end`."""
    return _apply_curve(curves.cosine, done, start, end)


def polynomial(left: Resolved, power: float, start: float, end: float) -> Resolved:
    """From `start` to `end` along a power of the fraction that is left."""
    return _apply_curve_with(power, curves.polynomial, left, start, end)


def exponential(span: Span, gamma: float, start: float = 1.0) -> Resolved:
    """`start * gamma ** x`, where `x` is the fraction of the span that is done. `x` may be above 1."""
    curve, done = curves.decay, span.done
    return lambda counts: start * curve(done(counts, False), gamma)


def steps(period: Period, gamma: float, start: float = 1.0) -> Resolved:
    """`start`, multiplied by `gamma` for each complete period."""
    curve, complete = curves.decay, period.complete
    return lambda counts: start * curve(complete(counts), gamma)


def milestones(points: Milestones, gamma: float, start: float = 1.0) -> Resolved:
    """`start`, multiplied by `gamma` for each point that has been reached."""
    curve, passed = curves.decay, points.passed
    values = [start * curve(n, gamma) for n in range(len(points) + 1)]

    def value(counts: Counts) -> Value:
        n = passed(counts)
        return start * curve(n, gamma) if isinstance(n, Tensor) else values[n]

    return value


def levels(points: Milestones, values: Sequence[float]) -> Resolved:
    """The first value until the first point, and each later value starting at its point."""
    passed, constants = points.passed, ops.constant(values, torch.float64)

    def value(counts: Counts) -> Value:
        n = passed(counts)
        return ops.pick(constants, n) if isinstance(n, Tensor) else values[n]

    return value


def triangles(cycles: Period, peak: float, base: float, top: float, scale: Resolved, shrinks: bool = True) -> Resolved:
    """Straight lines from `base` up to `top` and down again, with the height multiplied by `scale`.

    With `shrinks`, the scale is at most 1. `peak` is the fraction of a cycle at which the line is highest.
    """
    curve, done, mix = curves.triangle, cycles.done, curves.mix

    def value(counts: Counts) -> Value:
        height, factor = curve(done(counts), peak), scale(counts)
        return mix(ops.clip(height * factor), base, top) if shrinks else curves.scaled_height(height, factor, base, top)

    return value


def _apply_curve(curve: Callable[[Value, float, float], Value], done: Resolved, start: float, end: float) -> Resolved:
    return lambda counts: curve(done(counts), start, end)


def _apply_curve_with(constant: float, curve: Callable[..., Value], x: Resolved, start: float, end: float) -> Resolved:
    return lambda counts: curve(x(counts), constant, start, end)  # not `*constants`, which would be slower


# The root is taken of the fraction that is near 0 where the curve is steep, since it is exact there. In a decay, this
# is the fraction done; in a warmup, the fraction left.
WARMUPS: Mapping[str, Shape] = {
    "linear": lambda span, start, end: linear(span.done, start, end),
    "cosine": lambda span, start, end: cosine(span.done, start, end),
    "1-sqrt": lambda span, start, end: polynomial(span.left, 0.5, start, end),
    "square": lambda span, start, end: polynomial(span.done, 2.0, end, start),
}
DECAYS: Mapping[str, Callable[[Span, float, float, float], Resolved]] = {
    "linear": lambda span, start, end, rate: linear(span.done, start, end),
    "cosine": lambda span, start, end, rate: cosine(span.done, start, end),
    "1-sqrt": lambda span, start, end, rate: polynomial(span.done, 0.5, end, start),
    "1-square": lambda span, start, end, rate: polynomial(span.done, 2.0, end, start),
    "exponential": lambda span, start, end, rate: _apply_curve_with(rate, curves.exponential, span.done, start, end),
    "geometric": lambda span, start, end, rate: _apply_curve(curves.geometric, span.done, start, end),
    "harmonic": lambda span, start, end, rate: _apply_curve(curves.harmonic, span.done, start, end),
}


def decay_shape(name: str, rate: float = 0.5) -> Shape:
    """A shape of `DECAYS`. `rate` is the base of the exponential shape."""
    shape = DECAYS[name]
    return lambda span, start, end: shape(span, start, end, rate)


def check_decay(label: str, name: str, start: float, end: float) -> None:
    """Raise `TimeError`, which begins with `label`, if a shape of `DECAYS` does not exist between two values."""
    if name in ("geometric", "harmonic") and not (start > 0 and end > 0 and math.isfinite(start / end)):
        raise TimeError(
            f"{label}: there is no {name} decay from {start} to {end}. Pass values above 0, such as 0.01, or another "
            f"shape, such as 'exponential'."
        )


def piecewise(frame: Frame, points: Sequence[Point]) -> Resolved:
    """From each point to the next by its shape; with the shape None, the value is held until the next point.

    Before the first point it is the first value, and after the last point the last value. At a point it is the value of
    the point.
    """
    (first, start, _), *others = points
    marks, functions, before, value = [first], [_constant(start)], first, start
    for mark, to, shape in others:
        functions.append(_constant(value) if shape is None else shape(frame.between(before, mark), value, to))
        marks.append(mark)
        before, value = mark, to
    functions.append(_constant(value))
    return stages(marks, functions)


def with_ramp(rest: Resolved, end: Mark, start: float, peak: float, shape: Shape = WARMUPS["linear"]) -> Resolved:
    """A ramp from `start` at 0 to `peak` at the mark `end`, then the function `rest`."""
    return stages([end], [shape(Span(end.index, 0, end.count), start, peak), rest])


def first_cycle(frame: Frame, up: TimeLike, down: TimeLike | None) -> tuple[Mark, float]:
    """The end of the first of equal cycles that go up and down, and the fraction of a cycle that goes up.

    `down=None` means as long as `up`.
    """
    peak = frame.period_end(up, note="peak")
    length = peak.count + (peak.count if down is None else frame.length(down, peak.unit))
    end = peak.at(length)
    frame.note("period", end)
    return end, min(float(peak.count / Fraction(length)), math.nextafter(1.0, 0.0))  # the way down is not empty


def one_cycle(frame: Frame, peak: Exact, end: Mark, levels: Levels, shape: Shape, three_phase: bool) -> Resolved:
    """From the first of three levels up to the second at the count `peak`, and down to the third at `end`.

    With three phases, the value falls to the first level as fast as it rose, and then to the third level.
    """
    start, top, last = levels
    rise = end.at(peak)
    frame.note("peak", rise)
    points: list[Point] = [(end.at(0), start, None), (rise, top, shape)]
    if three_phase:
        points.append((end.at(2 * peak), start, shape))
    return piecewise(frame, [*points, (end, last, shape)])


def warmup_stable_decay(
    frame: Frame, warm: Mark, begin: Exact, end: Mark, levels: Levels, warmup: str, decay: str, rate: float
) -> Resolved:
    """From the first of three levels up to the second, where the warmup ends, and down to the third at `end`.

    `warmup` and `decay` are names of `WARMUPS` and `DECAYS`. The decay starts at the count `begin`.
    """
    start, peak, last = levels
    fall = end.at(begin)
    frame.note("decay", fall)
    rise: list[Point] = [(warm.at(0), start, None), (warm, peak, WARMUPS[warmup])] if warm.count else []
    return piecewise(frame, [*rise, (fall, peak, None), (end, last, decay_shape(decay, rate))])


def _constant(value: float) -> Resolved:
    return lambda counts: value
