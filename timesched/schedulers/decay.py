"""Decays for training language models: warmup-stable-decay, inverse square roots, powers, and Rex."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from timesched.fields import choice, flag, number, time
from timesched.maths import Frame, Span, UnsuitableRun, shapes
from timesched.maths.counts import Counts, Resolved, stages
from timesched.maths.curves import inverse_root_decay, power_law, rex
from timesched.maths.ops import Value
from timesched.schedulers.schedule import Schedule
from timesched.schedulers.warmup import name_in_errors
from timesched.time.units import Exact, TimeError, TimeUnit, exact_number, number_text
from timesched.time.value import TimeLike

__all__ = ["InverseSquareRootWithWarmupScheduler", "PowerScheduler", "RexScheduler", "WarmupStableDecayScheduler"]


def check_phases_fit(label: str, names: Sequence[str], counts: Sequence[Exact], unit: TimeUnit) -> None:
    """Raise `UnsuitableRun`, which begins with `label`, if a warmup and a decay take longer than the available time.

    `names` and `counts`: the arguments of warmup, decay and available time, and their lengths in `unit`.
    """
    warmup, decay, total = counts
    if warmup + decay > total:
        texts = [f"{name} ({number_text(exact_number(count))}{unit.value})" for name, count in zip(names, counts)]
        raise UnsuitableRun(
            f"{label}: {texts[0]} and {texts[1]} take longer than {texts[2]} on this run. Shorten one of the two."
        )


@dataclass(frozen=True, eq=False, repr=False)
class WarmupStableDecayScheduler(Schedule):
    """Warmup-stable-decay (WSD, trapezoidal): a warmup to 1, a stable phase, and a decay over the last `t_decay`.

    Formula:
        p = min(t / t_warmup, 1) if t_warmup else 1
        w = {"linear": p, "cosine": (1 - cos(pi * p)) / 2, "1-sqrt": 1 - (1 - p) ** 0.5, "square": p ** 2}[warmup]
        r = min((t - t_max + t_decay) / t_decay, 1) if t_decay else 1
        s = (
            1 - r if decay == "linear"
            else (1 + cos(pi * r)) / 2 if decay == "cosine"
            else 1 - r ** 0.5 if decay == "1-sqrt"
            else 1 - r ** 2 if decay == "1-square"
            else (decay_rate ** r - decay_rate) / (1 - decay_rate) if decay == "exponential"
            else None
        )
        y = (
            alpha_s + (1 - alpha_s) * w if t < t_warmup
            else 1 if t < t_max - t_decay
            else alpha_f ** r if decay == "geometric"
            else 1 / (r / alpha_f + 1 - r) if decay == "harmonic"
            else alpha_f + (1 - alpha_f) * s
        )

    `t` is the time since the start of the run. `p` and `r` are the fractions of the warmup and of the decay that are
    done, `w` and `s` their shapes, and `y` is the multiplier.

    Args:
        t_warmup: the length of the warmup, a time in any unit; 0 starts at the peak.
        t_decay: the length of the decay, a time in any unit, which the ratio stretches; 0 steps to `alpha_f` at
            `t_max`. Default: "0.1dur", a tenth of the run.
        t_max: the end of the decay, a time in any unit, which the ratio stretches. Default: "1dur", the end of the run.
        alpha_s: the multiplier at the start of the warmup, finite. Default: 0.
        alpha_f: the multiplier at `t_max` and after it, finite; above 0 for "geometric" and "harmonic". Default: 0.
        warmup: the shape of the warmup: "linear" (the default), "cosine", "1-sqrt" or "square".
        decay: the shape of the decay: "linear" (the default), "cosine", "1-sqrt", "1-square", "exponential",
            "geometric" or "harmonic".
        decay_rate: the base of an "exponential" decay, above 0; 1 is a straight line. Default: 0.5.
        scale_warmup: whether the scale-schedule ratio stretches the warmup too. It always stretches a `t_warmup` in
            `dur`. Default: False.

    Raises:
        ValueError: an argument is outside its range. A call raises it if `t_max`, stretched by the ratio or not, ends
            before the run does (except in a `SequenceScheduler`). A call also raises it if the warmup and the decay
            take longer than `t_max`, or if a time does not convert to the unit of `t_max`.

    >>> from timesched import Horizon
    >>> schedule = WarmupStableDecayScheduler("10ba", t_decay="20ba", decay="1-sqrt")
    >>> [
    ...     schedule.at(t, Horizon("100ba"))
    ...     for t in ("5ba", "10ba", "80ba", "85ba", "100ba")
    ... ]
    [0.5, 1.0, 1.0, 0.5, 0.0]

    Source: arXiv:2404.06395 (MiniCPM); arXiv:2405.18392 for "1-sqrt".
    """

    t_warmup: TimeLike = time()
    t_decay: TimeLike = time("0.1dur")
    t_max: TimeLike = time("1dur")
    alpha_s: float = number(0.0)
    alpha_f: float = number(0.0)
    warmup: str = choice("linear", *shapes.WARMUPS)
    decay: str = choice("linear", *shapes.DECAYS)
    decay_rate: float = number(0.5, above=0)
    scale_warmup: bool = flag(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        shapes.check_decay(f"{type(self).__name__}.alpha_f={self.alpha_f}", self.decay, 1.0, self.alpha_f)

    def resolve(self, frame: Frame) -> Resolved:
        with name_in_errors(self):
            warm = frame.mark(self.t_warmup, self.scale_warmup, note="warmup")
            end = frame.mark(self.t_max, note="end")
            ramp, start = frame.change(warm.count, warm.unit, end.unit), frame.before(end, self.t_decay)
        check_phases_fit(repr(self), ("t_warmup", "t_decay", "t_max"), (ramp, end.count - start, end.count), end.unit)
        frame.check_covers_run(self.t_max, self)
        levels = (self.alpha_s, 1.0, self.alpha_f)
        return shapes.warmup_stable_decay(frame, warm, start, end, levels, self.warmup, self.decay, self.decay_rate)


@dataclass(frozen=True, eq=False, repr=False)
class InverseSquareRootWithWarmupScheduler(Schedule):
    """A linear warmup to 1, a fall with the inverse square root of the time, and a linear cooldown (Noam).

    Formula:
        b = max(t_warmup, t_max - t_cooldown)
        u = min(max(t, t_warmup), b)
        g = alpha_f_decay + (1 - alpha_f_decay) / sqrt((u - t_warmup + t_scale) / t_scale)
        c = min(max(t - b, 0) / t_cooldown, 1) if t_cooldown else 0
        y = t / t_warmup if t < t_warmup else g + (alpha_f_cooldown - g) * c

    `t` is the time since the start of the run, and `b` the start of the cooldown. `g` is the inverse square root, which
    is constant after `b`. `c` is the fraction of the cooldown that is done, and `y` the multiplier.

    Args:
        t_warmup: the length of the warmup, a time in any unit, which the ratio does not stretch; 0 starts at 1.
        t_scale: how slowly the root falls, a time in any unit, above 0. At this time after the warmup, the multiplier
            is `1 / sqrt(2)`. With `t_scale` as long as `t_warmup`, this is the Noam schedule.
        t_cooldown: the length of the cooldown, a time in any unit; 0 means no cooldown.
        t_max: the end of the cooldown, a time in any unit. Default: "1dur", the end of the run.
        alpha_f_decay: the limit of the root, at least `alpha_f_cooldown`. Default: 0.
        alpha_f_cooldown: the multiplier at the end of the cooldown, finite. Default: 0.

    Raises:
        ValueError: an argument is outside its range. A call raises it if `t_max`, stretched by the ratio or not, ends
            before the run does (except in a `SequenceScheduler`). A call also raises it if a time does not convert to
            the unit of `t_max`.

    >>> from timesched import Horizon
    >>> schedule = InverseSquareRootWithWarmupScheduler(
    ...     "10ba", t_scale="10ba", t_cooldown="20ba"
    ... )
    >>> [
    ...     schedule.at(t, Horizon("60ba"))
    ...     for t in ("5ba", "10ba", "40ba", "50ba", "60ba")
    ... ]
    [0.5, 1.0, 0.5, 0.25, 0.0]

    Source: names, arguments and formula of the class in LLM Foundry (`llmfoundry.optim.scheduler`); arXiv:2106.04560.
    With `t_scale` as long as `t_warmup`, arXiv:1706.03762, section 5.3.
    """

    t_warmup: TimeLike = time()
    t_scale: TimeLike = time(above=0)
    t_cooldown: TimeLike = time()
    t_max: TimeLike = time("1dur")
    alpha_f_decay: float = number(0.0)
    alpha_f_cooldown: float = number(0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha_f_decay < self.alpha_f_cooldown:
            raise TimeError(
                f"{type(self).__name__}.alpha_f_decay={self.alpha_f_decay}: the cooldown would rise to alpha_f_cooldown"
                f"={self.alpha_f_cooldown}. Pass at least {self.alpha_f_cooldown}."
            )

    def resolve(self, frame: Frame) -> Resolved:
        with name_in_errors(self):
            warm, end = frame.mark(self.t_warmup, False, note="warmup"), frame.mark(self.t_max)
            first = frame.change(warm.count, warm.unit, end.unit)
            scale = frame.after(end.at(first), self.t_scale) - first or 1  # on a run of length 0, as in a period
            begin = max(first, frame.before(end, self.t_cooldown))
            cooldown = frame.after(end.at(begin), self.t_cooldown) - begin
        frame.check_covers_run(self.t_max, self)
        fall = end.at(begin)
        frame.note("decay", fall)
        frame.note("end", end.at(begin + cooldown))
        done, floor = Span(end.index, first, scale).done, self.alpha_f_decay

        def root(counts: Counts) -> Value:
            return inverse_root_decay(done(counts, False), floor)

        top = inverse_root_decay(float(Fraction(begin - first) / scale), floor)  # where the cooldown begins
        last = self.alpha_f_cooldown if cooldown else top
        down = shapes.linear(Span(end.index, begin, cooldown).done, top, last)
        return stages([fall], [shapes.with_ramp(root, warm, 0.0, 1.0), down])


@dataclass(frozen=True, eq=False, repr=False)
class PowerScheduler(Schedule):
    """1 until `t_scale`, then a falling power of the time, and at least `alpha_f`.

    Formula:
        y = max(alpha_f, 1 if t <= t_scale else (t / t_scale) ** -power)

    `t` is the time since the start of the run, and `y` the multiplier.

    Args:
        t_scale: the time during which the multiplier is 1, in any unit, above 0.
        power: the exponent, 0 or more. Default: 0.5.
        alpha_f: the least multiplier, finite. Default: 0.

    Raises:
        ValueError: an argument is outside its range.

    >>> from timesched import Horizon
    >>> schedule = PowerScheduler("4ba", alpha_f=0.25)
    >>> [schedule.at(t, Horizon("100ba")) for t in ("0ba", "4ba", "16ba", "100ba")]
    [1.0, 1.0, 0.5, 0.25]

    Source: arXiv:2408.13359, whose power is 0.51.
    """

    t_scale: TimeLike = time(above=0)
    power: float = number(0.5, least=0)
    alpha_f: float = number(0.0)

    def resolve(self, frame: Frame) -> Resolved:
        done, power, least = frame.span(self.t_scale).done, self.power, self.alpha_f
        return lambda counts: power_law(done(counts, False), power, least)


@dataclass(frozen=True, eq=False, repr=False)
class RexScheduler(Schedule):
    """A late and steep fall from 1 to `alpha_f` at `t_max` (reflected exponential), and `alpha_f` after it.

    Formula:
        z = 1 - min(t / t_max, 1)
        y = alpha_f + (1 - alpha_f) * z / (1 - d + d * z)

    `t` is the time since the start of the run, `z` the fraction of `t_max` that is left, and `y` the multiplier.

    Args:
        t_max: the end of the decay, a time in any unit. Default: "1dur", the end of the run.
        alpha_f: the multiplier at `t_max` and after it, finite. Default: 0.
        d: from 0, a straight line, to below 1. A larger value makes the multiplier fall later. Default: 0.5.

    Raises:
        ValueError: an argument is outside its range. A call raises it if `t_max`, stretched by the ratio or not, ends
            before the run does (except in a `SequenceScheduler`).

    >>> from timesched import Horizon
    >>> [RexScheduler(d=0.5).at(t, Horizon("100ba")) for t in ("0ba", "50ba", "100ba")]
    [1.0, 0.6666666666666666, 0.0]

    Source: arXiv:2107.04197, in which d is 0.5.
    """

    t_max: TimeLike = time("1dur")
    alpha_f: float = number(0.0)
    d: float = number(0.5, least=0, below=1)

    def resolve(self, frame: Frame) -> Resolved:
        frame.check_covers_run(self.t_max, self)
        left, d, end = frame.span(self.t_max, note="end").left, self.d, self.alpha_f
        return lambda counts: rex(left(counts), d, end)
