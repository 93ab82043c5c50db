"""A schedule on a run as a line: the points to draw, close together where the value changes fast."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, pairwise

from timesched.run.horizon import Horizon
from timesched.schedulers.schedule import Schedule, schedule_times
from timesched.time.timestamp import Timestamp
from timesched.time.units import FRACTIONAL_UNITS, Exact, TimeUnit, exact_number, unit_of
from timesched.time.value import Time, TimeLike

UNIT_NAMES = {
    TimeUnit.ITERATION: "iterations", TimeUnit.EPOCH: "epochs", TimeUnit.BATCH: "batches", TimeUnit.SAMPLE: "samples",
    TimeUnit.TOKEN: "tokens", TimeUnit.SECOND: "seconds", TimeUnit.DURATION: "fraction of the run",
}  # fmt: skip
_POINTS = 500  # of a line, before it is refined
_MAX_REFINED_POINTS = 4000  # of a line, after it is refined
_STEP = 1 / 100  # of the range of values: two points that differ by more get another point between them


@dataclass(frozen=True)
class Source:
    """A schedule to draw on a run, its values multiplied by a factor. `quantity`: the name of the values."""

    name: str
    schedule: Schedule
    horizon: Horizon
    factor: float = 1.0
    quantity: str = "multiplier"

    def at(self, time: TimeLike | Timestamp) -> float:
        """The value at a time of the run."""
        return self.factor * self.schedule.at(time, self.horizon)

    def curve(self, unit: TimeUnit) -> Callable[[Exact], float]:
        """The value as a function of a count of `unit`."""
        curve = self.schedule.curve(self.horizon, unit)
        return lambda count: self.factor * curve(count)

    def marks(self) -> list[tuple[str, Exact]]:
        """The marks of the schedule, as counts of the unit of `run_length`."""
        own, _ = run_length(self.horizon)
        marks = self.schedule.marks(self.horizon)
        return [(name, self.horizon.change(time.exact, time.unit, own)) for name, time in marks]


@dataclass(frozen=True)
class Line:
    """The points and the marks of a line, in the unit of the horizontal axis. `quantity`: the name of the values."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    marks: tuple[tuple[str, float], ...]
    unit: TimeUnit
    quantity: str = "multiplier"


def run_length(horizon: Horizon) -> tuple[TimeUnit, Exact]:
    """The unit that counts the run, and the length of the run in it: whole batches if their number is known.

    Raises `ValueError` if the run has no length.
    """
    if horizon.max_duration is None:
        raise ValueError("max_duration=None: a picture needs the length of the run. Pass max_duration.")
    count, counter = horizon.place("1dur")
    try:
        return TimeUnit.BATCH, math.ceil(horizon.change(count, counter, TimeUnit.BATCH))
    except ValueError:
        return unit_of(counter), count


def axis(horizon: Horizon, unit: TimeUnit | str | None) -> tuple[TimeUnit, Callable[[Exact], float]]:
    """The unit of the horizontal axis, by default the unit of `max_duration`, and the position of a count on it."""
    own, length = run_length(horizon)
    assert horizon.max_duration is not None  # else `run_length` has raised
    wanted = horizon.max_duration.unit if unit is None else TimeUnit(unit)
    if wanted is TimeUnit.DURATION:
        end, counter = horizon.place("1dur")
        return wanted, lambda count: float(Fraction(horizon.change(count, own, counter)) / (end or 1))
    horizon.change(length, own, wanted)  # raises where a conversion factor is missing
    return wanted, lambda count: float(horizon.change(count, own, wanted))


def values(source: Source) -> dict[Exact, float]:
    """The value at counts of the unit of `run_length`, from 0 to the end, in order."""
    unit, length = run_length(source.horizon)
    value = source.curve(unit)
    whole = unit not in FRACTIONAL_UNITS

    def near(count: Exact) -> Exact:
        return math.floor(count) if whole else count

    counts = {length, *(near(Fraction(length) * i / _POINTS) for i in range(_POINTS))}
    for mark in _turning_points(source, length):
        around = math.ceil(mark) - 1, math.ceil(mark), exact_number(mark)
        counts |= {count for count in around if count == near(count)}
    points = {count: value(count) for count in sorted(counts) if 0 <= count <= length}
    step = _STEP * (max(points.values()) - min(points.values()))
    gaps = deque(pairwise(points))
    while gaps:  # the whole line is refined once before any part is refined again
        first, last = gaps.popleft()
        middle = near(Fraction(first + last) / 2)
        far = abs(points[last] - points[first]) > step and last - first > Fraction(length) / 10**6
        if far and middle > first and len(points) < _MAX_REFINED_POINTS:
            points[middle] = value(middle)
            gaps += [(first, middle), (middle, last)]
    return dict(sorted(points.items()))


def _turning_points(source: Source, length: Exact) -> list[Exact]:
    """The marks of a schedule, and the peak and end of each period, or of every nth period if there are too many."""
    marks = sorted(source.marks(), key=lambda pair: pair[1])
    points = [mark for _, mark in marks]
    start: Exact = 0  # of the first period
    for name, end in marks:
        if name == "phase":
            start = end
        elif name == "period" and start < end <= length:
            first = [mark for kind, mark in marks if kind in ("peak", "period") and start < mark <= end]
            period = end - start
            periods = (length - start) // period
            for i in range(0, periods + 1, (periods // _POINTS) | 1):  # every odd nth: each half of a wave is a period
                points += [mark + i * period for mark in first]
    return points


def line(source: Source, unit: TimeUnit | str | None = None) -> Line:
    """The line of a schedule on its run.

    Raises `ValueError` if a conversion factor is missing, or if a value is not finite.
    """
    own, length = run_length(source.horizon)
    wanted, on_axis = axis(source.horizon, unit)
    points = values(source)
    for count, value in points.items():
        if not math.isfinite(value):
            raise ValueError(
                f"{source.name} is {value} at {Time._make(count, own)}: only finite values can be drawn. Change the "
                f"schedule, or end the run earlier."
            )
    marks = tuple((name, on_axis(count)) for name, count in source.marks() if count <= length)
    x, y = tuple(map(on_axis, points)), tuple(points.values())
    return Line(label=source.name, x=x, y=y, marks=marks, unit=wanted, quantity=source.quantity)


def panels(lines: Sequence[Line]) -> list[list[Line]]:
    """The lines of each quantity: a learning rate and a weight decay on one axis would leave one of them flat."""
    quantities = dict.fromkeys(line.quantity for line in lines)
    return [[line for line in lines if line.quantity == quantity] for quantity in quantities]


def extent(lines: Sequence[Line]) -> tuple[float, float, float]:
    """The end of a picture's horizontal axis, and the two ends of the vertical axis, which contains 0.

    The axis of a run of length 0 ends at 1.
    """
    low, high = min(0.0, *(min(line.y) for line in lines)), max(max(line.y) for line in lines)
    return max(max(line.x) for line in lines) or 1.0, low, high if high > low else low + 1.0


def picture_marks(lines: Sequence[Line]) -> list[tuple[str, float]]:
    """The marks of a picture from left to right, each once."""
    return sorted(set(chain.from_iterable(line.marks for line in lines)), key=lambda mark: mark[::-1])


def default_run(schedule: Schedule) -> Horizon:
    """A run to draw a schedule on if the user passes none.

    If all times are shares of a run, it has 1000 batches. Otherwise it is a quarter longer than the longest time, or
    ten times as long as that if there are also shares. If the schedule does not accept this run, it is as long as the
    longest time. Raises `ValueError` if the schedule accepts neither run, or if the units differ.
    """
    times = schedule_times(schedule)
    shares = [time for time in times if time.unit is TimeUnit.DURATION]
    others = [time for time in times if time.unit is not TimeUnit.DURATION and time.exact]
    if not others:
        return Horizon("1000ba")
    units = dict.fromkeys(time.unit.value for time in others)
    if len(units) > 1:
        raise ValueError(f"the times are in {' and '.join(units)}, and no run is known. Call .plot(Horizon(...)).")
    longest = max(others, key=lambda time: time.exact)
    for factor in (Fraction(10) if shares else Fraction(5, 4), 1):
        run = Horizon(Time(math.ceil(longest.exact * factor), longest.unit))
        try:
            schedule.marks(run)
            return run
        except ValueError as error:  # such as a schedule that would end before the run does
            reason = error
    raise ValueError(f"no run is known that fits ({reason}). Call .plot(Horizon(...)).")


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """At most `most` round numbers from `low` to `high`, in steps of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(factor * power for factor in (1, 2, 5, 10, 20) if (high - low) / (factor * power) <= most)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
