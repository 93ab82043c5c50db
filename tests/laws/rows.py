"""The one table of schedules: how to draw each, and what it promises. Everything else about a schedule follows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from optim.closed_form import formulas as f
from timesched import schedulers as s
from timesched.maths import shapes
from timesched.run.horizon import Horizon, Position
from timesched.schedulers.composition import CooldownScheduler, ProductScheduler, SequenceScheduler, WarmupScheduler
from timesched.schedulers.half_life import HalfLife
from timesched.schedulers.schedule import Schedule
from timesched.testing import Promise
from timesched.testing.runs import COUNTED, Run
from timesched.time.units import Exact, TimeUnit, unit_of
from timesched.time.value import Time

_UNITS = (*COUNTED, TimeUnit.DURATION)


@dataclass(frozen=True)
class Row:
    """A schedule class, its arguments as `drawn` takes them, and its promise as a function of it and the horizon.

    `in_steps`: the value depends on a number of batches, or on the length of one, so that every time needs a rate.
    """

    schedule: type[Schedule]
    arguments: Any
    promise: Callable[[Any, Horizon], Promise]
    in_steps: bool = False

    @property
    def name(self) -> str:
        """What the row is called in tests."""
        return self.schedule.__name__

    @property
    def examples(self) -> list[str]:
        """Calls with plain arguments, in shares of a run."""
        return [call for calls in pictures(self.name) for call in calls]

    def schedules(self, run: Run, units: Any = _UNITS, mixed: bool = True) -> st.SearchStrategy[Any]:
        """Schedules of the class whose times suit a run; in one unit unless `mixed`."""

        @st.composite
        def schedule(draw: Any) -> Any:
            one = draw(st.sampled_from(units))

            def time(low: Exact, high: Exact) -> Time[Any]:
                unit = draw(st.sampled_from(units)) if mixed else one
                return run.time(draw(st.integers(math.ceil(low), math.floor(high))), unit)

            return self.schedule(**drawn(self.arguments, draw, run, time))

        return schedule()


# Calls by the groups of the gallery. Lines of one class make one picture there, unless an empty line separates them.
EXAMPLES = {
    "Warmup and decay": """
LinearWithWarmupScheduler("0.1dur", alpha_f=0.1)
CosineAnnealingWithWarmupScheduler("0.1dur", alpha_f=0.1)
PolynomialWithWarmupScheduler("0.1dur", power=2.0)
PolynomialWithWarmupScheduler("0.1dur", power=4.0)
InverseSquareRootWithWarmupScheduler("0.05dur", t_scale="0.05dur", t_cooldown="0.2dur")
MultiStepWithWarmupScheduler("0.1dur", ["0.5dur", "0.75dur"], gamma=0.3)
ConstantWithWarmupScheduler("0.1dur")
""",
    "WSD": """
WarmupStableDecayScheduler("0.1dur", "0.4dur", alpha_f=0.05, warmup="linear", decay="linear")
WarmupStableDecayScheduler("0.1dur", "0.4dur", alpha_f=0.05, warmup="cosine", decay="cosine")
WarmupStableDecayScheduler("0.1dur", "0.4dur", alpha_f=0.05, warmup="1-sqrt", decay="1-sqrt")
WarmupStableDecayScheduler("0.1dur", "0.4dur", alpha_f=0.05, warmup="square", decay="geometric")
""",
    "Piecewise": """
PiecewiseScheduler([["0dur", 0.0], ["0.1dur", 1.0], ["0.7dur", 0.8], ["1dur", 0.05, "geometric"]])
MultiStepScheduler(["0.5dur", "0.75dur"], gamma=0.3)
StepScheduler("0.2dur", gamma=0.5)
ConstantScheduler(0.5, t_max="0.7dur")
""",
    "Decay": """
LinearScheduler(alpha_f=0.1, t_max="1dur")
LinearScheduler(alpha_f=0.3, t_max="0.7dur")
CosineAnnealingScheduler(t_max="1dur", alpha_f=0.0)
CosineAnnealingScheduler(t_max="0.7dur", alpha_f=0.1)
PolynomialScheduler(power=0.5)
PolynomialScheduler(power=2.0)
PolynomialScheduler(power=4.0)
ExponentialScheduler(gamma=0.7, decay_period="0.1dur")
ExponentialScheduler(gamma=0.4, decay_period="0.1dur")
PowerScheduler("0.05dur", power=0.5)
PowerScheduler("0.05dur", power=1.0)
RexScheduler(d=0.0)
RexScheduler(d=0.5)
RexScheduler(d=0.9)
""",
    "Cyclic": """
OneCycleScheduler(anneal="cosine", three_phase=False)
OneCycleScheduler(anneal="linear", three_phase=True)
CyclicScheduler("0.1dur", mode="triangular")
CyclicScheduler("0.1dur", mode="triangular2")
CyclicScheduler("0.1dur", mode="exp_range", gamma=0.7)
CosineAnnealingWarmRestartsScheduler("0.2dur", t_mult=1.0)
CosineAnnealingWarmRestartsScheduler("0.2dur", t_mult=2.0)
""",
    "Betas, as values": """
HalfLife("0.002dur")
HalfLife("0.01dur")
""",
    "Made of other schedules": """
WarmupScheduler(PowerScheduler("0.05dur"), t_warmup="0.1dur")
CooldownScheduler(CosineAnnealingScheduler(), t_decay="0.2dur", t_start="0.3dur", decay="1-sqrt")
SequenceScheduler([ConstantScheduler(0.5), LinearScheduler(1.0, 0.0, t_max="0.4dur")], ["0.6dur"])
ProductScheduler([CosineAnnealingScheduler(), CyclicScheduler("0.1dur", alpha_i=0.5)])

CooldownScheduler(PowerScheduler("0.05dur"), t_decay="0.2dur")
SequenceScheduler([WarmupStableDecayScheduler("0.1dur", t_max="0.5dur")] * 2, milestones=["0.5dur"])
""",
}
EXAMPLE_CALLS = [call for calls in EXAMPLES.values() for call in calls.split("\n") if call]


def pictures(name: str, examples: Mapping[str, str] = EXAMPLES) -> list[tuple[str, ...]]:
    """The calls of a class in each of its pictures."""
    parts = [part.splitlines() for calls in examples.values() for part in calls.split("\n\n")]
    calls_by_part = [tuple(call for call in part if call.startswith(f"{name}(")) for part in parts]
    return [calls for calls in calls_by_part if calls]


# How arguments are drawn


def drawn(value: Any, draw: Any, run: Run, time: Any) -> Any:
    """A strategy and a function of (draw, run, time) give their value, dicts and lists those of their elements."""
    if isinstance(value, st.SearchStrategy):
        return draw(value)
    if isinstance(value, dict):
        return {name: drawn(each, draw, run, time) for name, each in value.items()}
    if isinstance(value, list):
        return [drawn(each, draw, run, time) for each in value]
    return value(draw, run, time) if callable(value) else value


def _between(low: Exact, high: Exact, first: int = 0) -> Any:
    """A time between two shares of a run, and not before a batch."""
    return lambda draw, run, time: time(max(first, low * run.batches), high * run.batches)


def _made(schedule: type[Schedule], **arguments: Any) -> Any:
    """A schedule inside another one."""
    return lambda draw, run, time: schedule(**drawn(arguments, draw, run, time))


def _either(*values: Any) -> Any:
    return lambda draw, run, time: drawn(draw(st.sampled_from(values)), draw, run, time)


_ANY, _WITHIN, _BEYOND, _PERIOD = _between(0, 2), _between(0, 1), _between(1, 2), _between(0, 2, first=1)
_THIRD, _HALF, _LAST_THIRD = _between(0, Fraction(1, 3)), _between(0, Fraction(1, 2)), _between(Fraction(2, 3), 1)
_T_MAX = _either(Time(1, "dur"), _BEYOND)
_BOOL, _POWER, _GROWTH = st.booleans(), st.floats(0.125, 5), st.sampled_from([0.5, 0.1, 1 / math.e, 1.0, 3.0])
_WARMUP, _DECAY = st.sampled_from(list(shapes.WARMUPS)), st.sampled_from(list(shapes.DECAYS))
_ALPHA = st.one_of(st.floats(0, 1), st.floats(-10, 10), st.sampled_from([0.0, 1.0, 0.1, 1e-10]))
_POSITIVE = st.one_of(st.floats(0.01, 10), st.sampled_from([1.0, 0.1]))
_GAMMA = st.floats(0, 1.5).filter(lambda gamma: gamma == 0 or gamma > 1e-3)
_FALLING = st.floats(0.01, 1)  # a factor of each step
_T_MULT = st.one_of(st.sampled_from([1.0, 2.0, 1.5, 1.1, 3.0]), st.floats(1.1, 4))
_PCT_START = st.sampled_from([0.0, 0.1, 0.3, 0.45, 0.5])
_MODE = st.sampled_from(["triangular", "triangular2", "exp_range"])


def _times(draw: Any, run: Run, time: Any) -> list[Time[Any]]:
    return [time(0, 2 * run.batches) for _ in range(draw(st.integers(0, 5)))]


def _fall(draw: Any) -> dict[str, Any]:
    shape = draw(_DECAY)
    end = draw(_POSITIVE if shape in ("geometric", "harmonic") else _ALPHA)
    return {"alpha_f": end, "decay": shape, "decay_rate": draw(_GROWTH)}


def _stable_arguments(draw: Any, run: Run, time: Any) -> Any:
    more = {"alpha_s": _ALPHA, "warmup": _WARMUP, "scale_warmup": _BOOL}
    return drawn({"t_warmup": _HALF, "t_decay": _HALF, "t_max": _T_MAX, **more}, draw, run, time) | _fall(draw)


def _cooldown(draw: Any, run: Run, time: Any) -> Any:
    cosine = _made(s.CosineAnnealingScheduler, t_max=_ANY, alpha_f=st.floats(0.01, 2))
    power = _made(s.PowerScheduler, t_scale=_PERIOD, power=st.floats(0.125, 1), alpha_f=0.01)
    times = {"t_decay": _WITHIN, "t_start": _either(None, _WITHIN), "t_max": _T_MAX}
    return drawn({"schedule": _either(cosine, power), **times}, draw, run, time) | _fall(draw)


def _inverse_root_arguments(draw: Any, run: Run, time: Any) -> Any:
    times = {"t_warmup": _WITHIN, "t_scale": _PERIOD, "t_cooldown": _WITHIN, "t_max": _T_MAX}
    low, high = sorted([draw(_ALPHA), draw(_ALPHA)])
    return drawn(times, draw, run, time) | {"alpha_f_cooldown": low, "alpha_f_decay": high}


def _points(draw: Any, run: Run, time: Any) -> list[Any]:
    places = draw(st.lists(st.integers(0, 2 * run.batches), min_size=1, max_size=5))
    return [[time(at, at), draw(_POSITIVE), draw(_DECAY)] for at in sorted(places)]


def _cycling(draw: Any, run: Run, time: Any) -> dict[str, Any]:
    cycle = draw(_BOOL)
    return {**drawn(_CLOSED_ENDS, draw, run, time), "total_iters": time(cycle, 2 * run.batches), "cycle": cycle}


_ENDS = {"alpha_i": _ALPHA, "alpha_f": _ALPHA}
_RAMP = {"t_warmup": _WITHIN, "t_max": _T_MAX, "scale_warmup": _BOOL, "alpha_s": _ALPHA}
_SLOW = {"t_scale": _PERIOD, "power": _POWER, "alpha_f": _ALPHA}  # a PowerScheduler
_STAIRS = {"initial_val": _POSITIVE, "total_iters": _PERIOD, "staircase": _BOOL}
_WAVES = {"initial_val": _ALPHA, "eta_min": _ALPHA}
_CLOSED_ENDS = {"initial_val": _ALPHA, "end_val": _ALPHA}


# What is promised


def _between_levels(*levels: float, **promise: Any) -> Promise:
    return Promise(low=min(levels), high=max(levels), **promise)


def _line(start: float, end: float, until: Position, sharp: float = 2.0) -> Promise:
    """From `start` to `end` without turning back; only the end where there is no way between them."""
    condition = max(1.0, sharp * (abs(start) + abs(end)))
    promise = _between_levels(start, end, end=end, until=until, continuous=True, condition=condition)
    return replace(promise, start=start if until[0] > 0 else end, falls=start >= end, rises=start <= end)


def _line_to_t_max(schedule: Any, run: Horizon) -> Promise:
    sharp = 2.0 + getattr(schedule, "power", 0.0)
    return _line(getattr(schedule, "alpha_i", 1.0), schedule.alpha_f, run.place(schedule.t_max), sharp)


def _warm(schedule: Any, run: Horizon) -> Promise:
    """A ramp to the peak, then a line to the end; the peak to the end where the ramp takes all the time."""
    peak = getattr(schedule, "alpha", getattr(schedule, "alpha_i", 1.0))
    last, sharp = getattr(schedule, "alpha_f", peak), 2.0 + getattr(schedule, "power", 0.0)
    ramp, unit = run.place(schedule.t_warmup, schedule.scale_warmup)
    until = run.place(schedule.t_max)
    room = until[0] > run.change(ramp, unit, until[1])
    last, first = last if room else peak, schedule.alpha_s if ramp > 0 else peak
    return _between_levels(
        *(first, peak, last),
        start=first,
        end=last,
        until=until if room else (ramp, unit),
        continuous=True,
        falls=peak >= last,
        rises=peak <= last,
        since=(ramp, unit),
        condition=max(1.0, sharp * (abs(schedule.alpha_s) + abs(peak) + abs(last))),
    )


def _decaying(gamma: float, marks: int = 0) -> Promise:
    """`gamma ** n` from `marks` on: between 0 and the first value if it decays."""
    start = float(gamma**marks)
    high = start if gamma <= 1 else math.inf
    return Promise(start=start, low=0.0, high=high, finite=gamma <= 1, falls=gamma <= 1, rises=gamma >= 1)


def _multi_step(schedule: Any, run: Horizon) -> Promise:
    return _decaying(schedule.gamma, sum(time.exact == 0 for time in schedule.milestones))


def _multi_step_warm(schedule: Any, run: Horizon) -> Promise:
    ramp = run.place(schedule.t_warmup, schedule.scale_warmup)
    if ramp[0] == 0:
        return _multi_step(schedule, run)
    first, promise = schedule.alpha_s, _decaying(schedule.gamma)
    low, high = min(0.0, first), max(promise.high, first)
    return replace(
        promise, start=first, low=low, high=high, rises=False, since=ramp, condition=max(1.0, 2.0 * abs(first))
    )


def _restarts(schedule: Any, run: Horizon) -> Promise:
    # How far a float is into its cycle is known to a rounding of a count, of which the first cycle may be a part.
    first = min(run.change(*run.place(schedule.t_0), unit) for unit in COUNTED)
    condition = 4.0 * (1 + abs(schedule.alpha_f)) * max(1.0, 1 / first)
    return _between_levels(1.0, schedule.alpha_f, start=1.0, condition=condition)


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
    ramp, end = run.place(schedule.t_warmup, schedule.scale_warmup), run.place(schedule.t_max)
    last, first = schedule.alpha_f, schedule.alpha_s if ramp[0] > 0 else 1.0
    return _between_levels(
        *(first, 1.0, last),
        start=last if end[0] == 0 else first,  # where it begins at once with its end
        end=last,
        until=end,
        continuous=run.change(*run.place(schedule.t_decay), end[1]) > 0,
        falls=last <= 1.0,
        rises=last >= 1.0,
        since=ramp,
        condition=2.0 * (1 + abs(schedule.alpha_s)) + _decayed(schedule.decay, schedule.decay_rate, 1.0, last),
    )


def _inverse_root(schedule: Any, run: Horizon) -> Promise:
    ramp, end = run.place(schedule.t_warmup, False), run.place(schedule.t_max)
    first, cooldown = run.change(*ramp, end[1]), schedule.t_cooldown.exact
    floor, last = schedule.alpha_f_decay, schedule.alpha_f_cooldown
    return _between_levels(
        *(0.0, 1.0, floor, last),
        start=0.0 if ramp[0] > 0 else 1.0 if end[0] > 0 or cooldown > 0 else None,
        end=last if cooldown > 0 else None,
        until=(max(end[0], run.after(first, unit_of(end[1]), schedule.t_cooldown)), end[1]) if cooldown > 0 else None,
        continuous=True,
        falls=floor <= 1.0,
        since=ramp,
        condition=4.0 * (1 + abs(floor) + abs(last)),
    )


def _power(schedule: Any, run: Horizon) -> Promise:
    first, last = max(1.0, schedule.alpha_f), max(0.0, schedule.alpha_f)
    return _between_levels(first, last, start=first, continuous=True, falls=True, condition=2.0 + schedule.power)


def _piecewise(schedule: Any, run: Horizon) -> Promise:
    times = [run.place(time) for time, _, _ in schedule.points]
    values = [value for _, value, _ in schedule.points]
    places = [run.change(*each, times[-1][1]) for each in times]
    steep = [_decayed(shape, 0.5, start, end) for (_, start, _), (_, end, shape) in pairwise(schedule.points)]
    return _between_levels(
        *values,
        start=values[0] if times[0][0] > 0 else values[max(i for i, each in enumerate(times) if each[0] == 0)],
        end=values[-1],
        until=times[-1],
        continuous=all(before < after for before, after in pairwise(places)),
        condition=1.0 + sum(steep),
    )


def _one_cycle(schedule: Any, run: Horizon) -> Promise:
    end, first = run.place(schedule.t_max), 1.0 / schedule.div_factor
    last, up = 1.0 / (schedule.div_factor * schedule.final_div_factor), schedule.pct_start
    rest = 1.0 - (2 * up if schedule.three_phase else up)
    return _between_levels(
        *(1.0, first, last),
        start=first if Fraction(str(up)) * end[0] > 0 else None,
        end=last,
        until=end,
        continuous=up > 0 and rest > 0 and end[0] > 0,
        condition=4.0 * (1 + first + last) / min(1.0, *(phase for phase in (up, rest) if phase > 0)),
    )


def _cyclic(schedule: Any, run: Horizon) -> Promise:
    up = run.place(schedule.t_up)
    down = up[0] if schedule.t_down is None else run.change(*run.place(schedule.t_down), up[1])
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
    inner, first = promise_of(schedule.schedule, run), schedule.alpha_s
    ramp = run.place(schedule.t_warmup, schedule.scale_warmup)
    if ramp[0] == 0:
        return inner
    is_later = inner.since is None or run.change(*inner.since, ramp[1]) <= ramp[0]
    return replace(
        inner,
        start=first,
        end=None,
        until=None,
        low=min(inner.low, first),
        high=max(inner.high, first),
        since=ramp if is_later else inner.since,
        condition=2.0 * inner.condition + 4.0 * abs(first),
    )


def _cooled(schedule: Any, run: Horizon) -> Promise:
    inner, last = promise_of(schedule.schedule, run), schedule.alpha_f
    until = run.place(schedule.t_max if schedule.t_start is None else schedule.t_start)
    if schedule.t_start is not None:
        start, unit = until[0], unit_of(until[1])
        until = run.after(start, unit, schedule.t_decay), unit
    high, steep = max(inner.high, last), _decayed(schedule.decay, schedule.decay_rate, 1.0, last)
    return Promise(
        end=last,
        until=until,
        low=min(inner.low, last),
        high=high,
        continuous=inner.continuous and schedule.t_decay.exact > 0,
        condition=2.0 * inner.condition + steep * (4.0 if high < math.inf else 1.0),
    )


def _from_to(schedule: Any, run: Horizon) -> Promise:
    start, end, sharp = schedule.initial_val, schedule.end_val, 2.0 + getattr(schedule, "power", 0.0)
    if not getattr(schedule, "cycle", False):
        return _line(start, end, run.place(f.as_time(schedule.total_iters)), sharp)
    # how far a cycle is done is known to a rounding, which a root at its end makes a large one
    rooted = 1e8 if getattr(schedule, "power", 1.0) < 1 else 4.0
    return _between_levels(start, end, start=start, condition=1.0 + rooted * sharp * (abs(start) + abs(end)))


def _scaled(condition: float, start: float | None = 1.0) -> Callable[[Any, Horizon], Promise]:
    """The promise of a falling multiplier for the values that it makes of an initial one, which is at least 0."""

    def promise(schedule: Any, run: Horizon) -> Promise:
        first = schedule.initial_val
        scaled = condition * max(1.0, first)
        return Promise(start=start and first, low=0.0, high=first, falls=True, condition=scaled)

    return promise


def _closed_stable(schedule: Any, run: Horizon) -> Promise:
    ramp, end = (run.place(f.as_time(each)) for each in (schedule.warmup_iters, schedule.total_iters))
    levels = (schedule.initial_val, schedule.val, schedule.end_val) if ramp[0] > 0 else (schedule.val, schedule.end_val)
    steep = _decayed(schedule.decay, schedule.decay_rate, schedule.val, schedule.end_val)
    start, condition = levels[0] if ramp[0] > 0 else None, steep + 2.0 * sum(map(abs, levels))
    return _between_levels(*levels, start=start, end=schedule.end_val, until=end, condition=condition)


def _closed_one_cycle(schedule: Any, run: Horizon) -> Promise:
    first, top, until = schedule.initial_val, schedule.max_val, run.place(f.as_time(schedule.total_steps))
    last = first / schedule.final_div_factor
    # a phase is a step shorter than its share, and may be a small part of a step: room for that, and not derived
    return _between_levels(first, top, last, end=last, until=until, condition=1e3 * (1 + first + top + last))


def _waves(first: str, other: str, condition: float, continuous: bool = False) -> Callable[[Any, Horizon], Promise]:
    """From the value of one field to that of the other and back."""

    def promise(schedule: Any, run: Horizon) -> Promise:
        start, end = getattr(schedule, first), getattr(schedule, other)
        size = condition * (1 + abs(start) + abs(end))
        return _between_levels(start, end, start=start, continuous=continuous, condition=size)

    return promise


ROWS = [
    Row(
        HalfLife,
        {"time": _PERIOD, "beta": _either(0.5, st.floats(0.01, 0.9999))},
        lambda x, run: Promise(low=0.0, high=1.0),
        in_steps=True,
    ),
    Row(s.StepScheduler, {"step_size": _PERIOD, "gamma": _GAMMA}, lambda x, run: _decaying(x.gamma)),
    Row(s.MultiStepScheduler, {"milestones": _times, "gamma": _GAMMA}, _multi_step),
    Row(
        s.ConstantScheduler,
        {"alpha": _ALPHA, "t_max": _ANY},
        lambda x, run: replace(_line(x.alpha, 1.0, run.place(x.t_max)), continuous=False, condition=1.0),
    ),
    Row(s.LinearScheduler, {**_ENDS, "t_max": _ANY}, _line_to_t_max),
    Row(
        s.ExponentialScheduler,
        {"gamma": _GAMMA, "decay_period": _PERIOD},
        # one rounding of the exponent x moves the value by x * |log gamma| roundings: at most 745, where it underflows
        lambda x, run: replace(_decaying(x.gamma), continuous=0 < x.gamma <= 1, condition=1500.0),
    ),
    Row(s.CosineAnnealingScheduler, {"t_max": _ANY, "alpha_f": _ALPHA}, _line_to_t_max),
    Row(s.CosineAnnealingWarmRestartsScheduler, {"t_0": _PERIOD, "t_mult": _T_MULT, "alpha_f": _ALPHA}, _restarts),
    Row(s.PolynomialScheduler, {"power": _POWER, "t_max": _ANY, "alpha_f": _ALPHA}, _line_to_t_max),
    Row(
        s.MultiStepWithWarmupScheduler,
        {"t_warmup": _WITHIN, "milestones": _times, "gamma": _GAMMA, "scale_warmup": _BOOL, "alpha_s": _ALPHA},
        _multi_step_warm,
    ),
    Row(s.ConstantWithWarmupScheduler, {**_RAMP, "alpha": _ALPHA}, _warm),
    Row(s.LinearWithWarmupScheduler, {**_RAMP, **_ENDS}, _warm),
    Row(s.CosineAnnealingWithWarmupScheduler, {**_RAMP, "alpha_f": _ALPHA}, _warm),
    Row(s.PolynomialWithWarmupScheduler, {**_RAMP, "power": _POWER, "alpha_f": _ALPHA}, _warm),
    Row(
        SequenceScheduler,
        {
            "schedules": _either(
                [
                    _made(s.LinearScheduler, **_ENDS, t_max=_WITHIN),
                    _made(s.CosineAnnealingScheduler, t_max=_WITHIN, alpha_f=_ALPHA),
                    _made(s.StepScheduler, step_size=_between(0, 1, first=1), gamma=0.5),
                ],
                [_made(s.WarmupStableDecayScheduler, t_warmup=_THIRD, t_decay=_THIRD, t_max=_LAST_THIRD)] * 3,
            ),
            "milestones": [_WITHIN, _BEYOND],
        },
        _sequence,
    ),
    Row(s.WarmupStableDecayScheduler, _stable_arguments, _stable),
    Row(s.InverseSquareRootWithWarmupScheduler, _inverse_root_arguments, _inverse_root),
    Row(s.PowerScheduler, _SLOW, _power),
    Row(s.PiecewiseScheduler, {"points": _points}, _piecewise),
    Row(
        s.RexScheduler,
        {"t_max": _T_MAX, "alpha_f": _ALPHA, "d": st.floats(0, 0.9375)},
        lambda x, run: _line(1.0, x.alpha_f, run.place(x.t_max), sharp=4.0 / (1.0 - x.d)),
    ),
    Row(
        s.OneCycleScheduler,
        {
            **{"t_max": _T_MAX, "pct_start": _PCT_START, "three_phase": _BOOL},
            **{"div_factor": st.floats(0.5, 100), "final_div_factor": st.floats(0.5, 1e5)},
            "anneal": st.sampled_from(["cosine", "linear"]),
        },
        _one_cycle,
    ),
    Row(
        s.CyclicScheduler,
        {**_ENDS, "t_up": _PERIOD, "t_down": _either(None, _PERIOD), "mode": _MODE, "gamma": _GAMMA},
        _cyclic,
    ),
    Row(
        WarmupScheduler,
        {
            **{"schedule": _made(s.PowerScheduler, **_SLOW), "t_warmup": _WITHIN},
            **{"alpha_s": _ALPHA, "warmup": _WARMUP, "scale_warmup": _BOOL},
        },
        _warmed,
    ),
    Row(CooldownScheduler, _cooldown, _cooled),
    Row(
        ProductScheduler,
        {
            "schedules": [
                _made(s.InverseSquareRootWithWarmupScheduler, t_warmup=_WITHIN, t_scale=_PERIOD, t_cooldown="0ba"),
                lambda *how: s.WarmupStableDecayScheduler(**_stable_arguments(*how)),
            ]
        },
        _product,
    ),
]

CLOSED_FORMS = [
    Row(f.Constant, {"val": _ALPHA}, lambda x, run: _line(x.val, x.val, (0, TimeUnit.BATCH))),
    Row(f.Polynomial, lambda *how: {**_cycling(*how), "power": how[0](_POWER)}, _from_to),
    Row(f.Linear, _cycling, _from_to),
    Row(f.CosineDecay, {**_CLOSED_ENDS, "total_iters": _ANY}, _from_to),
    Row(f.Exponential, {**_STAIRS, "decay_rate": _FALLING}, _scaled(1500.0)),
    Row(
        f.InverseExponentialTimeDecay,
        {**_STAIRS, "step_exponent": st.sampled_from([1, 0.5, 2]), "decay_rate": st.floats(0.01, 10)},
        _scaled(4.0),
        in_steps=True,
    ),
    Row(
        f.InverseSquareRootDecay,
        {"initial_val": _POSITIVE, "scale": _POSITIVE, "warmup_steps": _PERIOD},
        lambda x, run: Promise(low=0.0, falls=True, condition=2.0 * (1 + x.initial_val * x.scale)),
        in_steps=True,
    ),
    Row(
        f.WarmupStableDecay,
        {
            **{"val": _POSITIVE, "initial_val": _ALPHA, "end_val": _POSITIVE},
            **{"total_iters": _BEYOND, "warmup_iters": _HALF, "decay_iters": _HALF},
            **{"warmup": _WARMUP, "decay": _DECAY, "decay_rate": _GROWTH},
        },
        _closed_stable,
    ),
    Row(
        f.PiecewiseConstant,
        {"vals": [_ALPHA] * 3, "milestones": [_WITHIN, _BEYOND]},
        lambda x, run: _between_levels(*x.vals, end=x.vals[-1], until=run.place(f.as_time(x.milestones[-1]))),
    ),
    Row(
        f.MultiStep,
        {"initial_val": _POSITIVE, "gamma": _FALLING, "milestones": [_WITHIN, _BEYOND]},
        _scaled(4.0, start=None),
    ),
    Row(f.Step, {"initial_val": _POSITIVE, "step_size": _PERIOD, "gamma": _FALLING}, _scaled(4.0)),
    Row(f.CosineAnnealing, {**_WAVES, "T_max": _PERIOD}, _waves("initial_val", "eta_min", 4.0, continuous=True)),
    Row(
        f.CosineAnnealingWarmRestarts,
        {**_WAVES, "T_0": _PERIOD, "T_mult": _T_MULT},
        _waves("initial_val", "eta_min", 4.0),
    ),
    Row(
        f.Cyclic,
        {
            **{"base_val": _ALPHA, "max_val": _ALPHA, "mode": _MODE, "gamma": _FALLING},
            **{"step_size_up": _PERIOD, "step_size_down": _either(None, _PERIOD)},
        },
        _waves("base_val", "max_val", 1500.0),
        in_steps=True,
    ),
    Row(
        f.OneCycle,
        {
            **{"initial_val": _POSITIVE, "max_val": _POSITIVE, "final_div_factor": st.floats(0.5, 1e5)},
            "total_steps": lambda draw, run, time: time(3, 2 * run.batches + 3),
            **{"pct_start": _PCT_START, "three_phase": _BOOL, "anneal_strategy": st.sampled_from(["cos", "linear"])},
        },
        _closed_one_cycle,
        in_steps=True,
    ),
    Row(f.Multiplicative, {"initial_val": _POSITIVE, "coefficient": _FALLING}, _scaled(1500.0), in_steps=True),
]


# Which formula equals a schedule of `timesched` bit for bit


@dataclass(frozen=True)
class Equal:
    """The schedule that equals a formula, as a function of the formula.

    `scaled_by`: the argument by which its multiplier is multiplied. `given`: the arguments with which they are equal.
    """

    schedule: Callable[[Any], Schedule]
    scaled_by: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Different:
    """The schedule that is nearest to a formula, and a batch at which they differ; None if they differ by roundings."""

    reason: str
    formula: f.ClosedForm
    schedule: Schedule
    batch: int | None
    ssr: Fraction = Fraction(1)


_FROM_1 = {"initial_val": 1.0}  # as a multiplier that falls
EQUAL = {
    f.Constant: Equal(lambda x: s.ConstantScheduler(x.val, t_max="1e18ba")),
    f.Polynomial: Equal(
        lambda x: s.PolynomialScheduler(x.power, f.as_time(x.total_iters), x.end_val),
        given={**_FROM_1, "cycle": False},
    ),
    f.Linear: Equal(
        lambda x: s.LinearScheduler(x.initial_val, x.end_val, f.as_time(x.total_iters)),
        given={"cycle": False},
    ),
    f.CosineDecay: Equal(
        lambda x: s.CosineAnnealingScheduler(f.as_time(x.total_iters), x.end_val),
        given=_FROM_1,
    ),
    f.Exponential: Equal(
        lambda x: (
            s.StepScheduler(f.as_time(x.total_iters), x.decay_rate)
            if x.staircase
            else s.ExponentialScheduler(x.decay_rate, f.as_time(x.total_iters))
        ),
        scaled_by="initial_val",
    ),
    f.WarmupStableDecay: Equal(
        lambda x: s.WarmupStableDecayScheduler(
            t_warmup=f.as_time(x.warmup_iters),
            t_decay=f.as_time(x.decay_iters),
            t_max=f.as_time(x.total_iters),
            alpha_s=x.initial_val,
            alpha_f=x.end_val,
            warmup=x.warmup,
            decay=x.decay,
            decay_rate=x.decay_rate,
            scale_warmup=True,
        ),
        given={"val": 1.0},
    ),
    f.MultiStep: Equal(
        lambda x: s.MultiStepScheduler([f.as_time(step) for step in x.milestones], x.gamma),
        scaled_by="initial_val",
    ),
    f.Step: Equal(lambda x: s.StepScheduler(f.as_time(x.step_size), x.gamma), scaled_by="initial_val"),
    f.CosineAnnealingWarmRestarts: Equal(
        lambda x: s.CosineAnnealingWarmRestartsScheduler(f.as_time(x.T_0), x.T_mult, x.eta_min),
        given=_FROM_1,
    ),
    f.Cyclic: Equal(
        lambda x: s.CyclicScheduler(
            f.as_time(x.step_size_up),
            None if x.step_size_down is None else f.as_time(x.step_size_down),
            alpha_i=x.base_val,
            alpha_f=x.max_val,
            mode=x.mode,
        ),
        given={"gamma": 1.0},
    ),
}
DIFFERENT = [
    Different(
        "each cycle of a line begins lower, and a line ends",
        f.Linear(1.0, 0.0, 10, cycle=True),
        s.LinearScheduler(t_max="10ba"),
        15,
    ),
    Different(
        "each cycle of a power begins lower, and a power ends",
        f.Polynomial(1.0, 0.0, 10, 2.0, cycle=True),
        s.PolynomialScheduler(2.0, "10ba"),
        15,
    ),
    Different(
        "gamma is the factor of a step, and not of a cycle",
        f.Cyclic(0.0, 1.0, 2, mode="exp_range", gamma=0.5),
        s.CyclicScheduler("2ba", alpha_i=0.0, mode="exp_range", gamma=0.5),
        2,
    ),
    Different(
        "a wave rises again",
        f.CosineAnnealing(1.0, 10),
        s.CosineAnnealingScheduler("10ba"),
        15,
    ),
    Different(
        "the peak is one step earlier",
        f.OneCycle(0.5, 1.0, 100, 0.25),
        s.OneCycleScheduler("100ba", 0.25, div_factor=2.0),
        20,
    ),
    Different(
        "a ratio of the run is rounded before it divides the steps",
        f.Multiplicative(1.0, 0.9),
        s.ExponentialScheduler(0.9, "1ba"),
        None,
        ssr=Fraction(3, 7),
    ),
    Different(
        "the root of the steps divides, and not the root of a quotient",
        f.InverseSquareRootDecay(1.0, 3**0.5, 3),
        s.PowerScheduler("3ba"),
        None,
    ),
]
# No schedule is near: the inverse of a power of the steps plus 1, and values that hold until the next one.
WITHOUT_SCHEDULE = {f.InverseExponentialTimeDecay, f.PiecewiseConstant}
