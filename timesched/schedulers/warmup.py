"""The schedules that begin with a linear warmup.

Names, arguments, defaults and formulas are from `composer.optim.scheduler` of MosaicML Composer 0.32, with two
differences. The end of a scaled warmup moves with its ramp. `alpha_s` is the multiplier at the start of the warmup:
with a value above 0, step 0 is not wasted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from timesched.fields import flag, number, time, times
from timesched.maths import Frame, Span, shapes
from timesched.maths.counts import Resolved
from timesched.schedulers.schedule import Schedule
from timesched.schedulers.without_warmup import LinearScheduler, MultiStepScheduler
from timesched.time.value import TimeLike

__all__ = [
    "ConstantWithWarmupScheduler",
    "CosineAnnealingWithWarmupScheduler",
    "LinearWithWarmupScheduler",
    "MultiStepWithWarmupScheduler",
    "PolynomialWithWarmupScheduler",
]


@contextmanager
def name_in_errors(schedule: Schedule) -> Iterator[None]:
    """Name the schedule in the error, with Composer's words, if its times do not convert to each other."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"Cannot use warmup scheduler {schedule!r} on this run: {error}") from None


class _WithWarmup(Schedule):
    """A linear ramp from `alpha_s` to the peak over `t_warmup`, then the `_main_phase` until `t_max`."""

    t_warmup: TimeLike
    t_max: TimeLike
    scale_warmup: bool
    alpha_s: float

    @property
    def _peak(self) -> float:
        return 1.0

    @property
    def warmup_scheduler(self) -> LinearScheduler:
        """The ramp as a schedule of its own."""
        return LinearScheduler(self.alpha_s, self._peak, self.t_warmup)

    def _main_phase(self, span: Span) -> Resolved:
        raise NotImplementedError

    def resolve(self, frame: Frame) -> Resolved:
        with name_in_errors(self):
            start = frame.mark(self.t_warmup, self.scale_warmup, note="warmup")
            span = frame.between(start, frame.mark(self.t_max, note="end"))
        frame.check_covers_run(self.t_max, self)
        return shapes.with_ramp(self._main_phase(span), start, self.alpha_s, self._peak)


@dataclass(frozen=True, eq=False, repr=False)
class MultiStepWithWarmupScheduler(_WithWarmup):
    """A linear warmup to 1, then multiplied by `gamma` at each of the `milestones`.

    Formula:
        n = sum(t >= milestone for milestone in milestones)
        y = alpha_s + (1 - alpha_s) * t / t_warmup if t < t_warmup else gamma ** n

    `t` is the time since the start of the run, `n` the number of milestones reached, and `y` the multiplier.

    Args:
        t_warmup: the length of the warmup, a time in any unit; 0 starts at the peak.
        milestones: times since the start of the run, in any order and in any units, which the ratio stretches. A
            milestone that is listed twice counts twice.
        gamma: the factor at each milestone, finite. Default: 0.1.
        scale_warmup: whether the scale-schedule ratio stretches the warmup too. It always stretches a `t_warmup` in
            `dur`. Default: False.
        alpha_s: the multiplier at the start of the warmup, finite; by name only. Default: 0.

    Raises:
        ValueError: an argument is outside its range.

    >>> from timesched import Horizon
    >>> schedule = MultiStepWithWarmupScheduler("4ba", ["10ba", "20ba"])
    >>> [schedule.at(t, Horizon("30ba")) for t in ("1ba", "4ba", "10ba")]
    [0.25, 1.0, 0.1]

    Source: `MultiStepWithWarmupScheduler` of Composer, which has no `alpha_s`.
    """

    t_warmup: TimeLike = time()
    milestones: Sequence[TimeLike] = times()
    gamma: float = number(0.1)
    scale_warmup: bool = flag(False)
    alpha_s: float = number(0.0, keyword=True)

    @property
    def step_scheduler(self) -> MultiStepScheduler:
        """The milestones as a schedule of their own."""
        return MultiStepScheduler(self.milestones, self.gamma)

    def resolve(self, frame: Frame) -> Resolved:
        steps = self.step_scheduler.resolve(frame)
        end = frame.mark(self.t_warmup, self.scale_warmup, note="warmup")
        return shapes.with_ramp(steps, end, self.alpha_s, self._peak)


@dataclass(frozen=True, eq=False, repr=False)
class LinearWithWarmupScheduler(_WithWarmup):
    """A linear warmup to `alpha_i`, then a straight line to `alpha_f` at `t_max`, and `alpha_f` after it.

    Formula:
        x = min((t - t_warmup) / (t_max - t_warmup), 1)
        y = alpha_s + (alpha_i - alpha_s) * t / t_warmup if t < t_warmup else alpha_i + (alpha_f - alpha_i) * x

    `t` is the time since the start of the run, `x` the fraction of the decay that is done, and `y` the multiplier.
    Where the warmup takes all of `t_max`, the multiplier stays at `alpha_i`.

    Args:
        t_warmup: the length of the warmup, a time in any unit; 0 starts at the peak.
        alpha_i: the multiplier at the end of the warmup, finite. Default: 1.
        alpha_f: the multiplier at `t_max` and after it, finite. Default: 0.
        t_max: the end of the decay, a time in any unit, which the ratio stretches. Default: "1dur", the end of the run.
        scale_warmup: whether the scale-schedule ratio stretches the warmup too. It always stretches a `t_warmup` in
            `dur`. Default: False.
        alpha_s: the multiplier at the start of the warmup, finite; by name only. Default: 0.

    Raises:
        ValueError: an argument is outside its range. A call raises it if `t_max`, stretched by the ratio or not, ends
            before the run does (except in a `SequenceScheduler`). A call also raises it if `t_warmup` does not convert
            to the unit of `t_max`.

    >>> from timesched import Horizon
    >>> schedule = LinearWithWarmupScheduler("10ba")
    >>> [schedule.at(t, Horizon("110ba")) for t in ("5ba", "10ba", "60ba", "110ba")]
    [0.5, 1.0, 0.5, 0.0]

    Source: `LinearWithWarmupScheduler` of Composer, which has no `alpha_s`.
    """

    t_warmup: TimeLike = time()
    alpha_i: float = number(1.0)
    alpha_f: float = number(0.0)
    t_max: TimeLike = time("1dur")
    scale_warmup: bool = flag(False)
    alpha_s: float = number(0.0, keyword=True)

    @property
    def _peak(self) -> float:
        return self.alpha_i

    def _main_phase(self, span: Span) -> Resolved:
        return shapes.linear(span.done, self.alpha_i, self.alpha_f)


@dataclass(frozen=True, eq=False, repr=False)
class ConstantWithWarmupScheduler(_WithWarmup):
    """A linear warmup to `alpha`, then the constant `alpha`.

    Formula:
        y = alpha_s + (alpha - alpha_s) * t / t_warmup if t < t_warmup else alpha

    `t` is the time since the start of the run, and `y` the multiplier.

    Args:
        t_warmup: the length of the warmup, a time in any unit; 0 starts at the peak.
        alpha: the multiplier after the warmup, finite. Default: 1.
        t_max: a time in any unit, not before the end of the run. It changes no value. The class has it because
            Composer's class has it. Default: "1dur", the end of the run.
        scale_warmup: whether the scale-schedule ratio stretches the warmup too. It always stretches a `t_warmup` in
            `dur`. Default: False.
        alpha_s: the multiplier at the start of the warmup, finite; by name only. Default: 0.

    Raises:
        ValueError: an argument is outside its range. A call raises it if `t_max`, stretched by the ratio or not, ends
            before the run does (except in a `SequenceScheduler`). A call also raises it if `t_warmup` does not convert
            to the unit of `t_max`.

    >>> from timesched import Horizon
    >>> ConstantWithWarmupScheduler("10ba", alpha=3.0).at("5ba", Horizon("110ba"))
    1.5

    Source: `ConstantWithWarmupScheduler` of Composer, which has no `alpha_s`.
    """

    t_warmup: TimeLike = time()
    alpha: float = number(1.0)
    t_max: TimeLike = time("1dur")
    scale_warmup: bool = flag(False)
    alpha_s: float = number(0.0, keyword=True)

    @property
    def _peak(self) -> float:
        return self.alpha

    @property
    def scheduler(self) -> LinearWithWarmupScheduler:
        """The same schedule, as a line with two equal ends."""
        return LinearWithWarmupScheduler(
            self.t_warmup, self.alpha, self.alpha, self.t_max, self.scale_warmup, alpha_s=self.alpha_s
        )

    def _main_phase(self, span: Span) -> Resolved:
        return shapes.linear(span.done, self.alpha, self.alpha)


@dataclass(frozen=True, eq=False, repr=False)
class CosineAnnealingWithWarmupScheduler(_WithWarmup):
    """A linear warmup to 1, then the falling half of a cosine to `alpha_f` at `t_max`, and `alpha_f` after it.

    Formula:
        x = min((t - t_warmup) / (t_max - t_warmup), 1)
        y = alpha_s + (1 - alpha_s) * t / t_warmup if t < t_warmup else alpha_f + (1 - alpha_f) * (1 + cos(pi * x)) / 2

    `t` is the time since the start of the run, `x` the fraction of the decay that is done, and `y` the multiplier.
    Where the warmup takes all of `t_max`, the multiplier stays at 1.

    Args:
        t_warmup: the length of the warmup, a time in any unit; 0 starts at the peak.
        t_max: the end of the decay, a time in any unit, which the ratio stretches. Default: "1dur", the end of the run.
        alpha_f: the multiplier at `t_max` and after it, finite. Default: 0.
        scale_warmup: whether the scale-schedule ratio stretches the warmup too. It always stretches a `t_warmup` in
            `dur`. Default: False.
        alpha_s: the multiplier at the start of the warmup, finite; by name only. Default: 0.

    Raises:
        ValueError: an argument is outside its range. A call raises it if `t_max`, stretched by the ratio or not, ends
            before the run does (except in a `SequenceScheduler`). A call also raises it if `t_warmup` does not convert
            to the unit of `t_max`.

    >>> from timesched import Horizon
    >>> CosineAnnealingWithWarmupScheduler("10ba", alpha_f=0.5).at(
    ...     "60ba", Horizon("110ba")
    ... )
    0.75

    Source: arXiv:1608.03983; `CosineAnnealingWithWarmupScheduler` of Composer, which has no `alpha_s`.
    """

    t_warmup: TimeLike = time()
    t_max: TimeLike = time("1dur")
    alpha_f: float = number(0.0)
    scale_warmup: bool = flag(False)
    alpha_s: float = number(0.0, keyword=True)

    def _main_phase(self, span: Span) -> Resolved:
        return shapes.cosine(span.done, 1.0, self.alpha_f)


@dataclass(frozen=True, eq=False, repr=False)
class PolynomialWithWarmupScheduler(_WithWarmup):
    """A linear warmup to 1, then a power of the fraction that is left to `alpha_f` at `t_max`, and `alpha_f` after it.

    Formula:
        x = min((t - t_warmup) / (t_max - t_warmup), 1)
        y = alpha_s + (1 - alpha_s) * t / t_warmup if t < t_warmup else alpha_f + (1 - alpha_f) * (1 - x) ** power

    `t` is the time since the start of the run, `x` the fraction of the decay that is done, and `y` the multiplier.
    Where the warmup takes all of `t_max`, the multiplier stays at 1.

    Args:
        t_warmup: the length of the warmup, a time in any unit; 0 starts at the peak.
        power: the exponent, 0 or more; 1 is a straight line. Default: 2.
        t_max: the end of the decay, a time in any unit, which the ratio stretches. Default: "1dur", the end of the run.
        alpha_f: the multiplier at `t_max` and after it, finite. Default: 0.
        scale_warmup: whether the scale-schedule ratio stretches the warmup too. It always stretches a `t_warmup` in
            `dur`. Default: False.
        alpha_s: the multiplier at the start of the warmup, finite; by name only. Default: 0.

    Raises:
        ValueError: an argument is outside its range. A call raises it if `t_max`, stretched by the ratio or not, ends
            before the run does (except in a `SequenceScheduler`). A call also raises it if `t_warmup` does not convert
            to the unit of `t_max`.

    >>> from timesched import Horizon
    >>> PolynomialWithWarmupScheduler("10ba").at("60ba", Horizon("110ba"))
    0.25

    Source: `PolynomialWithWarmupScheduler` of Composer, which has no `alpha_s`.
    """

    t_warmup: TimeLike = time()
    power: float = number(2.0, least=0)
    t_max: TimeLike = time("1dur")
    alpha_f: float = number(0.0)
    scale_warmup: bool = flag(False)
    alpha_s: float = number(0.0, keyword=True)

    def _main_phase(self, span: Span) -> Resolved:
        return shapes.polynomial(span.left, self.power, 1.0, self.alpha_f)
