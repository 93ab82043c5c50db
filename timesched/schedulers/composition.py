"""Schedules made of schedules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from timesched.fields import choice, flag, number, time, times
from timesched.maths import Frame, Mark, UnsuitableRun, shapes
from timesched.maths.counts import Counts, Resolved, stages
from timesched.run.horizon import Horizon
from timesched.schedulers.schedule import Schedule
from timesched.schedulers.warmup import name_in_errors
from timesched.time.units import TimeError
from timesched.time.value import TimeLike


def _read_horizon(name: str, value: object) -> Horizon | None:
    if not isinstance(value, (Horizon, type(None))):
        raise TypeError(f"{name}={value!r}: the value is not a Horizon. Pass a Horizon, or call schedule.cooldown.")
    return value


def _read_schedules(name: str, value: object) -> tuple[Schedule, ...]:
    schedules = tuple(value) if isinstance(value, Iterable) and not isinstance(value, (Mapping, Set)) else (value,)
    for schedule in schedules:
        if not isinstance(schedule, Schedule):
            raise TypeError(
                f"{name}={schedule!r}: the value is not a schedule of timesched. Pass schedules here, and functions to "
                f"bind([...])."
            )
    if not schedules:
        raise TypeError(f"{name}={value!r}: the list is empty. Pass at least one schedule.")
    return schedules


def _read_multipliers(name: str, value: object) -> tuple[Schedule, ...]:
    schedules = _read_schedules(name, value)
    for schedule in schedules:
        schedule.refuse_to_multiply()
    return schedules


def _read_multiplier(name: str, value: object) -> Schedule:
    return _read_multipliers(name, [value])[0]


@dataclass(frozen=True, eq=False, repr=False)
class SequenceScheduler(Schedule):
    """One schedule after another. Each one begins at its milestone and counts its times from the milestone.

    Formula:
        i = sum(t >= milestone for milestone in milestones)
        y = schedules[i](t - [0, *milestones][i])

    `t` is the time since the start of the run, `i` the number of milestones reached, `schedules[i](t)` the multiplier
    of a schedule at `t`, and `y` the multiplier of the sequence. A `dur` in a schedule is a fraction of the whole run.
    The `t_max` of a schedule may end before the run does, since another schedule may follow.

    Args:
        schedules: one or more of this package's schedules.
        milestones: the times at which the second and each later schedule begins, in any unit and in order. There is one
            fewer than there are schedules.

    Raises:
        ValueError: the number of milestones is wrong. A call raises it if a milestone does not convert to the
            unit in which the next schedule counts.
        TypeError: some schedules return values, such as a `HalfLife`, and others multipliers.

    >>> from timesched import Horizon, LinearScheduler
    >>> up = LinearScheduler(0.0, 1.0, t_max="4ba")
    >>> down = LinearScheduler(1.0, 0.5, t_max="8ba")
    >>> schedule = SequenceScheduler([up, down], milestones=["4ba"])
    >>> [schedule.at(t, Horizon("12ba")) for t in ("2ba", "4ba", "8ba", "12ba")]
    [0.5, 1.0, 0.75, 0.5]
    """

    schedules: Iterable[Schedule] = field(metadata={"read": _read_schedules})
    milestones: Sequence[TimeLike] = times()

    def __post_init__(self) -> None:
        super().__post_init__()
        total = len(tuple(self.schedules))
        if len(self.milestones) != total - 1:
            raise TimeError(
                f"SequenceScheduler.milestones={list(map(str, self.milestones))}: the number of milestones does not "
                f"fit {total} schedules. Pass {total - 1}: one for each schedule except the first."
            )
        if self.relative:  # then none may be a value
            _read_multipliers("", self.schedules)

    @property
    def relative(self) -> bool:  # type: ignore[override]  # read-only here
        """Whether its schedules return multipliers."""
        return any(schedule.relative for schedule in self.schedules)

    def resolve(self, frame: Frame) -> Resolved:
        first, *others = self.schedules
        start = first.resolve(replace(frame, section=True))
        marks = frame.ordered_marks(self.milestones, note="phase")
        functions = [frame.resolve_later(mark, schedule.resolve) for mark, schedule in zip(marks, others)]
        return stages(marks, [start, *functions])


@dataclass(frozen=True, eq=False, repr=False)
class ProductScheduler(Schedule):
    """The product of several schedules: a warmup of one kind times a decay of another.

    Formula:
        y = prod(schedule(t) for schedule in schedules)

    `t` is the time since the start of the run, `schedule(t)` the multiplier of a schedule, and `y` the product.

    Args:
        schedules: one or more of this package's schedules. For plain functions, use `bind([...])`.

    Raises:
        TypeError: an element is not a schedule, or it returns values, such as a `HalfLife`.

    >>> from timesched import ConstantScheduler, Horizon, LinearScheduler
    >>> schedule = ProductScheduler([LinearScheduler(), ConstantScheduler(0.5)])
    >>> schedule.at("0.5dur", Horizon("4ba"))
    0.25
    """

    schedules: Iterable[Schedule] = field(metadata={"read": _read_multipliers})

    def resolve(self, frame: Frame) -> Resolved:
        factors = [schedule.resolve(frame) for schedule in self.schedules]

        def product(counts: Counts) -> Any:
            value: Any = 1.0
            for factor in factors:
                value = value * factor(counts)
            return value

        return product


@dataclass(frozen=True, eq=False, repr=False)
class WarmupScheduler(Schedule):
    """Another schedule with a warmup: a ramp from `alpha_s` at 0 to the schedule's own value at `t_warmup`.

    The schedule still counts its times from the start of the run.

    Formula:
        p = t / t_warmup
        w = {"linear": p, "cosine": (1 - cos(pi * p)) / 2, "1-sqrt": 1 - (1 - p) ** 0.5, "square": p ** 2}[warmup]
        y = alpha_s + (schedule(t_warmup) - alpha_s) * w if t < t_warmup else schedule(t)

    `t` is the time since the start of the run, `p` the fraction of the warmup that is done, `schedule(t)` the
    multiplier of the schedule at `t`, and `y` the multiplier with the warmup.

    Args:
        schedule: one of this package's schedules.
        t_warmup: the length of the warmup, a time in any unit; 0 means no warmup.
        alpha_s: the multiplier at 0, finite. Default: 0.
        warmup: the shape: "linear" (the default), "cosine", "1-sqrt" or "square".
        scale_warmup: whether the scale-schedule ratio stretches the warmup too. Default: False.

    Raises:
        ValueError: an argument is outside its range. A call raises it if `t_warmup` does not convert to the units
            of the schedule.

    >>> from timesched import Horizon, PowerScheduler
    >>> schedule = WarmupScheduler(PowerScheduler("4ba"), t_warmup="16ba")
    >>> [schedule.at(t, Horizon("100ba")) for t in ("8ba", "16ba", "64ba")]
    [0.25, 0.5, 0.25]
    """

    schedule: Schedule = field(metadata={"read": _read_multiplier})
    t_warmup: TimeLike = time()
    alpha_s: float = number(0.0)
    warmup: str = choice("linear", *shapes.WARMUPS)
    scale_warmup: bool = flag(False)

    def resolve(self, frame: Frame) -> Resolved:
        rest = self.schedule.resolve(frame)
        end = frame.mark(self.t_warmup, self.scale_warmup, note="warmup")
        with name_in_errors(self):
            peak = frame.value_at(end, self.schedule.resolve)
        return shapes.with_ramp(rest, end, self.alpha_s, peak, shapes.WARMUPS[self.warmup])


@dataclass(frozen=True, eq=False, repr=False)
class CooldownScheduler(Schedule):
    """Another schedule until `t_start`, then a decay over `t_decay` from its value at `t_start` to `alpha_f`.

    Formula:
        r = min((t - t_start) / t_decay, 1)
        s = (
            1 - r if decay == "linear"
            else (1 + cos(pi * r)) / 2 if decay == "cosine"
            else 1 - r ** 0.5 if decay == "1-sqrt"
            else 1 - r ** 2 if decay == "1-square"
            else (decay_rate ** r - decay_rate) / (1 - decay_rate) if decay == "exponential"
            else None
        )
        a = schedule(t_start) if alpha_i is None else alpha_i
        y = (
            schedule(t) if t < t_start
            else a ** (1 - r) * alpha_f ** r if decay == "geometric"
            else 1 / (r / alpha_f + (1 - r) / a) if decay == "harmonic"
            else alpha_f + (a - alpha_f) * s
        )

    `t` is the time since the start of the run, `r` the fraction of the decay that is done, `s` its shape, `schedule(t)`
    the multiplier of the schedule at `t`, and `y` the multiplier with the decay.

    Args:
        schedule: one of this package's schedules.
        t_decay: the length of the decay, a time in any unit; with 0 the multiplier steps to `alpha_f` at the start.
        t_start: the start of the decay, a time in any unit. Default: None, which means `t_decay` before `t_max`.
        t_max: the end of the decay, if `t_start` is None. Default: "1dur", the end of the run.
        alpha_f: the multiplier at the end of the decay, finite. Default: 0.
        decay: the shape of the decay: "linear" (the default), "cosine", "1-sqrt", "1-square", "exponential",
            "geometric" or "harmonic"; the last two need values above 0 at both ends.
        decay_rate: the base of an "exponential" decay, above 0. Default: 0.5.
        alpha_i: the multiplier at the start of the decay. Default: None, the schedule's own.
        horizon: a `Horizon` on which all times are counted, in place of the run's own. It needs `t_start`, which no
            ratio stretches in this case. `Schedule.cooldown` passes this and `alpha_i`. Default: None.

    Raises:
        ValueError: an argument is outside its range. A call raises it if `t_max`, stretched by the ratio or not, ends
            before the run does, or if the decay is longer than `t_max`. A call also raises it if the start of the decay
            does not convert to the units of the schedule.

    >>> from timesched import CosineAnnealingScheduler, Horizon
    >>> schedule = CooldownScheduler(
    ...     CosineAnnealingScheduler(), t_decay="20ba", t_start="50ba"
    ... )
    >>> [round(schedule.at(t, Horizon("100ba")), 15) for t in ("50ba", "60ba", "70ba")]
    [0.5, 0.25, 0.0]
    """

    schedule: Schedule = field(metadata={"read": _read_multiplier})
    t_decay: TimeLike = time()
    t_start: TimeLike | None = time(None, optional=True)
    t_max: TimeLike = time("1dur")
    alpha_f: float = number(0.0)
    decay: str = choice("linear", *shapes.DECAYS)
    decay_rate: float = number(0.5, above=0)
    alpha_i: float | None = number(None, optional=True, keyword=True)
    horizon: Horizon | None = field(default=None, kw_only=True, metadata={"read": _read_horizon})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.horizon is not None and self.t_start is None:
            raise TimeError("CooldownScheduler.t_start=None: with horizon=..., the start is unknown. Pass t_start.")
        shapes.check_decay(f"CooldownScheduler.alpha_f={self.alpha_f}", self.decay, 1.0, self.alpha_f)

    def resolve(self, frame: Frame) -> Resolved:
        horizon = self.horizon
        if horizon is not None:
            length = frame.horizon.batches_per_epoch
            if length is not None and horizon.batches_per_epoch is not None:
                horizon = horizon.with_epochs(length)
            frame = replace(frame, horizon=horizon, start=None)
        frame.check_covers_run(self.t_max, self)
        begin, end = self._decay_marks(frame)
        frame.note("decay", begin)
        frame.note("end", end)
        value = frame.value_at(begin, self.schedule.resolve) if self.alpha_i is None else self.alpha_i
        shapes.check_decay(f"{self!r} on this run", self.decay, value, self.alpha_f)
        fall = shapes.decay_shape(self.decay, self.decay_rate)(frame.between(begin, end), value, self.alpha_f)
        return stages([begin, end], [self.schedule.resolve(frame), fall, lambda counts: self.alpha_f])

    def _decay_marks(self, frame: Frame) -> tuple[Mark, Mark]:
        """The marks at which the decay starts and ends."""
        if self.t_start is not None:
            begin = frame.mark(self.t_start, scale=self.horizon is None)
            return begin, begin.at(frame.after(begin, self.t_decay))
        end = frame.mark(self.t_max)
        start = frame.before(end, self.t_decay)
        if start < 0:
            raise UnsuitableRun(
                f"CooldownScheduler.t_decay={str(self.t_decay)!r}: on this run the decay takes "
                f"{end.at(end.count - start).time}, which is longer than t_max ({end.time}). Shorten t_decay."
            )
        return end.at(start), end
