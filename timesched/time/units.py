"""The parts of a time: its unit, its exact number, and the text of both."""

from __future__ import annotations

import math
import numbers
import re
from decimal import Decimal, InvalidOperation
from enum import Enum
from fractions import Fraction
from functools import total_ordering
from typing import Any, NamedTuple

Exact = int | Fraction


class TimeError(TypeError, ValueError, RuntimeError):
    """An invalid time: unreadable text, a fractional count, or units that do not match.

    It is a `TypeError`, a `ValueError` and a `RuntimeError` at once, because Composer raises one or another of the
    three for similar mistakes, and code written for Composer catches them.

    >>> from timesched import Time
    >>> Time.from_timestring("3")
    Traceback (most recent call last):
    timesched.time.units.TimeError: '3' has no unit. Append one of iter, ep, ba, sp, tok, dur, sec, as in '3ba'.
    """


class TimeUnit(str, Enum):
    """The unit of a time.

    `TimeUnit(x)` accepts a unit, its short name or its long name in any case, or Composer's unit; Composer's `TimeUnit`
    accepts this one. A unit equals a string that is its short or long name. Equal units have equal hashes, and so have
    Composer's.

    >>> TimeUnit("BA"), TimeUnit("token"), TimeUnit.EPOCH == "ep"
    (<TimeUnit.BATCH: 'ba'>, <TimeUnit.TOKEN: 'tok'>, True)
    """

    _value_: str

    def __new__(cls, short: str, name: str = "") -> TimeUnit:
        unit = str.__new__(cls, name)  # the text is the long name, which Composer's TimeUnit(x) reads and hashes
        unit._value_ = short
        return unit

    ITERATION = "iter", "ITERATION"
    EPOCH = "ep", "EPOCH"
    BATCH = "ba", "BATCH"
    SAMPLE = "sp", "SAMPLE"
    TOKEN = "tok", "TOKEN"
    DURATION = "dur", "DURATION"
    SECOND = "sec", "SECOND"

    @classmethod
    def _missing_(cls, value: object) -> TimeUnit:
        if isinstance(value, Enum) and type(value).__name__ == cls.__name__:
            value = value.value
        if isinstance(value, str) and value.isascii():
            text = value.lower()
            for unit in cls:
                if text in (unit._value_, unit._name_.lower()):
                    return unit
        raise TimeError(f"{value!r} is not a time unit. Use one of {UNITS}.")

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, Enum):  # Composer's unit, compared by its name
            return bool(self._value_ == other.value) if type(other).__name__ == "TimeUnit" else NotImplemented
        if isinstance(other, str):
            return other.lower() in (self._value_, self._name_.lower())
        return NotImplemented

    def __ne__(self, other: object) -> bool:  # a string's `!=` would not use our `==`
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    __hash__ = str.__hash__
    __str__, __repr__ = Enum.__str__, Enum.__repr__  # the same in every Python version, and not a string's methods

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


@total_ordering
class Ordered:
    """All comparisons, from one method that returns -1, 0 or 1, or None if the other value is not comparable."""

    __slots__ = ()

    __hash__: Any = None  # each subclass defines its own hash, or has none

    def _compare(self, other: object) -> int | None:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        order = self._compare(other)
        return NotImplemented if order is None else order == 0

    def __lt__(self, other: object) -> bool:
        order = self._compare(other)
        return NotImplemented if order is None else order < 0


class EpochCounter(NamedTuple):
    """The counter of times in epochs of a known length. It counts batches, as if all epochs so far had this length.

    If a run continues with another batch size, the length of its epochs changes, and times in epochs change with it.
    """

    length: Exact  # batches per epoch

    def after(self, epochs: Any, batches: Any) -> Any:
        """The count after some whole epochs and some batches of the next epoch.

        Tensors are accepted if the length is whole. They are not read.
        """
        length = self.length
        if isinstance(batches, (int, Fraction)):
            return epochs * length + (batches if batches < length else length)
        return epochs * length + batches.clamp(max=length)


Counter = TimeUnit | EpochCounter


def unit_of(counter: Counter) -> TimeUnit:
    """The unit in which a counter counts."""
    return TimeUnit.BATCH if isinstance(counter, EpochCounter) else counter


FRACTIONAL_UNITS = (TimeUnit.EPOCH, TimeUnit.DURATION, TimeUnit.SECOND)  # all other units have whole counts only
UNITS = ", ".join(unit.value for unit in TimeUnit)  # for messages

# Underscores are allowed between digits only, as in Python's literals. [0-9] excludes the digits of other scripts.
_DIGITS = r"[0-9]+(?:_[0-9]+)*"
_NUMBER = rf"[+-]?(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})?"
_TEXT = re.compile(
    rf"({_NUMBER})(?:/({_DIGITS}))?(?:((?-i:[KMBT])) ?)?({'|'.join(unit.value for unit in TimeUnit)})",
    re.IGNORECASE | re.ASCII,
)
_POWERS = {None: 0, "K": 3, "M": 6, "B": 9, "T": 12}
_PART = rf"{_DIGITS}(?:\.{_DIGITS})?"
_WALL_CLOCK = re.compile(rf"([+-]?)(?=.)(?:({_PART})h)?(?:({_PART})m)?(?:({_PART})s)?", re.IGNORECASE | re.ASCII)
_EXPONENTS = range(-330, 309)  # the range of a double: a text of ten characters must not need gigabytes of digits


def exact_number(value: object, name: str = "time") -> Exact:
    """`value` as an exact number: an int if it is whole, otherwise a Fraction.

    A float means its shortest decimal. Raises `TimeError` for NaN, infinities, bools and anything that is not a real
    number. The message calls the number `name`.

    >>> exact_number(0.29), exact_number(3.0)
    (Fraction(29, 100), 3)
    """
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, (numbers.Real, Decimal)):
        raise TimeError(f"{name}={value!r}: a {type(value).__name__} is not a number. Pass an int or a float.")
    if isinstance(value, numbers.Rational):
        return _int_if_whole(Fraction(int(value.numerator), int(value.denominator)))
    if isinstance(value, Decimal):
        return _int_if_whole(_read_decimal(value, str(value)))
    if not math.isfinite(value):
        raise TimeError(f"{name}={value!r}: it is not finite. Pass a finite number.")
    return _int_if_whole(Fraction(str(value)))  # str, not repr: numpy's repr carries the type's name


def parse_time(text: str) -> tuple[Exact, TimeUnit]:
    """The exact number and the unit in a text such as `'1e9tok'`, `'0.29dur'`, `'1/3dur'` or `'1h20m'`.

    K, M, B or T before the unit are thousands, millions, billions and trillions, as in `'500Mtok'` or `'2B tok'`.
    Raises `TimeError` when `text` is not a time, and for a number with M alone, which may mean minutes or millions.

    >>> parse_time("1_000ba"), parse_time("1h20m40s")
    ((1000, <TimeUnit.BATCH: 'ba'>), (4840, <TimeUnit.SECOND: 'sec'>))
    """
    if not isinstance(text, str):
        raise TimeError(f"{text!r} is not a string. Pass a time text such as '10ba' or '0.3dur'.")
    if re.fullmatch(f"{_NUMBER}M", text):
        raise TimeError(f"{text!r} may mean minutes or millions. Write '{text[:-1]}m', or a unit, as in '{text}tok'.")
    clock = _WALL_CLOCK.fullmatch(text)
    if clock is not None and any(clock.groups()[1:]):
        hours, minutes, seconds = (_read_decimal(part or "0", text) for part in clock.groups()[1:])
        total = Fraction(hours * 3600 + minutes * 60 + seconds)
        return _int_if_whole(-total if clock[1] == "-" else total), TimeUnit.SECOND
    match = _TEXT.fullmatch(text)
    if match is None:
        raise TimeError(_describe_unreadable(text))
    number = _read_decimal(match[1], text)
    if match[2] is not None:
        denominator = int(match[2])
        if denominator == 0:
            raise TimeError(f"{text!r} divides by zero. Write a denominator above 0.")
        number /= denominator
    return _int_if_whole(number * 10 ** _POWERS[match[3]]), TimeUnit(match[4])


def format_number(value: float) -> str:
    """A number for an axis or a message, such as 0.5, 2000 or 2e11: with six digits, or all the digits of a count."""
    text = f"{value:.6g}"
    if value == round(value) and float(text) != value and abs(value) < 1e15:
        text = f"{value:.0f}"
    return text.replace("e+", "e").replace("e0", "e").replace("e-0", "e-")


def number_text(value: Exact) -> str:
    """The shortest text that reads back as exactly `value`: the text of a float if it is exact, otherwise a ratio.

    >>> number_text(Fraction(29, 100)), number_text(Fraction(1, 3))
    ('0.29', '1/3')
    """
    if isinstance(value, int):
        return str(value)
    try:
        short = repr(float(value))
    except OverflowError:
        short = "0"
    return short if Fraction(short) == value else f"{value.numerator}/{value.denominator}"


def _int_if_whole(value: Fraction) -> Exact:
    return value.numerator if value.denominator == 1 else value


def _read_decimal(digits: str | Decimal, text: str) -> Fraction:
    try:
        number = Decimal(digits)
        scaled = isinstance(digits, Decimal) or "e" in digits.lower()
        if number.is_finite() and not (scaled and number.adjusted() not in _EXPONENTS):
            return Fraction(number)
    except InvalidOperation:  # an exponent that no Decimal can hold
        pass
    raise TimeError(f"{text[:40]!r} is out of range. Write a number between 1e-330 and 1e308.")


def _describe_unreadable(text: str) -> str:
    words = "|".join(unit.name for unit in TimeUnit)
    match = re.fullmatch(rf"({_NUMBER}(?-i:[KMBT])?) ?({words}|step)(?:e?s)?", text, re.IGNORECASE | re.ASCII)
    if match:
        unit = TimeUnit("ba" if match[2].lower() == "step" else match[2])
        return f"{text!r} is not a time: did you mean '{match[1]}{unit.value}'?"
    if text != "".join(text.split()):
        return f"{text!r} contains spaces. Write the number and the unit together, as in '10ba'."
    if text and re.fullmatch(_NUMBER, text):
        unit_text = "dur" if 0 < _read_decimal(text, text) < 1 else "ba"
        return f"{text!r} has no unit. Append one of {UNITS}, as in '{text}{unit_text}'."
    return f"{text!r} is not a time. Write a number and one of {UNITS}, as in '10ba', or '1h20m40s'."
