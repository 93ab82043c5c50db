"""BatchPlan: batches whose size changes during a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any

from timesched import shapes
from timesched.fields import number
from timesched.horizon import BatchSizes, Horizon
from timesched.positions import Frame, Milestones, Resolved
from timesched.schedule import Schedule
from timesched.time.timestamp import counts_of
from timesched.time.units import TimeError, TimeUnit, exact
from timesched.time.value import Time

_UNITS = (TimeUnit.SAMPLE, TimeUnit.TOKEN, TimeUnit.BATCH, TimeUnit.DURATION)
_COUNT = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[eE][0-9]{1,3})?[KMBT]?", re.ASCII)
Entries = tuple[tuple[Time[Any], int], ...]


@dataclass(frozen=True, init=False, eq=False, repr=False)
class BatchPlan(BatchSizes):
    """The sizes of the batches of a run: each holds from the first batch that begins at or after its threshold.

    `plan`: a mapping of thresholds to sizes, or a string such as `"0:768 250B:1536"`. The thresholds are times in `sp`,
    `tok`, `ba` or `dur`, all in one unit, from 0 on and strictly increasing; a number, and a string of a number with or
    without K, M, B or T (thousands to trillions), is a count of `unit`, which it needs. The sizes are samples over all
    ranks, whole and positive. The ratio of a run stretches the thresholds.

    Give it to `Horizon(samples_per_batch=plan)` or to a `Clock`. Raises `ValueError` for any other plan.

    >>> from timesched import Clock
    >>> plan = BatchPlan("0:8 160:16", unit="sp")
    >>> clock = Clock("100ba", samples_per_batch=plan)
    >>> # 20 batches of 8, and 80 of 16:
    >>> clock.horizon.convert("100ba", "sp"), plan.at(clock)
    (Time(1440, TimeUnit.SAMPLE), 8)
    """

    entries: Entries

    def __init__(self, plan: Mapping[Any, Any] | str, unit: TimeUnit | str | None = None) -> None:
        unit = None if unit is None else TimeUnit(unit)
        if isinstance(plan, str):
            pairs: Iterable[tuple[Any, Any]] = map(_pair, plan.split())
        elif isinstance(plan, Mapping):
            pairs = plan.items()
        else:
            raise TimeError(f"BatchPlan: {plan!r} is no plan: pass {{'0sp': 8, '160sp': 16}}, or '0sp:8 160sp:16'.")
        entries = tuple((_threshold(threshold, unit), _size(size)) for threshold, size in pairs)
        object.__setattr__(self, "entries", _checked(entries))

    def at(self, state: Any) -> int:
        """The size of the next batch of a run: that of the last threshold which its counters have reached.

        `state`: a `Clock`, or another state with counters. Raises `ValueError` when a threshold in `dur` meets a run
        without a length.
        """
        horizon, timestamp = Horizon.of(state), getattr(state, "timestamp", None)
        if timestamp is None:
            raise TypeError(f"{state!r} has no counters: pass a Clock, or another state with a timestamp.")
        size = self.entries[0][1]
        for threshold, next_size in self.entries[1:]:
            count, counter = horizon.place(threshold)
            if counts_of(timestamp, (counter,))[0] < count:
                break
            size = next_size
        return size

    def factor(self, power: float = 0.5) -> Schedule:
        """A schedule: the size of a batch as a multiple of the first one's, to a power, for a `ProductScheduler`.

        A power of 0.5 scales a learning rate with the root of the batch size, 1 in proportion.

        >>> from timesched import Horizon
        >>> plan = BatchPlan({"0sp": 8, "160sp": 32})
        >>> run = Horizon("100ba", samples_per_batch=plan)
        >>> [plan.factor().at(t, run) for t in ("19ba", "20ba")]
        [1.0, 2.0]
        """
        return BatchSizeScheduler(self.entries, power)

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, BatchPlan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return tuple((threshold.exact, threshold.unit.value, size) for threshold, size in self.entries)

    def __str__(self) -> str:
        return " ".join(f"{threshold}:{size}" for threshold, size in self.entries)

    def __repr__(self) -> str:
        return f"BatchPlan({str(self)!r})"


def _read(name: str, value: Any) -> Entries:
    return BatchPlan(dict(value)).entries


@dataclass(frozen=True, eq=False, repr=False)
class BatchSizeScheduler(Schedule):
    """The size of the batches of a plan as a multiple of the first one's, to a power; see `BatchPlan.factor`."""

    entries: Entries = field(metadata={"read": _read})
    power: float = number(0.5)

    def resolve(self, frame: Frame) -> Resolved:
        marks = [frame.mark(threshold) for threshold, _ in self.entries[1:]]
        multiples = [Fraction(size, self.entries[0][1]) for _, size in self.entries]
        return shapes.levels(Milestones(marks), [float(multiple) ** self.power for multiple in multiples])

    def __repr__(self) -> str:
        return f"{BatchPlan(dict(self.entries))!r}.factor(power={self.power!r})"


def _pair(text: str) -> tuple[str, str]:
    threshold, colon, size = text.partition(":")
    if not colon:
        raise TimeError(f"BatchPlan: {text!r} is no entry of a plan: write a threshold and a size, as in '160sp:16'.")
    return threshold, size


def _threshold(value: Any, unit: TimeUnit | None) -> Time[Any]:
    if isinstance(value, str) and _COUNT.fullmatch(value):
        if unit is None:
            fix = f"write '{value}tok', or pass unit='tok'"
            raise TimeError(f"BatchPlan: the threshold {value!r} has no unit: {fix}.")
        value += unit.value
    try:
        time = Time.from_input(value, unit)
    except TimeError as error:
        raise TimeError(f"BatchPlan: {error}") from None
    if time.unit not in _UNITS or unit not in (None, time.unit):
        allowed = _UNITS if unit is None else (unit,)
        raise TimeError(f"BatchPlan: {time} is no threshold here: give it in {', '.join(u.value for u in allowed)}.")
    return time


def _size(value: Any) -> int:
    size = exact(int(value) if isinstance(value, str) and re.fullmatch("[0-9]{1,18}", value) else value, "a batch size")
    if not isinstance(size, int) or not 0 < size < 2**63:
        raise TimeError(f"BatchPlan: {value!r} is no batch size: it is a whole number of samples, from 1 to 2**63 - 1.")
    return size


def _checked(entries: Entries) -> Entries:
    if not entries or entries[0][0].exact != 0:
        first = f"begins at {entries[0][0]}" if entries else "is empty"
        raise TimeError(f"BatchPlan: the plan {first}: give the size at 0 first, as in {{'0sp': 8, '160sp': 16}}.")
    for (before, _), (after, _) in pairwise(entries):
        if before.unit is not after.unit:
            raise TimeError(f"BatchPlan: {before} and {after} have different units: write all thresholds in one.")
        if before.exact >= after.exact:
            raise TimeError(f"BatchPlan: {after} comes after {before}: thresholds have to increase.")
    return entries
