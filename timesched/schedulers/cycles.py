"""The schedules that go up and down, once or repeatedly."""

from __future__ import annotations

from dataclasses import dataclass

from timesched.fields import choice, flag, number, time
from timesched.maths import Frame, Period, Span, shapes
from timesched.maths.counts import Resolved
from timesched.maths.curves import decay
from timesched.schedulers.schedule import Schedule
from timesched.time.units import TimeError, exact_number
from timesched.time.value import TimeLike

__all__ = ["CyclicScheduler", "OneCycleScheduler"]


@dataclass(frozen=True, eq=False, repr=False)
class OneCycleScheduler(Schedule):
    """One cycle: from a low value up to 1, and down to a much lower one.

    Formula:
        peak = pct_start * t_max
        m = 2 * peak if three_phase else peak
        u = min(t, t_max)
        x = u / peak if u <= peak else (u - peak) / peak if u <= m else (u - m) / (t_max - m)
        a = 1 / div_factor if u <= peak else 1 if u <= m or not three_phase else 1 / div_factor
        b = 1 if u <= peak else 1 / div_factor if u <= m else 1 / (div_factor * final_div_factor)
        y = b + (a - b) * ((1 + cos(pi * x)) / 2 if anneal == "cosine" else 1 - x)

    `t` is the time since the start of the run. Each phase goes from `a` to `b`, and `x` is the fraction of the phase
    that is done. The first phase rises until `peak`. With `three_phase`, the second falls as fast until `m`. The last
    phase goes to the last value at `t_max`, which stays. `y` is the multiplier: the optimizer's own learning rate is
    the highest one.

    Args:
        t_max: the end of the cycle, a time in any unit. Default: "1dur", the end of the run.
        pct_start: the fraction of `t_max` that goes up, from 0 to 1, or to 0.5 with three phases. Default: 0.3.
        div_factor: the peak divided by the first value, above 0. Default: 25.
        final_div_factor: the first value divided by the last one, above 0. Default: 10,000.
        anneal: the shape of each phase, "cosine" (the default) or "linear".
        three_phase: fall to the first value as fast as the rise, and then to the last value. Default: False.

    Raises:
        ValueError: an argument is outside its range. A call raises it if `t_max`, stretched by the ratio or not, ends
            before the run does (except in a `SequenceScheduler`).

    >>> from timesched import Horizon
    >>> schedule = OneCycleScheduler(
    ...     pct_start=0.25, div_factor=2.0, final_div_factor=5.0
    ... )
    >>> [schedule.at(t, Horizon("100ba")) for t in ("0ba", "25ba", "100ba")]
    [0.5, 1.0, 0.1]

    Source: arXiv:1708.07120; `cosine_onecycle_schedule` of optax. torch's `OneCycleLR` has its peak and its end one
    step earlier.
    """

    t_max: TimeLike = time("1dur")
    pct_start: float = number(0.3, least=0)
    div_factor: float = number(25.0, above=0)
    final_div_factor: float = number(1e4, above=0)
    anneal: str = choice("cosine", "cosine", "linear")
    three_phase: bool = flag(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pct_start > (0.5 if self.three_phase else 1.0):
            raise TimeError(
                f"OneCycleScheduler.pct_start={self.pct_start}: the rise is too long for the cycle. Pass at most 1, or "
                f"at most 0.5 with three phases."
            )

    def resolve(self, frame: Frame) -> Resolved:
        frame.check_covers_run(self.t_max, self)
        end, shape = frame.mark(self.t_max, note="end"), shapes.WARMUPS[self.anneal]
        peak = exact_number(self.pct_start) * end.count
        levels = (1.0 / self.div_factor, 1.0, 1.0 / (self.div_factor * self.final_div_factor))
        return shapes.one_cycle(frame, peak, end, levels, shape, three_phase=self.three_phase)


@dataclass(frozen=True, eq=False, repr=False)
class CyclicScheduler(Schedule):
    """Straight lines from `alpha_i` up to `alpha_f` and back, again and again (triangular).

    Formula:
        down = t_up if t_down is None else t_down
        n = floor(t / (t_up + down))
        u = t - n * (t_up + down)
        h = u / t_up if u <= t_up else (t_up + down - u) / down
        s = {"triangular": 1, "triangular2": 0.5 ** n, "exp_range": gamma ** (t / (t_up + down))}[mode]
        y = alpha_i + (alpha_f - alpha_i) * h * s

    `t` is the time since the start of the run, `n` the number of complete cycles, `u` the time in the current cycle,
    `h` the height at `u`, `s` the factor of the height, and `y` the multiplier.

    Args:
        t_up: the time up, in any unit, above 0.
        t_down: the time down, in any unit, above 0. Default: None, as long as `t_up`.
        alpha_i: the multiplier at the start and end of each cycle, finite. Default: 0.1.
        alpha_f: the highest multiplier of the first cycle, finite. Default: 1.
        mode: with "triangular" (the default), all cycles have the same height. With "triangular2", each cycle has half
            the height of the previous one. With "exp_range", the height is multiplied by a power of `gamma`.
        gamma: the factor of "exp_range", 0 or more. It applies to each cycle and not to each step, so it means the same
            in every unit. It is torch's `gamma` to the power of the steps in a cycle. Default: 1.

    Raises:
        ValueError: an argument is outside its range. A call raises it if `t_down` does not convert to the unit of
            `t_up`.

    >>> from timesched import Horizon
    >>> schedule = CyclicScheduler("10ba", alpha_i=0.0, mode="triangular2")
    >>> [schedule.at(t, Horizon("100ba")) for t in ("5ba", "10ba", "20ba", "30ba")]
    [0.5, 1.0, 0.0, 0.5]

    Source: arXiv:1506.01186; `CyclicLR` of torch.
    """

    t_up: TimeLike = time(above=0)
    t_down: TimeLike | None = time(None, above=0, optional=True)
    alpha_i: float = number(0.1)
    alpha_f: float = number(1.0)
    mode: str = choice("triangular", "triangular", "triangular2", "exp_range")
    gamma: float = number(1.0, least=0)

    def resolve(self, frame: Frame) -> Resolved:
        end, peak = shapes.first_cycle(frame, self.t_up, self.t_down)
        cycles, gamma = Period(end.index, end.count), self.gamma
        complete, done = cycles.complete, Span(end.index, 0, end.count).done
        scale: Resolved = {
            "triangular": lambda counts: 1.0,
            "triangular2": lambda counts: decay(complete(counts), 0.5),
            "exp_range": lambda counts: decay(done(counts, False), gamma),
        }[self.mode]
        shrinks = self.mode != "exp_range" or gamma <= 1.0
        return shapes.triangles(cycles, peak, base=self.alpha_i, top=self.alpha_f, scale=scale, shrinks=shrinks)
