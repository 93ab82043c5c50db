"""The shapes of schedules: a curve of `curves.py` over a part of a run, as a function of the counts of the run.

Each stands here once, with any values at its ends. A schedule of multipliers has 1 for one of them; a scheduler of
learning rates has the rates. `done` and `left` are fractions of a phase, as a `Span` or a `Period` computes them.
"""

from __future__ import annotations

from torch import Tensor

from timesched import curves
from timesched.ops import Value
from timesched.positions import Counts, Milestones, Period, Resolved, Span


def linear(done: Resolved, start: float, end: float) -> Resolved:
    """A straight line from `start` to `end`."""
    curve = curves.linear
    return lambda counts: curve(done(counts), start, end)


def cosine(done: Resolved, start: float, end: float) -> Resolved:
    """The falling half of a cosine, from `start` to `end`."""
    curve = curves.cosine
    return lambda counts: curve(done(counts), start, end)


def polynomial(left: Resolved, power: float, start: float, end: float) -> Resolved:
    """From `start` to `end` along a power of what is left."""
    curve = curves.polynomial
    return lambda counts: curve(left(counts), power, start, end)


def exponential(span: Span, gamma: float, start: float = 1.0) -> Resolved:
    """`start * gamma ** x` where `x` is the fraction of the span that is done, also past 1."""
    curve, done = curves.decay, span.done
    return lambda counts: start * curve(done(counts, False), gamma)


def steps(period: Period, gamma: float, start: float = 1.0) -> Resolved:
    """`start`, times `gamma` for each complete period."""
    curve, complete = curves.decay, period.complete
    return lambda counts: start * curve(complete(counts), gamma)


def milestones(points: Milestones, gamma: float, start: float = 1.0) -> Resolved:
    """`start`, times `gamma` for each point that has been reached."""
    curve, passed = curves.decay, points.passed
    table = [start * curve(n, gamma) for n in range(len(points) + 1)]

    def value(counts: Counts) -> Value:
        n = passed(counts)
        return start * curve(n, gamma) if isinstance(n, Tensor) else table[n]

    return value
