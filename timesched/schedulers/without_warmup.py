"""The schedules without a warmup.

Each is made of times (a `Time` or a text; not negative) and finite numbers, checked when it is made, and returns a
multiplier. Names, arguments, defaults and formulas: `composer.optim.scheduler` of MosaicML Composer 0.32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from timesched import shapes
from timesched.fields import number, time, times
from timesched.ops import where
from timesched.positions import Frame, Milestones, Resolved
from timesched.restarts import check_growth, restarting
from timesched.schedule import Schedule
from timesched.time.value import TimeLike


@dataclass(frozen=True, eq=False, repr=False)
class StepScheduler(Schedule):
    """`gamma ** n` after `n` complete steps of `step_size`.

    `step_size`: a time above 0. `gamma`: finite. Raises `ValueError` otherwise.

    >>> from timesched import Horizon
    >>> StepScheduler("10ba", gamma=0.5).at("25ba", Horizon("100ba"))
    0.25
    """

    step_size: TimeLike = time(above=0)
    gamma: float = number(0.1)

    def resolve(self, frame: Frame) -> Resolved:
        return shapes.steps(frame.period(self.step_size), self.gamma)


@dataclass(frozen=True, eq=False, repr=False)
class MultiStepScheduler(Schedule):
    """`gamma ** n` once `n` of the `milestones` have been reached, each on the counter of its own unit.

    `milestones`: times, in any order and in any units; one that is there twice counts twice. `gamma`: finite.

    >>> from timesched import Horizon
    >>> schedule = MultiStepScheduler(["0.29dur", "90ba"], gamma=0.5)
    >>> [schedule.at(t, Horizon("100ba")) for t in ("28ba", "29ba", "90ba")]
    [1.0, 0.5, 0.25]
    """

    milestones: Sequence[TimeLike] = times()
    gamma: float = number(0.1)

    def resolve(self, frame: Frame) -> Resolved:
        marks = [frame.mark(milestone, note="milestone") for milestone in self.milestones]
        return shapes.milestones(Milestones(marks), self.gamma)


@dataclass(frozen=True, eq=False, repr=False)
class ConstantScheduler(Schedule):
    """`alpha` before `t_max`, 1.0 from then on.

    >>> from timesched import Horizon
    >>> ConstantScheduler(0.3, t_max="0.5dur").at("4ba", Horizon("10ba"))
    0.3
    """

    alpha: float = number(1.0)
    t_max: TimeLike = time("1dur")

    def resolve(self, frame: Frame) -> Resolved:
        end = frame.mark(self.t_max, note="end")
        return lambda counts: where(end.reached(counts), 1.0, self.alpha)


@dataclass(frozen=True, eq=False, repr=False)
class LinearScheduler(Schedule):
    """A straight line from `alpha_i` at 0 to `alpha_f` at `t_max`, and `alpha_f` after it.

    >>> from timesched import Horizon
    >>> LinearScheduler(1.0, 0.0).at("0.25dur", Horizon("10ep"))
    0.75
    """

    alpha_i: float = number(1.0)
    alpha_f: float = number(0.0)
    t_max: TimeLike = time("1dur")

    def resolve(self, frame: Frame) -> Resolved:
        return shapes.linear(frame.span(self.t_max, note="end").done, self.alpha_i, self.alpha_f)


@dataclass(frozen=True, eq=False, repr=False)
class ExponentialScheduler(Schedule):
    """`gamma ** (t / decay_period)`, smoothly.

    `gamma`: 0 or more, since a fractional power of a negative number is complex. `decay_period`: a time above 0; in
    epochs it is smooth if the length of an epoch is known, otherwise it decays once an epoch.

    >>> from timesched import Horizon
    >>> ExponentialScheduler(gamma=0.25, decay_period="10ba").at("5ba", Horizon("100ba"))
    0.5
    """

    gamma: float = number(least=0)
    decay_period: TimeLike = time("1ep", above=0)

    def resolve(self, frame: Frame) -> Resolved:
        return shapes.exponential(frame.span(self.decay_period), self.gamma)


@dataclass(frozen=True, eq=False, repr=False)
class CosineAnnealingScheduler(Schedule):
    """The falling half of a cosine, from 1 at 0 to `alpha_f` at `t_max`, and `alpha_f` after it.

    >>> from timesched import Horizon
    >>> CosineAnnealingScheduler(alpha_f=0.5).at("5ba", Horizon("10ba"))
    0.75
    """

    t_max: TimeLike = time("1dur")
    alpha_f: float = number(0.0)

    def resolve(self, frame: Frame) -> Resolved:
        return shapes.cosine(frame.span(self.t_max, note="end").done, 1.0, self.alpha_f)


@dataclass(frozen=True, eq=False, repr=False)
class CosineAnnealingWarmRestartsScheduler(Schedule):
    """Falling halves of a cosine, from 1 to `alpha_f`: the first lasts `t_0`, each next one `t_mult` times as long.

    `t_0`: a time above 0. `t_mult`: 1, or at least 1.1. Raises `ValueError` otherwise. Source: arXiv:1608.03983.

    >>> from timesched import Horizon
    >>> schedule = CosineAnnealingWarmRestartsScheduler("10ba", t_mult=2.0)
    >>> [round(schedule.at(t, Horizon("100ba")), 15) for t in ("5ba", "10ba", "20ba", "30ba")]
    [0.5, 1.0, 0.5, 1.0]
    """

    t_0: TimeLike = time(above=0)
    t_mult: float = number(1.0)
    alpha_f: float = number(0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_growth(f"{type(self).__name__}.t_mult", self.t_mult)

    def resolve(self, frame: Frame) -> Resolved:
        return shapes.cosine(restarting(frame, self.t_0, self.t_mult), 1.0, self.alpha_f)


@dataclass(frozen=True, eq=False, repr=False)
class PolynomialScheduler(Schedule):
    """`alpha_f + (1 - alpha_f) * (1 - t / t_max) ** power` until `t_max`, and `alpha_f` after it.

    `power`: 0 or more; with 0 the value is 1 throughout.

    >>> from timesched import Horizon
    >>> PolynomialScheduler(power=2.0).at("0.5dur", Horizon("10ep"))
    0.25
    """

    power: float = number(least=0)
    t_max: TimeLike = time("1dur")
    alpha_f: float = number(0.0)

    def resolve(self, frame: Frame) -> Resolved:
        return shapes.polynomial(frame.span(self.t_max, note="end").left, self.power, 1.0, self.alpha_f)
