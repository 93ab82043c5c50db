"""The base class of schedules: frozen records of times and numbers that become functions of counters on a run."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor
from typing_extensions import Self

from timesched.hints import InitSignature, check_argument_names
from timesched.maths.counts import Mark, Resolved
from timesched.maths.positions import Frame, resolve_in_unit
from timesched.run.horizon import FACTOR_BY_UNIT, Horizon, State, check_counted
from timesched.time.timestamp import Timestamp, counts_of, time_at
from timesched.time.units import Counter, TimeError, TimeUnit, exact_number, unit_of
from timesched.time.value import Time, TimeLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from timesched.schedulers.composition import CooldownScheduler


# What trainers read of a scheduler that they get.
_SCHEDULER_ATTRIBUTES = ("step", "optimizer", "get_last_lr", "state_dict", "load_state_dict")


@dataclass(frozen=True)
class Resolution:
    """A schedule on one run."""

    function: Resolved  # of counts
    counters: Sequence[Counter]  # the function takes their counts
    notes: Sequence[tuple[str, Mark]]  # where the phases begin and end, by name
    horizon: Horizon
    countable: list[tuple[int, TimeUnit]] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        # The places of samples and tokens among the counters, which may be 0 because nobody counts them.
        countable = [(i, unit_of(counter)) for i, counter in enumerate(self.counters) if counter in FACTOR_BY_UNIT]
        object.__setattr__(self, "countable", countable)

    def value_at(self, timestamp: Any, state: object) -> Any:
        """The value at a timestamp of a run. Raises `ValueError` for samples or tokens that nobody counted."""
        counts = counts_of(timestamp, self.counters)
        for i, unit in self.countable:
            if type(counts[i]) is int and counts[i] == 0:
                check_counted(timestamp, unit, state)
        return self.function(counts)


@runtime_checkable
class ComposerScheduler(Protocol):
    """A schedule in Composer's sense: a function of the run's state and of the ratio that returns a multiplier.

    Plain functions of `(state)` or `(state, ssr)` are also schedules.
    """

    def __call__(self, state: State, ssr: float = 1.0) -> float:
        """The multiplier at `state.timestamp`."""
        ...


class Schedule:
    """The base of every schedule. A subclass is a frozen dataclass with a method `resolve`.

    The functions of `timesched.fields`, such as `time()` and `number()`, make fields that are read and checked when the
    schedule is made. Two schedules with equal fields are equal and have the same hash. `eval(repr(schedule))` gives an
    equal schedule.

    >>> from timesched import CosineAnnealingScheduler, Horizon
    >>> CosineAnnealingScheduler(t_max="30ba").at("10ba", Horizon("90ba"))
    0.75
    """

    relative: bool = True  # whether `bind` multiplies the initial value by the result, or writes the result itself
    # The last request of an instance, which sets its own attribute, and the resolution.
    _last_resolution: ClassVar[tuple[tuple[object, ...], Resolution | None]] = ((), None)

    if sys.version_info < (3, 11):
        __signature__ = InitSignature()

    def __new__(cls, /, *_: object, **arguments: object) -> Self:
        check_argument_names(cls, arguments)  # so that the error has a hint
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for field in self._fields():
            read = field.metadata.get("read")
            if read is not None:
                value = read(f"{type(self).__name__}.{field.name}", getattr(self, field.name))
                object.__setattr__(self, field.name, value)

    if not TYPE_CHECKING:  # which would take any attribute for known

        def __getattr__(self, name: str) -> Any:
            if name in _SCHEDULER_ATTRIBUTES:
                raise AttributeError(
                    f"{type(self).__name__}.{name}: this is a schedule, not a scheduler of an optimizer. Call "
                    f"bind(schedule, optimizer, clock), or pass the schedule to the adapter of your trainer."
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def refuse_to_multiply(self) -> None:
        """Raise `TypeError` if the schedule returns values and not multipliers."""
        if not self.relative:
            raise TypeError(
                f"{self!r}: this schedule returns values, not multipliers of a learning rate. Bind it to a beta or to "
                f"momentum: bind(..., key='betas[1]'), or Binding(..., 'betas[1]') in a trainer. For the value itself, "
                f"call half_life.at(clock.timestamp, clock)."
            )

    def resolve(self, frame: Frame) -> Resolved:
        """The schedule on one run, as a function of counts. The marks, spans and periods of `frame` read the counts."""
        raise NotImplementedError(f"{type(self).__name__}.resolve: the method is missing. Define resolve(self, frame).")

    def __call__(self, state: State, ssr: float | None = None) -> float:
        """The multiplier at `state.timestamp`.

        `state` has `timestamp`, `max_duration` and `dataloader_len`. `ssr=None` means the state's own ratio, or 1.0 if
        it has none. Raises `ValueError` if `ssr` contradicts the state's own ratio, if a unit cannot be converted, or
        if the run of a time in `dur` has no length. Raises `TypeError` if the schedule returns values.
        """
        self.refuse_to_multiply()
        return self._current_value(state, ssr)

    def _current_value(self, state: State, ssr: float | None = None) -> float:
        """The multiplier or the value at `state.timestamp`."""
        return self._resolution(state, ssr).value_at(state.timestamp, state)  # type: ignore[no-any-return]  # of numbers

    def at(self, time: TimeLike | Timestamp, horizon: Horizon | State) -> float:
        """The multiplier at one time of a run: a time, a string, or a timestamp, on the run's own (stretched) clock.

        `horizon` is a `Horizon`, a `Clock`, or another state. Raises `ValueError` for a negative time, and if a unit
        cannot be converted.
        """
        run, horizon = horizon, Horizon.of(horizon)
        if hasattr(time, "batch_in_epoch"):
            return float(self._resolution(horizon).value_at(time, run))
        time = Time.from_input(time)
        if time.exact < 0:
            raise TimeError(f"time={str(time)!r}: the time is negative. Pass a time of 0 or more.")
        count, counter = horizon.place(time, scale=False)
        return float(self._resolution(horizon, unit=unit_of(counter)).function((count,)))

    def curve(self, horizon: Horizon | State, unit: TimeUnit | str) -> Callable[[Any], Any]:
        """The multiplier as a function of a count in `unit`: of an int, a float, or a tensor of counts.

        A number gives a float. A tensor gives a tensor of its shape, in float64, or in its own dtype if that is a
        smaller floating-point dtype. The result is differentiable, and the curve compiles with `fullgraph=True`. Counts
        must not be negative. Numbers are checked; tensors are not, since a check would read them. Raises `ValueError`
        if a unit cannot be converted. Under a batch-size schedule, counts in a unit that the schedule does not use are
        converted one by one. A tensor of such counts is read, has no gradient, and raises in a graph.

        >>> from timesched import LinearScheduler
        >>> LinearScheduler().curve(Horizon("4ba"), "ba")(torch.arange(5))
        tensor([1.0000, 0.7500, 0.5000, 0.2500, 0.0000], dtype=torch.float64)
        """
        horizon, unit = Horizon.of(horizon), TimeUnit(unit)
        if unit is TimeUnit.DURATION:
            raise ValueError("unit='dur': no counter has this unit. Pass the unit of max_duration.")
        return _make_curve(self._resolution(horizon, unit=unit).function)

    def units(self, horizon: Horizon | State) -> tuple[TimeUnit, ...]:
        """The units of the counters that the schedule reads on a run, each once.

        >>> from timesched import LinearScheduler
        >>> [unit.value for unit in LinearScheduler().units(Horizon("1e9tok"))]
        ['tok']
        """
        return tuple(dict.fromkeys(map(unit_of, self._resolution(Horizon.of(horizon)).counters)))

    def marks(self, horizon: Horizon | State) -> list[tuple[str, Time]]:
        """The names and times at which the phases of the schedule begin and end, on the run's own clock.

        "warmup" is the end of the warmup, "peak" the first peak, and "decay" the start of the decay. "period" is the
        end of the first period. "milestone" and "point" are arguments of the schedule. A new schedule of a sequence
        begins at "phase", even if the previous one ends there. At "end" the value becomes constant. Marks at 0 are left
        out; marks after the end of the run are kept. Times in the same unit are in order.

        >>> from timesched import WarmupStableDecayScheduler
        >>> marks = WarmupStableDecayScheduler("10ba").marks(Horizon("200ba"))
        >>> [(name, str(time)) for name, time in marks]
        [('warmup', '10ba'), ('decay', '180ba'), ('end', '200ba')]
        """
        notes = self._resolution(Horizon.of(horizon)).notes
        times = dict.fromkeys((name, mark.time) for name, mark in notes)
        kept = [(name, time) for name, time in times if name != "end" or ("phase", time) not in times]
        return sorted(kept, key=lambda pair: (list(TimeUnit).index(pair[1].unit), pair[1].exact))

    def plot(
        self, horizon: Horizon | State, unit: TimeUnit | str | None = None, ax: Axes | None = None, **style: object
    ) -> Axes:
        """Draw the multiplier over a run with matplotlib, and mark where its phases begin and end: see `marks`.

        `horizon`: a `Horizon`, a `Clock`, or another state with a length. `unit`: the unit of the horizontal axis; None
        for the unit of `max_duration`. `ax`: axes to draw on; existing lines stay. None makes new axes. `style`:
        arguments of matplotlib's `Axes.plot`, such as `label`. Returns the axes. Raises `ValueError` if the run has no
        length or a unit does not convert, and `ImportError` without matplotlib.

        >>> from timesched import CosineAnnealingWithWarmupScheduler
        >>> ax = CosineAnnealingWithWarmupScheduler("10ba").plot(Horizon("100ba"))
        >>> ax.get_xlabel(), [text.get_text() for text in ax.texts]
        ('batches', ['warmup', 'end'])
        """
        from timesched.drawing.axes import draw
        from timesched.drawing.lines import Source, line

        quantity = "multiplier" if self.relative else "value"
        source = Source(type(self).__name__, self, Horizon.of(horizon), quantity=quantity)
        return draw([line(source, unit)], ax, **style)

    def _repr_html_(self) -> str:
        from timesched.drawing.lines import Source, default_run
        from timesched.drawing.svg import notebook_html

        name, run_caption = type(self).__name__, ", presumed: .plot(Horizon(...)) draws another"
        return notebook_html(self, lambda: [Source(name, self, default_run(self))], run_caption)

    def cooldown(self, at: State, t_decay: TimeLike, alpha_f: float = 0.0, decay: str = "1-sqrt") -> CooldownScheduler:
        """A decay that starts at a moment of a run: for a branch of a checkpoint, whatever the length of its run.

        `at`: a `Clock` or another state at that moment, with the horizon of the run that reached it. `t_decay`: the
        length of the decay. A `dur` is a fraction of that run, and the ratio stretches it. `alpha_f`: the
        multiplier at the end. `decay`: the shape: "linear", "cosine", "1-sqrt", "1-square", "exponential", "geometric"
        or "harmonic".

        Returns a `CooldownScheduler` that starts at exactly this schedule's value at `at`. Its times, and the times of
        this schedule inside it, are counted on the horizon of `at`: no other `max_duration` or ratio moves them. Raises
        `ValueError` if a `dur` needs a length that `at` does not have, if the shape does not fit the values, and for
        samples or tokens that nobody counted.

        >>> from timesched import Clock, CosineAnnealingScheduler
        >>> clock = Clock("10ba")
        >>> for _ in range(5):
        ...     clock.tick()
        >>> branch = CosineAnnealingScheduler().cooldown(
        ...     at=clock, t_decay="4ba", decay="linear"
        ... )
        >>> [round(branch.at(t, Horizon("100ba")), 15) for t in ("5ba", "7ba", "9ba")]
        [0.5, 0.25, 0.0]
        """
        from timesched.schedulers.composition import CooldownScheduler  # which is made of this class

        if not hasattr(at, "timestamp"):
            raise TypeError(f"at={at!r}: the value is not a moment of a run. Pass a Clock at that moment.")
        horizon = Horizon.of(at)
        _, counter = horizon.place(t_decay)  # in its unit, the two times need no conversion factor
        check_counted(at.timestamp, unit_of(counter), at)
        start = time_at(exact_number(counts_of(at.timestamp, (counter,))[0]), counter)
        return CooldownScheduler(self, t_decay, start, alpha_f=alpha_f, decay=decay, alpha_i=self(at), horizon=horizon)

    def _resolution(self, run: Horizon | State, ssr: float | None = None, unit: TimeUnit | None = None) -> Resolution:
        """The schedule on the run of a horizon or state, for counts in `unit`; None means the units that it reads.

        The last resolution is kept, since a training loop asks for the same run at every step.
        """
        horizon = getattr(run, "horizon", run)
        request = (horizon, ssr, unit) if isinstance(horizon, Horizon) else (*_run_key(run), ssr, unit)
        last_request, resolution = self._last_resolution
        if resolution is None or request != last_request:
            horizon = Horizon.of(run, ssr)
            if unit is None:
                frame = Frame(horizon)
                resolution = Resolution(self.resolve(frame), frame.usage.counters, frame.usage.notes, horizon)
            else:
                resolution = Resolution(resolve_in_unit(unit, horizon, self.resolve), [unit], (), horizon)
            # One object, so that no thread sees half of it.
            object.__setattr__(self, "_last_resolution", (request, resolution))
        return resolution

    def _fields(self) -> tuple[dataclasses.Field[Any], ...]:
        return dataclasses.fields(self)  # type: ignore[arg-type]  # every subclass is a dataclass; this base is not

    def __getstate__(self) -> dict[str, object]:  # only the fields: resolutions are made again
        return {field.name: getattr(self, field.name) for field in self._fields()}

    def _key(self) -> tuple[object, ...]:
        return (type(self), *map(_comparison_value, self.__getstate__().values()))

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Schedule) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        fields = (f"{name}={_field_text(value)}" for name, value in self.__getstate__().items())
        return f"{type(self).__name__}({', '.join(fields)})"


ScheduleLike = Schedule | Callable[..., float]  # a function takes (state) or (state, ssr)


def pass_ratio(function: Callable[..., Any], ratio: float) -> tuple[list[float], dict[str, float]]:
    """The positional and the keyword arguments that pass the ratio to a schedule, next to the state.

    The ratio goes to a parameter named `ssr`, or to a second parameter without a default. Both results are empty for a
    function of the state alone, which may have other parameters with defaults.
    """
    parameters = list(inspect.signature(function).parameters.values())
    if any(p.name == "ssr" and p.kind is not p.POSITIONAL_ONLY for p in parameters):
        return [], {"ssr": ratio}
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_ratio = len(positional) > 1 and positional[1].default is inspect.Parameter.empty
    return ([ratio] if takes_ratio else []), {}


def _run_key(state: Any) -> tuple[object, ...]:
    """The length, conversion factors and ratio of a run, as immutable values: times of other packages may change."""
    length, batches = state.max_duration, state.dataloader_len
    factors = getattr(state, "conversion_factors", None), getattr(state, "ssr", None)
    return getattr(length, "value", length), getattr(length, "unit", None), getattr(batches, "value", batches), *factors


def _make_curve(function: Resolved) -> Callable[[Any], Any]:
    def value(count: object) -> Any:
        if not isinstance(count, Tensor):
            return float(function((_require_not_negative(count),)))
        if count.dtype is torch.bool or count.is_complex():
            raise TypeError(f"count.dtype={count.dtype}: this tensor holds no counts. Pass whole or real numbers.")
        double = count.to(torch.float64 if count.is_floating_point() else torch.int64)
        result = function((double,))
        if not isinstance(result, Tensor):
            result = torch.full_like(double, result, dtype=torch.float64)
        return result.to(count.dtype) if count.is_floating_point() else result

    return value


def _require_not_negative(count: object) -> Any:
    number = exact_number(count, "count")
    if number < 0:
        raise TimeError(f"count={count!r}: the count is negative. Pass a count of 0 or more.")
    return float(count) if isinstance(count, float) and isinstance(number, Fraction) else number


def schedule_times(value: object) -> list[Time]:
    """The times in the fields of a schedule, and of the schedules inside it."""
    return [item for item in items_in(value) if isinstance(item, Time)]


def items_in(value: object) -> Iterator[object]:
    """A value, and the values inside it at any depth: the fields of a schedule, and the items of a tuple."""
    yield value
    if isinstance(value, Schedule):
        value = tuple(value.__getstate__().values())
    for item in value if isinstance(value, tuple) else ():
        yield from items_in(item)


def _comparison_value(value: object) -> object:
    """A field as a value that can be compared without an error; times of different units raise one."""
    if isinstance(value, Time):
        return value.unit.value, value.exact
    return tuple(map(_comparison_value, value)) if isinstance(value, tuple) else value


def _field_text(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_field_text, value))}]"
    return repr(str(value)) if isinstance(value, Time) else repr(value)
