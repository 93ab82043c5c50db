"""The decays that language models are trained with: warmup-stable-decay, inverse square roots, powers, and Rex."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from timesched import shapes
from timesched.curves import inverse_root_to, power_law, rex
from timesched.fields import choice, flag, number, time
from timesched.positions import Frame, Mark, Resolved, Span, stages
from timesched.schedule import Schedule
from timesched.schedulers.warmup import converting
from timesched.time.units import Exact, TimeError, TimeUnit, exact, number_text
from timesched.time.value import TimeLike


def check_room(what: str, names: Sequence[str], counts: Sequence[Exact], unit: TimeUnit) -> None:
    """Raise `TimeError`, which begins with `what`, where a warmup and a decay take longer than the time there is: three
    counts of a unit, of the arguments that have these names.
    """
    warmup, decay, total = counts
    if warmup + decay > total:
        first, second, third = (f"{name} ({number_text(exact(each))}{unit.value})" for name, each in zip(names, counts))
        raise TimeError(
            f"{what}: {first} and {second} take longer than {third}, the numbers being those of this run: shorten one "
            f"of the two."
        )


@dataclass(frozen=True, eq=False, repr=False)
class WarmupStableDecayScheduler(Schedule):
    """A warmup from `alpha_s` to 1, a stable phase at 1, and a decay to `alpha_f` over the last `t_decay` of `t_max`.

    After `t_max` it stays at `alpha_f`. With p the fraction of the warmup that is done and r that of the decay,
    the warmup is at `alpha_s + (1 - alpha_s) * w(p)`, and the decay at `alpha_f + (1 - alpha_f) * s(r)`:

        w(p) = p for "linear", (1 - cos(pi*p)) / 2 for "cosine", 1 - sqrt(1 - p) for "1-sqrt", p**2 for "square"
        s(r) = 1 - r for "linear", (1 + cos(pi*r)) / 2 for "cosine", 1 - sqrt(r) for "1-sqrt", 1 - r**2 for "1-square"
        s(r) = (decay_rate**r - decay_rate) / (1 - decay_rate) for "exponential"

    A "geometric" decay is at `alpha_f ** r`, a "harmonic" one at `1 / (r / alpha_f + 1 - r)`.

    `t_warmup`: 0 starts at 1. `t_decay`: 0 steps to `alpha_f` at `t_max`. `alpha_s`, `alpha_f`: finite; `alpha_f` is
    above 0 for "geometric" and "harmonic". `decay_rate`: above 0; 1 is a straight line. The ratio stretches `t_max` and
    `t_decay`; the warmup only with `scale_warmup=True`, or if it is in `dur`. Called with a run, raises `ValueError`
    when the warmup and the decay take longer than `t_max`, when `t_max`, stretched or not, ends before the run (but not
    in a `SequenceScheduler`), and when a time does not convert to the unit of `t_max`.

    >>> from timesched import Horizon
    >>> schedule = WarmupStableDecayScheduler("10ba", t_decay="20ba", decay="1-sqrt")
    >>> [schedule.at(t, Horizon("100ba")) for t in ("5ba", "10ba", "80ba", "85ba", "100ba")]
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
        with converting(self):
            warm = frame.mark(self.t_warmup, self.scale_warmup, note="warmup")
            end = frame.mark(self.t_max, note="end")
            ramp, start = frame.change(warm.count, warm.unit, end.unit), frame.before(end, self.t_decay)
        check_room(repr(self), ("t_warmup", "t_decay", "t_max"), (ramp, end.count - start, end.count), end.unit)
        frame.refuse_short(self.t_max, self)
        begin = Mark(end.counter, end.unit, start)
        frame.note("decay", begin)
        warmup, decay = shapes.WARMUPS[self.warmup], shapes.decaying(self.decay, self.decay_rate)
        return shapes.warmup_stable_decay(frame, (warm, begin, end), (self.alpha_s, 1.0, self.alpha_f), warmup, decay)


@dataclass(frozen=True, eq=False, repr=False)
class InverseSquareRootWithWarmupScheduler(Schedule):
    """A linear ramp from 0 to 1, a fall with the inverse square root of the time, and a linear cooldown.

    With W, S, C and T for `t_warmup`, `t_scale`, `t_cooldown` and `t_max`, after the warmup the value is

        g(t) = alpha_f_decay + (1 - alpha_f_decay) / sqrt((t - W + S) / S)

    until s = max(W, T - C). From there it falls in a straight line from g(s) to `alpha_f_cooldown` over C, and stays
    there; without a cooldown, at g(s).

    `t_warmup`: 0 starts at 1. `t_scale`: above 0. `alpha_f_decay`: what the root tends to, at least `alpha_f_cooldown`.
    The ratio stretches all times but the warmup. Called with a run, raises `ValueError` when `t_max`, stretched or not,
    ends before the run (but not in a `SequenceScheduler`), and when a time does not convert to the unit of `t_max`.

    >>> from timesched import Horizon
    >>> schedule = InverseSquareRootWithWarmupScheduler("10ba", t_scale="10ba", t_cooldown="20ba")
    >>> [schedule.at(t, Horizon("60ba")) for t in ("5ba", "10ba", "40ba", "50ba", "60ba")]
    [0.5, 1.0, 0.5, 0.25, 0.0]

    Source: names, arguments and formula of the class in LLM Foundry (`llmfoundry.optim.scheduler`); arXiv:2106.04560.
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
                f"{type(self).__name__}.alpha_f_decay={self.alpha_f_decay}: it has to be at least alpha_f_cooldown="
                f"{self.alpha_f_cooldown}, so that the cooldown does not rise."
            )

    def resolve(self, frame: Frame) -> Resolved:
        with converting(self):
            warm, end = frame.mark(self.t_warmup, False, note="warmup"), frame.mark(self.t_max)
            first = frame.change(warm.count, warm.unit, end.unit)
            scale = frame.after(Mark(end.counter, end.unit, first), self.t_scale) - first
            begin = max(first, frame.before(end, self.t_cooldown))
            cooldown = frame.after(Mark(end.counter, end.unit, begin), self.t_cooldown) - begin
        frame.refuse_short(self.t_max, self)
        floor, last = self.alpha_f_decay, self.alpha_f_cooldown
        done = Span(end.counter, first, scale).done
        top = inverse_root_to(float(Fraction(begin - first) / scale), floor)
        if not cooldown:
            last = top
        ramp = shapes.linear(frame.span(self.t_warmup, False).done, 0.0, 1.0)
        functions: list[Resolved] = [
            lambda counts: inverse_root_to(done(counts, False), floor),
            shapes.linear(Span(end.counter, begin, cooldown).done, top, last),
        ]
        marks = [Mark(end.counter, end.unit, begin)]
        frame.note("decay", marks[0])
        frame.note("end", Mark(end.counter, end.unit, begin + cooldown))
        return stages([warm, *marks], [ramp, *functions]) if warm.count else stages(marks, functions)


@dataclass(frozen=True, eq=False, repr=False)
class PowerScheduler(Schedule):
    """`(t / t_scale) ** -power`, but at most 1, which it is until `t_scale`, and at least `alpha_f`.

    `t_scale`: a time above 0. `power`: 0 or more. `alpha_f`: finite.

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
    """`alpha_f + (1 - alpha_f) * z / (1 - d + d * z)` with `z = 1 - t / t_max`, and `alpha_f` after `t_max`.

    `d`: from 0, a straight line, to below 1; the larger, the later it falls. Called with a run, raises `ValueError`
    when `t_max`, stretched or not, ends before the run (but not in a `SequenceScheduler`).

    >>> from timesched import Horizon
    >>> [RexScheduler(d=0.5).at(t, Horizon("100ba")) for t in ("0ba", "50ba", "100ba")]
    [1.0, 0.6666666666666666, 0.0]

    Source: arXiv:2107.04197, in which d is 0.5.
    """

    t_max: TimeLike = time("1dur")
    alpha_f: float = number(0.0)
    d: float = number(0.5, least=0, below=1)

    def resolve(self, frame: Frame) -> Resolved:
        frame.refuse_short(self.t_max, self)
        left, d, end = frame.span(self.t_max, note="end").left, self.d, self.alpha_f
        return lambda counts: rex(left(counts), d, end)
