"""The schedules that begin with a linear warmup.

Names, arguments, defaults and formulas: `composer.optim.scheduler` of MosaicML Composer 0.32; the boundary of a scaled
warmup moves with its ramp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from timesched.curves import cosine, linear, polynomial
from timesched.fields import flag, number, time, times
from timesched.positions import Frame, Resolved, Span, switch
from timesched.schedule import Schedule
from timesched.schedulers.plain import LinearScheduler, MultiStepScheduler
from timesched.time.value import TimeLike


class _WithWarmup(Schedule):
    """A linear ramp from 0 to the peak over `t_warmup`, then `_rest` of the schedule until `t_max`."""

    t_warmup: TimeLike
    t_max: TimeLike
    scale_warmup: bool

    @property
    def _peak(self) -> float:
        return 1.0

    @property
    def warmup_scheduler(self) -> LinearScheduler:
        """The ramp on its own."""
        return LinearScheduler(0.0, self._peak, self.t_warmup)

    def _warm(self, frame: Frame, rest: Resolved) -> Resolved:
        start, peak = frame.mark(self.t_warmup, self.scale_warmup), self._peak
        if start.count == 0:
            return rest
        ramp = frame.span(self.t_warmup, self.scale_warmup)
        return switch(start, lambda counts: linear(ramp.done(counts), 0.0, peak), rest)

    def _rest(self, span: Span) -> Resolved:
        raise NotImplementedError

    def resolve(self, frame: Frame) -> Resolved:
        try:
            start = frame.mark(self.t_warmup, self.scale_warmup)
            span = frame.between(start, frame.mark(self.t_max))
        except ValueError as error:
            raise ValueError(f"Cannot use warmup scheduler {self!r} on this run: {error}") from None
        if frame.horizon.falls_short(self.t_max):
            raise ValueError(
                f"t_max {self.t_max} must be greater than or equal to max_duration {frame.horizon.max_duration}: "
                f"{self!r} would end before the run does. Use t_max='1dur', or a longer one."
            )
        return self._warm(frame, self._rest(span))


@dataclass(frozen=True, eq=False, repr=False)
class MultiStepWithWarmupScheduler(_WithWarmup):
    """A linear ramp from 0 to 1 over `t_warmup`, then `gamma ** n` once `n` of the `milestones` have been reached.

    The ratio stretches the milestones; the ramp only with `scale_warmup=True`, or if `t_warmup` is in `dur`.

    >>> from timesched import Horizon
    >>> schedule = MultiStepWithWarmupScheduler("4ba", ["10ba", "20ba"])
    >>> [schedule.at(t, Horizon("30ba")) for t in ("1ba", "4ba", "10ba")]
    [0.25, 1.0, 0.1]
    """

    t_warmup: TimeLike = time()
    milestones: Sequence[TimeLike] = times()
    gamma: float = number(0.1)
    scale_warmup: bool = flag(False)

    @property
    def step_scheduler(self) -> MultiStepScheduler:
        """The milestones on their own."""
        return MultiStepScheduler(self.milestones, self.gamma)

    def resolve(self, frame: Frame) -> Resolved:
        return self._warm(frame, self.step_scheduler.resolve(frame))


@dataclass(frozen=True, eq=False, repr=False)
class LinearWithWarmupScheduler(_WithWarmup):
    """A linear ramp from 0 to `alpha_i` over `t_warmup`, a straight line to `alpha_f` at `t_max`, and `alpha_f` after.

    The ratio stretches `t_max`; the ramp only with `scale_warmup=True`, or if `t_warmup` is in `dur`. Where the ramp
    takes all of `t_max`, the value stays at its peak. Called with a run, raises `ValueError` when `t_max`, stretched
    or not, ends before the run, and when `t_warmup` does not convert to the unit of `t_max`.

    >>> from timesched import Horizon
    >>> schedule = LinearWithWarmupScheduler("10ba")
    >>> [schedule.at(t, Horizon("110ba")) for t in ("5ba", "10ba", "60ba", "110ba")]
    [0.5, 1.0, 0.5, 0.0]
    """

    t_warmup: TimeLike = time()
    alpha_i: float = number(1.0)
    alpha_f: float = number(0.0)
    t_max: TimeLike = time("1dur")
    scale_warmup: bool = flag(False)

    @property
    def _peak(self) -> float:
        return self.alpha_i

    def _rest(self, span: Span) -> Resolved:
        return lambda counts: linear(span.done(counts), self.alpha_i, self.alpha_f)


@dataclass(frozen=True, eq=False, repr=False)
class ConstantWithWarmupScheduler(_WithWarmup):
    """A linear ramp from 0 to `alpha` over `t_warmup`, then `alpha`.

    The ratio and the errors are those of `LinearWithWarmupScheduler`, which it is with two equal ends.

    >>> from timesched import Horizon
    >>> ConstantWithWarmupScheduler("10ba", alpha=3.0).at("5ba", Horizon("110ba"))
    1.5
    """

    t_warmup: TimeLike = time()
    alpha: float = number(1.0)
    t_max: TimeLike = time("1dur")
    scale_warmup: bool = flag(False)

    @property
    def _peak(self) -> float:
        return self.alpha

    @property
    def scheduler(self) -> LinearWithWarmupScheduler:
        """The same schedule, as a line with two equal ends."""
        return LinearWithWarmupScheduler(self.t_warmup, self.alpha, self.alpha, self.t_max, self.scale_warmup)

    def _rest(self, span: Span) -> Resolved:
        return lambda counts: linear(span.done(counts), self.alpha, self.alpha)


@dataclass(frozen=True, eq=False, repr=False)
class CosineAnnealingWithWarmupScheduler(_WithWarmup):
    """A linear ramp from 0 to 1 over `t_warmup`, the falling half of a cosine to `alpha_f` at `t_max`, `alpha_f` after.

    The ratio, the limits and the errors are those of `LinearWithWarmupScheduler`.

    >>> from timesched import Horizon
    >>> CosineAnnealingWithWarmupScheduler("10ba", alpha_f=0.5).at("60ba", Horizon("110ba"))
    0.75
    """

    t_warmup: TimeLike = time()
    t_max: TimeLike = time("1dur")
    alpha_f: float = number(0.0)
    scale_warmup: bool = flag(False)

    def _rest(self, span: Span) -> Resolved:
        done, end = span.done, self.alpha_f
        return lambda counts: cosine(done(counts), 1.0, end)


@dataclass(frozen=True, eq=False, repr=False)
class PolynomialWithWarmupScheduler(_WithWarmup):
    """A linear ramp from 0 to 1 over `t_warmup`, then a power of the fraction left until `t_max`, `alpha_f` after it.

    The ratio, the limits and the errors are those of `LinearWithWarmupScheduler`; `power` is 0 or more.

    >>> from timesched import Horizon
    >>> PolynomialWithWarmupScheduler("10ba").at("60ba", Horizon("110ba"))
    0.25
    """

    t_warmup: TimeLike = time()
    power: float = number(2.0, least=0)
    t_max: TimeLike = time("1dur")
    alpha_f: float = number(0.0)
    scale_warmup: bool = flag(False)

    def _rest(self, span: Span) -> Resolved:
        return lambda counts: polynomial(span.left(counts), self.power, 1.0, self.alpha_f)
