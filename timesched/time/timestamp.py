"""Timestamp: the counters and wall clocks of a run at one moment."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from torch import Tensor

from timesched.types import StateDict

from .units import FRACTIONAL_UNITS, Counter, EpochCounter, Exact, Ordered, TimeError, TimeUnit, exact_number
from .value import Time, read_counter, require_time

# All counters with their units, in the order of the constructor, and then the wall clocks.
_COUNTERS = {
    "iteration": TimeUnit.ITERATION,
    "epoch": TimeUnit.EPOCH,
    "batch": TimeUnit.BATCH,
    "sample": TimeUnit.SAMPLE,
    "token": TimeUnit.TOKEN,
    "epoch_in_iteration": TimeUnit.EPOCH,
    "token_in_iteration": TimeUnit.TOKEN,
    "batch_in_epoch": TimeUnit.BATCH,
    "sample_in_epoch": TimeUnit.SAMPLE,
    "token_in_epoch": TimeUnit.TOKEN,
}
WALL_CLOCKS = ("total_wct", "iteration_wct", "epoch_wct", "batch_wct")
FIELDS = (*_COUNTERS, *WALL_CLOCKS)
# The position in FIELDS of the total count of a unit.
TOTALS: dict[Counter, int] = {unit: FIELDS.index(unit.name.lower()) for unit in _COUNTERS.values()}
_ALWAYS_SAVED = ("epoch", "batch", "sample", "token", "batch_in_epoch", "sample_in_epoch", "token_in_epoch")
_EPOCH_INDEX, _BATCH_IN_EPOCH_INDEX = FIELDS.index("epoch"), FIELDS.index("batch_in_epoch")
_IN_EPOCH_FIELDS = ("batch_in_epoch", "sample_in_epoch", "token_in_epoch")
_EPOCH_UNIT, _BATCH_UNIT = TimeUnit.EPOCH, TimeUnit.BATCH  # members of an Enum are slow to look up in every call
MICROSECOND = datetime.timedelta(microseconds=1)
_ZERO = datetime.timedelta(0)


class _Field:
    """A field, whose number becomes a `Time` or a `timedelta` when it is read: most fields are not read in a batch."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._position, self._unit = FIELDS.index(name), _COUNTERS.get(name)

    def __get__(self, timestamp: Timestamp | None, owner: type | None = None) -> object:
        if timestamp is None:
            return self  # the field itself, for code that inspects the class
        number = timestamp._numbers[self._position]
        return number * MICROSECOND if self._unit is None else Time._make(number, self._unit)


_field: Callable[[], Any] = _Field


class Timestamp(Ordered):
    """How far a run has come: counts of iterations, epochs, batches, samples and tokens, and wall-clock durations.

    Counters are `Time`s and never negative. The constructor takes them as ints, times or texts of the right unit. A
    timestamp is updated in place only by `load_state_dict`, and where `epoch_in_iteration` is set, as in Composer:
    `to_next_batch` and similar methods return a new timestamp. A timestamp compares with a `Time` or a time text by the
    counter of its unit.

    Raises `TimeError` for a counter in another unit, or a negative or fractional counter.

    >>> after = Timestamp().to_next_batch(samples=8, tokens=512)
    >>> after.batch, after.token, after >= "500tok", after.get("sp")
    (Time(1, TimeUnit.BATCH), Time(512, TimeUnit.TOKEN), True, Time(8, TimeUnit.SAMPLE))

    Names and behaviour: `composer.core.time` of MosaicML Composer 0.32.
    """

    __slots__ = ("_numbers",)
    _numbers: tuple[int, ...]  # in the order of FIELDS, the wall clocks in microseconds

    iteration: Time[int] = _field()
    epoch: Time[int] = _field()
    batch: Time[int] = _field()
    sample: Time[int] = _field()
    token: Time[int] = _field()
    epoch_in_iteration: Time[int] = _field()
    token_in_iteration: Time[int] = _field()
    batch_in_epoch: Time[int] = _field()
    sample_in_epoch: Time[int] = _field()
    token_in_epoch: Time[int] = _field()
    total_wct: datetime.timedelta = _field()
    iteration_wct: datetime.timedelta = _field()
    epoch_wct: datetime.timedelta = _field()
    batch_wct: datetime.timedelta = _field()

    def __init__(
        self,
        iteration: int | Time[int] | str = 0,
        epoch: int | Time[int] | str = 0,
        batch: int | Time[int] | str = 0,
        sample: int | Time[int] | str = 0,
        token: int | Time[int] | str = 0,
        epoch_in_iteration: int | Time[int] | str = 0,
        token_in_iteration: int | Time[int] | str = 0,
        batch_in_epoch: int | Time[int] | str = 0,
        sample_in_epoch: int | Time[int] | str = 0,
        token_in_epoch: int | Time[int] | str = 0,
        total_wct: datetime.timedelta | None = None,
        iteration_wct: datetime.timedelta | None = None,
        epoch_wct: datetime.timedelta | None = None,
        batch_wct: datetime.timedelta | None = None,
    ) -> None:
        values = locals()  # the arguments by their names, since no other variable exists yet
        numbers = [0 if values[name] is None else read_field(name, values[name]) for name in FIELDS]
        _set_numbers(self, tuple(numbers))

    @classmethod
    def _make(cls, numbers: tuple[int, ...]) -> Timestamp:
        """A timestamp with numbers that were checked before."""
        new = object.__new__(cls)
        _set_numbers(new, numbers)
        return new

    def _replace(self, **changes: int) -> Timestamp:
        """A copy with other numbers in some fields; the numbers were checked before."""
        return Timestamp._make(tuple((dict(zip(FIELDS, self._numbers)) | changes).values()))

    def __setattr__(self, name: str, value: object) -> None:
        if name != "epoch_in_iteration":
            raise AttributeError(
                f"Timestamp.{name} cannot be set. Use .copy({name}=...), which returns a new timestamp."
            )
        _set_numbers(self, self.copy(epoch_in_iteration=value)._numbers)

    def __reduce__(self) -> tuple[object, ...]:
        return Timestamp._make, (self._numbers,)

    def state_dict(self) -> StateDict:
        """All counters as ints and all wall clocks as `timedelta`s, by their names."""
        state: dict[str, Any] = dict(zip(FIELDS, self._numbers))
        return state | {name: state[name] * MICROSECOND for name in WALL_CLOCKS}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Restore the counters of a `state_dict()`, ours or Composer's. Fields that the state lacks keep their value.

        Raises `KeyError` for a missing counter and `TimeError` for a wrong one. After an error nothing is changed.
        """
        if not isinstance(state, Mapping):
            raise TimeError(f"{state!r} is not the state of a timestamp or clock. Pass the result of state_dict().")
        missing = [name for name in _ALWAYS_SAVED if name not in state]
        if missing:
            raise KeyError(f"The state of a Timestamp lacks {', '.join(missing)}. Pass the result of its state_dict().")
        loaded = self._replace(**{name: read_field(name, state[name]) for name in FIELDS if name in state})
        _set_numbers(self, loaded._numbers)

    def get(self, unit: str | TimeUnit) -> Time[int]:
        """The counter of `unit`. For `sec` it is the whole seconds of `total_wct`; comparisons use the exact value.

        Raises `TimeError` for `dur`: the fraction that is done needs the length of the run, which the horizon has.
        """
        unit = TimeUnit(unit)
        if unit is TimeUnit.SECOND:
            return Time(self.total_wct // datetime.timedelta(seconds=1), unit)
        if unit is TimeUnit.DURATION:
            raise TimeError(
                "Timestamp.get.unit='dur': a timestamp does not know the length of the run. Use clock.fraction >= 0.6, "
                "or clock.passed('0.6dur') for the moment itself."
            )
        return Time._make(self._numbers[TOTALS[unit]], unit)

    def copy(self, **changes: object) -> Timestamp:
        """A new timestamp with some fields replaced. A field that is None keeps its value.

        >>> Timestamp(epoch=1).copy(batch=2).batch
        Time(2, TimeUnit.BATCH)
        """
        unknown = [name for name in changes if name not in FIELDS]
        if unknown:
            raise TypeError(f"{unknown[0]!r} is not a field of a Timestamp. Use one of {', '.join(FIELDS)}.")
        return self._replace(**{name: read_field(name, value) for name, value in changes.items() if value is not None})

    def to_next_batch(
        self, samples: int | Time[int] = 0, tokens: int | Time[int] = 0, duration: datetime.timedelta | None = None
    ) -> Timestamp:
        """The timestamp after one more batch that took `duration`; `samples` and `tokens` are sums over all ranks."""
        micros = read_duration("duration", duration or _ZERO)
        return self.after_batch(read_field("sample", samples), read_field("token", tokens), micros)

    def after_batch(self, samples: int, tokens: int, micros: int, batches: Exact | None = None) -> Timestamp:
        """Like `to_next_batch`, for numbers that were checked before. The epoch ends when it has `batches` batches."""
        iteration, epoch, batch, sample, token, e, t, b_in, s_in, t_in, total, wct_i, wct_e, _ = self._numbers
        after = object.__new__(Timestamp)
        _set_numbers(after, (
            iteration, epoch, batch + 1, sample + samples, token + tokens, e, t + tokens, b_in + 1, s_in + samples,
            t_in + tokens, total + micros, wct_i + micros, wct_e + micros, micros,
        ))  # in the order of FIELDS  # fmt: skip
        return after.to_next_epoch() if batches is not None and b_in + 1 >= batches else after

    def counts(self, counters: Sequence[Counter]) -> tuple[Any, ...]:
        """The values of these counters as numbers, with exact seconds."""
        numbers = self._numbers
        return tuple([numbers[TOTALS[key]] if key in TOTALS else self._compute_count(key) for key in counters])

    def _compute_count(self, counter: Counter) -> Exact:
        """The count of a counter that is not a single field: epochs in batches, or seconds."""
        if isinstance(counter, EpochCounter):
            epochs, batches = self._numbers[_EPOCH_INDEX], self._numbers[_BATCH_IN_EPOCH_INDEX]
            return counter.after(epochs, batches)  # type: ignore[no-any-return]  # of numbers
        return Time.from_timedelta(self.total_wct).exact

    def to_next_epoch(self, duration: datetime.timedelta | None = None) -> Timestamp:
        """The timestamp at the start of the next epoch; `duration` is the time since the last batch."""
        micros, now = read_duration("duration", duration or _ZERO), dict(zip(FIELDS, self._numbers))
        counters = {name: now[name] + 1 for name in ("epoch", "epoch_in_iteration")}
        clocks = {name: now[name] + micros for name in ("total_wct", "iteration_wct")}
        return self._replace(**counters, **clocks, **dict.fromkeys((*_IN_EPOCH_FIELDS, "epoch_wct", "batch_wct"), 0))

    def to_next_iteration(self, duration: datetime.timedelta | None = None) -> Timestamp:
        """The timestamp at the start of the next iteration; `duration` is the time since the last batch."""
        micros, now = read_duration("duration", duration or _ZERO), dict(zip(FIELDS, self._numbers))
        inner = ("epoch_in_iteration", "token_in_iteration", *_IN_EPOCH_FIELDS, *WALL_CLOCKS[1:])
        counters = {"iteration": now["iteration"] + 1, "total_wct": now["total_wct"] + micros}
        return self._replace(**counters, **dict.fromkeys(inner, 0))

    __hash__ = None  # counters can be loaded in place

    def _compare(self, other: object) -> int | None:
        if isinstance(other, str):
            other = Time.from_timestring(other)
        unit = getattr(other, "unit", None)
        return None if unit is None else read_counter(self, TimeUnit(unit))._compare(other)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Timestamp):
            return self._numbers == other._numbers
        if hasattr(other, "batch_in_epoch") and hasattr(other, "state_dict"):  # a Timestamp of Composer
            return bool(self.state_dict() == other.state_dict())
        return super().__eq__(other)

    def __repr__(self) -> str:
        fields = [f"{name}={value!r}" for name, value in self.state_dict().items()]
        return f"Timestamp({', '.join(fields)})"


_set_numbers: Callable[[Timestamp, tuple[int, ...]], None] = Timestamp.__dict__["_numbers"].__set__  # past __setattr__


def read_duration(name: str, value: object) -> int:
    """A duration in microseconds. Raises `TimeError` for a value of another type, and below 0."""
    if not isinstance(value, datetime.timedelta) or value < _ZERO:
        raise TimeError(f"{name}={value!r}: it is not a duration. Pass a datetime.timedelta of 0 or more.")
    return value // MICROSECOND


def read_field(name: str, value: object) -> int:
    """The number of a field: of a counter in its unit, of a wall clock in microseconds.

    Raises `TimeError` for a value of another type or unit, and below 0.
    """
    if name in WALL_CLOCKS:
        return read_duration(name, value)
    unit = _COUNTERS[name]
    if type(value) is int and value >= 0:
        return value
    time = require_time(name, value, unit)
    if time.unit is not unit:
        raise TimeError(f"{name}={value!r}: it counts in {time.unit.value}. Pass a number or a time in {unit.value}.")
    if type(time.exact) is not int or time.exact < 0:
        raise TimeError(f"{name}={value!r}: it is not a count. Pass a whole number of 0 or more.")
    return time.exact


def counts_of(timestamp: object, counters: Sequence[Counter]) -> tuple[Any, ...]:
    """Counters of a timestamp as numbers. A timestamp of another package is checked, but its tensors are not read."""
    if type(timestamp) is Timestamp:
        return timestamp.counts(counters)
    return tuple([_read_count(timestamp, counter) for counter in counters])


def time_at(count: Exact, counter: Counter) -> Time:
    """The time at which a counter has reached a count: in epochs, if it counts them in batches."""
    if isinstance(counter, EpochCounter):
        return Time._make(Fraction(count) / counter.length, TimeUnit.EPOCH)
    return Time._make(count, counter)


def _read_count(timestamp: Any, counter: Counter) -> Any:
    if isinstance(counter, EpochCounter):
        batches = _require_count(timestamp.batch_in_epoch, _BATCH_UNIT)
        return counter.after(_require_count(timestamp.epoch, _EPOCH_UNIT), batches)
    time = getattr(timestamp, FIELDS[TOTALS[counter]]) if counter in TOTALS else read_counter(timestamp, counter)
    return _require_count(time, counter)


def _require_count(time: object, unit: TimeUnit) -> Any:
    count = getattr(time, "value", time)  # some states count in plain numbers
    if (type(count) is int and count >= 0) or isinstance(count, Tensor):
        return count
    name = f"timestamp.{unit.name.lower()}"
    number = exact_number(count, name)
    if number < 0:
        raise TimeError(f"{name}={count!r}: a counter cannot be negative. Pass a state with counters of 0 or more.")
    if isinstance(number, Fraction) and unit not in FRACTIONAL_UNITS:
        raise TimeError(f"{name}={count!r}: a counter of {unit.value!r} is whole. Pass a state with whole counters.")
    return number
