"""The schedules without a warmup.

Each one is made of times (a `Time` or a string; not negative) and finite numbers, which are checked when it is made. It
returns a multiplier. Names, arguments, defaults and formulas are from `composer.optim.scheduler` of MosaicML Composer
0.32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from timesched.fields import number, time, times
from timesched.maths import Frame, shapes
from timesched.maths.counts import Milestones, Resolved
from timesched.maths.ops import where
from timesched.maths.restarts import check_growth, cycle_progress
from timesched.schedulers.schedule import Schedule
from timesched.time.value import TimeLike

__all__ = [
    "ConstantScheduler",
    "CosineAnnealingScheduler",
    "CosineAnnealingWarmRestartsScheduler",
    "ExponentialScheduler",
    "LinearScheduler",
    "MultiStepScheduler",
    "PolynomialScheduler",
    "StepScheduler",
]


@dataclass(frozen=True, eq=False, repr=False)
class StepScheduler(Schedule):
    """Multiplied by `gamma` after every `step_size`.

    Formula:
        y = gamma ** floor(t / step_size)

    `t` is the time since the start of the run, and `y` the multiplier.

    Args:
        step_size: the time from one step to the next, in any unit, above 0.
        gamma: the factor of each step, finite. Default: 0.1.

    Raises:
        ValueError: an argument is outside its range.

    >>> from timesched import Horizon
    >>> StepScheduler("10ba", gamma=0.5).at("25ba", Horizon("100ba"))
    0.25

    Source: `StepScheduler` of Composer.
    """

    step_size: TimeLike = time(above=0)
    gamma: float = number(0.1)

    def resolve(self, frame: Frame) -> Resolved:
        return shapes.steps(frame.period(self.step_size), self.gamma)


@dataclass(frozen=True, eq=False, repr=False)
class MultiStepScheduler(Schedule):
    """Multiplied by `gamma` at each of the `milestones`.

    Formula:
        n = sum(t >= milestone for milestone in milestones)
        y = gamma ** n

    `t` is the time since the start of the run, `n` the number of milestones reached, and `y` the multiplier.

    Args:
        milestones: times, in any order and in any units. Each is compared on the counter of its own unit. A milestone
            that is listed twice counts twice.
        gamma: the factor at each milestone, finite. Default: 0.1.

    Raises:
        ValueError: an argument is outside its range.

    >>> from timesched import Horizon
    >>> schedule = MultiStepScheduler(["0.29dur", "90ba"], gamma=0.5)
    >>> [schedule.at(t, Horizon("100ba")) for t in ("28ba", "29ba", "90ba")]
    [1.0, 0.5, 0.25]

    Source: `MultiStepScheduler` of Composer.
    """

    milestones: Sequence[TimeLike] = times()
    gamma: float = number(0.1)

    def resolve(self, frame: Frame) -> Resolved:
        marks = [frame.mark(milestone, note="milestone") for milestone in self.milestones]
        return shapes.milestones(Milestones(marks), self.gamma)


@dataclass(frozen=True, eq=False, repr=False)
class ConstantScheduler(Schedule):
    """The multiplier `alpha` before `t_max`, and 1 at `t_max` and after it.

    Formula:
        y = alpha if t < t_max else 1

    `t` is the time since the start of the run, and `y` the multiplier.

    Args:
        alpha: the multiplier before `t_max`, finite. Default: 1.
        t_max: the end of `alpha`, a time in any unit. Default: "1dur", the end of the run.

    Raises:
        ValueError: an argument is outside its range.

    >>> from timesched import Horizon
    >>> ConstantScheduler(0.3, t_max="0.5dur").at("4ba", Horizon("10ba"))
    0.3

    Source: `ConstantScheduler` of Composer.
    """

    alpha: float = number(1.0)
    t_max: TimeLike = time("1dur")

    def resolve(self, frame: Frame) -> Resolved:
        end = frame.mark(self.t_max, note="end")
        return lambda counts: where(end.reached(counts), 1.0, self.alpha)


@dataclass(frozen=True, eq=False, repr=False)
class LinearScheduler(Schedule):
    """A straight line from `alpha_i` to `alpha_f` at `t_max`, and `alpha_f` after it.

    Formula:
        x = min(t / t_max, 1)
        y = alpha_i + (alpha_f - alpha_i) * x

    `t` is the time since the start of the run, `x` the fraction of `t_max` that is done, and `y` the multiplier.

    Args:
        alpha_i: the multiplier at the start, finite. Default: 1.
        alpha_f: the multiplier at `t_max` and after it, finite. Default: 0.
        t_max: the end of the line, a time in any unit. Default: "1dur", the end of the run.

    Raises:
        ValueError: an argument is outside its range.

    >>> from timesched import Horizon
    >>> LinearScheduler(1.0, 0.0).at("0.25dur", Horizon("10ep"))
    0.75

    Source: `LinearScheduler` of Composer.
    """

    alpha_i: float = number(1.0)
    alpha_f: float = number(0.0)
    t_max: TimeLike = time("1dur")

    def resolve(self, frame: Frame) -> Resolved:
        return shapes.linear(frame.span(self.t_max, note="end").done, self.alpha_i, self.alpha_f)


@dataclass(frozen=True, eq=False, repr=False)
class ExponentialScheduler(Schedule):
    """Multiplied by `gamma` in every `decay_period`, smoothly.

    Formula:
        y = gamma ** (t / decay_period)

    `t` is the time since the start of the run, and `y` the multiplier.

    Args:
        gamma: the factor of a period, 0 or more, since a fractional power of a negative number is complex.
        decay_period: a time in any unit, above 0. In epochs, the decay is smooth if the length of an epoch is known;
            otherwise the multiplier changes once an epoch. Default: "1ep".

    Raises:
        ValueError: an argument is outside its range.

    >>> from timesched import Horizon
    >>> ExponentialScheduler(gamma=0.25, decay_period="10ba").at(
    ...     "5ba", Horizon("100ba")
    ... )
    0.5

    Source: `ExponentialScheduler` of Composer.
    """

    gamma: float = number(least=0)
    decay_period: TimeLike = time("1ep", above=0)

    def resolve(self, frame: Frame) -> Resolved:
        return shapes.exponential(frame.span(self.decay_period), self.gamma)


@dataclass(frozen=True, eq=False, repr=False)
class CosineAnnealingScheduler(Schedule):
    """The falling half of a cosine from 1 to `alpha_f` at `t_max`, and `alpha_f` after it.

    Formula:
        x = min(t / t_max, 1)
        y = alpha_f + (1 - alpha_f) * (1 + cos(pi * x)) / 2

    `t` is the time since the start of the run, `x` the fraction of `t_max` that is done, and `y` the multiplier.

    Args:
        t_max: the end of the decay, a time in any unit. Default: "1dur", the end of the run.
        alpha_f: the multiplier at `t_max` and after it, finite. Default: 0.

    Raises:
        ValueError: an argument is outside its range.

    >>> from timesched import Horizon
    >>> CosineAnnealingScheduler(alpha_f=0.5).at("5ba", Horizon("10ba"))
    0.75

    Source: arXiv:1608.03983; `CosineAnnealingScheduler` of Composer.
    """

    t_max: TimeLike = time("1dur")
    alpha_f: float = number(0.0)

    def resolve(self, frame: Frame) -> Resolved:
        return shapes.cosine(frame.span(self.t_max, note="end").done, 1.0, self.alpha_f)


@dataclass(frozen=True, eq=False, repr=False)
class CosineAnnealingWarmRestartsScheduler(Schedule):
    """Falling halves of a cosine from 1 to `alpha_f`, each `t_mult` times as long as the previous one (SGDR).

    Formula:
        i = max(n for n in range(t + 1) if sum(t_0 * t_mult ** k for k in range(n)) <= t)
        x = (t - sum(t_0 * t_mult ** k for k in range(i))) / (t_0 * t_mult ** i)
        y = alpha_f + (1 - alpha_f) * (1 + cos(pi * x)) / 2

    `t` is the time since the start of the run, `i` the number of complete cycles, `x` the fraction of the current
    cycle that is done, and `y` the multiplier.

    Args:
        t_0: the length of the first cycle, a time in any unit, above 0.
        t_mult: the growth of the cycles, 1 or at least 1.1. Default: 1.
        alpha_f: the multiplier towards which each cycle falls, finite. Default: 0.

    Raises:
        ValueError: an argument is outside its range.

    >>> from timesched import Horizon
    >>> schedule = CosineAnnealingWarmRestartsScheduler("10ba", t_mult=2.0)
    >>> [
    ...     round(schedule.at(t, Horizon("100ba")), 15)
    ...     for t in ("5ba", "10ba", "20ba", "30ba")
    ... ]
    [0.5, 1.0, 0.5, 1.0]

    Source: arXiv:1608.03983; `CosineAnnealingWarmRestartsScheduler` of Composer.
    """

    t_0: TimeLike = time(above=0)
    t_mult: float = number(1.0)
    alpha_f: float = number(0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_growth(f"{type(self).__name__}.t_mult", self.t_mult)

    def resolve(self, frame: Frame) -> Resolved:
        return shapes.cosine(cycle_progress(frame, self.t_0, self.t_mult), 1.0, self.alpha_f)


@dataclass(frozen=True, eq=False, repr=False)
class PolynomialScheduler(Schedule):
    """A power of the fraction that is left, from 1 to `alpha_f` at `t_max`, and `alpha_f` after it.

    Formula:
        x = min(t / t_max, 1)
        y = alpha_f + (1 - alpha_f) * (1 - x) ** power

    `t` is the time since the start of the run, `x` the fraction of `t_max` that is done, and `y` the multiplier.

    Args:
        power: the exponent, 0 or more; 1 is a straight line, and with 0 the multiplier is 1 throughout.
        t_max: the end of the decay, a time in any unit. Default: "1dur", the end of the run.
        alpha_f: the multiplier at `t_max` and after it, finite. Default: 0.

    Raises:
        ValueError: an argument is outside its range.

    >>> from timesched import Horizon
    >>> PolynomialScheduler(power=2.0).at("0.5dur", Horizon("10ep"))
    0.25

    Source: `PolynomialScheduler` of Composer.
    """

    power: float = number(least=0)
    t_max: TimeLike = time("1dur")
    alpha_f: float = number(0.0)

    def resolve(self, frame: Frame) -> Resolved:
        return shapes.polynomial(frame.span(self.t_max, note="end").left, self.power, 1.0, self.alpha_f)
