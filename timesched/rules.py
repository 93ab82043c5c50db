"""Rules: which values an argument accepts, and in which form it keeps them. Schedules and optimizers use them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import torch

from timesched.hints import nearest_names
from timesched.time.units import Exact, TimeError, TimeUnit, exact_number
from timesched.time.value import Time, require_time


class Rule:
    """The values that an argument accepts."""

    def read(self, name: str, value: Any) -> Any:
        """The value in the form in which it is kept. Raises an error, which begins with `name`, for other values."""
        raise NotImplementedError(f"{type(self).__name__}.read is not defined. Define read(name, value) in this class.")

    def held_value(self, value: Any, device: torch.device) -> Any:
        """The value of a hyperparameter after `hold_tensors()`: unchanged, unless a schedule may change it."""
        return value


@dataclass(frozen=True)
class Number(Rule):
    """A finite number, kept as a float. A bound that is None does not exist."""

    least: float | None = None
    above: float | None = None
    below: float | None = None
    most: float | None = None
    optional: bool = False  # may be None

    def read(self, name: str, value: Any) -> Any:
        if value is None and self.optional:
            return None
        number = exact_number(value, name)
        violation = self.find_violation(number)
        if violation is not None:
            raise TimeError(f"{name}={value!r}: {violation}")
        return float(number)

    def find_violation(self, number: Exact | float) -> str | None:
        """The bound that a number breaks, and what to pass."""
        if self.below is not None and number >= self.below:
            return f"the value is not below {self.below}. Pass a number below {self.below}."
        if self.least is not None and number < self.least:
            return f"the value is below {self.least}. Pass a number of at least {self.least}."
        if self.above is not None and number <= self.above:
            return f"the value is not above {self.above}. Pass a number above {self.above}."
        if self.most is not None and number > self.most:
            return f"the value is above {self.most}. Pass a number of at most {self.most}."
        return None


@dataclass(frozen=True)
class NonNegativeTime(Rule):
    """A time that is not negative. `above=0`: it must not be 0 either."""

    above: int | None = None
    optional: bool = False  # may be None

    def read(self, name: str, value: Any) -> Time | None:
        if value is None and self.optional:
            return None
        time = require_time(name, value)
        if self.above is not None and time.exact <= self.above:
            raise TimeError(f"{name}={value!r}: the time is not above {self.above}. Pass a time above {self.above}.")
        if time.exact < 0:
            raise TimeError(f"{name}={value!r}: the time is negative. Pass a time of 0 or more.")
        return time


@dataclass(frozen=True)
class Count(Rule):
    """A whole number of steps, kept as an int, or a time: above 0 if `least` is 1. A time in batches is a number."""

    least: int = 0
    optional: bool = False  # may be None

    def read(self, name: str, value: Any) -> int | Time | None:
        if value is None and self.optional:
            return None
        if isinstance(value, (str, Time)) or hasattr(value, "to_timestring"):
            time: Any = NonNegativeTime(above=0 if self.least else None).read(name, value)
            return time.exact if time.unit is TimeUnit.BATCH and isinstance(time.exact, int) else time
        number = exact_number(value, name)
        if number != int(number) or number < self.least:
            raise TimeError(
                f"{name}={value!r}: the value is not a count of steps. Pass a whole number of at least {self.least}, "
                f"or a time."
            )
        return int(number)


@dataclass(frozen=True)
class Choice(Rule):
    """One of a few values. The error for another value names the nearest of them."""

    options: tuple[Any, ...]

    def read(self, name: str, value: Any) -> Any:
        if value not in self.options:
            near = nearest_names(value.lower(), self.options, 1, 0.0) if isinstance(value, str) else []
            hint = f" Did you mean {near[0]!r}?" if near else ""
            names = ", ".join(map(repr, self.options))
            raise TimeError(f"{name}={value!r}: the value is unknown. Pass one of {names}.{hint}")
        return value


class Flag(Rule):
    """True or False."""

    def read(self, name: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise TimeError(f"{name}={value!r}: the value is not a bool. Pass True or False.")
        return value


@dataclass(frozen=True)
class ListOf(Rule):
    """Any number of values, kept as a tuple."""

    element: Rule
    description: str  # of the list, for messages

    def read(self, name: str, value: Any) -> tuple[Any, ...]:
        if isinstance(value, (str, Mapping, Set)) or not isinstance(value, Iterable):
            raise TimeError(f"{name}={value!r}: the value is not a list. Pass a list of {self.description}.")
        return tuple(self.element.read(f"{name}[{i}]", item) for i, item in enumerate(value))


TIMES = ListOf(NonNegativeTime(), "times, as in ['10ba', '0.5dur']")
NUMBERS = ListOf(Number(), "numbers")
COUNTS = ListOf(Count(), "step counts, as in [10, 20]")


# Readers of arguments that are not fields


def read_times(name: str, value: object) -> list[Any]:
    """The times of an argument that takes one or several, none of them negative. An error begins with `name`."""
    return [TIMES.element.read(name, item) for item in make_list(value)]


def make_list(value: object) -> list[object]:
    """A list of one value, or of the values of an iterable. A string is one value, and None gives an empty list."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        return list(value)
    return [] if value is None else [value]


def read_positive(name: str, value: object, optional: bool = False) -> Any:
    """An exact number. Raises `ValueError` unless it is positive and finite. `optional`: it may be None."""
    if value is None and optional:
        return None
    number = exact_number(getattr(value, "value", value), name)  # Composer gives the length of an epoch as a time
    if number <= 0:
        raise ValueError(f"{name}={value!r}: it is not above 0. Pass a positive number.")
    return number


def read_ratio(value: object) -> Exact:
    """A scale-schedule ratio as an exact number.

    A float that is a quotient of whole numbers up to a million means this quotient: 5 / 3 is five thirds. Any other
    float means its shortest decimal. Raises `ValueError` unless the ratio is positive and finite.

    >>> read_ratio(5 / 3), read_ratio(0.29), read_ratio(1.6666667)
    (Fraction(5, 3), Fraction(29, 100), Fraction(16666667, 10000000))
    """
    number: Exact = read_positive("ssr", value)
    if isinstance(number, int) or not isinstance(value, float):
        return number
    quotient = number.limit_denominator()
    return quotient if float(quotient) == value and quotient.numerator <= 10**6 else number
