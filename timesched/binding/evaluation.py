"""The value of a bound schedule at the time of a clock: of a schedule, a function, or a list, which is a product."""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from timesched.maths.positions import Frame
from timesched.run.clock import Clock
from timesched.run.horizon import Horizon, State
from timesched.schedulers.schedule import Resolution, Schedule, pass_ratio
from timesched.time.units import TimeUnit


def read_schedules(schedule: object) -> list[Any]:
    """The schedules of a list, or the single schedule in a list.

    Raises `TypeError` for an object that is not a schedule. Also for a schedule of values, such as a `HalfLife`, in a
    list, since a list multiplies. Raises `ValueError` for an empty list.
    """
    schedules = list(schedule) if isinstance(schedule, Sequence) and not isinstance(schedule, str) else [schedule]
    for item in schedules:
        if isinstance(item, type) or not callable(item):
            advice = "Pass a schedule of timesched, or a function of (state, ssr)."
            if hasattr(item, "load_state_dict"):
                advice = "It is a scheduler, which has an optimizer already: call its own step()."
            raise TypeError(f"schedule={item!r}: it is not a schedule. {advice}")
        if item is not schedule and isinstance(item, Schedule):
            item.refuse_to_multiply()
    if not schedules:
        raise ValueError(f"schedule={schedule!r}: the list is empty. Pass at least one schedule.")
    return schedules


def select_schedules(schedule: object) -> list[Schedule]:
    """The schedules of this package in a schedule or a list. The marks of a user's function are not known."""
    return [item for item in read_schedules(schedule) if isinstance(item, Schedule)]


def qualified_name(value: object) -> str:
    """The name of a function or class, or of the class of another object."""
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def describe_schedule(schedule: object) -> str:
    """The text of a schedule, a function or a list, for messages: the name stands for a function."""
    names = [repr(item) if isinstance(item, Schedule) else qualified_name(item) for item in read_schedules(schedule)]
    return names[0] if len(names) == 1 else f"[{', '.join(names)}]"


def is_composer_scheduler(schedule: object) -> bool:
    """Whether the class derives from Composer's `ComposerScheduler`. False if Composer is not imported."""
    return isinstance(schedule, getattr(sys.modules.get("composer.optim.scheduler"), "ComposerScheduler", ()))


# The value


class Evaluator:
    """Evaluates a schedule, a function or a list, which is a product, at the positions of a cursor.

    `value(position)`: the value. A position is a clock or state like `clock`; without a clock, a tuple of the steps.
    """

    def __init__(self, schedule: Any, clock: State | None, ssr: float | None) -> None:
        self.schedule, self.clock, self.ssr = schedule, clock, ssr
        self.value: Callable[[Any], Any]
        if clock is None:
            self.value = schedule.resolve(Frame(Horizon(None), TimeUnit.BATCH))
            return
        functions = [_make_function(item, clock, ssr) for item in read_schedules(schedule)]
        self.value = functions[0]
        if len(functions) > 1:
            self.value = lambda clock: math.prod(function(clock) for function in functions)

    def __reduce__(self) -> tuple[object, ...]:  # a copy makes its own function, since functions are not copied
        return Evaluator, (self.schedule, self.clock, self.ssr)


def _make_function(schedule: Any, clock: State | None, ssr: float | None) -> Callable[[Any], Any]:
    """One schedule as a function of a clock."""
    if isinstance(schedule, Schedule) and isinstance(clock, Clock):
        return _make_clock_function(schedule, ssr)
    if isinstance(schedule, Schedule):
        return schedule._current_value if ssr is None else partial(schedule._current_value, ssr=ssr)
    return _make_user_function(schedule, clock, getattr(clock, "ssr", None) if ssr is None else ssr)


def _make_user_function(schedule: Any, clock: State | None, ssr: float | None) -> Callable[[Any], Any]:
    """A user's function, or a scheduler written for Composer, as a function of a clock."""
    ratio = 1.0 if ssr is None else ssr
    is_on_clock = is_composer_scheduler(schedule) and isinstance(clock, Clock)
    function = _make_composer_function(schedule, set()) if is_on_clock else schedule
    positional, keyword = pass_ratio(schedule, ratio)
    if ratio != 1.0 and not positional and not keyword:
        raise ValueError(
            f"ssr={ratio}: {schedule!r} takes the state alone, and ignores the ratio. Let it take (state, ssr)."
        )
    return lambda clock: _multiplier(schedule, function, clock, *positional, **keyword)


def _make_composer_function(scheduler: Any, units: set[TimeUnit]) -> Callable[..., Any]:
    """A scheduler written for Composer as a function of a clock and a ratio, which adds the units that it reads."""
    from timesched.integrations.composer_state import call_on_clock

    return partial(call_on_clock, scheduler, units)


def _make_clock_function(schedule: Schedule, ssr: float | None) -> Callable[[Any], Any]:
    """A schedule as a function of a clock. It is resolved again when the clock has another horizon.

    `Schedule._resolution` keeps the last resolution, too. This function asks for the horizon alone, which is faster.
    """
    horizon: Horizon | None = None
    resolution: Resolution

    def value(clock: Clock) -> Any:
        nonlocal horizon, resolution
        if clock.horizon is not horizon:
            resolution = schedule._resolution(clock, ssr)
            horizon = clock.horizon
        return resolution.value_at(clock.timestamp, clock)

    return value


def _multiplier(schedule: object, function: Any, *arguments: object, **ratio: float) -> float:
    """The value of a user's schedule as a float. `function` calls the schedule."""
    try:
        value = function(*arguments, **ratio)
    except TypeError as error:
        raise TypeError(
            f"schedule={qualified_name(schedule)}: {error}. Pass a function of (state) or (state, ssr), which reads "
            f"state.timestamp.batch.value instead of a number of steps."
        ) from error
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ValueError(f"schedule={schedule!r}: it returned {value!r}. Return a finite number.")
    return float(value)


# The units of a schedule


def schedule_units(schedule: object, clock: State, ssr: float | None = None) -> set[TimeUnit]:
    """The units that the schedules read on a clock. The units of a user's function are not known.

    `ssr`: the ratio of a state that has none. A scheduler written for Composer is called once, and adds the units that
    it reads. On Composer's State they are not known.
    """
    units: set[TimeUnit] = set()
    for item in read_schedules(schedule):
        if isinstance(item, Schedule):
            units.update(item.units(Horizon.of(clock, ssr)))
        elif is_composer_scheduler(item) and isinstance(clock, Clock):
            positional, keyword = pass_ratio(item, clock.ssr)
            _make_composer_function(item, units)(clock, *positional, **keyword)
    return units
