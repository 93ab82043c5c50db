"""Every curve: a dimensionless number in, a multiplier out. Floats give floats, tensors give float64 tensors.

`x` is the fraction of a phase that is done and `rest` the fraction that is left, both in [0, 1]; `n` counts decays.
"""

from __future__ import annotations

from timesched import ops
from timesched.ops import Value


def mix(share: Value, start: float, end: float) -> Value:
    """From `start` at a share of 0 to `end` at 1: both exactly, monotonic, and never outside the two.

    >>> mix(0.25, 1.0, 3.0)
    1.5
    """
    if start == 0.0:
        return share * end
    span = end - start
    if start + span == end:  # the ends are exact as they are, and rounding is monotonic between them
        return start + share * span
    low, high = (start, end) if start <= end else (end, start)
    if type(share) is float:  # the same as below, without the detour
        value = start + share * span
        return end if share >= 1.0 else low if value < low else high if value > high else value
    inside = ops.between(start + share * span, low, high)
    return ops.where(share >= 1.0, end, inside)


def linear(x: Value, start: float, end: float) -> Value:
    """A straight line from `start` to `end`.

    >>> linear(0.5, 1.0, 0.0)
    0.5
    """
    return mix(x, start, end)


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


def decay(n: Value, gamma: float) -> Value:
    """`gamma ** n`: after `n` decays, or after the time of `n` decay periods.

    >>> decay(2, 0.5)
    0.25
    """
    return ops.exponential(gamma, n)
