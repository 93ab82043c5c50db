"""Every curve maps a dimensionless number to a value. Floats give floats, and tensors give float64 tensors.

`x` is the fraction of a phase that is done, and `rest` the fraction that is left, both in [0, 1]. `n` counts decays,
cycles or steps.
"""

from __future__ import annotations

import math
from typing import Any

from timesched.maths import ops
from timesched.maths.ops import Value


def mix(share: Value, start: float, end: float) -> Value:
    """From `start` at a share of 0 to `end` at a share of 1. Both ends are exact; between them, it is monotonic.

    >>> mix(0.25, 1.0, 3.0)
    1.5
    """
    if start == 0.0:
        return share * end
    span = end - start
    if start + span == end:  # the ends are exact as they are, and rounding is monotonic between them
        return start + share * span
    low, high = (start, end) if start <= end else (end, start)
    if type(share) is float:  # the same as below, but faster
        value = start + share * span
        return end if share >= 1.0 else low if value < low else high if value > high else value
    inside = ops.clamp(start + share * span, low, high)
    return ops.where(share >= 1.0, end, inside)


def cosine(x: Value, start: float, end: float) -> Value:
    """The falling half of a cosine, from `start` to `end` (Loshchilov and Hutter, arXiv:1608.03983).

    >>> round(cosine(1 / 3, 1.0, 0.0), 15)
    0.75
    """
    return mix(ops.half_cosine(x), end, start)


def polynomial(rest: Value, power: float, start: float, end: float) -> Value:
    """`end + (start - end) * rest ** power`, from the fraction that is left.

    >>> polynomial(0.5, 2.0, 1.0, 0.0)
    0.25
    """
    return mix(ops.root(rest, power), end, start)


def exponential(x: Value, rate: float, start: float, end: float) -> Value:
    """`end + (start - end) * (rate ** x - rate) / (1 - rate)`: an exponential that reaches its end.

    With `rate` 1 it is a straight line, the limit of the formula.

    >>> round(exponential(0.5, 0.25, 1.0, 0.0), 15)
    0.333333333333333
    """
    if rate == 1.0:
        return mix(x, start, end)
    log = math.log(rate)
    return mix(ops.clip(ops.expm1(x * log) / math.expm1(log)), start, end)


def geometric(x: Value, start: float, end: float) -> Value:
    """`start * (end / start) ** x`, where both are above 0. Equal steps multiply by equal factors.

    >>> geometric(0.5, 4.0, 1.0)
    2.0
    """
    value = ops.exponential(start, 1.0 - x) * ops.exponential(end, x)  # no quotient, which may overflow
    return ops.clamp(value, start, end) if start <= end else ops.clamp(value, end, start)


def harmonic(x: Value, start: float, end: float) -> Value:
    """`1 / (x / end + (1 - x) / start)`, where both are above 0. The inverse is a straight line.

    >>> harmonic(0.5, 1.0, 0.25)
    0.4
    """
    value = start / ((1.0 - x) + x * (start / end))
    return ops.clamp(value, start, end) if start <= end else ops.clamp(value, end, start)


def rex(rest: Value, d: float, end: float) -> Value:
    """From 1 to `end` along `rest / (1 - d + d * rest)`, which is nearly straight first and steep at the end.

    >>> rex(0.5, 0.5, 0.0)
    0.6666666666666666
    """
    return mix(rest / (1.0 - d + d * rest), end, 1.0)


def power_law(x: Value, power: float, least: float) -> Value:
    """`x ** -power`, limited to at most 1 (its value for `x` up to 1) and to at least `least`.

    >>> power_law(4.0, 0.5, 0.0)
    0.5
    """
    return ops.clamp_min(1.0 / ops.root(ops.clamp_min(x, 1.0), power), least)


def inverse_root_decay(x: Value, end: float) -> Value:
    """`end + (1 - end) / sqrt(1 + x)`, starting from 1 at `x = 0`. `x` has no upper limit.

    >>> inverse_root_decay(3.0, 0.0)
    0.5
    """
    return mix(inverse_root(x + 1.0, 1.0, 1.0), end, 1.0)


def decay(n: Value, gamma: float) -> Value:
    """`gamma ** n`: the factor after `n` decays, or after `n` decay periods.

    >>> decay(2, 0.5)
    0.25
    """
    return ops.exponential(gamma, n)


def inverse_time(x: Value, rate: float, start: float) -> Value:
    """`start / (1 + rate * x)`, where `x` has no upper limit.

    >>> inverse_time(2.0, 0.5, 1.0)
    0.5
    """
    return start / (1.0 + rate * x)


def inverse_root(n: Value, least: float, factor: float) -> Value:
    """`factor / sqrt(n)`. For `n` below `least`, it is the value at `least`.

    >>> inverse_root(1.0, 4.0, 1.0)
    0.5
    """
    return factor / ops.sqrt(ops.clamp_min(n, least))


def remaining_fraction(x: Value, n: Value) -> Value:
    """The fraction left of `n + 1` cycles, where the fraction `x` of the last cycle is done.

    It is the fraction left of a phase that is prolonged by its own length each time it ends. At the end of a cycle, the
    fraction is 0.

    >>> remaining_fraction(0.5, 1)
    0.25
    """
    return ops.where((x > 0.0) | (n == 0), (1.0 - x) / (ops.to_double(n) + 1.0), 0.0)


def wave(x: Value, n: Any, start: float, end: float) -> Value:
    """A cosine wave: from `start` to `end` in the first half period, back in the second, and so on; `n` are complete.

    >>> wave(0.0, 1, 1.0, 0.0)
    0.0
    """
    return cosine(ops.where(n % 2 == 1, 1.0 - x, x), start, end)


def triangle(x: Value, peak: float) -> Value:
    """A straight line from 0 up to 1 at `peak`, and down to 0 at 1.

    >>> triangle(0.75, 0.5)
    0.5
    """
    return ops.where(x <= peak, x / peak, (1.0 - x) / (1.0 - peak))


def scaled_height(height: Value, scale: Value, base: float, top: float) -> Value:
    """`base + (top - base) * height * scale`, where the height is in [0, 1] and the scale may be any number.

    >>> scaled_height(0.5, 4.0, 1.0, 2.0)
    3.0
    """
    return base + (top - base) * ops.clip(height) * scale
