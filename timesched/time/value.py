"""Time: an exact number with a unit, and arithmetic without rounding."""

from __future__ import annotations

import datetime
import numbers
import operator
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, Generic, Union, cast

from typing_extensions import TypeVar

from .units import FRACTIONAL_UNITS, UNITS, Exact, Ordered, TimeError, TimeUnit, exact_number, number_text, parse_time

TValue = TypeVar("TValue", bound=int | float | Fraction, default=Any)
TimeLike = Union["Time", str]


class Time(Ordered, Generic[TValue]):
    """A length of training, or a point in it: an exact number and a unit. Immutable and hashable.

    `value` is an int, a float or a Fraction (a float means its shortest decimal: 0.29 is 29/100). `unit` is a
    `TimeUnit` or its name. Only `ep`, `dur` and `sec` can be fractional. Times of one unit can be added, subtracted and
    compared, and have a remainder. A number or a `dur` scales a time. The quotient of two times of one unit is a `dur`.
    The other operand may also be a number (in the same unit), a time text, or Composer's `Time`.

    Raises `TimeError` for NaN, infinities, bools, fractional counts, and units that do not match.

    >>> (
    ...     Time(2, "ep") * 0.5,
    ...     Time(29, "ba") / Time(100, "ba"),
    ...     Time.from_timestring("0.29dur") * Time(100, "ba"),
    ... )
    (Time(1, TimeUnit.EPOCH), Time(0.29, TimeUnit.DURATION), Time(29, TimeUnit.BATCH))

    Names and behaviour: `composer.core.time` of MosaicML Composer 0.32.
    """

    __slots__ = ("_exact", "_unit", "_value")
    _exact: Exact
    _unit: TimeUnit
    _value: TValue

    def __init__(self, value: TValue, unit: str | TimeUnit) -> None:
        unit = unit if type(unit) is TimeUnit else TimeUnit(unit)
        number = exact_number(value)
        if isinstance(number, Fraction) and unit not in FRACTIONAL_UNITS:
            text = number_text(number)
            raise TimeError(f"{text}{unit.value} is not a whole count. Only 'ep', 'dur' and 'sec' can be fractional.")
        self._fill(number, unit)

    def _fill(self, number: Exact, unit: TimeUnit) -> None:
        value = number
        if unit is TimeUnit.DURATION:
            try:
                value = float(number)  # type: ignore[assignment]
            except OverflowError:
                raise TimeError(f"{str(number)[:40]}dur is out of range. Pass a time below 1e308.") from None
        put = object.__setattr__
        put(self, "_exact", number)
        put(self, "_unit", unit)
        put(self, "_value", value)

    @classmethod
    def _make(cls, number: Exact, unit: TimeUnit) -> Time:
        """A time with a number that is exact already. A scaled length (half of 3ba) may be fractional in any unit."""
        time = object.__new__(cls)
        if type(number) is not int and number.denominator == 1:
            number = number.numerator
        time._fill(number, unit)
        return time

    @classmethod
    def from_iteration(cls, iteration: int) -> Time[int]:
        """`Time(iteration, "iter")`."""
        return Time(iteration, TimeUnit.ITERATION)

    @classmethod
    def from_epoch(cls, epoch: int) -> Time[int]:
        """`Time(epoch, "ep")`."""
        return Time(epoch, TimeUnit.EPOCH)

    @classmethod
    def from_batch(cls, batch: int) -> Time[int]:
        """`Time(batch, "ba")`."""
        return Time(batch, TimeUnit.BATCH)

    @classmethod
    def from_sample(cls, sample: int) -> Time[int]:
        """`Time(sample, "sp")`."""
        return Time(sample, TimeUnit.SAMPLE)

    @classmethod
    def from_token(cls, token: int) -> Time[int]:
        """`Time(token, "tok")`."""
        return Time(token, TimeUnit.TOKEN)

    @classmethod
    def from_duration(cls, duration: float) -> Time[float]:
        """`Time(duration, "dur")`: 0 is the beginning of the run and 1 its end."""
        return Time(duration, TimeUnit.DURATION)

    @classmethod
    def from_timedelta(cls, timestring: str | datetime.timedelta) -> Time:
        """Seconds from a string such as `'1h20m40s'`, or from a `timedelta` with its microseconds.

        Raises `TimeError` for any other text.

        >>> Time.from_timedelta("24h")
        Time(86400, TimeUnit.SECOND)
        """
        if isinstance(timestring, datetime.timedelta):
            return Time(Fraction(timestring // datetime.timedelta(microseconds=1), 10**6), TimeUnit.SECOND)
        number, unit = parse_time(timestring)
        if unit is not TimeUnit.SECOND or timestring[-1:] not in "hmsHMS":
            raise TimeError(
                f"{timestring!r} is not a wall-clock time. Write hours, minutes, seconds, as in '1h20m40s'."
            )
        return Time(cast(Any, number), unit)

    @classmethod
    def from_timestring(cls, timestring: str) -> Time:
        """The time in a string: a number and a unit, or hours, minutes and seconds.

        Raises `TimeError` when the text is not a time, and for a fraction in a unit with whole counts only.

        >>> Time.from_timestring("1e9tok"), Time.from_timestring("1/3dur") * 3
        (Time(1000000000, TimeUnit.TOKEN), Time(1.0, TimeUnit.DURATION))
        """
        return cls(*cast(Any, parse_time(timestring)))

    @classmethod
    def from_input(cls, i: object, default_int_unit: TimeUnit | str | None = None) -> Time:
        """A time from a time (ours or Composer's), a string, or a number in `default_int_unit`.

        Raises `TimeError` for a number without `default_int_unit`, and for anything else.

        >>> Time.from_input("5ep") == Time.from_input(5, "ep")
        True
        """
        if isinstance(i, Time):
            return i
        if isinstance(i, str):
            return cls.from_timestring(i)
        unit = getattr(i, "unit", None)
        if unit is not None:  # Composer's Time, recognized by its two attributes
            return cls(getattr(i, "value", None), unit)  # type: ignore[arg-type]
        number = exact_number(i)
        if default_int_unit is None:
            unit_text = "dur" if 0 < number < 1 else "ba"
            raise TimeError(f"{i!r} has no unit. Pass a string with one of {UNITS}, such as '{i}{unit_text}'.")
        return cls(number, default_int_unit)  # type: ignore[arg-type]

    @property
    def value(self) -> TValue:
        """The number: a float for `dur`, a Fraction for a fractional `ep` or `sec`, otherwise an int."""
        return self._value

    @property
    def exact(self) -> Exact:
        """The number as an int or a Fraction, never rounded."""
        return self._exact

    @property
    def unit(self) -> TimeUnit:
        """The unit."""
        return self._unit

    def to_timestring(self) -> str:
        """The text that reads back as this time.

        >>> Time(0.5, "ep").to_timestring()
        '0.5ep'
        """
        return str(self)

    def __str__(self) -> str:
        number = self._exact
        if self._unit is TimeUnit.DURATION and isinstance(number, int) and Fraction(repr(self._value)) == number:
            return f"{self._value!r}dur"
        return f"{number_text(number)}{self._unit.value}"

    def __repr__(self) -> str:
        text = str(self).removesuffix(self._unit.value)
        return f"Time.from_timestring({str(self)!r})" if "/" in text else f"Time({text}, {self._unit})"

    def __reduce__(self) -> tuple[object, ...]:
        return Time._make, (self._exact, self._unit)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Time.{name} cannot be set, since a Time never changes. Create a new one.")

    def __hash__(self) -> int:
        return hash((self._value, self._unit))

    def _compare(self, other: object) -> int | None:
        if isinstance(other, Time):
            time = other
        elif _is_number(other):
            number = exact_number(other)
            return (self._exact > number) - (self._exact < number)
        elif hasattr(other, "batch_in_epoch"):  # a timestamp: its counter of this unit
            time = read_counter(other, self._unit)
        elif _is_time(other):
            time = Time.from_input(other)
        else:
            return None
        self._check_unit(time, "compare")
        return (self._exact > time._exact) - (self._exact < time._exact)

    def _check_unit(self, other: Time, verb: str) -> None:
        if other._unit is not self._unit:
            raise TimeError(f"Cannot {verb} {self} and {other}: their units differ. Convert one with Horizon.convert.")

    def _combine(self, other: object, verb: str, operation: Callable[[Exact, Exact], Exact]) -> Time[TValue]:
        """The sum, difference or remainder of two times. A number counts in the unit of this time."""
        if not (_is_time(other) or _is_number(other)):
            return NotImplemented  # type: ignore[no-any-return]  # the type of NotImplemented is Any
        time = Time.from_input(other, self._unit)
        self._check_unit(time, verb)
        return Time._make(operation(self._exact, time._exact), self._unit)

    def __add__(self, other: object) -> Time[TValue]:
        return self._combine(other, "add", operator.add)

    __radd__ = __add__

    def __sub__(self, other: object) -> Time[TValue]:
        return self._combine(other, "subtract", operator.sub)

    def __rsub__(self, other: object) -> Time[TValue]:
        return self._combine(other, "subtract", lambda mine, theirs: theirs - mine)

    def __mod__(self, other: object) -> Time[TValue]:
        try:
            return self._combine(other, "take the remainder of", operator.mod)
        except ZeroDivisionError:
            raise ZeroDivisionError(
                f"{self} % {other}: there is no remainder of zero. Divide by a time that is not 0."
            ) from None

    def __neg__(self) -> Time[TValue]:
        return Time._make(-self._exact, self._unit)

    def __pos__(self) -> Time[TValue]:
        return self

    def __mul__(self, other: object) -> Time:
        if _is_number(other):
            return Time(cast(Any, self._exact * exact_number(other)), self._unit)
        if not _is_time(other):
            return NotImplemented
        time = Time.from_input(other)
        if TimeUnit.DURATION not in (self._unit, time._unit):
            raise TimeError(
                f"Cannot multiply {self} by {time}: both are times. Pass a number or a 'dur' as one factor."
            )
        unit = self._unit if time._unit is TimeUnit.DURATION else time._unit
        return Time(cast(Any, self._exact * time._exact), unit)

    __rmul__ = __mul__

    def __truediv__(self, other: object) -> Time:
        if not (_is_time(other) or _is_number(other)):
            return NotImplemented
        divisor = exact_number(other) if _is_number(other) else Time.from_input(other)
        if divisor == 0:
            raise ZeroDivisionError(
                f"{self} / {other}: it divides by zero. Divide by a number or a time that is not 0."
            )
        if isinstance(divisor, Time):
            self._check_unit(divisor, "divide")
            return Time._make(Fraction(self._exact) / divisor._exact, TimeUnit.DURATION)
        return Time(cast(Any, Fraction(self._exact) / divisor), self._unit)

    def __int__(self) -> int:
        return int(self._exact)  # towards zero, like int() of any number

    def __float__(self) -> float:
        return float(self._exact)


def _is_number(value: object) -> bool:
    return isinstance(value, (numbers.Real, Decimal)) and not isinstance(value, bool)


def _is_time(value: object) -> bool:
    return isinstance(value, (Time, str)) or (hasattr(value, "unit") and hasattr(value, "value"))


def read_counter(timestamp: Any, unit: TimeUnit) -> Time:
    """The counter of a timestamp. Seconds are exact, from `total_wct`, while `get` returns whole seconds."""
    duration: Any = getattr(timestamp, "total_wct", None) if unit is TimeUnit.SECOND else None
    known = isinstance(duration, datetime.timedelta)
    return Time.from_timedelta(duration) if known else Time.from_input(timestamp.get(unit.value), unit)


def require_time(name: str, value: object, unit: TimeUnit | None = None) -> Time:
    """A value as a time, as in `Time.from_input`. The message of an error begins with `name`."""
    try:
        return Time.from_input(value, unit)
    except TimeError as error:
        raise TimeError(f"{name}: {error}") from None


def ensure_time(maybe_time: object, int_unit: TimeUnit | str) -> Time:
    """`maybe_time` as a `Time`. A plain number counts in `int_unit`.

    Raises `TimeError` when it is neither a time, nor a time text, nor a number.

    >>> ensure_time(3, "ep")
    Time(3, TimeUnit.EPOCH)
    """
    return Time.from_input(maybe_time, int_unit)
