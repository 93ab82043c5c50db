"""The laws of schedules. Each is a function that draws an example and raises `LawBroken` if a schedule breaks the law.

A law gets the schedule, a run that suits it, the `draw` of Hypothesis, and the promise. It returns if it does not apply
to this schedule, and rejects the example if the schedule refuses the run. The laws follow in the order of `LAWS`, in
which they are checked. All evaluate a schedule with `evaluate`, which calls it with the state of the run.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import math
import pickle
import sys
from collections.abc import Callable
from fractions import Fraction
from types import FrameType
from typing import Any

import torch
from hypothesis import assume, reject
from hypothesis import strategies as st

from timesched.maths.positions import UnsuitableRun
from timesched.run.horizon import Horizon, Position
from timesched.schedulers.schedule import Schedule, ScheduleLike, items_in, pass_ratio, schedule_times
from timesched.testing.runs import COUNTED, RATIOS, Moment, Run
from timesched.time.units import EpochCounter, Exact, TimeUnit, unit_of
from timesched.time.value import Time


@dataclasses.dataclass(frozen=True)
class Promise:
    """The properties that a schedule promises on one run. The defaults promise nothing but finite values.

    `start`: the value at 0. `end`: the value at the time `until` and after it. `until=None` is the end of the run.
    `low`, `high`: the range. `finite`: no value is infinite. `continuous`: no jump anywhere. `falls`, `rises`: after
    the time `since`, it never rises, or never falls.
    `condition`: how much the formula amplifies one rounding of its argument, or the size of its terms relative to the
    value. The tolerance between floats and tensors is 1e-15 of max(1, |value|) times `condition`.
    """

    start: float | None = None
    end: float | None = None
    until: Position | None = None
    low: float = -math.inf
    high: float = math.inf
    finite: bool = True
    continuous: bool = False
    falls: bool = False
    rises: bool = False
    since: Position | None = None
    condition: float = 1.0


PromiseAt = Callable[[ScheduleLike, Horizon], Promise]
Draw = Callable[[st.SearchStrategy[Any]], Any]  # draws an example: the `draw` of Hypothesis's `data()`
Law = Callable[[ScheduleLike, Run, Draw, PromiseAt], None]


class LawBroken(AssertionError):
    """A schedule breaks a law. The message names the law, the place and the values."""


def evaluate(schedule: ScheduleLike, state: Moment) -> float:
    """The schedule's value at a state, with or without a ratio. Calls `reject` if the run is unsuitable."""
    function = getattr(schedule, "_current_value", schedule)  # also for schedules of values, which cannot be called
    try:
        positional, keyword = pass_ratio(schedule, state.ssr)
        return float(function(state, *positional, **keyword))
    except UnsuitableRun:
        reject()


def check_purity(schedule: ScheduleLike, run: Run, draw: Draw, promise: PromiseAt) -> None:
    """The value depends only on the timestamp and the horizon, whatever was evaluated before. A copy has it too."""
    batch = draw(_batches(run, schedule))
    sigma = draw(st.just(Fraction(1)) | RATIOS) if _has_ratio(schedule) else Fraction(1)
    state = run.state(batch, sigma)
    first = evaluate(schedule, state)
    other = dataclasses.replace(run, batches=run.batches + 1)
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.booleans()):
            evaluate(schedule, run.state(draw(_batches(run, schedule)), sigma))
        else:
            with contextlib.suppress(ValueError):  # the longer run may not suit the schedule
                evaluate(schedule, other.state(draw(_batches(run, schedule))))
    again = {"again": evaluate(schedule, run.state(batch, sigma))}
    if isinstance(schedule, Schedule):
        again |= {
            "from a copy": evaluate(copy.deepcopy(schedule), state),
            "unpickled": evaluate(pickle.loads(pickle.dumps(schedule)), state),
            "made afresh": evaluate(dataclasses.replace(schedule), state),  # type: ignore[type-var]  # a dataclass
            "by at()": schedule.at(state.timestamp, state),
        }
    for origin, later in again.items():
        if later != first:
            raise LawBroken(f"law 'purity': {schedule!r} at {state!r} had {first!r}, and {origin} {later!r}.")


def check_ratio(schedule: ScheduleLike, run: Run, draw: Draw, promise: PromiseAt) -> None:
    """Stretched by a ratio, the value at t is the unstretched value at t divided by the ratio, exactly."""
    if not _has_ratio(schedule) or any(map(_keeps_its_warmup, items_in(schedule))):
        return
    # Functions compute with a float, which is exact for these ratios; a `Schedule` is exact for any.
    ratios = RATIOS | st.integers(2, 13).map(lambda n: Fraction(1, n)) if isinstance(schedule, Schedule) else RATIOS
    sigma, drawn = draw(ratios), draw(_batches(run, schedule))
    schedule = _rewrite(schedule, lambda name, value: name == "scale_warmup" or value)
    spacing = sigma.denominator  # only its multiples are stretched to whole batches
    # A mark that comes one batch late in the stretched run comes up to `spacing` batches late in terms of this one.
    batches = {drawn, *_nearby_batches(schedule, run.horizon(), spacing)}
    batches.update(*(range(change, change + spacing + 1) for change in run.changes))
    for batch in sorted({batch // spacing * spacing for batch in batches}):
        plain = evaluate(schedule, run.state(batch))
        stretched = evaluate(schedule, run.state(int(batch * sigma), sigma))
        if plain != stretched:
            raise LawBroken(
                f"law 'ratio': {schedule!r} on {run}: {plain!r} at batch {batch}, but with ratio {sigma} "
                f"{stretched!r} at batch {int(batch * sigma)}."
            )


def check_unit(schedule: ScheduleLike, run: Run, draw: Draw, promise: PromiseAt) -> None:
    """Written in another unit, the schedule has the same value at every step of a run."""
    if not isinstance(schedule, Schedule):
        return  # the times of a plain function cannot be rewritten
    to = draw(st.sampled_from((*COUNTED, TimeUnit.DURATION)))
    horizon = run.horizon()

    def in_unit(name: str, value: object) -> object:
        return horizon.convert(value, to) if isinstance(value, Time) else value

    try:
        other = _rewrite(schedule, in_unit)
    except (TypeError, ValueError):  # the time is no whole count of that unit, or does not convert to it
        reject()
    batch = draw(_batches(run, schedule))
    here, there = evaluate(schedule, run.state(batch)), evaluate(other, run.state(batch))
    if here != there:
        raise LawBroken(
            f"law 'unit': at batch {batch} of {run}, {schedule!r} has {here!r}, and written in {to.value}, "
            f"{other!r} has {there!r}."
        )


def check_ends(schedule: ScheduleLike, run: Run, draw: Draw, promise: PromiseAt) -> None:
    """The promised start, end and range hold exactly, and there is no jump or turn that the promise excludes."""
    sigma = draw(st.one_of(st.just(Fraction(1)), RATIOS))
    horizon = run.horizon(sigma)
    try:
        promised = promise(schedule, horizon)
    except ValueError:
        reject()
    batch = draw(_batches(run, schedule, sigma))
    earlier = draw(st.integers(0, batch))
    where = f"law 'ends': {schedule!r} on {run} with ratio {sigma}"

    def value_at(count: int) -> float:
        return evaluate(schedule, run.state(count, sigma))

    first, early, late = value_at(0), value_at(earlier), value_at(batch)
    if promised.start is not None and first != promised.start:
        raise LawBroken(f"{where} starts at {first!r}, not at {promised.start!r}.")
    _check_range(late, promised, f"{where} is {late!r} at batch {batch}")

    if promised.end is not None:
        end = math.ceil(horizon.change(*(promised.until or horizon.place("1dur")), TimeUnit.BATCH))
        for at in {batch, min(end, 10**9)}:
            if at >= end and (here := value_at(at)) != promised.end:
                raise LawBroken(f"{where} ends at {promised.end!r}, but is {here!r} at batch {at}.")

    since = horizon.change(*promised.since, TimeUnit.BATCH) if promised.since else 0
    if earlier >= since:
        _check_turn(early, late, promised, f"{where} turns: {early!r} at batch {earlier}, {late!r} at batch {batch}.")
    if promised.continuous and isinstance(schedule, Schedule):
        _check_no_jump(schedule, horizon, draw(st.sampled_from(_branch_points(schedule, horizon))), promised, where)


def _check_range(value: float, promised: Promise, text: str) -> None:
    """A value is in the promised range, and finite if that is promised. `text`: the value, for the error."""
    if promised.finite and not math.isfinite(value):
        raise LawBroken(f"{text}: a schedule returns a finite number.")
    if not promised.low <= value <= promised.high:
        raise LawBroken(f"{text}, not in [{promised.low}, {promised.high}].")


def _check_turn(early: float, late: float, promised: Promise, error: str) -> None:
    """The later of two values is not on the wrong side of the earlier value. `error`: the text of the error."""
    slack = 1e-15 * max(1.0, abs(early)) * promised.condition  # the library's cosine and power are not monotonic
    if (promised.falls and late > early + slack) or (promised.rises and late < early - slack):
        raise LawBroken(error)


def _check_no_jump(schedule: Schedule, horizon: Horizon, point: Fraction, promised: Promise, where: str) -> None:
    """Just before a point, the value is near the value at the point: the steepest phase lasts at least one batch."""
    if point <= 0:
        return
    just_before = point * (1 - Fraction(1, 10**30))
    at, before = (schedule.at(Time._make(batch, TimeUnit.BATCH), horizon) for batch in (point, just_before))
    size = max(1.0, abs(promised.low), abs(promised.high)) if promised.high < float("inf") else max(1.0, abs(at))
    if abs(at - before) > 1e-3 * size * promised.condition:
        raise LawBroken(f"{where} jumps from {before!r} to {at!r} at batch {float(point)}.")


def check_epochs(schedule: ScheduleLike, run: Run, draw: Draw, promise: PromiseAt) -> None:
    """A schedule that counts only epochs depends on the epoch and the fraction of it that is done, and nothing else."""
    allowed = {TimeUnit.EPOCH, TimeUnit.DURATION}
    if not isinstance(schedule, Schedule) or not {time.unit for time in schedule_times(schedule)} <= allowed:
        return
    run = dataclasses.replace(run, unit=TimeUnit.EPOCH)
    if not all(isinstance(counter, EpochCounter) for counter in schedule._resolution(run.horizon(), None).counters):
        return  # a closed form that counts steps
    factor = draw(st.integers(1, 5))
    longer = dataclasses.replace(run, batches=factor * run.batches, batches_per_epoch=factor * run.batches_per_epoch)
    state = run.state(draw(_batches(run, schedule)))
    batches = draw(st.integers(0, 2 * run.batches))  # any, since earlier epochs may have had another length
    same_place = state.timestamp.copy(batch=batches, batch_in_epoch=factor * state.timestamp.batch_in_epoch.exact)
    here, there = evaluate(schedule, state), evaluate(schedule, Moment(longer.horizon(), same_place))
    if here != there:
        raise LawBroken(
            f"law 'epochs': {schedule!r} on {run} is {here!r} in {state!r}, and {there!r} at the same place "
            f"in epochs with {factor} times as many batches."
        )


def check_one_formula(schedule: ScheduleLike, run: Run, draw: Draw, promise: PromiseAt) -> None:
    """Floats and tensors agree to 1e-15 of max(1, |value|) times the row's condition; arrays equal single counts."""
    if not isinstance(schedule, Schedule):
        return
    horizon = run.horizon(draw(st.one_of(st.sampled_from([Fraction(1), Fraction(3333, 10000)]), RATIOS)))
    curve_unit = draw(st.sampled_from(COUNTED))
    try:
        curve = schedule.curve(horizon, curve_unit)
        promised = promise(schedule, horizon)
    except ValueError:
        reject()
    end = int(run.time(2 * run.batches, curve_unit).exact) + 1
    assume(end < 2**53)  # beyond, tensors are not promised
    counts: list[int] | list[float] = draw(st.lists(st.integers(0, end), min_size=1, max_size=5))
    dtype = torch.float64 if draw(st.booleans()) else torch.int64
    if dtype is torch.float64:
        counts = [float(count) + draw(st.sampled_from([0.0, 0.5, 0.1])) for count in counts]
    array = curve(torch.tensor(counts, dtype=dtype))
    if array.dtype is not torch.float64 or array.shape != (len(counts),):
        raise LawBroken(f"law 'one formula': {schedule!r} gave {array.dtype} of shape {tuple(array.shape)}.")
    for count, in_array in zip(counts, array.tolist()):
        alone, single = curve(count), float(curve(torch.tensor(count, dtype=dtype)))
        tolerance = 1e-15 * max(1.0, abs(alone)) * promised.condition
        if not math.isclose(alone, in_array, rel_tol=0.0, abs_tol=tolerance):
            raise LawBroken(
                f"law 'one formula': {schedule!r} on {run} at {count}{curve_unit.value}: {alone!r} as a float, "
                f"{in_array!r} in a tensor; the tolerance is {tolerance:.1e}."
            )
        if not math.isclose(single, in_array, rel_tol=0.0, abs_tol=1e-15 * max(1.0, abs(single))):
            raise LawBroken(f"law 'one formula': {schedule!r} at {count}: {single!r} alone, {in_array!r} in an array.")


def check_rates(schedule: ScheduleLike, run: Run, draw: Draw, promise: PromiseAt) -> None:
    """A missing conversion factor raises a ValueError that names it, and no factor is asked for without need."""
    if not isinstance(schedule, Schedule):
        return
    bare = Horizon(run.time(run.batches, run.unit))  # without conversion factors
    used = {unit_of(bare.place(time)[1]) for time in _used_times(schedule) if time.exact != 0}
    curve_unit = draw(st.sampled_from(COUNTED))
    law = f"law 'rates': {schedule!r}"
    try:
        curve = schedule.curve(bare, curve_unit)
    except UnsuitableRun:
        reject()
    except ValueError as error:
        if used <= {curve_unit}:
            raise LawBroken(f"{law} asks for a conversion factor that it does not need: {error}") from error
        if not any(rate in str(error) for rate in ("batches_per_epoch", "samples_per_batch", "tokens_per_sample")):
            raise LawBroken(f"{law}: the error does not name a missing conversion factor: {error}") from error
    else:
        if not used <= {curve_unit}:
            raise LawBroken(f"{law} gave {curve(1)!r} in {curve_unit.value} without a conversion factor.")


def check_constant_cost(schedule: ScheduleLike, run: Run, draw: Draw, promise: PromiseAt) -> None:
    """A value late in the run takes no more steps of the interpreter than an early one."""
    states = [run.state(batch) for batch in (1, 2, run.batches, 100 * run.batches)]
    for state in states:
        evaluate(schedule, state)  # resolves the schedule, which happens once for a run
    early = _count_lines(schedule, states[0])
    late = min(_count_lines(schedule, states[-1]) for _ in range(2))  # in one, a callback of another package may run
    if late > 3 * early + 60:
        raise LawBroken(f"law 'cost': {schedule!r} takes {early} steps at batch 1 of {run}, and {late} later.")


def _count_lines(schedule: ScheduleLike, state: Moment) -> int:
    """The number of Python lines that one evaluation executes."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        lines += 1
        return trace

    old, collecting = sys.gettrace(), gc.isenabled()
    gc.disable()  # Hypothesis has a callback there, whose lines would be counted
    sys.settrace(trace)
    try:
        evaluate(schedule, state)
    finally:
        sys.settrace(old)
        if collecting:
            gc.enable()
    return lines


LAWS = {
    "purity": check_purity,  # first: a schedule that keeps state has none yet
    "ratio": check_ratio,
    "unit": check_unit,
    "ends": check_ends,
    "epochs": check_epochs,
    "one formula": check_one_formula,
    "rates": check_rates,
    "cost": check_constant_cost,
}


# Functions that read a schedule for the laws: its signature, and its times, some by the names of fields.


def _has_ratio(schedule: ScheduleLike) -> bool:
    """Whether it is a function of the state and the ratio, and not only of the state."""
    return any(pass_ratio(schedule, 1.0))


def _keeps_its_warmup(value: object) -> bool:
    """Whether it is a schedule with a warmup that no ratio can stretch."""
    warmup = getattr(value, "t_warmup", None)
    is_absolute = warmup is not None and warmup.exact > 0 and warmup.unit is not TimeUnit.DURATION
    return is_absolute and not hasattr(value, "scale_warmup")


def _rewrite(value: Any, change: Callable[[str, Any], Any], name: str = "") -> Any:
    """A copy of a schedule and its children, with `change(name, value)` in place of the value of each field."""
    if isinstance(value, tuple):
        return tuple(_rewrite(item, change, name) for item in value)
    if not isinstance(value, Schedule):
        return change(name, value)
    names = [field.name for field in dataclasses.fields(value)]  # type: ignore[arg-type]  # each is a dataclass
    fields = {name: _rewrite(getattr(value, name), change, name) for name in names}
    return dataclasses.replace(value, **fields)  # type: ignore[type-var]  # likewise


def _used_times(schedule: object) -> list[Time]:
    """The times that a schedule reads. A cooldown with a `t_start` does not read its `t_max`."""
    cooldowns: list[Any] = [item for item in items_in(schedule) if getattr(item, "t_start", None) is not None]
    unused = {id(cooldown.t_max) for cooldown in cooldowns}
    return [time for time in schedule_times(schedule) if id(time) not in unused]


def _branch_points(schedule: ScheduleLike, horizon: Horizon) -> list[Fraction]:
    """The positions of a schedule's times on a run, in batches. The branches of the schedule meet there."""
    points = [Fraction(0)]
    for time in _used_times(schedule):
        for scale in (False, True):
            position = horizon.place(time, scale)
            with contextlib.suppress(ValueError):  # a time in iterations or seconds is no number of batches
                points.append(Fraction(horizon.change(*position, TimeUnit.BATCH)))
    return points


def _nearby_batches(schedule: ScheduleLike, horizon: Horizon, after: int = 1) -> list[int]:
    """The batches around each point of a schedule: from one batch before it to `after` batches after it."""
    near: list[int] = []
    for first in map(math.ceil, _branch_points(schedule, horizon)):
        near += range(max(0, first - 1), first + after + 1)
    return near


def _batches(run: Run, schedule: ScheduleLike, sigma: Exact = 1) -> st.SearchStrategy[int]:
    """Batches up to twice the length of a run: often the first few, and where the branches of a schedule meet."""
    near = [batch for batch in _nearby_batches(schedule, run.horizon(sigma)) if batch <= 10 * run.batches]
    points, last = [0, run.batches - 1, run.batches, *near], 2 * run.batches
    return st.one_of(st.sampled_from(points), st.integers(0, min(16, last)), st.integers(0, last))
