"""The one table of schedules: how to draw each, and what it promises. Everything else about a schedule follows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from timesched import schedulers as s
from timesched.composition import SequenceScheduler
from timesched.horizon import Horizon
from timesched.schedule import Schedule
from timesched.testing.runs import COUNTED, Run
from timesched.time.units import Exact, TimeUnit
from timesched.time.value import Time

_UNITS = (*COUNTED, TimeUnit.DURATION)


@dataclass(frozen=True)
class Promise:
    """What a schedule promises on one run. None and empty stand for no promise.

    `start`: the value at 0. `end`: the value at the time `until`, and after it. `low`, `high`: the range.
    `continuous`: no jump anywhere. `falls`, `rises`: from the time `since` on, it never rises, or never falls.
    `condition`: how much larger than the value the terms are that it is computed from, and what the formula makes of
    one rounding of its argument: the tolerance between floats and tensors is 1e-15 of max(1, |value|) times this.
    """

    start: float | None = None
    end: float | None = None
    until: tuple[Exact, TimeUnit] | None = None
    low: float = -math.inf
    high: float = math.inf
    continuous: bool = False
    falls: bool = False
    rises: bool = False
    since: tuple[Exact, TimeUnit] | None = None
    condition: float = 1.0


@dataclass(frozen=True)
class Row:
    """A schedule class, a strategy for its arguments on a run, and its promise as a function of it and the horizon."""

    schedule: type[Schedule]
    arguments: Callable[[Any, Run, Any], dict[str, Any]]
    promise: Callable[[Any, Horizon], Promise]

    def schedules(self, run: Run, units: Any = _UNITS, mixed: bool = True) -> st.SearchStrategy[Any]:
        """Schedules of the class whose times suit a run; in one unit unless `mixed`."""

        @st.composite
        def drawn(draw: Any) -> Any:
            one = draw(st.sampled_from(units))

            def time(low: Exact, high: Exact) -> Time[Any]:
                unit = draw(st.sampled_from(units)) if mixed else one
                return run.time(draw(st.integers(math.ceil(low), math.floor(high))), unit)

            return self.schedule(**self.arguments(draw, run, time))

        return drawn()


_ALPHA = st.one_of(st.floats(0, 1), st.floats(-10, 10), st.sampled_from([0.0, 1.0, 0.1, 1e-10]))


def _line(start: float, end: float, until: tuple[Exact, TimeUnit], sharp: float = 2.0) -> Promise:
    """From `start` to `end` without turning back; only the end where there is no way between them."""
    return Promise(
        start=start if until[0] > 0 else end,
        end=end,
        until=until,
        low=min(start, end),
        high=max(start, end),
        continuous=True,
        falls=start >= end,
        rises=start <= end,
        condition=max(1.0, sharp * (abs(start) + abs(end))),
    )


def _warm(schedule: Any, run: Horizon, peak: float, last: float, sharp: float = 2.0) -> Promise:
    """A ramp from 0 to `peak`, then a line to `last`; the peak to the end where the ramp takes all the time."""
    ramp, unit = run.locate(schedule.t_warmup, schedule.scale_warmup)
    until = run.locate(schedule.t_max)
    room = until[0] > run.change(ramp, unit, until[1])
    last = last if room else peak
    return Promise(
        start=0.0 if ramp > 0 else peak,
        end=last,
        until=until if room else (ramp, unit),
        low=min(0.0, peak, last) if ramp > 0 else min(peak, last),
        high=max(0.0, peak, last) if ramp > 0 else max(peak, last),
        continuous=True,
        falls=peak >= last,
        rises=peak <= last,
        since=(ramp, unit),
        condition=max(1.0, sharp * (abs(peak) + abs(last))),
    )


def _decaying(gamma: float, marks: int) -> Promise:
    """`gamma ** n` from `marks` on: between 0 and the first value if it decays."""
    start = float(gamma**marks)
    return Promise(start=start, low=0.0, high=start if gamma <= 1 else math.inf, falls=gamma <= 1, rises=gamma >= 1)


def _multi_step_warm(schedule: Any, run: Horizon) -> Promise:
    ramp = run.locate(schedule.t_warmup, schedule.scale_warmup)
    if ramp[0] == 0:
        return _multi_step(schedule, run)
    return Promise(
        start=0.0, low=0.0, high=1.0 if schedule.gamma <= 1 else math.inf, since=ramp, falls=schedule.gamma <= 1
    )


def _multi_step(schedule: Any, run: Horizon) -> Promise:
    return _decaying(schedule.gamma, sum(time.exact == 0 for time in schedule.milestones))


def _exponential(schedule: Any, run: Horizon) -> Promise:
    # one rounding of the exponent x moves the value by x * |log gamma| roundings: at most 745, where it underflows
    return Promise(
        start=1.0,
        low=0.0,
        high=1.0 if schedule.gamma <= 1 else math.inf,
        falls=schedule.gamma <= 1,
        rises=schedule.gamma >= 1,
        continuous=0 < schedule.gamma <= 1,
        condition=1500.0,
    )


def _restarts(schedule: Any, run: Horizon) -> Promise:
    low, high = min(1.0, schedule.alpha_f), max(1.0, schedule.alpha_f)
    first, unit = run.locate(schedule.t_0)
    growth = Time(schedule.t_mult, "dur").exact
    until = (Fraction(first) / (1 - growth), unit) if growth < 1 else None
    end = schedule.alpha_f if until else None
    condition = 4.0 * (1 + abs(schedule.alpha_f))  # how far a float is into its cycle is known to a rounding of it
    return Promise(start=1.0, low=low, high=high, end=end, until=until, condition=condition)


def _sequence(schedule: Any, run: Horizon) -> Promise:
    ends = [schedule.schedules[0].alpha_i, schedule.schedules[0].alpha_f, schedule.schedules[1].alpha_f, 0.0, 1.0]
    return Promise(low=min(ends), high=max(ends), condition=4.0 * sum(map(abs, ends)))


def _alphas(draw: Any, *names: str) -> dict[str, float]:
    return {name: draw(_ALPHA) for name in names}


def _times(draw: Any, run: Run, time: Any) -> list[Time[Any]]:
    return [time(0, 2 * run.batches) for _ in range(draw(st.integers(0, 5)))]


def _warmup(draw: Any, run: Run, time: Any) -> dict[str, Any]:
    return {
        "t_warmup": time(0, run.batches),
        "t_max": draw(st.just(Time(1, "dur"))) if draw(st.booleans()) else time(run.batches, 2 * run.batches),
        "scale_warmup": draw(st.booleans()),
    }


_GAMMA = st.floats(0, 1.5).filter(lambda gamma: gamma == 0 or gamma > 1e-3)
_POWER = st.floats(0.125, 5)
_T_MULT = st.one_of(st.sampled_from([1.0, 2.0, 1.5, 0.5, 0.9, 1.001, 3.0]), st.floats(0.01, 4))

ROWS = [
    Row(
        s.StepScheduler,
        lambda draw, run, time: {"step_size": time(1, 2 * run.batches), "gamma": draw(_GAMMA)},
        lambda x, run: _decaying(x.gamma, 0),
    ),
    Row(
        s.MultiStepScheduler,
        lambda draw, run, time: {"milestones": _times(draw, run, time), "gamma": draw(_GAMMA)},
        _multi_step,
    ),
    Row(
        s.ConstantScheduler,
        lambda draw, run, time: {"alpha": draw(_ALPHA), "t_max": time(0, 2 * run.batches)},
        lambda x, run: Promise(
            start=x.alpha if x.t_max.exact > 0 else 1.0,
            end=1.0,
            until=run.locate(x.t_max),
            low=min(x.alpha, 1.0),
            high=max(x.alpha, 1.0),
        ),
    ),
    Row(
        s.LinearScheduler,
        lambda draw, run, time: {**_alphas(draw, "alpha_i", "alpha_f"), "t_max": time(0, 2 * run.batches)},
        lambda x, run: _line(x.alpha_i, x.alpha_f, run.locate(x.t_max)),
    ),
    Row(
        s.ExponentialScheduler,
        lambda draw, run, time: {"gamma": draw(_GAMMA), "decay_period": time(1, 2 * run.batches)},
        _exponential,
    ),
    Row(
        s.CosineAnnealingScheduler,
        lambda draw, run, time: {"t_max": time(0, 2 * run.batches), "alpha_f": draw(_ALPHA)},
        lambda x, run: _line(1.0, x.alpha_f, run.locate(x.t_max)),
    ),
    Row(
        s.CosineAnnealingWarmRestartsScheduler,
        lambda draw, run, time: {"t_0": time(1, 2 * run.batches), "t_mult": draw(_T_MULT), "alpha_f": draw(_ALPHA)},
        _restarts,
    ),
    Row(
        s.PolynomialScheduler,
        lambda draw, run, time: {"power": draw(_POWER), "t_max": time(0, 2 * run.batches), "alpha_f": draw(_ALPHA)},
        lambda x, run: _line(1.0, x.alpha_f, run.locate(x.t_max), sharp=2.0 + x.power),
    ),
    Row(
        s.MultiStepWithWarmupScheduler,
        lambda draw, run, time: {
            "t_warmup": time(0, run.batches),
            "milestones": _times(draw, run, time),
            "gamma": draw(_GAMMA),
            "scale_warmup": draw(st.booleans()),
        },
        _multi_step_warm,
    ),
    Row(
        s.ConstantWithWarmupScheduler,
        lambda draw, run, time: {**_warmup(draw, run, time), "alpha": draw(_ALPHA)},
        lambda x, run: _warm(x, run, x.alpha, x.alpha),
    ),
    Row(
        s.LinearWithWarmupScheduler,
        lambda draw, run, time: {**_warmup(draw, run, time), **_alphas(draw, "alpha_i", "alpha_f")},
        lambda x, run: _warm(x, run, x.alpha_i, x.alpha_f),
    ),
    Row(
        s.CosineAnnealingWithWarmupScheduler,
        lambda draw, run, time: {**_warmup(draw, run, time), "alpha_f": draw(_ALPHA)},
        lambda x, run: _warm(x, run, 1.0, x.alpha_f),
    ),
    Row(
        s.PolynomialWithWarmupScheduler,
        lambda draw, run, time: {**_warmup(draw, run, time), "power": draw(_POWER), "alpha_f": draw(_ALPHA)},
        lambda x, run: _warm(x, run, 1.0, x.alpha_f, sharp=2.0 + x.power),
    ),
    Row(
        SequenceScheduler,
        lambda draw, run, time: {
            "schedules": [
                s.LinearScheduler(**_alphas(draw, "alpha_i", "alpha_f"), t_max=time(0, run.batches)),
                s.CosineAnnealingScheduler(t_max=time(0, run.batches), alpha_f=draw(_ALPHA)),
                s.StepScheduler(time(1, run.batches), gamma=0.5),
            ],
            "milestones": [time(0, run.batches), time(run.batches, 2 * run.batches)],
        },
        _sequence,
    ),
]
