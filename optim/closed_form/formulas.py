"""The schedules of the absolute-value schedulers, one class for each formula.

A `ClosedForm` is a schedule of timesched that returns values instead of multipliers. Its counts are steps, or times.
The scheduler of the same name in optim/lr_scheduler.py documents the fields.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, InitVar, dataclass, field, fields
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor
from typing_extensions import dataclass_transform

from timesched.fields import choice, count, counts, flag, number, numbers
from timesched.maths import Frame, Period, ops, shapes
from timesched.maths.counts import Counts, Milestones, Resolved
from timesched.maths.curves import decay, inverse_root, inverse_time, remaining_fraction, wave
from timesched.maths.restarts import check_growth, cycle_progress
from timesched.schedulers.decay import check_phases_fit
from timesched.schedulers.schedule import Schedule
from timesched.time.units import TimeError, TimeUnit, exact_number
from timesched.time.value import Time

Steps = int | float | str | Time  # a count as an argument: a number of steps, or a time; it is kept as int or Time


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True, eq=False, repr=False)
class ClosedForm(Schedule):
    """A schedule of values over steps. Subclasses become frozen dataclasses without the decorator.

    `scheduler`: the scheduler that it is made for. Error messages have its class and the names of its arguments.
    """

    scheduler: InitVar[Any] = field(default=None, kw_only=True)

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, eq=False, repr=False)(cls)

    def __post_init__(self, scheduler: object) -> None:
        class_name = type(self if scheduler is None else scheduler).__name__
        names: Mapping[str, str] = getattr(scheduler, "argument_names", {})
        for argument in self.arguments():
            path = f"{class_name}.{names.get(argument.name, argument.name)}"
            value = argument.metadata["read"](path, getattr(self, argument.name))
            object.__setattr__(self, argument.name, value)
        self.check(class_name)

    @classmethod
    def arguments(cls) -> list[Field[Any]]:
        """The fields that are arguments of the user, which are read and checked."""
        return [argument for argument in fields(cls) if "read" in argument.metadata]

    def check(self, class_name: str) -> None:
        """Raise `TimeError`, which begins with the name of the class, if fields contradict each other."""


# Counts: as times, as functions of the counters, and as tensors


def as_time(steps: Any) -> Time:
    """A count as a time. A number counts steps, which are batches."""
    return Time(steps, TimeUnit.BATCH) if isinstance(steps, int) else steps


def step_counts(frame: Frame, end: Time) -> tuple[Resolved, float]:
    """The number of completed steps as a function of the counts, and the number of steps at the time `end`.

    A formula that depends on the number of steps, and not on a fraction, uses it. The steps are batches of the run
    before the scale-schedule ratio, counted on the counter of `end`.
    """
    mark = frame.mark(end)
    step = frame.length(as_time(1), mark.unit)
    index, divisor = mark.index, float(step)
    return lambda counts: ops.to_double(counts[index]) / divisor, float(Fraction(mark.count) / step)


def remaining_share(period: Period) -> Resolved:
    """The remaining fraction of the steps until the next multiple of a period."""
    done, complete = period.done, period.complete
    return lambda counts: remaining_fraction(done(counts), complete(counts))


def rising_milestones(frame: Frame, milestones: Sequence[Steps]) -> Milestones:
    return Milestones(frame.ordered_marks([as_time(milestone) for milestone in milestones], note="milestone"))


def _call(function: Callable[[Tensor], Any], count: Any) -> Any:
    """The value of a user's function at a count, in float64 if it is a tensor."""
    factor = function(as_tensor(count))
    return factor.double() if isinstance(factor, Tensor) else factor


def as_step(count: Any) -> Tensor:
    """A count as a 0-dim int64 tensor, rounded down."""
    if isinstance(count, Tensor):
        return count.floor().to(torch.int64) if count.is_floating_point() else count
    return as_tensor(math.floor(count))


def as_tensor(number: Any) -> Tensor:
    """A number as a 0-dim tensor, of int64 or float64; a tensor as it is."""
    dtype = torch.float64 if isinstance(number, float) else torch.int64
    return number if isinstance(number, Tensor) else ops.host_scalar(number, dtype)


# The formulas


class Constant(ClosedForm):
    """The same value throughout."""

    val: float = number()
    total_iters: Steps | None = count(None, optional=True)

    def resolve(self, frame: Frame) -> Resolved:
        return lambda counts: self.val


class Between(ClosedForm):
    """From one value to another in a number of steps."""

    cycle = False  # a field of the subclasses that continue with another cycle
    initial_val: float = number()
    end_val: float = number()
    total_iters: Steps = count()

    def check(self, class_name: str) -> None:
        if self.cycle and as_time(self.total_iters).exact == 0:
            raise TimeError(f"{class_name}.total_iters=0: a cycle cannot be empty. Pass 1 or more.")


class Polynomial(Between):
    """From one value to another, along a power of the remaining fraction of the steps."""

    power: float = number(1.0, least=0)
    cycle: bool = flag(False)

    def resolve(self, frame: Frame) -> Resolved:
        end = as_time(self.total_iters)
        left = remaining_share(frame.period(end)) if self.cycle else frame.span(end, note="end").left
        return shapes.polynomial(left, self.power, self.initial_val, self.end_val)


class Linear(Between):
    """A straight line from one value to another."""

    cycle: bool = flag(False)

    def resolve(self, frame: Frame) -> Resolved:
        if self.cycle:
            left = remaining_share(frame.period(as_time(self.total_iters)))
            return shapes.linear(left, self.end_val, self.initial_val)
        return shapes.linear(frame.span(as_time(self.total_iters), note="end").done, self.initial_val, self.end_val)


class Exponential(ClosedForm):
    """The initial value times a power of the decay rate."""

    initial_val: float = number()
    total_iters: Steps = count(least=1)
    decay_rate: float = number(least=0)
    staircase: bool = flag(False)

    def resolve(self, frame: Frame) -> Resolved:
        if self.staircase:
            return shapes.steps(frame.period(as_time(self.total_iters)), self.decay_rate, self.initial_val)
        return shapes.exponential(frame.span(as_time(self.total_iters)), self.decay_rate, self.initial_val)


class InverseExponentialTimeDecay(ClosedForm):
    """The initial value, divided by one plus a multiple of a power of the step count."""

    initial_val: float = number()
    step_exponent: float = number(least=0)
    total_iters: Steps = count(least=1)
    decay_rate: float = number(least=0)
    staircase: bool = flag(False)

    def resolve(self, frame: Frame) -> Resolved:
        quotient, decay_rate, start = self._quotient(frame), self.decay_rate, self.initial_val
        return lambda counts: inverse_time(quotient(counts), decay_rate, start)

    def _quotient(self, frame: Frame) -> Resolved:
        """The power of the step count over `total_iters`, rounded down with `staircase`."""
        end, power = as_time(self.total_iters), self.step_exponent
        complete, done = frame.period(end).complete, frame.span(end).done
        if power == 1.0 and self.staircase:  # exact in counts of any unit, as is the next case
            return lambda counts: ops.to_double(complete(counts))
        if power == 1.0:
            return lambda counts: done(counts, limit=False)
        steps, length = step_counts(frame, end)
        if self.staircase:
            return lambda counts: ops.floor(ops.root(steps(counts), power) / length)
        return lambda counts: ops.root(steps(counts), power) / length


class InverseSquareRootDecay(ClosedForm):
    """Constant first, then falling with the root of the step count."""

    initial_val: float = number(1.0)
    scale: float = number(1.0)
    warmup_steps: Steps = count(1.0, least=1)

    def resolve(self, frame: Frame) -> Resolved:
        steps, least = step_counts(frame, as_time(self.warmup_steps))
        factor = self.initial_val * self.scale
        return lambda counts: inverse_root(steps(counts), least, factor)


class CosineDecay(Between):
    """The falling half of a cosine from one value to another."""

    def resolve(self, frame: Frame) -> Resolved:
        return shapes.cosine(frame.span(as_time(self.total_iters), note="end").done, self.initial_val, self.end_val)


class WarmupStableDecay(ClosedForm):
    """A warmup to a value, a constant phase, and a decay to the last value."""

    val: float = number()
    total_iters: Steps = count()
    warmup_iters: Steps = count()
    decay_iters: Steps = count()
    initial_val: float = number(0.0)
    end_val: float = number(0.0)
    warmup: str = choice("linear", *shapes.WARMUPS)
    decay: str = choice("linear", *shapes.DECAYS)
    decay_rate: float = number(0.5, above=0)

    def check(self, class_name: str) -> None:
        shapes.check_decay(class_name, self.decay, self.val, self.end_val)

    def resolve(self, frame: Frame) -> Resolved:
        warm = frame.mark(as_time(self.warmup_iters), note="warmup")
        end = frame.mark(as_time(self.total_iters), note="end")
        start, ramp = frame.before(end, as_time(self.decay_iters)), frame.change(warm.count, warm.unit, end.unit)
        names = ("warmup_iters", "decay_iters", "total_iters")
        check_phases_fit(type(self).__name__, names, (ramp, end.count - start, end.count), end.unit)
        levels = (self.initial_val, self.val, self.end_val)
        return shapes.warmup_stable_decay(frame, warm, start, end, levels, self.warmup, self.decay, self.decay_rate)


class PiecewiseConstant(ClosedForm):
    """One value after another, each starting at its milestone."""

    vals: Sequence[float] = numbers()
    milestones: Sequence[Steps] = counts()

    def check(self, class_name: str) -> None:
        if len(self.vals) != len(self.milestones) + 1:
            raise TimeError(
                f"{class_name}: {len(self.milestones)} milestones separate {len(self.milestones) + 1} values, and "
                f"there are {len(self.vals)}: {list(self.vals)}. Pass one value more than milestones."
            )

    def resolve(self, frame: Frame) -> Resolved:
        return shapes.levels(rising_milestones(frame, self.milestones), self.vals)


class MultiStep(ClosedForm):
    """The initial value times `gamma` for each milestone that has been reached."""

    initial_val: float = number()
    gamma: float = number()
    milestones: Sequence[Steps] = counts()

    def resolve(self, frame: Frame) -> Resolved:
        return shapes.milestones(rising_milestones(frame, self.milestones), self.gamma, self.initial_val)


class Step(ClosedForm):
    """The initial value times `gamma` for each completed `step_size`."""

    initial_val: float = number()
    step_size: Steps = count(least=1)
    gamma: float = number()

    def resolve(self, frame: Frame) -> Resolved:
        return shapes.steps(frame.period(as_time(self.step_size)), self.gamma, self.initial_val)


class CosineAnnealing(ClosedForm):
    """A cosine wave between two values."""

    initial_val: float = number()
    T_max: Steps = count(least=1)
    eta_min: float = number(0.0)

    def resolve(self, frame: Frame) -> Resolved:
        half, start, end = frame.period(as_time(self.T_max)), self.initial_val, self.eta_min
        done, complete = half.done, half.complete
        return lambda counts: wave(done(counts), complete(counts), start, end)


class CosineAnnealingWarmRestarts(ClosedForm):
    """Falling halves of a cosine, each longer than the previous one."""

    initial_val: float = number()
    T_0: Steps = count(least=1)
    T_mult: float = number(1)
    eta_min: float = number(0.0)

    def check(self, class_name: str) -> None:
        check_growth(f"{class_name}.T_mult", self.T_mult)

    def resolve(self, frame: Frame) -> Resolved:
        return shapes.cosine(cycle_progress(frame, as_time(self.T_0), self.T_mult), self.initial_val, self.eta_min)


class Cyclic(ClosedForm):
    """Straight lines up and down again, over and over."""

    base_val: float = number()
    max_val: float = number()
    step_size_up: Steps = count(2000, least=1)
    step_size_down: Steps | None = count(None, least=1, optional=True)
    mode: str = choice("triangular", "triangular", "triangular2", "exp_range")
    gamma: float = number(1.0, least=0)
    scale_mode: str = choice("cycle", "cycle", "iterations")
    scale_fn: Callable[[Tensor], Tensor] | None = None

    def resolve(self, frame: Frame) -> Resolved:
        down = None if self.step_size_down is None else as_time(self.step_size_down)
        end, peak = shapes.first_cycle(frame, as_time(self.step_size_up), down)
        cycles = Period(end.index, end.count)
        shrinks = self.scale_fn is None and (self.mode != "exp_range" or self.gamma <= 1.0)
        scale = self._scale(frame, cycles.complete)
        return shapes.triangles(cycles, peak, base=self.base_val, top=self.max_val, scale=scale, shrinks=shrinks)

    def _scale(self, frame: Frame, complete: Resolved) -> Resolved:
        """The factor of the height of a cycle. `complete` counts the completed cycles."""
        function, gamma = self.scale_fn, self.gamma
        if function is not None and self.scale_mode == "cycle":
            return lambda counts: _call(function, complete(counts) + 1)
        if function is None and self.mode == "triangular":
            return lambda counts: 1.0
        if function is None and self.mode == "triangular2":
            return lambda counts: decay(complete(counts), 0.5)
        steps, _ = step_counts(frame, as_time(self.step_size_up))
        if function is not None:
            return lambda counts: _call(function, steps(counts))
        return lambda counts: decay(steps(counts), gamma)  # of the steps: a factor for each cycle would differ


class OneCycle(ClosedForm):
    """Up to the highest value, then down to the least."""

    initial_val: float = number()
    max_val: float = number()
    total_steps: Steps = count(1000, least=1)
    pct_start: float = number(0.3, least=0)
    final_div_factor: float = number(1e4, above=0)
    three_phase: bool = flag(False)
    anneal_strategy: str = choice("cos", "cos", "linear")

    def check(self, class_name: str) -> None:
        if self.pct_start > (0.5 if self.three_phase else 1.0):
            raise TimeError(
                f"{class_name}.pct_start={self.pct_start}: it is too large. Pass at most 1, or 0.5 with three phases."
            )

    def resolve(self, frame: Frame) -> Resolved:
        total = frame.mark(as_time(self.total_steps), note="end")
        end = total.at(frame.before(total, as_time(1)))
        peak = frame.before(total.at(exact_number(self.pct_start) * total.count), as_time(1))
        levels = (self.initial_val, self.max_val, self.initial_val / self.final_div_factor)
        shape = shapes.WARMUPS["cosine" if self.anneal_strategy == "cos" else "linear"]
        value = shapes.one_cycle(frame, peak, end, levels, shape, three_phase=self.three_phase)
        if peak != 0 or peak == end.count:
            return value
        # the way up is step 0 alone, with the initial value
        return lambda counts: ops.where(counts[total.index] == 0, self.initial_val, value(counts))


class Multiplicative(ClosedForm):
    """The initial value times a coefficient once for each step."""

    initial_val: float = number()
    coefficient: float = number()

    def resolve(self, frame: Frame) -> Resolved:
        steps, _ = step_counts(frame, as_time(0))
        return lambda counts: self.initial_val * decay(steps(counts), self.coefficient)


class Lambda(ClosedForm):
    """The initial value times the product of functions of the step tensor."""

    initial_val: float = number()
    functions: Sequence[Callable[[Tensor], Any]] = ()

    def resolve(self, frame: Frame) -> Resolved:
        index = frame.mark(as_time(0)).index

        def value(counts: Counts) -> Any:
            step = as_step(counts[index])
            product: Any = self.initial_val
            for function in self.functions:
                product = product * _call(function, step.clone())
            return product

        return value


class Chain(ClosedForm):
    """The first of several schedules, times the ratio of each other schedule to its own first value."""

    schedules: Sequence[Schedule]

    def resolve(self, frame: Frame) -> Resolved:
        first, *others = [schedule.resolve(frame) for schedule in self.schedules]
        zeros = tuple(0 for _ in frame.usage.counters)
        starts = [float(function(zeros)) for function in others]
        for i, start in enumerate(starts, 1):
            if start == 0.0 or not math.isfinite(start):
                raise TimeError(
                    f"schedulers[{i}]: it starts at {start}, and a chain divides by its first value. Put it first."
                )

        def value(counts: Counts) -> Any:
            product = first(counts)
            for function, start in zip(others, starts):
                product = product * (function(counts) / start)
            return product

        return value
