"""The schedules that begin with a linear warmup.

Names, arguments, defaults and formulas: `composer.optim.scheduler` of MosaicML Composer 0.32; the boundary of a scaled
warmup moves with its ramp, and `alpha_s` is the multiplier where the warmup starts, so that step 0 need not be wasted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from timesched import shapes
from timesched.fields import flag, number, time, times
from timesched.positions import Frame, Resolved, Span, switch
from timesched.schedule import Schedule
from timesched.schedulers.without_warmup import LinearScheduler, MultiStepScheduler
from timesched.time.value import TimeLike


@contextmanager
def converting(schedule: Schedule) -> Iterator[None]:
    """Name the schedule, in Composer's words, where its times do not convert to each other."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"Cannot use warmup scheduler {schedule!r} on this run: {error}") from None


class _WithWarmup(Schedule):
    """A linear ramp from `alpha_s` to the peak over `t_warmup`, then `_rest` of the schedule until `t_max`."""

    t_warmup: TimeLike
    t_max: TimeLike
    scale_warmup: bool
    alpha_s: float

    @property
    def _peak(self) -> float:
        return 1.0

    @property
    def warmup_scheduler(self) -> LinearScheduler:
        """The ramp on its own."""
        return LinearScheduler(self.alpha_s, self._peak, self.t_warmup)

    def _warm(self, frame: Frame, rest: Resolved) -> Resolved:
        start, peak = frame.mark(self.t_warmup, self.scale_warmup, note="warmup"), self._peak
        if start.count == 0:
            return rest
        ramp = frame.span(self.t_warmup, self.scale_warmup)
        return switch(start, shapes.linear(ramp.done, self.alpha_s, peak), rest)

    def _rest(self, span: Span) -> Resolved:
        raise NotImplementedError

    def resolve(self, frame: Frame) -> Resolved:
        with converting(self):
            start = frame.mark(self.t_warmup, self.scale_warmup)
            span = frame.between(start, frame.mark(self.t_max, note="end"))
        frame.refuse_short(self.t_max, self)
        return self._warm(frame, self._rest(span))


@dataclass(frozen=True, eq=False, repr=False)
class MultiStepWithWarmupScheduler(_WithWarmup):
    """A linear ramp from `alpha_s` to 1 over `t_warmup`, then `gamma ** n` once `n` `milestones` have been reached.

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
    alpha_s: float = number(0.0, keyword=True)

    @property
    def step_scheduler(self) -> MultiStepScheduler:
        """The milestones on their own."""
        return MultiStepScheduler(self.milestones, self.gamma)

    def resolve(self, frame: Frame) -> Resolved:
        return self._warm(frame, self.step_scheduler.resolve(frame))


@dataclass(frozen=True, eq=False, repr=False)
class LinearWithWarmupScheduler(_WithWarmup):
    """A linear ramp from `alpha_s` to `alpha_i` over `t_warmup`, then a straight line to `alpha_f` at `t_max`.

    The ratio stretches `t_max`; the ramp only with `scale_warmup=True`, or if `t_warmup` is in `dur`. Where the ramp
    takes all of `t_max`, the value stays at its peak. Called with a run, raises `ValueError` when `t_max`, stretched
    or not, ends before the run, and when `t_warmup` does not convert to the unit of `t_max`. In a `SequenceScheduler`
    `t_max` may end before the run.

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
    alpha_s: float = number(0.0, keyword=True)

    @property
    def _peak(self) -> float:
        return self.alpha_i

    def _rest(self, span: Span) -> Resolved:
        return shapes.linear(span.done, self.alpha_i, self.alpha_f)


@dataclass(frozen=True, eq=False, repr=False)
class ConstantWithWarmupScheduler(_WithWarmup):
    """A linear ramp from `alpha_s` to `alpha` over `t_warmup`, then `alpha`.

    The ratio and the errors are those of `LinearWithWarmupScheduler`, which it is with two equal ends.

    >>> from timesched import Horizon
    >>> ConstantWithWarmupScheduler("10ba", alpha=3.0).at("5ba", Horizon("110ba"))
    1.5
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

    def _rest(self, span: Span) -> Resolved:
        return shapes.linear(span.done, self.alpha, self.alpha)


@dataclass(frozen=True, eq=False, repr=False)
class CosineAnnealingWithWarmupScheduler(_WithWarmup):
    """A linear ramp from `alpha_s` to 1 over `t_warmup`, then the falling half of a cosine to `alpha_f` at `t_max`.

    The ratio, the limits and the errors are those of `LinearWithWarmupScheduler`.

    >>> from timesched import Horizon
    >>> CosineAnnealingWithWarmupScheduler("10ba", alpha_f=0.5).at("60ba", Horizon("110ba"))
    0.75
    """

    t_warmup: TimeLike = time()
    t_max: TimeLike = time("1dur")
    alpha_f: float = number(0.0)
    scale_warmup: bool = flag(False)
    alpha_s: float = number(0.0, keyword=True)

    def _rest(self, span: Span) -> Resolved:
        return shapes.cosine(span.done, 1.0, self.alpha_f)


@dataclass(frozen=True, eq=False, repr=False)
class PolynomialWithWarmupScheduler(_WithWarmup):
    """A linear ramp from `alpha_s` to 1 over `t_warmup`, then a power of the fraction left until `t_max`.

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
    alpha_s: float = number(0.0, keyword=True)

    def _rest(self, span: Span) -> Resolved:
        return shapes.polynomial(span.left, self.power, 1.0, self.alpha_f)
