"""What a schedule is: a frozen record of times and numbers; resolved against a run, a function of its counters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from fractions import Fraction
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from timesched.horizon import Horizon
from timesched.positions import Frame, Resolved, asked_in
from timesched.time.timestamp import POSITION, Timestamp
from timesched.time.units import FRACTIONAL, TimeError, TimeUnit, exact
from timesched.time.value import Time, TimeLike, counter

if TYPE_CHECKING:
    from timesched.composition import CooldownScheduler

_COUNTER: dict[TimeUnit, Callable[[Any], Any]] = {
    unit: attrgetter(unit.name.lower()) for unit in TimeUnit if unit.name not in ("SECOND", "DURATION")
} | {TimeUnit.SECOND: lambda timestamp: counter(timestamp, TimeUnit.SECOND)}
_KEPT = 16  # resolutions kept for one schedule: as many runs can use it in turn without resolving again


Readers = tuple[tuple[Callable[[Any], Any], TimeUnit], ...]  # how the counters of a schedule are read, and their units


class _Plan:
    """A schedule on one run: all that the resolution depends on, what it reads of a timestamp, and its last value."""

    __slots__ = (
        "function", "horizon", "length", "memo", "position", "read", "readers", "ssr", "state_ssr",
    )  # fmt: skip

    def __init__(self, function: Resolved, readers: Readers, state: Any = None, ssr: Any = None) -> None:
        self.function, self.readers = function, readers
        self.read = readers[0][0] if len(readers) == 1 else None
        self.position = POSITION.get(readers[0][1]) if len(readers) == 1 else None  # in a Timestamp's numbers
        self.ssr, self.state_ssr = ssr, getattr(state, "ssr", None)
        self.horizon = getattr(state, "horizon", None)
        self.length = None if state is None or isinstance(self.horizon, Horizon) else _length(state)
        self.memo: tuple[Any, float] = (object(), 0.0)  # one object, so that no thread sees half of it


@runtime_checkable
class ComposerScheduler(Protocol):
    """A schedule as Composer sees it: a function of the run's state, and of the ratio, that returns a multiplier.

    Plain functions of `(state)` or `(state, ssr)` are schedules too.
    """

    def __call__(self, state: Any, ssr: float = 1.0) -> float:
        """The multiplier at `state.timestamp`."""
        ...


class Schedule:
    """The base of every schedule. A subclass is a frozen dataclass with a method `resolve`.

    Fields that the functions of `timesched.fields` make, such as `time()` and `number()`, are read and checked when the
    schedule is made. Two schedules with equal fields are equal and hash equal; `repr` evaluates back.

    >>> from timesched import CosineAnnealingScheduler, Horizon
    >>> CosineAnnealingScheduler(t_max="30ba").at("10ba", Horizon("90ba"))
    0.75
    """

    _plan: ClassVar[_Plan] = _Plan(lambda counts: 0.0, (), ssr=object())  # that of the last call, once there is one
    _resolved: ClassVar[dict[tuple[Horizon, TimeUnit | None], tuple[Resolved, Readers]]] = {}

    def __post_init__(self) -> None:
        for field in self._fields():
            read = field.metadata.get("read")
            if read is not None:
                value = read(f"{type(self).__name__}.{field.name}", getattr(self, field.name))
                object.__setattr__(self, field.name, value)

    def resolve(self, frame: Frame) -> Resolved:
        """The schedule on one run, as a function of the counts that it asks `frame` for."""
        raise NotImplementedError(f"{type(self).__name__} has to define resolve(frame).")

    def __call__(self, state: Any, ssr: float | None = None) -> float:
        """The multiplier at `state.timestamp`.

        `state` has `timestamp`, `max_duration` and `dataloader_len`. `ssr` None stands for the state's own ratio,
        else 1.0. Raises `ValueError` when `ssr` contradicts the state's own ratio, when a unit cannot be converted
        or when a time in `dur` meets a run without a length.
        """
        plan = self._plan
        if (
            plan.ssr is not ssr
            or plan.state_ssr is not getattr(state, "ssr", None)
            or plan.horizon is not getattr(state, "horizon", None)
            or (plan.length is not None and plan.length != _length(state))
        ):
            plan = _Plan(*self._resolution(Horizon.of(state, ssr), None), state, ssr)
            object.__setattr__(self, "_plan", plan)
        if plan.read is None:
            several: float = plan.function(_counts(state.timestamp, plan.readers))
            return several
        timestamp, position = state.timestamp, plan.position
        if timestamp.__class__ is Timestamp and position is not None:
            count: Any = timestamp._numbers[position]  # without a Time
        else:
            now = plan.read(timestamp)
            try:
                count = now.value
            except AttributeError:  # a state that counts in plain numbers
                count = now
            if type(count) is not int or count < 0:
                return plan.function((_count_of(count, plan.readers[0][1]),))  # type: ignore[no-any-return]
        memo = plan.memo
        if count is memo[0]:  # the same number: another parameter group of the same step
            return memo[1]
        value: float = plan.function((count,))
        plan.memo = count, value
        return value

    def at(self, time: Any, horizon: Any) -> float:
        """The multiplier at one time of a run: a time, a text, or a timestamp, on the run's own (stretched) clock.

        `horizon` is a `Horizon`, a `Clock`, or another state. Raises `ValueError` for a negative time and where a
        unit cannot be converted.
        """
        horizon = Horizon.of(horizon)
        if hasattr(time, "batch_in_epoch"):
            function, readers = self._resolution(horizon, None)
            return float(function(_counts(time, readers)))
        time = Time.from_input(time)
        if time.exact < 0:
            raise TimeError(f"{time} is negative: a schedule begins at 0.")
        count, unit = horizon.locate(time, scale=False)
        return float(self._resolution(horizon, unit)[0]((count,)))

    def curve(self, horizon: Any, unit: TimeUnit | str) -> Callable[[Any], Any]:
        """The multiplier as a function of a count in `unit`: of an int, a float, or a tensor of counts.

        A number gives a float. A tensor gives a tensor of its shape, in float64, or in its own dtype if that is a
        smaller floating one; it is differentiable, and compiles with `fullgraph=True`. Counts are not negative:
        numbers are checked, tensors are not, since that would read them. Raises `ValueError` where a unit cannot be
        converted. Under a batch plan, counts in another unit than those of the schedule convert one by one: a tensor of
        them is read, has no gradient, and is refused in a graph.

        >>> from timesched import LinearScheduler
        >>> LinearScheduler().curve(Horizon("4ba"), "ba")(torch.arange(5))
        tensor([1.0000, 0.7500, 0.5000, 0.2500, 0.0000], dtype=torch.float64)
        """
        horizon, unit = Horizon.of(horizon), TimeUnit(unit)
        if unit is TimeUnit.DURATION:
            raise ValueError("A curve over 'dur' has no counter: take the unit of max_duration, and divide by it.")
        return _curve(self._resolution(horizon, unit)[0])

    def units(self, horizon: Any) -> tuple[TimeUnit, ...]:
        """The units of the counters that the schedule reads on a run, none twice.

        >>> from timesched import LinearScheduler
        >>> [unit.value for unit in LinearScheduler().units(Horizon("1e9tok"))]
        ['tok']
        """
        return tuple(unit for _, unit in self._resolution(Horizon.of(horizon), None)[1])

    def marks(self, horizon: Any) -> list[tuple[str, Time[Any]]]:
        """Where on a run the phases of the schedule begin and end: names and times, the times on the run's own clock.

        The names: "warmup", where it ends; "peak"; "milestone" and "point"; "phase", where the next schedule of a
        sequence begins; "period", the end of the first one; "decay", where it begins; "end", where the value becomes
        constant. What lies at 0 is left out; what lies after the run is not. Times of one unit are in order.

        >>> from timesched import WarmupStableDecayScheduler
        >>> [(name, str(time)) for name, time in WarmupStableDecayScheduler("10ba").marks(Horizon("200ba"))]
        [('warmup', '10ba'), ('decay', '180ba'), ('end', '200ba')]
        """
        frame = Frame(Horizon.of(horizon))
        self.resolve(frame)
        times = [(name, Time._of(mark.count, mark.unit)) for name, mark in frame.notes]
        return sorted(dict.fromkeys(times), key=lambda pair: (list(TimeUnit).index(pair[1].unit), pair[1].exact))

    def plot(self, horizon: Any, unit: TimeUnit | str | None = None, ax: Any = None, **style: Any) -> Any:
        """Draw the multiplier over a run with matplotlib, and mark where its phases begin and end: see `marks`.

        `horizon`: a `Horizon`, a `Clock`, or another state with a length. `unit`: of the horizontal axis; None for that
        of `max_duration`. `ax`: axes to draw on, beside what is there; None for new ones. `style`: arguments of
        matplotlib's `Axes.plot`, such as `label`. Returns the axes. Raises `ValueError` where the run has no length or
        a unit does not convert, and `ImportError` without matplotlib.

        >>> from timesched import CosineAnnealingWithWarmupScheduler
        >>> ax = CosineAnnealingWithWarmupScheduler("10ba").plot(Horizon("100ba"))
        >>> ax.get_xlabel(), [text.get_text() for text in ax.texts]
        ('batches', ['warmup', 'end'])
        """
        from timesched.drawing.axes import draw
        from timesched.drawing.lines import Source, line

        return draw([line(Source(type(self).__name__, self, Horizon.of(horizon)), unit)], ax, **style)

    def _repr_html_(self) -> str | None:
        from html import escape

        from timesched.drawing.lines import Source, line, presumed
        from timesched.drawing.svg import svg

        horizon = presumed(self)
        if horizon is None:
            return None
        return f"<code>{escape(repr(self))}</code>{svg([line(Source(type(self).__name__, self, horizon))])}"

    def cooldown(self, at: Any, t_decay: TimeLike, alpha_f: float = 0.0, decay: str = "1-sqrt") -> CooldownScheduler:
        """A decay from a moment of a run on: for a branch of a checkpoint, whatever length its run has.

        `at`: a `Clock` or another state that stands at the moment, on the horizon of the run that got there. `t_decay`:
        how long the decay takes; a `dur` is a share of that run, whose ratio stretches it. `alpha_f`: the multiplier at
        its end. `decay`: its shape, one of those of `WarmupStableDecayScheduler`.

        Returns a `CooldownScheduler` that starts at exactly this schedule's value at `at`. All its times, and those of
        this schedule in it, are counted on the horizon of `at`: no other `max_duration` or ratio moves them. Raises
        `ValueError` where `at` has no length that a `dur` needs, or the shape does not fit the values.

        >>> from timesched import Clock, CosineAnnealingScheduler
        >>> clock = Clock("10ba")
        >>> for _ in range(5):
        ...     clock.tick()
        >>> branch = CosineAnnealingScheduler().cooldown(at=clock, t_decay="4ba", decay="linear")
        >>> [round(branch.at(t, Horizon("100ba")), 15) for t in ("5ba", "7ba", "9ba")]
        [0.5, 0.25, 0.0]
        """
        from timesched.composition import CooldownScheduler  # which is made of this class

        if not hasattr(at, "timestamp"):
            raise TypeError(f"at={at!r} is no moment of a run: pass a Clock that stands there.")
        horizon = Horizon.of(at)
        _, unit = horizon.locate(t_decay)  # in which the two times need no rate
        start = counter(at.timestamp, unit)
        return CooldownScheduler(self, t_decay, start, alpha_f=alpha_f, decay=decay, alpha_i=self(at), horizon=horizon)

    def _resolution(self, horizon: Horizon, unit: TimeUnit | None) -> tuple[Resolved, Readers]:
        """The schedule on one run as a function of counts, and how these are read."""
        found = self._resolved.get((horizon, unit))
        if found is None:
            if unit is None:
                frame = Frame(horizon)
                function, units = self.resolve(frame), frame.units
            else:
                function, units = asked_in(unit, horizon, self.resolve), [unit]
            found = function, tuple((_COUNTER[each], each) for each in units)
            recent = dict(list(self._resolved.items())[1 - _KEPT :])  # a new one: another thread may be reading the old
            object.__setattr__(self, "_resolved", {**recent, (horizon, unit): found})
        return found

    def _fields(self) -> tuple[dataclasses.Field[Any], ...]:
        record: Any = self  # every subclass is a dataclass; this base is not
        return dataclasses.fields(record)

    def __getstate__(self) -> dict[str, Any]:  # the fields alone: resolutions are made anew
        return {field.name: getattr(self, field.name) for field in self._fields()}

    def _key(self) -> tuple[Any, ...]:
        return (type(self), *map(_plain, self.__getstate__().values()))

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Schedule) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        shown = (f"{name}={_shown(value)}" for name, value in self.__getstate__().items())
        return f"{type(self).__name__}({', '.join(shown)})"


def _length(state: Any) -> tuple[Any, ...]:
    """The length of a run and of its epochs in values that never change, as the times of other packages may."""
    length, batches = state.max_duration, state.dataloader_len
    try:
        number, unit = length.value, length.unit
    except AttributeError:  # a text, or None
        number, unit = length, None
    return number, unit, getattr(batches, "value", batches)


def _counts(timestamp: Any, readers: Readers) -> tuple[Any, ...]:
    if type(timestamp) is Timestamp:
        numbers = timestamp._numbers
        return tuple([numbers[POSITION[unit]] if unit in POSITION else read(timestamp).exact for read, unit in readers])
    times = ((read(timestamp), unit) for read, unit in readers)
    return tuple([_count_of(getattr(time, "value", time), unit) for time, unit in times])


def _count_of(count: Any, unit: TimeUnit) -> Any:
    """The number of a state's counter, checked; a tensor is not, since that would read it."""
    if (type(count) is int and count >= 0) or isinstance(count, Tensor):
        return count
    number = exact(count, f"a counter of {unit.name.lower()}s")
    if number < 0 or (isinstance(number, Fraction) and unit not in FRACTIONAL):
        rule = "a number, 0 or more" if unit in FRACTIONAL else "a whole number, 0 or more"
        raise TimeError(f"The state's timestamp has {count!r} {unit.name.lower()}s: a counter is {rule}.")
    return number


def _curve(function: Resolved) -> Callable[[Any], Any]:
    def value(count: Any) -> Any:
        if not isinstance(count, Tensor):
            return float(function((_count(count),)))
        if count.dtype is torch.bool or count.is_complex():
            raise TypeError(f"a tensor of {count.dtype} holds no counts: pass whole or real numbers.")
        double = count.to(torch.float64 if count.is_floating_point() else torch.int64)
        found = function((double,))
        out = found if isinstance(found, Tensor) else torch.full_like(double, found, dtype=torch.float64)
        return out.to(count.dtype) if count.is_floating_point() else out

    return value


def _count(count: Any) -> Any:
    number = exact(count, "a count")
    if number < 0:
        raise TimeError(f"{count!r} is negative: a schedule begins at 0.")
    return float(count) if isinstance(count, float) and isinstance(number, Fraction) else number


def _plain(value: Any) -> Any:
    """A field as a value that compares without raising, as times of different units do."""
    if isinstance(value, Time):
        return value.unit.value, value.exact
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return repr(str(value)) if isinstance(value, Time) else repr(value)
