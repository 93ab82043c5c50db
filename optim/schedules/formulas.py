"""The schedules of the closed-form schedulers. Those that repeat or go in steps are in cycles.py.

A formula is a schedule of timesched that returns values instead of multipliers. Its counts are steps, or times. What
its fields mean stands at the scheduler of the same name in optim/lr_scheduler.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field, fields
from fractions import Fraction
from typing import Any

from timesched import ops, shapes
from timesched.curves import inverse_root, inverse_time, rest_of_cycle
from timesched.fields import choice, count, flag, number
from timesched.positions import Counts, Frame, Mark, Period, Resolved
from timesched.schedule import Schedule
from timesched.schedulers.decay import check_room
from timesched.time.units import TimeError, TimeUnit
from timesched.time.value import Time

Count = int | Time[Any]


def time(steps: Any) -> Time[Any]:
    """A count as a time: a number counts steps, which are batches."""
    return Time(steps, TimeUnit.BATCH) if isinstance(steps, int) else steps


def in_steps(frame: Frame, end: Time[Any]) -> tuple[Resolved, float]:
    """The number of steps, that is batches of the unstretched run, for a formula that depends on their number, not on
    a fraction: as a function of the counts, and at the time `end`, on whose counter they are counted.
    """
    mark = frame.mark(end)
    one = frame.length(time(1), mark.unit)
    counter, each = mark.counter, float(one)
    return lambda counts: ops.real(counts[counter]) / each, float(Fraction(mark.count) / one)


def left_of_cycles(period: Period) -> Resolved:
    """The share that is left until the next multiple of a period."""
    done, complete = period.done, period.complete
    return lambda counts: rest_of_cycle(done(counts), complete(counts))


@dataclass(frozen=True, eq=False, repr=False)
class Formula(Schedule):
    """A schedule of values over steps.

    `called`: what error messages call the class and its fields, in their order: the names of a scheduler.
    """

    called: InitVar[Sequence[str]] = field(default=(), kw_only=True)

    def __post_init__(self, called: Sequence[str]) -> None:
        name, *names = called or (type(self).__name__, *(field.name for field in fields(self)))
        for own, given in zip(fields(self), names):
            read = own.metadata.get("read")
            if read is not None:
                object.__setattr__(self, own.name, read(f"{name}.{given}", getattr(self, own.name)))
        self.check(name)

    def check(self, name: str) -> None:
        """Raise `TimeError`, which begins with a name, where fields contradict each other."""


def _refuse_empty_cycles(name: str, schedule: Polynomial | Linear) -> None:
    if schedule.cycle and time(schedule.total_iters).exact == 0:
        raise TimeError(f"{name}: total_iters=0 is no length of a cycle: make it 1 or more.")


@dataclass(frozen=True, eq=False, repr=False)
class Constant(Formula):
    """The same value throughout."""

    val: float = number()
    total_iters: Count | None = count(None, optional=True)

    def resolve(self, frame: Frame) -> Resolved:
        return lambda counts: self.val


@dataclass(frozen=True, eq=False, repr=False)
class Polynomial(Formula):
    """From one value to another along a power of the share of the steps that is left."""

    initial_val: float = number()
    end_val: float = number()
    total_iters: Count = count()
    power: float = number(1.0, least=0)
    cycle: bool = flag(False)

    def check(self, name: str) -> None:
        _refuse_empty_cycles(name, self)

    def resolve(self, frame: Frame) -> Resolved:
        end = time(self.total_iters)
        left = left_of_cycles(frame.period(end)) if self.cycle else frame.span(end, note="end").left
        return shapes.polynomial(left, self.power, self.initial_val, self.end_val)


@dataclass(frozen=True, eq=False, repr=False)
class Linear(Formula):
    """A straight line from one value to another."""

    initial_val: float = number()
    end_val: float = number()
    total_iters: Count = count()
    cycle: bool = flag(False)

    def check(self, name: str) -> None:
        _refuse_empty_cycles(name, self)

    def resolve(self, frame: Frame) -> Resolved:
        if self.cycle:
            return shapes.linear(left_of_cycles(frame.period(time(self.total_iters))), self.end_val, self.initial_val)
        return shapes.linear(frame.span(time(self.total_iters), note="end").done, self.initial_val, self.end_val)


@dataclass(frozen=True, eq=False, repr=False)
class Exponential(Formula):
    """The initial value times a power of the decay rate."""

    initial_val: float = number()
    total_iters: Count = count(least=1)
    decay_rate: float = number(least=0)
    staircase: bool = flag(False)

    def resolve(self, frame: Frame) -> Resolved:
        if self.staircase:
            return shapes.steps(frame.period(time(self.total_iters)), self.decay_rate, self.initial_val)
        return shapes.exponential(frame.span(time(self.total_iters)), self.decay_rate, self.initial_val)


@dataclass(frozen=True, eq=False, repr=False)
class InverseExponentialTimeDecay(Formula):
    """The initial value over one plus a multiple of a power of the step count."""

    initial_val: float = number()
    step_exponent: float = number(least=0)
    total_iters: Count = count(least=1)
    decay_rate: float = number(least=0)
    staircase: bool = flag(False)

    def resolve(self, frame: Frame) -> Resolved:
        end = time(self.total_iters)
        complete, done = frame.period(end).complete, frame.span(end).done
        if self.step_exponent != 1.0:
            steps, length = in_steps(frame, end)

        def value(counts: Counts) -> Any:
            if self.staircase and self.step_exponent == 1.0:
                x = ops.real(complete(counts))
            elif self.step_exponent == 1.0:
                x = done(counts, limit=False)
            else:
                x = ops.root(steps(counts), self.step_exponent) / length
                x = ops.floor(x) if self.staircase else x
            return inverse_time(x, self.decay_rate, self.initial_val)

        return value


@dataclass(frozen=True, eq=False, repr=False)
class InverseSquareRootDecay(Formula):
    """Constant first, then falling with the root of the step count."""

    initial_val: float = number(1.0)
    scale: float = number(1.0)
    warmup_steps: Count = count(1.0, least=1)

    def resolve(self, frame: Frame) -> Resolved:
        steps, least = in_steps(frame, time(self.warmup_steps))
        factor = self.initial_val * self.scale
        return lambda counts: inverse_root(steps(counts), least, factor)


@dataclass(frozen=True, eq=False, repr=False)
class CosineDecay(Formula):
    """The falling half of a cosine from one value to another."""

    initial_val: float = number()
    end_val: float = number()
    total_iters: Count = count()

    def resolve(self, frame: Frame) -> Resolved:
        return shapes.cosine(frame.span(time(self.total_iters), note="end").done, self.initial_val, self.end_val)


@dataclass(frozen=True, eq=False, repr=False)
class WarmupStableDecay(Formula):
    """Up to a value, constant, and down to the last value."""

    val: float = number()
    total_iters: Count = count()
    warmup_iters: Count = count()
    decay_iters: Count = count()
    initial_val: float = number(0.0)
    end_val: float = number(0.0)
    warmup: str = choice("linear", *shapes.WARMUPS)
    decay: str = choice("linear", *shapes.DECAYS)
    decay_rate: float = number(0.5, above=0)

    def check(self, name: str) -> None:
        shapes.check_decay(name, self.decay, self.val, self.end_val)

    def resolve(self, frame: Frame) -> Resolved:
        warm = frame.mark(time(self.warmup_iters), note="warmup")
        end = frame.mark(time(self.total_iters), note="end")
        start, ramp = frame.before(end, time(self.decay_iters)), frame.change(warm.count, warm.unit, end.unit)
        names = ("warmup_iters", "decay_iters", "total_iters")
        check_room(type(self).__name__, names, (ramp, end.count - start, end.count), end.unit)
        begin = Mark(end.counter, end.unit, start)
        frame.note("decay", begin)
        warmup, decay = shapes.WARMUPS[self.warmup], shapes.decaying(self.decay, self.decay_rate)
        levels = (self.initial_val, self.val, self.end_val)
        return shapes.warmup_stable_decay(frame, (warm, begin, end), levels, warmup, decay)
