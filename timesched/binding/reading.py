"""What is bound: a schedule, a function, or a list of them, which multiply, as one function that reads a clock."""

from __future__ import annotations

import inspect
import math
import numbers
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from timesched.clock import Clock
from timesched.horizon import Horizon
from timesched.schedule import Schedule
from timesched.time.timestamp import counts_of
from timesched.time.units import TimeUnit


def as_several(schedule: Any) -> list[Any]:
    """The schedules of a list, or the one; raises `TypeError` for what is none, and for a value in a list, as it
    multiplies; and `ValueError` for an empty list.
    """
    found = list(schedule) if isinstance(schedule, Sequence) and not isinstance(schedule, str) else [schedule]
    for one in found:
        if isinstance(one, type) or not callable(one):
            raise TypeError(f"{one!r} is not a schedule: pass one of timesched's, or a function of (state, ssr).")
        if one is not schedule and isinstance(one, Schedule):
            one.refuse_to_multiply()
    if not found:
        raise ValueError("The list of schedules is empty: pass at least one.")
    return found


def called(function: Any) -> str:
    """The name of a function, or of the class of another object."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def reader(schedule: Any, clock: Any, ssr: float | None) -> Callable[[], Any]:
    """A schedule, a function or a list of them, which multiply, as a function of nothing that reads the clock."""
    factors = [_adapted(each, clock, ssr) for each in as_several(schedule)]
    return factors[0] if len(factors) == 1 else lambda: math.prod(factor() for factor in factors)


def _adapted(scheduler: Any, state: Any, ssr: float | None) -> Callable[[], Any]:
    """A schedule as a function of nothing, for functions of `(state)` and of `(state, ssr)`."""
    own = getattr(state, "ssr", None) if ssr is None else ssr
    ratio = 1.0 if own is None else own
    if isinstance(scheduler, Schedule):
        return _on_clock(scheduler, state, ratio) if type(state) is Clock else partial(scheduler._now, state, ratio)
    try:
        inspect.signature(scheduler).bind(state, ratio)
    except TypeError:
        if ratio != 1.0:
            raise ValueError(
                f"{scheduler!r} takes the state alone, and so cannot follow the scale-schedule ratio {ratio}: "
                f"let it take (state, ssr)."
            ) from None
        return lambda: _multiplier(scheduler, state)
    return lambda: _multiplier(scheduler, state, ratio)


def _on_clock(schedule: Schedule, clock: Clock, ratio: float) -> Callable[[], Any]:
    """The same as calling it with the clock, in half the time: it is resolved where the clock's horizon changes."""
    horizon: Horizon | None = None
    function: Any = None
    counters: Any = ()

    def value() -> Any:
        nonlocal horizon, function, counters
        if clock.horizon is not horizon:
            function, counters = schedule._resolution(Horizon.of(clock, ratio), None)
            horizon = clock.horizon
        return function(counts_of(clock.timestamp, counters))

    return value


def _multiplier(scheduler: Any, *arguments: Any) -> float:
    try:
        value = scheduler(*arguments)
    except TypeError as error:
        raise TypeError(
            f"{called(scheduler)}: {error}. A schedule is a function of (state) or (state, ssr), and not of steps: use "
            f"state.timestamp.batch.value for the batches so far."
        ) from error
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ValueError(f"{scheduler!r} returned {value!r}: a schedule returns a finite number.")
    return float(value)


def text_of(schedule: Any) -> str:
    """What a schedule, a function or a list of them is, in words: a function goes by its name."""
    names = [repr(one) if isinstance(one, Schedule) else called(one) for one in as_several(schedule)]
    return names[0] if len(names) == 1 else f"[{', '.join(names)}]"


def units_of(schedule: Any, clock: Any) -> set[TimeUnit]:
    """The units that are read of a clock, as far as the schedules say so: functions of a user do not."""
    return {unit for one in as_several(schedule) if isinstance(one, Schedule) for unit in one.units(clock)}


def warn_of_long_warmup(schedule: Any, clock: Any, ssr: float | None) -> None:
    """Warn of schedules whose warmup lasts longer than the run, where their units convert."""
    with suppress(TypeError, ValueError):
        horizon = Horizon.of(clock, ssr)
        those = [one for one in as_several(schedule) if isinstance(one, Schedule)]
        for one, (name, time) in [(each, mark) for each in those for mark in each.marks(horizon)]:
            if name == "warmup" and horizon.convert(time, "dur").exact > 1:
                warnings.warn(
                    f"{one!r} warms up until {time}, and the run ends at {horizon.max_duration}: it never gets to its "
                    f"full value.",
                    stacklevel=3,
                )
