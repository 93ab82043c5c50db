"""The share of the present weights in an average: a function of time, whatever the steps and batch sizes.

Each group of an average holds two moments of the clock, when its average began and its last step. They are plain ints
under the keys `START` and `LAST`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from timesched.run.clock import Clock
from timesched.run.horizon import Horizon, Position
from timesched.schedulers.half_life import half_lives
from timesched.time.timestamp import Timestamp
from timesched.time.units import Counter, EpochCounter, Exact, TimeUnit, unit_of
from timesched.time.value import Time
from timesched.types import ParamGroup

from ..base.hyperparameters import SWITCH, Number

# The counts of a moment. 0 as batches_per_epoch: not known.
COUNTS = ("iteration", "epoch", "batch", "sample", "token", "batch_in_epoch", "total_wct", "batches_per_epoch")
START = {name: f"start_{name}" for name in COUNTS}  # the keys of the counts when the average began
LAST = {name: f"last_{name}" for name in COUNTS}  # the keys of the counts at the last step
GROUP_RULES = dict(
    dict.fromkeys([*START.values(), *LAST.values()], Number(least=0, integer=True)),
    begun=SWITCH,  # whether the average had begun at the last step
)


Moment = Mapping[str, int]  # the counts by name


class RunTimes(NamedTuple):
    """The half-life and the start of an average on one run."""

    horizon: Horizon
    counter: Counter  # measures the time: the counter of the half-life, else of the start, else of the run's length
    half_life: Exact | None  # a time on this counter; None for a share and for the mean
    start: Position | None  # None: when the average was constructed or the group was added
    units: set[TimeUnit]  # the units that the average reads

    def has_begun(self, moment: Moment) -> bool:
        """Whether an average has begun at a moment. Without a start, it has always begun."""
        return self.start is None or _count(moment, self.start[1]) >= self.start[0]


class Timing:
    """The half-life and the start of an average, as the user gives them."""

    def __init__(self, half_life: object, start: Time | str | None) -> None:
        self.half_life = _read_half_life(half_life)  # a time, a share, or None
        self.start = None if start is None else Time.from_input(start)
        if self.start is not None and self.start.exact < 0:
            raise ValueError(f"WeightAverage.start={str(start)!r}: it is before 0. Pass a time of 0 or more.")
        self._latest_times: RunTimes | None = None

    def initial_values(self, clock: Clock) -> dict[str, Any]:
        """The values of a group whose average equals the current weights."""
        now = clock.state_dict()
        return {**_save_moment(now, START), **_save_moment(now, LAST), "begun": self.start is None}

    def times(self, horizon: Horizon) -> RunTimes:
        """The half-life and the start on a run. They are kept until the horizon changes."""
        times = self._latest_times
        if times is None or times.horizon is not horizon:
            start = None if self.start is None else horizon.place(self.start, scale=False)
            half_life: Exact | None = None
            if isinstance(self.half_life, Time):
                half_life, counter = horizon.place(self.half_life, scale=False)
            else:
                _, counter = start or horizon.place("1dur", scale=False)
            units = {unit_of(counter)} | (set() if start is None else {unit_of(start[1])})
            self._latest_times = times = RunTimes(horizon, counter, half_life, start, units)
        return times

    def shares(self, groups: list[ParamGroup], clock: Clock) -> tuple[list[float], dict[str, Any]]:
        """The share of the current weights in the average of each group, and the values that groups hold afterwards."""
        times, now = self.times(clock.horizon), clock.state_dict()
        begun = times.has_begun(now)
        shares = [self._share(group, times, clock, now, begun) for group in groups]
        return shares, {**_save_moment(now, LAST), "begun": begun}

    def _share(self, group: ParamGroup, times: RunTimes, clock: Clock, now: Moment, begun: bool) -> float:
        """1 - k for a group: the share of the current weights in the average. It is 0 if no time has passed."""
        last = _read_moment(group, LAST, clock)
        t0, t1 = _count(last, times.counter), _count(now, times.counter)
        if t1 < t0:
            unit = unit_of(times.counter).value
            raise ValueError(
                f"WeightAverage: the clock is at {t1}{unit}, and the last step was at {t0}{unit}. Load the "
                "state that was saved with the clock, or call reset_state() to start from the current weights."
            )
        if t1 == t0:
            return 0.0
        # The average equals the weights until it has begun, both at the last step and now.
        if times.start is not None and not (begun and group["begun"] and times.has_begun(last)):
            return 1.0
        # The formulas of k in the docstring of WeightAverage, each as 1 - k.
        if times.half_life is not None:
            return -math.expm1(-math.log(2) * half_lives(t1 - t0, times.half_life))
        s = times.start[0] if times.start else _count(_read_moment(group, START, clock), times.counter)
        mean = float((t1 - t0) / (t1 - s))
        if self.half_life is None or mean == 1.0:
            return mean
        return -math.expm1(math.log(2) / self.half_life * math.log1p(-mean))


def _read_half_life(half_life: object) -> Any:
    """Read a half-life: a time above 0, a share above 0, or None."""
    if half_life is None:
        return None
    if isinstance(half_life, (int, float)) and not isinstance(half_life, bool):
        if not (math.isfinite(half_life) and half_life > 0):
            raise ValueError(
                f"WeightAverage.half_life={half_life!r}: it is not finite and above 0. Pass a share of the time so "
                "far, such as 0.05, or a time with its unit, such as '200Mtok'."
            )
        if 0.9 <= half_life < 1:  # a usual decay, and a share that nobody needs
            batches = round(math.log(0.5) / math.log(half_life))
            raise ValueError(
                f"WeightAverage.half_life={half_life!r}: as a share, it would average over most of the run. For a "
                f"decay of {half_life!r} in each batch, pass '{batches}ba'. For a share of the time so far, pass less "
                "than 0.9, such as 0.05."
            )
        return float(half_life)
    time = Time.from_input(half_life)
    if time.exact <= 0:
        raise ValueError(f"WeightAverage.half_life={str(half_life)!r}: it is not above 0. Pass a longer time.")
    return time


def _count(moment: Moment, counter: Counter) -> Exact:
    """The count of a counter at a moment."""
    if isinstance(counter, EpochCounter):
        return counter.after(moment["epoch"], moment["batch_in_epoch"])  # type: ignore[no-any-return]  # of ints
    if counter is TimeUnit.SECOND:
        return Fraction(moment["total_wct"], 10**6)
    return moment[counter.name.lower()]


def _save_moment(moment: Moment, keys: Mapping[str, str]) -> dict[str, int]:
    """The counts of a moment, under the keys of a group."""
    return {key: moment.get(name, 0) for name, key in keys.items()}


def _read_moment(group: ParamGroup, keys: Mapping[str, str], clock: Clock) -> Moment:
    """The moment that a group holds under these keys, in epochs of the present length."""
    moment = {name: group[key] for name, key in keys.items()}
    if moment["batches_per_epoch"] == (clock.horizon.conversion_factors.batches_per_epoch or 0):
        return moment
    known = {name: count for name, count in moment.items() if count}
    state = clock._read_state({**Timestamp().state_dict(), **known}).state_dict()
    return {**state, "total_wct": moment["total_wct"], "batch_in_epoch": math.floor(state["batch_in_epoch"])}
