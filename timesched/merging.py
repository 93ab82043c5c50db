"""Coefficients by which checkpoints of a run at a constant rate are merged, in place of a decay."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from itertools import pairwise

from timesched import shapes
from timesched.fields import read_times
from timesched.positions import Span
from timesched.time.units import TimeError
from timesched.time.value import Time, TimeLike

_TOLERANCE = 1e-12  # of f(0) = 1: what rounding leaves of a formula, and no more


def merge_coefficients(
    decay: str | Callable[[float], float], times: TimeLike | Iterable[TimeLike], start: TimeLike
) -> list[float]:
    """The coefficients of checkpoints whose sum stands for the end of a run that decays from `start` on.

    The coefficient of a checkpoint is the decay at the one before it, less the decay at its own time; that of the last
    is all of the decay at the one before it. A decay is that at the share of the way from `start` to the last
    checkpoint; before the first checkpoint comes `start`, where it is 1. The update of a step between two checkpoints
    is in all that come after it, so that their sum has it as often as the decay says at the checkpoint before. With a
    checkpoint after every batch, of SGD whose gradients do not depend on the weights, the sum is the decayed run.
    `optim.merge_weights` makes it.

    Args:
        decay: the name of a decay of `WarmupStableDecayScheduler`, from 1 to 0: "linear", "cosine", "1-sqrt",
            "1-square" or "exponential", as "geometric" and "harmonic" ones never reach 0; or a function of the share
            of the decay that is done, 1 at 0.
        times: when the checkpoints were saved, increasing, after `start`, and in its unit; one time for one checkpoint.
        start: where the decay would begin, which needs no checkpoint.

    Returns:
        a coefficient for each checkpoint, in order; their sum is 1.

    Raises:
        ValueError: there are no times, or they do not increase from `start` on in one unit; no decay has that name; its
            function gives something else than 1 at 0, or no finite number.

    >>> [round(c, 12) for c in merge_coefficients("linear", ["40ba", "60ba", "80ba"], "20ba")]
    [0.333333333333, 0.333333333333, 0.333333333333]
    >>> [round(c, 2) for c in merge_coefficients("1-sqrt", ["40ba", "60ba", "100ba"], "20ba")]
    [0.5, 0.21, 0.29]

    Source: arXiv:2507.17634 (WSM).
    """
    f = _function(decay)
    begin, moments = Time.from_input(start), read_times("merge_coefficients: times", times)
    if not moments:
        raise TimeError("merge_coefficients: times is empty: pass the time of each checkpoint.")
    for before, after in pairwise([begin, *moments]):
        if after.unit is not begin.unit or after.exact <= before.exact:
            raise TimeError(
                f"merge_coefficients: {after} follows {before}: times increase from start={str(begin)!r} on, all in "
                f"its unit."
            )
    whole = Fraction(moments[-1].exact - begin.exact)
    values = [f(Fraction(0)), *(f((each.exact - begin.exact) / whole) for each in moments[:-1]), 0.0]
    if abs(values[0] - 1.0) > _TOLERANCE or not all(map(math.isfinite, values)):
        raise TimeError(f"merge_coefficients: the decay is {values[:-1]}: it is 1 at its start, and finite everywhere.")
    return [before - after for before, after in pairwise(values)]


def _function(decay: str | Callable[[float], float]) -> Callable[[Fraction], float]:
    """A decay as a function of the exact share that is done."""
    if callable(decay):
        function = decay
        return lambda share: float(function(float(share)))
    names = [name for name in shapes.DECAYS if name not in ("geometric", "harmonic")]  # which never get to 0
    if decay not in names:
        raise TimeError(f"merge_coefficients: decay={decay!r}: write one of {', '.join(names)}, or a function.")
    curve = shapes.decaying(decay)(Span(0, 0, 1), 1.0, 0.0)
    return lambda share: float(curve((share,)))
