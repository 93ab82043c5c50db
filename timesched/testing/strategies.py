"""Hypothesis strategies for units, times, timestamps and horizons."""

from __future__ import annotations

import datetime
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from timesched.run.horizon import Horizon
from timesched.time.timestamp import FIELDS, WALL_CLOCKS, Timestamp
from timesched.time.units import FRACTIONAL_UNITS, TimeUnit
from timesched.time.value import Time

_COUNTS = st.one_of(st.integers(-(10**6), 10**6), st.integers(-(10**30), 10**30))


def units() -> st.SearchStrategy[TimeUnit]:
    """Any unit."""
    return st.sampled_from(TimeUnit)


def times(unit: TimeUnit | str | None = None, negative: bool = True) -> st.SearchStrategy[Time]:
    """Any time, of one unit or of all: whole counts beyond 2**53, and decimals and ratios for `ep`, `dur` and `sec`.

    >>> from hypothesis import find
    >>> find(times("ba", negative=False), lambda time: time > 2)
    Time(3, TimeUnit.BATCH)
    """

    def times_in_unit(unit: TimeUnit) -> st.SearchStrategy[Time]:
        numbers: st.SearchStrategy[Any] = _COUNTS
        if unit in FRACTIONAL_UNITS:
            decimals = st.builds(Fraction, st.integers(-(10**9), 10**9), st.sampled_from([10, 100, 10**6, 10**9]))
            floats = st.floats(-1e12, 1e12)
            numbers = st.one_of(_COUNTS, decimals, st.fractions(-1000, 1000), floats)
        if not negative:
            numbers = numbers.map(abs)
        return st.builds(Time, numbers, st.just(unit))

    return units().flatmap(times_in_unit) if unit is None else times_in_unit(TimeUnit(unit))


@st.composite
def timestamps(draw: st.DrawFn) -> Timestamp:
    """Timestamps with consistent counters: a count in an epoch is not more than the total."""
    counts = st.integers(0, 10**15)
    total: dict[str, Any] = {name: draw(counts) for name in ("iteration", "epoch", "batch", "sample", "token")}
    inner: dict[str, Any] = {
        name: draw(st.integers(0, total[name.split("_in_")[0]])) for name in FIELDS if "_in_" in name
    }
    seconds = sorted(draw(st.lists(st.integers(0, 10**7), min_size=4, max_size=4)), reverse=True)
    passed: Any = {name: datetime.timedelta(seconds=value) for name, value in zip(WALL_CLOCKS, seconds, strict=True)}
    return Timestamp(**total, **inner, **passed)


def horizons() -> st.SearchStrategy[Horizon]:
    """Horizons of every unit, with all conversion factors, some, or none."""
    positive = st.integers(1, 10**9)
    return st.builds(
        Horizon,
        times(negative=False).filter(lambda time: time.exact > 0 and time.unit is not TimeUnit.DURATION),
        batches_per_epoch=st.none() | positive,
        samples_per_batch=st.none() | positive,
        tokens_per_sample=st.none() | positive,
        ssr=st.sampled_from([0.25, 0.5, 1.0, 2.0, 10.0]),
    )
