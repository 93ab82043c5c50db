"""The formulas of the closed-form schedulers: each stands here once, and makes a learning-rate, a weight-decay and a
generic scheduler (families.py).

A formula is a schedule of timesched that returns values instead of multipliers. Its counts are steps, or times.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from timesched import ops
from timesched.curves import cosine, decay, linear, polynomial
from timesched.fields import count, flag, number
from timesched.horizon import Horizon
from timesched.positions import Counts, Frame, Mark, Period, Resolved
from timesched.schedule import Schedule
from timesched.time.units import TimeError, TimeUnit
from timesched.time.value import Time

Count = int | Time[Any]


def time(steps: Any) -> Time[Any]:
    """A count as a time: a number counts steps, which are batches."""
    return Time(steps, TimeUnit.BATCH) if isinstance(steps, int) else steps


def in_steps(frame: Frame, mark: Mark) -> Resolved:
    """The count of a mark's counter as a number of steps, that is batches of the unstretched run: for a formula that is
    not made of shares of time.
    """
    one = float(frame.horizon.change(*frame.horizon.locate(time(1)), mark.unit))
    return lambda counts: ops.real(counts[mark.counter]) / one


def steps_at(frame: Frame, mark: Mark) -> float:
    """The number of steps, as `in_steps` counts them, at a mark."""
    one = frame.horizon.change(*frame.horizon.locate(time(1)), mark.unit)
    return float(Fraction(mark.count) / one)


def left_of_cycles(period: Period) -> Resolved:
    """The share that is left until the next multiple of a period."""

    def left(counts: Counts) -> Any:
        complete, done = period.complete(counts), period.done(counts)
        inside = (1.0 - done) / (ops.real(complete) + 1.0)
        return ops.where((done > 0.0) | (complete == 0), inside, 0.0)

    return left


@dataclass(frozen=True, eq=False, repr=False)
class Formula(Schedule):
    """A schedule of values over steps."""

    def values(self, n: int) -> list[float]:
        """The values at the steps 0 to n - 1."""
        function = self.steps()
        return [float(function((step,))) for step in range(n)]

    def steps(self) -> Resolved:
        """The value as a function of a tuple of one step count."""
        return self.resolve(Frame(Horizon(None), TimeUnit.BATCH))


def _refuse_empty_cycles(schedule: Any) -> None:
    if schedule.cycle and time(schedule.total_iters).exact == 0:
        raise TimeError(f"{type(schedule).__name__}: total_iters=0 is no length of a cycle: make it 1 or more.")


@dataclass(frozen=True, eq=False, repr=False)
class Constant(Formula):
    """The same value throughout.

    Args:
        val: the value.
        total_iters: how many steps it is meant for, which a sequence built from a config goes by; it changes nothing.

    >>> Constant(val=0.1).values(3)
    [0.1, 0.1, 0.1]
    """

    val: float = number()
    total_iters: Count | None = count(None, optional=True)

    def resolve(self, frame: Frame) -> Resolved:
        return lambda counts: self.val


@dataclass(frozen=True, eq=False, repr=False)
class Polynomial(Formula):
    """From one value to another along a power of the share of the steps that is left; the last value from then on.

    Source: `polynomial_decay` of Keras, and `PolynomialLR` of torch, which ends at 0.

    Args:
        initial_val: the value at step 0.
        end_val: the value at `total_iters`.
        total_iters: the number of steps from one to the other; 0 begins with the last value.
        power: the exponent, 0 or more; 1 is a straight line.
        cycle: past `total_iters`, go on as if it were its next multiple, so that each cycle starts lower.

    >>> Polynomial(initial_val=0.1, end_val=0.0, total_iters=4, power=2.0).values(4)
    [0.1, 0.05625, 0.025, 0.00625]
    """

    initial_val: float = number()
    end_val: float = number()
    total_iters: Count = count()
    power: float = number(1.0, least=0)
    cycle: bool = flag(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_empty_cycles(self)

    def resolve(self, frame: Frame) -> Resolved:
        end = time(self.total_iters)
        left = left_of_cycles(frame.period(end)) if self.cycle else frame.span(end).left
        return lambda counts: polynomial(left(counts), self.power, self.initial_val, self.end_val)


@dataclass(frozen=True, eq=False, repr=False)
class Linear(Formula):
    """A straight line from one value to another; the last value from then on.

    Args:
        initial_val: the value at step 0.
        end_val: the value at `total_iters`.
        total_iters: the number of steps from one to the other; 0 begins with the last value.
        cycle: past `total_iters`, go on as if it were its next multiple, so that each cycle starts lower.

    >>> Linear(initial_val=0.0, end_val=0.1, total_iters=4).values(6)
    [0.0, 0.025, 0.05, 0.07500000000000001, 0.1, 0.1]
    """

    initial_val: float = number()
    end_val: float = number()
    total_iters: Count = count()
    cycle: bool = flag(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_empty_cycles(self)

    def resolve(self, frame: Frame) -> Resolved:
        if self.cycle:
            left = left_of_cycles(frame.period(time(self.total_iters)))
            return lambda counts: linear(left(counts), self.end_val, self.initial_val)
        done = frame.span(time(self.total_iters)).done
        return lambda counts: linear(done(counts), self.initial_val, self.end_val)


@dataclass(frozen=True, eq=False, repr=False)
class Exponential(Formula):
    """The initial value times `decay_rate ** (step / total_iters)`, without an end.

    Args:
        initial_val: the value at step 0.
        total_iters: the number of steps in which the value is multiplied by `decay_rate` once, 1 or more.
        decay_rate: the factor, 0 or more.
        staircase: decay at multiples of `total_iters` only.

    >>> Exponential(initial_val=0.1, total_iters=2, decay_rate=0.25).values(4)
    [0.1, 0.05, 0.025, 0.0125]
    """

    initial_val: float = number()
    total_iters: Count = count(least=1)
    decay_rate: float = number(least=0)
    staircase: bool = flag(False)

    def resolve(self, frame: Frame) -> Resolved:
        if self.staircase:
            complete = frame.period(time(self.total_iters)).complete
            return lambda counts: self.initial_val * decay(complete(counts), self.decay_rate)
        done = frame.span(time(self.total_iters)).done
        return lambda counts: self.initial_val * decay(done(counts, limit=False), self.decay_rate)


@dataclass(frozen=True, eq=False, repr=False)
class InverseExponentialTimeDecay(Formula):
    """The initial value over `1 + decay_rate * step ** step_exponent / total_iters`, without an end.

    Times are converted to steps. Source: `InverseTimeDecay` of Keras.

    Args:
        initial_val: the value at step 0.
        step_exponent: the exponent of the step count, 0 or more.
        total_iters: what the power of the step count is divided by, 1 or more.
        decay_rate: the factor of the quotient, 0 or more.
        staircase: round the quotient down to a whole number.

    >>> InverseExponentialTimeDecay(initial_val=0.1, step_exponent=1, total_iters=2, decay_rate=2.0).values(3)
    [0.1, 0.05, 0.03333333333333333]
    """

    initial_val: float = number()
    step_exponent: float = number(least=0)
    total_iters: Count = count(least=1)
    decay_rate: float = number(least=0)
    staircase: bool = flag(False)

    def resolve(self, frame: Frame) -> Resolved:
        end, whole = frame.mark(time(self.total_iters)), frame.period(time(self.total_iters)).complete
        if self.step_exponent == 1.0:
            done = frame.span(time(self.total_iters)).done
        else:
            steps, length = in_steps(frame, end), steps_at(frame, end)

        def value(counts: Counts) -> Any:
            if self.staircase and self.step_exponent == 1.0:
                x = ops.real(whole(counts))
            elif self.step_exponent == 1.0:
                x = done(counts, limit=False)
            else:
                x = ops.root(steps(counts), self.step_exponent) / length
                x = ops.floor(x) if self.staircase else x
            return self.initial_val / (1.0 + self.decay_rate * x)

        return value


@dataclass(frozen=True, eq=False, repr=False)
class InverseSquareRootDecay(Formula):
    """The initial value times `scale / sqrt(max(step, warmup_steps))`: constant first, then falling without an end.

    Times are converted to steps.

    Args:
        initial_val: the factor of it all.
        scale: another factor.
        warmup_steps: the steps for which the value stays as it is at the last of them, more than 0.

    >>> InverseSquareRootDecay(initial_val=0.1, scale=2.0, warmup_steps=4).values(6)
    [0.1, 0.1, 0.1, 0.1, 0.1, 0.08944271909999159]
    """

    initial_val: float = number(1.0)
    scale: float = number(1.0)
    warmup_steps: Count = count(1.0, least=1)

    def resolve(self, frame: Frame) -> Resolved:
        end = frame.mark(time(self.warmup_steps))
        steps, least = in_steps(frame, end), steps_at(frame, end)
        factor = self.initial_val * self.scale
        return lambda counts: factor / ops.sqrt(ops.at_least(steps(counts), least))


@dataclass(frozen=True, eq=False, repr=False)
class CosineDecay(Formula):
    """The falling half of a cosine from one value to another; the last value from then on.

    Source: `CosineDecay` of Keras; arXiv:1608.03983.

    Args:
        initial_val: the value at step 0.
        end_val: the value at `total_iters`.
        total_iters: the number of steps from one to the other; 0 begins with the last value.

    >>> CosineDecay(initial_val=0.1, end_val=0.0, total_iters=4).values(6)
    [0.1, 0.08535533905932738, 0.05, 0.014644660940672627, 0.0, 0.0]
    """

    initial_val: float = number()
    end_val: float = number()
    total_iters: Count = count()

    def resolve(self, frame: Frame) -> Resolved:
        done = frame.span(time(self.total_iters)).done
        return lambda counts: cosine(done(counts), self.initial_val, self.end_val)
