"""Fields of a schedule. Each one checks its value and makes it exact when the schedule is constructed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

from timesched.hints import nearest_names
from timesched.time.units import TimeError, TimeUnit, exact_number
from timesched.time.value import Time, require_time

_REQUIRED: Any = dataclasses.MISSING


def time(default: object = _REQUIRED, *, above: int | None = None, optional: bool = False) -> Any:
    """A time that is not negative. `above=0`: it must not be 0 either. `optional`: it may be None."""

    def read(name: str, value: object) -> Time | None:
        if value is None and optional:
            return None
        parsed = require_time(name, value)
        if above is not None and parsed.exact <= above:
            raise TimeError(f"{name}={value!r}: the time is not above {above}. Pass a time above {above}.")
        if parsed.exact < 0:
            raise TimeError(f"{name}={value!r}: the time is negative. Pass a time of 0 or more.")
        return parsed

    return _make_field(read, default)


def times() -> Any:
    """Several times, kept as a tuple. None of them may be negative."""
    return _list_field(time(), "times, as in ['10ba', '0.5dur']")


def make_list(value: object) -> list[object]:
    """A list of one value, or of the values of an iterable. A string is one value, and None gives an empty list."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        return list(value)
    return [] if value is None else [value]


def read_times(name: str, value: object) -> list[Time]:
    """The times of an argument that takes one or several, checked as in `time`. An error begins with `name`."""
    read_one = time().metadata["read"]
    return [read_one(name, item) for item in make_list(value)]


def number(
    default: object = _REQUIRED,
    *,
    least: int | None = None,
    above: int | None = None,
    below: int | None = None,
    optional: bool = False,
    keyword: bool = False,
) -> Any:
    """A finite number, kept as a float: at least `least`, more than `above` and less than `below`.

    `optional`: it may be None. `keyword`: the argument can be passed by its name only.
    """

    def read(name: str, value: object) -> float | None:
        if value is None and optional:
            return None
        parsed = exact_number(value, name)
        if below is not None and parsed >= below:
            raise TimeError(f"{name}={value!r}: the value is not below {below}. Pass a number below {below}.")
        if least is not None and parsed < least:
            raise TimeError(f"{name}={value!r}: the value is below {least}. Pass a number of at least {least}.")
        if above is not None and parsed <= above:
            raise TimeError(f"{name}={value!r}: the value is not above {above}. Pass a number above {above}.")
        return float(parsed)

    return _make_field(read, default, keyword)


def count(default: object = _REQUIRED, *, least: int = 0, optional: bool = False) -> Any:
    """A whole number of steps, kept as an int: at least `least`. It may also be a time: above 0 if `least` is 1.

    A time in batches is a number of steps.
    """
    read_time = time(above=0 if least else None).metadata["read"]

    def read(name: str, value: object) -> int | Time | None:
        if value is None and optional:
            return None
        if isinstance(value, (str, Time)) or hasattr(value, "to_timestring"):
            parsed: Time = read_time(name, value)
            return parsed.exact if parsed.unit is TimeUnit.BATCH and isinstance(parsed.exact, int) else parsed
        number = exact_number(value, name)
        if number != int(number) or number < least:
            raise TimeError(
                f"{name}={value!r}: the value is not a count of steps. Pass a whole number of at least {least}, or a "
                f"time."
            )
        return int(number)

    return _make_field(read, default)


def counts() -> Any:
    """Several counts, kept as a tuple."""
    return _list_field(count(), "step counts, as in [10, 20]")


def choice(default: object, *options: Any) -> Any:
    """One of a few values. The error for another value names the nearest of them."""

    def read(name: str, value: object) -> object:
        if value not in options:
            near = nearest_names(value.lower(), options, 1, 0.0) if isinstance(value, str) else []
            hint = f" Did you mean {near[0]!r}?" if near else ""
            names = ", ".join(map(repr, options))
            raise TimeError(f"{name}={value!r}: the value is unknown. Pass one of {names}.{hint}")
        return value

    return _make_field(read, default)


def numbers() -> Any:
    """Several finite numbers, kept as a tuple of floats."""
    return _list_field(number(), "numbers")


def flag(default: bool) -> Any:
    """True or False."""

    def read(name: str, value: object) -> bool:
        if not isinstance(value, bool):
            raise TimeError(f"{name}={value!r}: the value is not a bool. Pass True or False.")
        return value

    return _make_field(read, default)


def _make_field(read: Callable[[str, object], object], default: object, keyword: bool = False) -> Any:
    return dataclasses.field(default=default, metadata={"read": read}, kw_only=keyword)


def _list_field(element: Any, description: str) -> Any:
    """A list of values that the field `element` accepts, kept as a tuple."""
    read_one = element.metadata["read"]

    def read(name: str, value: object) -> tuple[Any, ...]:
        if isinstance(value, (str, Mapping, Set)) or not isinstance(value, Iterable):
            raise TimeError(f"{name}={value!r}: the value is not a list. Pass a list of {description}.")
        return tuple(read_one(f"{name}[{i}]", item) for i, item in enumerate(value))

    return _make_field(read, _REQUIRED)
