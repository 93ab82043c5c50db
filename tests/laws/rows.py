"""The one table of schedules: how to draw each, and what it promises. Everything else about a schedule follows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from optim.closed_form import formulas as f
from timesched import schedulers as s
from timesched import shapes
from timesched.composition import CooldownScheduler, ProductScheduler, SequenceScheduler, WarmupScheduler
from timesched.horizon import Horizon
from timesched.schedule import Schedule
from timesched.testing import Promise
from timesched.testing.runs import COUNTED, Run, runs
from timesched.time.units import Exact, TimeUnit
from timesched.time.value import Time

_UNITS = (*COUNTED, TimeUnit.DURATION)


@dataclass(frozen=True)
class Row:
    """A schedule class, a strategy for its arguments on a run, and its promise as a function of it and the horizon.

    `kind` tells the rows of one class apart. `examples` are calls with plain arguments: the lines of its picture in
    the documentation. `in_steps`: the value depends on a number of batches, so that every time needs a rate.
    """

    schedule: type[Schedule]
    arguments: Callable[[Any, Run, Any], dict[str, Any]]
    promise: Callable[[Any, Horizon], Promise]
    kind: str = ""
    examples: tuple[str, ...] = field(default=(), kw_only=True)
    in_steps: bool = field(default=False, kw_only=True)

    @property
    def name(self) -> str:
        """What the row is called in tests."""
        return self.schedule.__name__ + (f"({self.kind})" if self.kind else "")

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
        start=schedule.alpha_s if ramp > 0 else peak,
        end=last,
        until=until if room else (ramp, unit),
        low=min(schedule.alpha_s, peak, last) if ramp > 0 else min(peak, last),
        high=max(schedule.alpha_s, peak, last) if ramp > 0 else max(peak, last),
        continuous=True,
        falls=peak >= last,
        rises=peak <= last,
        since=(ramp, unit),
        condition=max(1.0, sharp * (abs(schedule.alpha_s) + abs(peak) + abs(last))),
    )


def _decaying(gamma: float, marks: int) -> Promise:
    """`gamma ** n` from `marks` on: between 0 and the first value if it decays."""
    start = float(gamma**marks)
    high = start if gamma <= 1 else math.inf
    return Promise(start=start, low=0.0, high=high, finite=gamma <= 1, falls=gamma <= 1, rises=gamma >= 1)


def _multi_step_warm(schedule: Any, run: Horizon) -> Promise:
    ramp = run.locate(schedule.t_warmup, schedule.scale_warmup)
    if ramp[0] == 0:
        return _multi_step(schedule, run)
    return Promise(
        start=schedule.alpha_s,
        low=min(0.0, schedule.alpha_s),
        high=max(1.0, schedule.alpha_s) if schedule.gamma <= 1 else math.inf,
        finite=schedule.gamma <= 1,
        since=ramp,
        falls=schedule.gamma <= 1,
        condition=max(1.0, 2.0 * abs(schedule.alpha_s)),
    )


def _multi_step(schedule: Any, run: Horizon) -> Promise:
    return _decaying(schedule.gamma, sum(time.exact == 0 for time in schedule.milestones))


def _exponential(schedule: Any, run: Horizon) -> Promise:
    # one rounding of the exponent x moves the value by x * |log gamma| roundings: at most 745, where it underflows
    return Promise(
        start=1.0,
        low=0.0,
        high=1.0 if schedule.gamma <= 1 else math.inf,
        finite=schedule.gamma <= 1,
        falls=schedule.gamma <= 1,
        rises=schedule.gamma >= 1,
        continuous=0 < schedule.gamma <= 1,
        condition=1500.0,
    )


def _restarts(schedule: Any, run: Horizon) -> Promise:
    low, high = min(1.0, schedule.alpha_f), max(1.0, schedule.alpha_f)
    # How far a float is into its cycle is known to a rounding of a count, of which the first cycle may be a part.
    first = min(run.change(*run.locate(schedule.t_0), unit) for unit in COUNTED)
    return Promise(start=1.0, low=low, high=high, condition=4.0 * (1 + abs(schedule.alpha_f)) * max(1.0, 1 / first))


def promise_of(schedule: Any, run: Horizon) -> Promise:
    """The promise of a schedule of this package on a run; none for a class that has no row."""
    row = next((row for row in ROWS if row.schedule is type(schedule)), None)
    return row.promise(schedule, run) if row else Promise()


def _sequence(schedule: Any, run: Horizon) -> Promise:
    children = [promise_of(child, run) for child in schedule.schedules]
    low, high = min(child.low for child in children), max(child.high for child in children)
    # how far a float is into its schedule is known to a rounding of the time of the run
    return Promise(low=low, high=high, condition=2.0 * sum(child.condition for child in children))


def _product(schedule: Any, run: Horizon) -> Promise:
    children = [promise_of(child, run) for child in schedule.schedules]
    sizes = [max(1.0, abs(child.low), abs(child.high)) for child in children]
    high = math.prod(child.high for child in children) if all(child.low >= 0 for child in children) else math.inf
    return Promise(
        low=0.0 if high < math.inf else -math.inf,
        high=high,
        continuous=all(child.continuous for child in children),
        condition=math.prod(sizes) * sum(child.condition for child in children),
    )


def _decayed(shape: str, rate: float, start: float, end: float) -> float:
    """How much one rounding of the fraction done moves a decay, in roundings of 1, with room for those of its terms."""
    steep = {"exponential": 2.0 + abs(math.log(rate)) * max(rate, 1 / rate)}
    if shape in ("geometric", "harmonic"):
        return 4.0 * (abs(start) + abs(end)) * (1 + abs(math.log(start)) + abs(math.log(end)) + max(start, end) / end)
    return steep.get(shape, 2.0) * (abs(start) + abs(end))


def _stable(schedule: Any, run: Horizon) -> Promise:
    ramp, end = run.locate(schedule.t_warmup, schedule.scale_warmup), run.locate(schedule.t_max)
    fall = run.change(*run.locate(schedule.t_decay), end[1])
    first, last = schedule.alpha_s, schedule.alpha_f
    begins_at_once = end[0] == 0
    low, high = min(1.0, last), max(1.0, last)
    return Promise(
        start=last if begins_at_once else first if ramp[0] > 0 else 1.0,
        end=last,
        until=end,
        low=min(low, first) if ramp[0] > 0 else low,
        high=max(high, first) if ramp[0] > 0 else high,
        continuous=fall > 0,
        falls=last <= 1.0,
        rises=last >= 1.0,
        since=ramp,
        condition=2.0 * (1 + abs(first)) + _decayed(schedule.decay, schedule.decay_rate, 1.0, last),
    )


def _inverse_root(schedule: Any, run: Horizon) -> Promise:
    ramp, end = run.locate(schedule.t_warmup, False), run.locate(schedule.t_max)
    first, cooldown = run.change(*ramp, end[1]), schedule.t_cooldown.exact
    floor, last = schedule.alpha_f_decay, schedule.alpha_f_cooldown
    return Promise(
        start=0.0 if ramp[0] > 0 else 1.0 if end[0] > 0 or cooldown > 0 else None,
        end=last if cooldown > 0 else None,
        until=(max(end[0], run.after(first, end[1], schedule.t_cooldown)), end[1]) if cooldown > 0 else None,
        low=min(0.0, floor, last),
        high=max(1.0, floor),
        continuous=True,
        falls=floor <= 1.0,
        since=ramp,
        condition=4.0 * (1 + abs(floor) + abs(last)),
    )


def _power(schedule: Any, run: Horizon) -> Promise:
    return Promise(
        start=max(1.0, schedule.alpha_f),
        low=max(0.0, schedule.alpha_f),
        high=max(1.0, schedule.alpha_f),
        continuous=True,
        falls=True,
        condition=2.0 + schedule.power,
    )


def _piecewise(schedule: Any, run: Horizon) -> Promise:
    times = [run.locate(time) for time, _, _ in schedule.points]
    values = [value for _, value, _ in schedule.points]
    unit = times[-1][1]
    places = [run.change(*each, unit) for each in times]
    return Promise(
        start=values[0] if times[0][0] > 0 else values[max(i for i, each in enumerate(times) if each[0] == 0)],
        end=values[-1],
        until=times[-1],
        low=min(values),
        high=max(values),
        continuous=all(before < after for before, after in pairwise(places)),
        condition=1.0
        + sum(_decayed(shape, 0.5, start, end) for (_, start, _), (_, end, shape) in pairwise(schedule.points)),
    )


def _one_cycle(schedule: Any, run: Horizon) -> Promise:
    end, first = run.locate(schedule.t_max), 1.0 / schedule.div_factor
    last = 1.0 / (schedule.div_factor * schedule.final_div_factor)
    turn = Fraction(str(schedule.pct_start)) * end[0]
    up = schedule.pct_start
    rest = 1.0 - (2 * up if schedule.three_phase else up)
    return Promise(
        start=first if turn > 0 else None,
        end=last,
        until=end,
        low=min(1.0, first, last),
        high=max(1.0, first, last),
        continuous=up > 0 and rest > 0 and end[0] > 0,
        condition=4.0 * (1 + first + last) / min(1.0, *(phase for phase in (up, rest) if phase > 0)),
    )


def _cyclic(schedule: Any, run: Horizon) -> Promise:
    up = run.locate(schedule.t_up)
    down = up[0] if schedule.t_down is None else run.change(*run.locate(schedule.t_down), up[1])
    shrinks = schedule.mode != "exp_range" or schedule.gamma <= 1
    low, high = sorted((schedule.alpha_i, schedule.alpha_f))
    # a time into the cycle is known to a rounding, of which the shorter line makes so many
    steep = float((up[0] + down) / min(up[0], down))
    return Promise(
        start=schedule.alpha_i,
        low=low if shrinks else -math.inf,
        high=high if shrinks else math.inf,
        finite=shrinks,
        continuous=schedule.gamma > 0,
        condition=(4.0 * steep + 1500.0 * (schedule.mode == "exp_range")) * (1 + abs(low) + abs(high)),
    )


def _warmed(schedule: Any, run: Horizon) -> Promise:
    inner, ramp = promise_of(schedule.schedule, run), run.locate(schedule.t_warmup, schedule.scale_warmup)
    if ramp[0] == 0:
        return inner
    return Promise(
        start=schedule.alpha_s,
        low=min(inner.low, schedule.alpha_s),
        high=max(inner.high, schedule.alpha_s),
        continuous=inner.continuous,
        falls=inner.falls,
        rises=inner.rises,
        since=_later(run, ramp, inner.since),
        condition=2.0 * inner.condition + 4.0 * abs(schedule.alpha_s),
    )


def _later(run: Horizon, one: tuple[Exact, TimeUnit], other: tuple[Exact, TimeUnit] | None) -> tuple[Exact, TimeUnit]:
    return one if other is None or run.change(*other, one[1]) <= one[0] else other


def _cooled(schedule: Any, run: Horizon) -> Promise:
    inner, last = promise_of(schedule.schedule, run), schedule.alpha_f
    place = run.locate(schedule.t_max if schedule.t_start is None else schedule.t_start)
    until = place if schedule.t_start is None else (run.after(*place, schedule.t_decay), place[1])
    low, high = min(inner.low, last), max(inner.high, last)
    steep = _decayed(schedule.decay, schedule.decay_rate, 1.0, last)
    return Promise(
        end=last,
        until=until,
        low=low,
        high=high,
        continuous=inner.continuous and schedule.t_decay.exact > 0,
        condition=2.0 * inner.condition + steep * (4.0 if high < math.inf else 1.0),
    )


def _alphas(draw: Any, *names: str) -> dict[str, float]:
    return {name: draw(_ALPHA) for name in names}


def _times(draw: Any, run: Run, time: Any) -> list[Time[Any]]:
    return [time(0, 2 * run.batches) for _ in range(draw(st.integers(0, 5)))]


def _warmup(draw: Any, run: Run, time: Any) -> dict[str, Any]:
    return {
        "t_warmup": time(0, run.batches),
        "t_max": _t_max(draw, run, time),
        "scale_warmup": draw(st.booleans()),
        "alpha_s": draw(_ALPHA),
    }


_GAMMA = st.floats(0, 1.5).filter(lambda gamma: gamma == 0 or gamma > 1e-3)
_POWER = st.floats(0.125, 5)
_WARMUP, _DECAY = st.sampled_from(list(shapes.WARMUPS)), st.sampled_from(list(shapes.DECAYS))
_POSITIVE = st.one_of(st.floats(0.01, 10), st.sampled_from([1.0, 0.1]))


def _t_max(draw: Any, run: Run, time: Any) -> Time[Any]:
    return Time(1, "dur") if draw(st.booleans()) else time(run.batches, 2 * run.batches)


def _fall(draw: Any) -> dict[str, Any]:
    shape = draw(_DECAY)
    end = draw(_POSITIVE if shape in ("geometric", "harmonic") else _ALPHA)
    return {"alpha_f": end, "decay": shape, "decay_rate": draw(st.sampled_from([0.5, 0.1, 1 / math.e, 1.0, 3.0]))}


def _stable_arguments(draw: Any, run: Run, time: Any) -> dict[str, Any]:
    return {
        "t_warmup": time(0, run.batches // 2),
        "t_decay": time(0, run.batches - run.batches // 2),
        "t_max": _t_max(draw, run, time),
        "alpha_s": draw(_ALPHA),
        **_fall(draw),
        "warmup": draw(_WARMUP),
        "scale_warmup": draw(st.booleans()),
    }


def _power_arguments(draw: Any, run: Run, time: Any) -> dict[str, Any]:
    return {"t_scale": time(1, 2 * run.batches), "power": draw(_POWER), "alpha_f": draw(_ALPHA)}


def _cooldown(draw: Any, run: Run, time: Any) -> dict[str, Any]:
    begin = None if draw(st.booleans()) else time(0, run.batches)
    return {"t_decay": time(0, run.batches), "t_start": begin, "t_max": _t_max(draw, run, time), **_fall(draw)}


def _points(draw: Any, run: Run, time: Any) -> list[Any]:
    count = draw(st.integers(1, 5))
    places = sorted(draw(st.lists(st.integers(0, 2 * run.batches), min_size=count, max_size=count)))
    return [[time(at, at), draw(_POSITIVE), draw(_DECAY)] for at in places]


_T_MULT = st.one_of(st.sampled_from([1.0, 2.0, 1.5, 1.1, 3.0]), st.floats(1.1, 4))

ROWS = [
    Row(
        s.StepScheduler,
        lambda draw, run, time: {"step_size": time(1, 2 * run.batches), "gamma": draw(_GAMMA)},
        lambda x, run: _decaying(x.gamma, 0),
        examples=('StepScheduler("0.2dur", gamma=0.5)',),
    ),
    Row(
        s.MultiStepScheduler,
        lambda draw, run, time: {"milestones": _times(draw, run, time), "gamma": draw(_GAMMA)},
        _multi_step,
        examples=('MultiStepScheduler(["0.5dur", "0.75dur"], gamma=0.3)',),
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
        examples=('ConstantScheduler(0.5, t_max="0.7dur")',),
    ),
    Row(
        s.LinearScheduler,
        lambda draw, run, time: {**_alphas(draw, "alpha_i", "alpha_f"), "t_max": time(0, 2 * run.batches)},
        lambda x, run: _line(x.alpha_i, x.alpha_f, run.locate(x.t_max)),
        examples=(
            'LinearScheduler(alpha_f=0.1, t_max="1dur")',
            'LinearScheduler(alpha_f=0.3, t_max="0.7dur")',
        ),
    ),
    Row(
        s.ExponentialScheduler,
        lambda draw, run, time: {"gamma": draw(_GAMMA), "decay_period": time(1, 2 * run.batches)},
        _exponential,
        examples=(
            'ExponentialScheduler(gamma=0.7, decay_period="0.1dur")',
            'ExponentialScheduler(gamma=0.4, decay_period="0.1dur")',
        ),
    ),
    Row(
        s.CosineAnnealingScheduler,
        lambda draw, run, time: {"t_max": time(0, 2 * run.batches), "alpha_f": draw(_ALPHA)},
        lambda x, run: _line(1.0, x.alpha_f, run.locate(x.t_max)),
        examples=(
            'CosineAnnealingScheduler(t_max="1dur", alpha_f=0.0)',
            'CosineAnnealingScheduler(t_max="0.7dur", alpha_f=0.1)',
        ),
    ),
    Row(
        s.CosineAnnealingWarmRestartsScheduler,
        lambda draw, run, time: {"t_0": time(1, 2 * run.batches), "t_mult": draw(_T_MULT), "alpha_f": draw(_ALPHA)},
        _restarts,
        examples=(
            'CosineAnnealingWarmRestartsScheduler("0.2dur", t_mult=1.0)',
            'CosineAnnealingWarmRestartsScheduler("0.2dur", t_mult=2.0)',
        ),
    ),
    Row(
        s.PolynomialScheduler,
        lambda draw, run, time: {"power": draw(_POWER), "t_max": time(0, 2 * run.batches), "alpha_f": draw(_ALPHA)},
        lambda x, run: _line(1.0, x.alpha_f, run.locate(x.t_max), sharp=2.0 + x.power),
        examples=(
            "PolynomialScheduler(power=0.5)",
            "PolynomialScheduler(power=2.0)",
            "PolynomialScheduler(power=4.0)",
        ),
    ),
    Row(
        s.MultiStepWithWarmupScheduler,
        lambda draw, run, time: {
            "t_warmup": time(0, run.batches),
            "milestones": _times(draw, run, time),
            "gamma": draw(_GAMMA),
            "scale_warmup": draw(st.booleans()),
            "alpha_s": draw(_ALPHA),
        },
        _multi_step_warm,
        examples=('MultiStepWithWarmupScheduler("0.1dur", ["0.5dur", "0.75dur"], gamma=0.3)',),
    ),
    Row(
        s.ConstantWithWarmupScheduler,
        lambda draw, run, time: {**_warmup(draw, run, time), "alpha": draw(_ALPHA)},
        lambda x, run: _warm(x, run, x.alpha, x.alpha),
        examples=('ConstantWithWarmupScheduler("0.1dur")',),
    ),
    Row(
        s.LinearWithWarmupScheduler,
        lambda draw, run, time: {**_warmup(draw, run, time), **_alphas(draw, "alpha_i", "alpha_f")},
        lambda x, run: _warm(x, run, x.alpha_i, x.alpha_f),
        examples=('LinearWithWarmupScheduler("0.1dur", alpha_f=0.1)',),
    ),
    Row(
        s.CosineAnnealingWithWarmupScheduler,
        lambda draw, run, time: {**_warmup(draw, run, time), "alpha_f": draw(_ALPHA)},
        lambda x, run: _warm(x, run, 1.0, x.alpha_f),
        examples=('CosineAnnealingWithWarmupScheduler("0.1dur", alpha_f=0.1)',),
    ),
    Row(
        s.PolynomialWithWarmupScheduler,
        lambda draw, run, time: {**_warmup(draw, run, time), "power": draw(_POWER), "alpha_f": draw(_ALPHA)},
        lambda x, run: _warm(x, run, 1.0, x.alpha_f, sharp=2.0 + x.power),
        examples=(
            'PolynomialWithWarmupScheduler("0.1dur", power=2.0)',
            'PolynomialWithWarmupScheduler("0.1dur", power=4.0)',
        ),
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
        examples=(
            'SequenceScheduler([ConstantScheduler(0.5), LinearScheduler(1.0, 0.0, t_max="0.4dur")], ["0.6dur"])',
        ),
    ),
    Row(
        s.WarmupStableDecayScheduler,
        _stable_arguments,
        _stable,
        examples=(
            'WarmupStableDecayScheduler("0.1dur", "0.4dur", alpha_f=0.05, warmup="linear", decay="linear")',
            'WarmupStableDecayScheduler("0.1dur", "0.4dur", alpha_f=0.05, warmup="cosine", decay="cosine")',
            'WarmupStableDecayScheduler("0.1dur", "0.4dur", alpha_f=0.05, warmup="1-sqrt", decay="1-sqrt")',
            'WarmupStableDecayScheduler("0.1dur", "0.4dur", alpha_f=0.05, warmup="square", decay="geometric")',
        ),
    ),
    Row(
        s.InverseSquareRootWithWarmupScheduler,
        lambda draw, run, time: {
            "t_warmup": time(0, run.batches),
            "t_scale": time(1, 2 * run.batches),
            "t_cooldown": time(0, run.batches),
            "t_max": _t_max(draw, run, time),
            **dict(zip(("alpha_f_cooldown", "alpha_f_decay"), sorted([draw(_ALPHA), draw(_ALPHA)]))),
        },
        _inverse_root,
        examples=('InverseSquareRootWithWarmupScheduler("0.05dur", t_scale="0.05dur", t_cooldown="0.2dur")',),
    ),
    Row(
        s.PowerScheduler,
        _power_arguments,
        _power,
        examples=(
            'PowerScheduler("0.05dur", power=0.5)',
            'PowerScheduler("0.05dur", power=1.0)',
        ),
    ),
    Row(
        s.PiecewiseScheduler,
        lambda draw, run, time: {"points": _points(draw, run, time)},
        _piecewise,
        examples=(
            'PiecewiseScheduler([["0dur", 0.0], ["0.1dur", 1.0], ["0.7dur", 0.8], ["1dur", 0.05, "geometric"]])',
        ),
    ),
    Row(
        s.RexScheduler,
        lambda draw, run, time: {
            "t_max": _t_max(draw, run, time),
            "alpha_f": draw(_ALPHA),
            "d": draw(st.floats(0, 0.9375)),
        },
        lambda x, run: _line(1.0, x.alpha_f, run.locate(x.t_max), sharp=4.0 / (1.0 - x.d)),
        examples=(
            "RexScheduler(d=0.0)",
            "RexScheduler(d=0.5)",
            "RexScheduler(d=0.9)",
        ),
    ),
    Row(
        s.OneCycleScheduler,
        lambda draw, run, time: {
            "t_max": _t_max(draw, run, time),
            "pct_start": draw(st.sampled_from([0.0, 0.1, 0.3, 0.45, 0.5])),
            "div_factor": draw(st.floats(0.5, 100)),
            "final_div_factor": draw(st.floats(0.5, 1e5)),
            "anneal": draw(st.sampled_from(["cosine", "linear"])),
            "three_phase": draw(st.booleans()),
        },
        _one_cycle,
        examples=(
            'OneCycleScheduler(anneal="cosine", three_phase=False)',
            'OneCycleScheduler(anneal="linear", three_phase=True)',
        ),
    ),
    Row(
        s.CyclicScheduler,
        lambda draw, run, time: {
            "t_up": time(1, 2 * run.batches),
            "t_down": None if draw(st.booleans()) else time(1, 2 * run.batches),
            **_alphas(draw, "alpha_i", "alpha_f"),
            "mode": draw(st.sampled_from(["triangular", "triangular2", "exp_range"])),
            "gamma": draw(_GAMMA),
        },
        _cyclic,
        examples=(
            'CyclicScheduler("0.1dur", mode="triangular")',
            'CyclicScheduler("0.1dur", mode="triangular2")',
            'CyclicScheduler("0.1dur", mode="exp_range", gamma=0.7)',
        ),
    ),
    Row(
        WarmupScheduler,
        lambda draw, run, time: {
            "schedule": s.PowerScheduler(**_power_arguments(draw, run, time)),
            "t_warmup": time(0, run.batches),
            "alpha_s": draw(_ALPHA),
            "warmup": draw(_WARMUP),
            "scale_warmup": draw(st.booleans()),
        },
        _warmed,
        "Power",
        examples=('WarmupScheduler(PowerScheduler("0.05dur"), t_warmup="0.1dur")',),
    ),
    Row(
        CooldownScheduler,
        lambda draw, run, time: {
            "schedule": s.CosineAnnealingScheduler(t_max=time(0, 2 * run.batches), alpha_f=draw(st.floats(0.01, 2))),
            **_cooldown(draw, run, time),
        },
        _cooled,
        "Cosine",
        examples=('CooldownScheduler(CosineAnnealingScheduler(), t_decay="0.2dur", t_start="0.3dur", decay="1-sqrt")',),
    ),
    Row(
        CooldownScheduler,
        lambda draw, run, time: {
            "schedule": s.PowerScheduler(
                **{**_power_arguments(draw, run, time), "power": draw(st.floats(0.125, 1)), "alpha_f": 0.01}
            ),
            **_cooldown(draw, run, time),
        },
        _cooled,
        "Power",
        examples=('CooldownScheduler(PowerScheduler("0.05dur"), t_decay="0.2dur")',),
    ),
    Row(
        ProductScheduler,
        lambda draw, run, time: {
            "schedules": [
                s.InverseSquareRootWithWarmupScheduler(time(0, run.batches), time(1, 2 * run.batches), "0ba"),
                s.WarmupStableDecayScheduler(**_stable_arguments(draw, run, time)),
            ]
        },
        _product,
        "InverseSquareRoot, WSD",
        examples=('ProductScheduler([CosineAnnealingScheduler(), CyclicScheduler("0.1dur", alpha_i=0.5)])',),
    ),
    Row(
        SequenceScheduler,
        lambda draw, run, time: {
            "schedules": [
                s.WarmupStableDecayScheduler(
                    time(0, run.batches // 3),
                    time(0, run.batches // 3),
                    time(run.batches - run.batches // 3, run.batches),
                )
                for _ in range(3)
            ],
            "milestones": [time(0, run.batches), time(run.batches, 2 * run.batches)],
        },
        _sequence,
        "WSDs",
        examples=(
            'SequenceScheduler([WarmupStableDecayScheduler("0.1dur", t_max="0.5dur")] * 2, milestones=["0.5dur"])',
        ),
    ),
]

_CLOSED_ENDS = ("initial_val", "end_val")


def _cycling(draw: Any, run: Run, time: Any) -> dict[str, Any]:
    cycle = draw(st.booleans())
    return {**_alphas(draw, *_CLOSED_ENDS), "total_iters": time(cycle, 2 * run.batches), "cycle": cycle}


def _from_to(schedule: Any, run: Horizon) -> Promise:
    start, end, sharp = schedule.initial_val, schedule.end_val, 2.0 + getattr(schedule, "power", 0.0)
    until = run.locate(f.time(schedule.total_iters))
    if not getattr(schedule, "cycle", False):
        return _line(start, end, until, sharp)
    # how far a cycle is done is known to a rounding, which a root at its end makes a large one
    rooted = 1e8 if getattr(schedule, "power", 1.0) < 1 else 4.0
    size = abs(start) + abs(end)
    return Promise(start=start, low=min(start, end), high=max(start, end), condition=1.0 + rooted * sharp * size)


def _scaled(schedule: Any, inner: Promise) -> Promise:
    """The promise of a falling multiplier for the values that it makes of an initial one, which is at least 0."""
    start = schedule.initial_val
    return replace(
        inner,
        start=None if inner.start is None else start * inner.start,
        low=0.0,
        high=start * inner.high,
        condition=inner.condition * max(1.0, start),
    )


def _closed_stable(schedule: Any, run: Horizon) -> Promise:
    ramp, end = (run.locate(f.time(each)) for each in (schedule.warmup_iters, schedule.total_iters))
    levels = (schedule.initial_val, schedule.val, schedule.end_val) if ramp[0] > 0 else (schedule.val, schedule.end_val)
    steep = _decayed(schedule.decay, schedule.decay_rate, schedule.val, schedule.end_val)
    return Promise(
        start=levels[0] if ramp[0] > 0 else None,
        end=schedule.end_val,
        until=end,
        low=min(levels),
        high=max(levels),
        condition=steep + 2.0 * sum(map(abs, levels)),
    )


def _closed_one_cycle(schedule: Any, run: Horizon) -> Promise:
    first, top = schedule.initial_val, schedule.max_val
    last = first / schedule.final_div_factor
    return Promise(
        end=last,
        until=run.locate(f.time(schedule.total_steps)),
        low=min(first, top, last),
        high=max(first, top, last),
        condition=1e3 * (1 + first + top + last),
    )


CLOSED_FORMS = [
    Row(
        f.Constant,
        lambda draw, run, time: {"val": draw(_ALPHA), "total_iters": None},
        lambda x, run: _line(x.val, x.val, (0, TimeUnit.BATCH)),
    ),
    Row(
        f.Polynomial,
        lambda draw, run, time: {**_cycling(draw, run, time), "power": draw(_POWER)},
        _from_to,
    ),
    Row(f.Linear, _cycling, _from_to),
    Row(
        f.CosineDecay,
        lambda draw, run, time: {**_alphas(draw, *_CLOSED_ENDS), "total_iters": time(0, 2 * run.batches)},
        _from_to,
    ),
    Row(
        f.Exponential,
        lambda draw, run, time: {
            "initial_val": draw(_POSITIVE),
            "total_iters": time(1, 2 * run.batches),
            "decay_rate": draw(st.floats(0.01, 1)),
            "staircase": draw(st.booleans()),
        },
        lambda x, run: _scaled(x, Promise(start=1.0, high=1.0, falls=True, condition=1500.0)),
    ),
    Row(
        f.InverseExponentialTimeDecay,
        lambda draw, run, time: {
            "initial_val": draw(_POSITIVE),
            "step_exponent": draw(st.sampled_from([1, 0.5, 2])),
            "total_iters": time(1, 2 * run.batches),
            "decay_rate": draw(st.floats(0.01, 10)),
            "staircase": draw(st.booleans()),
        },
        lambda x, run: _scaled(x, Promise(start=1.0, high=1.0, falls=True, condition=4.0)),
        in_steps=True,
    ),
    Row(
        f.InverseSquareRootDecay,
        lambda draw, run, time: {
            "initial_val": draw(_POSITIVE),
            "scale": draw(_POSITIVE),
            "warmup_steps": time(1, 2 * run.batches),
        },
        lambda x, run: Promise(low=0.0, falls=True, condition=2.0 * (1 + x.initial_val * x.scale)),
        in_steps=True,
    ),
    Row(
        f.WarmupStableDecay,
        lambda draw, run, time: {
            "val": draw(_POSITIVE),
            "total_iters": time(run.batches, 2 * run.batches),
            "warmup_iters": time(0, run.batches // 2),
            "decay_iters": time(0, run.batches - run.batches // 2),
            "initial_val": draw(_ALPHA),
            "end_val": draw(_POSITIVE),
            "warmup": draw(_WARMUP),
            "decay": draw(_DECAY),
            "decay_rate": draw(st.sampled_from([0.5, 0.1, 1.0, 3.0])),
        },
        _closed_stable,
    ),
    Row(
        f.PiecewiseConstant,
        lambda draw, run, time: {
            "vals": draw(st.lists(_ALPHA, min_size=3, max_size=3)),
            "milestones": [time(0, run.batches), time(run.batches, 2 * run.batches)],
        },
        lambda x, run: Promise(
            end=x.vals[-1], until=run.locate(f.time(x.milestones[-1])), low=min(x.vals), high=max(x.vals)
        ),
    ),
    Row(
        f.MultiStep,
        lambda draw, run, time: {
            "initial_val": draw(_POSITIVE),
            "gamma": draw(st.floats(0.01, 1)),
            "milestones": [time(0, run.batches), time(run.batches, 2 * run.batches)],
        },
        lambda x, run: _scaled(x, Promise(high=1.0, falls=True, condition=4.0)),
    ),
    Row(
        f.Step,
        lambda draw, run, time: {
            "initial_val": draw(_POSITIVE),
            "step_size": time(1, 2 * run.batches),
            "gamma": draw(st.floats(0.01, 1)),
        },
        lambda x, run: _scaled(x, Promise(start=1.0, high=1.0, falls=True, condition=4.0)),
    ),
    Row(
        f.CosineAnnealing,
        lambda draw, run, time: {**_alphas(draw, "initial_val", "eta_min"), "T_max": time(1, 2 * run.batches)},
        lambda x, run: Promise(
            start=x.initial_val,
            low=min(x.initial_val, x.eta_min),
            high=max(x.initial_val, x.eta_min),
            continuous=True,
            condition=4.0 * (1 + abs(x.initial_val) + abs(x.eta_min)),
        ),
    ),
    Row(
        f.CosineAnnealingWarmRestarts,
        lambda draw, run, time: {
            **_alphas(draw, "initial_val", "eta_min"),
            "T_0": time(1, 2 * run.batches),
            "T_mult": draw(_T_MULT),
        },
        lambda x, run: Promise(
            start=x.initial_val,
            low=min(x.initial_val, x.eta_min),
            high=max(x.initial_val, x.eta_min),
            condition=4.0 * (1 + abs(x.initial_val) + abs(x.eta_min)),
        ),
    ),
    Row(
        f.Cyclic,
        lambda draw, run, time: {
            **_alphas(draw, "base_val", "max_val"),
            "step_size_up": time(1, 2 * run.batches),
            "step_size_down": None if draw(st.booleans()) else time(1, 2 * run.batches),
            "mode": draw(st.sampled_from(["triangular", "triangular2", "exp_range"])),
            "gamma": draw(st.floats(0.01, 1)),
        },
        lambda x, run: replace(
            Promise(start=x.base_val, low=min(x.base_val, x.max_val), high=max(x.base_val, x.max_val)),
            condition=1500.0 * (1 + abs(x.base_val) + abs(x.max_val)),
        ),
        in_steps=True,
    ),
    Row(
        f.OneCycle,
        lambda draw, run, time: {
            "initial_val": draw(_POSITIVE),
            "max_val": draw(_POSITIVE),
            "total_steps": time(3, 2 * run.batches + 3),
            "pct_start": draw(st.sampled_from([0.0, 0.1, 0.3, 0.45, 0.5])),
            "final_div_factor": draw(st.floats(0.5, 1e5)),
            "three_phase": draw(st.booleans()),
            "anneal_strategy": draw(st.sampled_from(["cos", "linear"])),
        },
        _closed_one_cycle,
        in_steps=True,
    ),
    Row(
        f.Multiplicative,
        lambda draw, run, time: {"initial_val": draw(_POSITIVE), "coefficient": draw(st.floats(0.01, 1))},
        lambda x, run: _scaled(x, Promise(start=1.0, high=1.0, falls=True, condition=1500.0)),
        in_steps=True,
    ),
]


def schedules() -> st.SearchStrategy[Any]:
    """Any schedule of timesched, with times in every unit."""
    return st.sampled_from(ROWS).flatmap(lambda row: runs().flatmap(row.schedules))
