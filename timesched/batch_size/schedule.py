"""BatchSizeSchedule: batches whose size changes during a run."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any

from timesched.fields import number
from timesched.maths import Frame, shapes
from timesched.maths.counts import Milestones, Resolved
from timesched.run.horizon import BatchSizes, Horizon, State, check_counted
from timesched.schedulers.schedule import Schedule
from timesched.time.timestamp import counts_of
from timesched.time.units import Counter, Exact, TimeError, TimeUnit, exact_number, unit_of
from timesched.time.value import Time, require_time

_UNITS = (TimeUnit.SAMPLE, TimeUnit.TOKEN, TimeUnit.BATCH, TimeUnit.DURATION)
_FIRST_SIZE = "Begin with the size at 0, as in {'0sp': 8, '160sp': 16}."
_COUNT_TEXT = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[eE][0-9]{1,3})?[KMBT]?", re.ASCII)
Entries = tuple[tuple[Time, int], ...]


@dataclass(frozen=True, init=False, eq=False, repr=False)
class BatchSizeSchedule(BatchSizes):
    """The batch sizes of a run: a size starts with the first batch that begins at or after its threshold.

    `sizes`: a mapping of thresholds to sizes, or a string such as `"0:768 250B:1536"`. The thresholds are times in
    `sp`, `tok`, `ba` or `dur`. They all have the same unit, begin at 0 and increase. A threshold without a unit counts
    in `unit`: a number, or a string of a number with or without K, M, B or T (thousands to trillions). The sizes are
    whole numbers of samples over all ranks, above 0. The ratio of a run stretches the thresholds.

    Pass it to `Horizon(samples_per_batch=sizes)` or to a `Clock`. Raises `ValueError` for other thresholds or sizes.

    >>> from timesched import Clock
    >>> sizes = BatchSizeSchedule("0:8 160:16", unit="sp")
    >>> clock = Clock("100ba", samples_per_batch=sizes)
    >>> # 20 batches of 8, and 80 of 16:
    >>> clock.horizon.convert("100ba", "sp"), sizes.at(clock)
    (Time(1440, TimeUnit.SAMPLE), 8)
    """

    entries: Entries

    def __init__(self, sizes: Mapping[object, object] | str, unit: TimeUnit | str | None = None) -> None:
        unit = None if unit is None else TimeUnit(unit)
        if isinstance(sizes, str):
            pairs: Iterable[tuple[Any, Any]] = map(_split_entry, sizes.split())
        elif isinstance(sizes, Mapping):
            pairs = sizes.items()
        else:
            raise TimeError(
                f"BatchSizeSchedule.sizes={sizes!r}: it is neither a mapping nor a string. Pass "
                f"{{'0sp': 8, '160sp': 16}} or '0sp:8 160sp:16'."
            )
        entries = tuple((_read_threshold(threshold, unit), _read_size(size)) for threshold, size in pairs)
        object.__setattr__(self, "entries", _require_increasing(entries))

    def at(self, state: State) -> int:
        """The size of the next batch of a run: the size at the last threshold that its counters have reached.

        `state`: a `Clock`, or another state with counters. Raises `ValueError` for a threshold in `dur` when the length
        of the run is not known, and for samples or tokens that nobody counted.
        """
        horizon, timestamp = Horizon.of(state), getattr(state, "timestamp", None)
        if timestamp is None:
            raise TypeError(f"{state!r} has no counters. Pass a Clock, or another state with a timestamp.")
        if len(self.entries) == 1:
            return self.entries[0][1]
        thresholds, counter = self._place(horizon)
        check_counted(timestamp, unit_of(counter), state)
        return self.entries[bisect_right(thresholds, counts_of(timestamp, (counter,))[0])][1]

    def _place(self, horizon: Horizon) -> tuple[list[Exact], Counter]:
        """The counts on a run at which the second and each later size begins, and their counter. The last are kept."""
        last_horizon, placed = getattr(self, "_last_placed", (None, None))
        if placed is None or last_horizon is not horizon:
            positions = [horizon.place(threshold) for threshold, _ in self.entries[1:]]
            placed = [count for count, _ in positions], positions[0][1]
            object.__setattr__(self, "_last_placed", (horizon, placed))
        return placed

    def microbatches(self, clock: State, size: int, world_size: int = 1) -> int:
        """The microbatches of `size` samples that each of `world_size` ranks accumulates for the next step.

        `clock`: as for `at`. Raises `ValueError` at the first call if the schedule has a size that `size * world_size`
        does not divide.

        >>> from timesched import Clock
        >>> sizes = BatchSizeSchedule({"0sp": 8, "160sp": 32})
        >>> sizes.microbatches(Clock("100ba"), size=2, world_size=2)
        2
        """
        check_positive_int(size, "BatchSizeSchedule.microbatches.size")
        check_positive_int(world_size, "BatchSizeSchedule.microbatches.world_size")
        samples = size * world_size
        check_divisor(self, samples, f"BatchSizeSchedule.microbatches.size={size}, world_size={world_size}")
        return self.at(clock) // samples

    def factor(self, power: float = 0.5) -> Schedule:
        """A schedule for a `ProductScheduler`: the ratio of the batch size to the first batch size, to a power.

        In a `SequenceScheduler`, too, it follows the batch sizes of the run, wherever the schedule begins.
        A power of 0.5 scales a learning rate with the square root of the batch size, and 1 in proportion to it.

        >>> from timesched import Horizon
        >>> sizes = BatchSizeSchedule({"0sp": 8, "160sp": 32})
        >>> run = Horizon("100ba", samples_per_batch=sizes)
        >>> [sizes.factor().at(t, run) for t in ("19ba", "20ba")]
        [1.0, 2.0]
        """
        return BatchSizeFactor(self.entries, power)

    def __getstate__(self) -> dict[str, object]:  # without the positions on a run, which are computed again
        return {"entries": self.entries}

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, BatchSizeSchedule) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return tuple((threshold.exact, threshold.unit.value, size) for threshold, size in self.entries)

    def __str__(self) -> str:
        return " ".join(f"{threshold}:{size}" for threshold, size in self.entries)

    def __repr__(self) -> str:
        return f"BatchSizeSchedule({str(self)!r})"


def check_positive_int(value: object, name: str) -> None:
    """Raise `ValueError` unless a value is an int above 0."""
    if type(value) is not int or value < 1:
        raise ValueError(f"{name}={value!r}: it is not a whole number above 0. Pass an int.")


def check_divisor(sizes: BatchSizeSchedule, divisor: int, name: str) -> None:
    """Raise `ValueError` if a size of a schedule cannot be divided. The message begins with `name`."""
    for threshold, size in sizes.entries:
        if size % divisor:
            raise ValueError(
                f"{name}: the batch size {size} at {threshold} is not a multiple of {divisor}. Pass sizes that are "
                f"multiples of {divisor}."
            )


@dataclass(frozen=True, eq=False, repr=False)
class BatchSizeFactor(Schedule):
    """The ratio of the batch size to the first batch size, to a power; see `BatchSizeSchedule.factor`."""

    entries: Entries = field(metadata={"read": lambda name, value: BatchSizeSchedule(dict(value)).entries})
    power: float = number(0.5)

    def resolve(self, frame: Frame) -> Resolved:
        marks = [frame.run_mark(threshold) for threshold, _ in self.entries[1:]]
        multiples = [Fraction(size, self.entries[0][1]) for _, size in self.entries]
        return shapes.levels(Milestones(marks), [float(multiple) ** self.power for multiple in multiples])

    def __repr__(self) -> str:
        return f"{BatchSizeSchedule(dict(self.entries))!r}.factor(power={self.power!r})"


def _split_entry(text: str) -> tuple[str, str]:
    threshold, colon, size = text.partition(":")
    if not colon:
        raise TimeError(f"BatchSizeSchedule.sizes={text!r}: it has no size. Write a threshold and a size: '160sp:16'.")
    return threshold, size


def _read_threshold(value: object, unit: TimeUnit | None) -> Time:
    if isinstance(value, str) and _COUNT_TEXT.fullmatch(value):
        if unit is None:
            problem = f"the threshold {value!r} has no unit"
            raise TimeError(f"BatchSizeSchedule.sizes: {problem}. Write '{value}tok', or pass unit='tok'.")
        value += unit.value
    time = require_time("BatchSizeSchedule.sizes", value, unit)
    if time.unit not in _UNITS or unit not in (None, time.unit):
        names = ", ".join(allowed.value for allowed in (_UNITS if unit is None else (unit,)))
        raise TimeError(f"BatchSizeSchedule.sizes: the threshold {time} is in another unit. Use one of {names}.")
    return time


def _read_size(value: Any) -> int:
    is_text = isinstance(value, str) and re.fullmatch("[0-9]{1,18}", value)
    size = exact_number(int(value) if is_text else value, "BatchSizeSchedule.sizes: size")
    if not isinstance(size, int) or not 0 < size < 2**63:
        raise TimeError(
            f"BatchSizeSchedule.sizes: size={value!r}: it is not a number of samples. Pass an int from 1 to 2**63 - 1."
        )
    return size


def _require_increasing(entries: Entries) -> Entries:
    if not entries:
        raise TimeError(f"BatchSizeSchedule.sizes is empty. {_FIRST_SIZE}")
    if entries[0][0].exact != 0:
        raise TimeError(f"BatchSizeSchedule.sizes: the first threshold is {entries[0][0]}, not 0. {_FIRST_SIZE}")
    for (before, _), (after, _) in pairwise(entries):
        if before.unit is not after.unit:
            raise TimeError(
                f"BatchSizeSchedule.sizes: {before} and {after} have different units. Write all thresholds in one unit."
            )
        if before.exact >= after.exact:
            raise TimeError(f"BatchSizeSchedule.sizes: {after} follows {before}. Write the thresholds in rising order.")
    return entries
