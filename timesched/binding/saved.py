"""The saved state of a scheduler: does it fit the scheduler, and has it the same value?

A saved state is a dict. `key` and `tags` select the hyperparameter. `last_epoch` counts the steps. `schedule` is a text
for people. `value` is the multiplier, or the value of each group. `base` has the base values, if the schedule
multiplies them. With a `Clock` there are also `clock`, its state, and `horizon` and `length` of the run as texts.
"""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from timesched.binding.counter import ClockCounter, StepCounter
from timesched.binding.evaluation import read_schedules, select_schedules
from timesched.binding.keys import require_finite
from timesched.binding.writing import check_write_access
from timesched.schedule import schedule_times
from timesched.time.units import TimeUnit
from timesched.types import StateDict

if TYPE_CHECKING:
    from timesched.binding.bound import Bound

_CLOSE = 1e-12  # of the larger value: the last bit of a cosine differs between processors


class StateContents(NamedTuple):
    """The contents of a saved state, after the checks."""

    moment: StepCounter  # a counter at the moment of the save
    base_values: list[float] | None  # if the schedule multiplies them


def state_at(scheduler: Bound, counter: StepCounter) -> dict[str, Any]:
    """The state of a scheduler at the position of a counter."""
    target, value = scheduler._target, float(scheduler._evaluator.value(counter.position()))
    state = {**target.identity(), "last_epoch": int(counter.steps), "schedule": scheduler._describe()}
    if scheduler.relative:
        state |= {"base": list(target.base_values), "value": [value]}
    else:
        state["value"] = [factor * value for factor in target.base_values]
    return state | counter.state_dict()


def read_contents(scheduler: Bound, state: StateDict) -> StateContents:
    """The contents of a saved state, for `restore_contents`. Raises as `Bound.load_state_dict` does."""
    check_write_access(scheduler)
    class_name, target, counter = type(scheduler).__name__, scheduler._target, scheduler._counter
    check_saved_state(state, class_name, target.identity(), scheduler.relative)
    base_values = None
    if scheduler.relative:
        base_values = [require_finite(value, f"the initial {scheduler.key}") for value in state["base"]]
        target.check_base_values(base_values, class_name)
    moment = counter.read_state(state, class_name)
    if scheduler.on_change == "same" and is_of_other_schedule(scheduler, state):
        has_moment = counter.clock is None or isinstance(counter, ClockCounter)
        check_same_values(state, state_at(scheduler, moment), class_name, has_moment)
    return StateContents(moment, base_values)


def is_of_other_schedule(scheduler: Bound, state: Mapping[str, object]) -> bool:
    """Whether a saved state is of a different schedule or horizon than a scheduler, by their texts.

    False for the same `HalfLife` at a different batch size, or for several: their values must change with the batch
    size. A time in `dur` is the same only in a run of the same length.
    """
    if state["schedule"] != scheduler._describe():
        return True
    schedule, counter = scheduler.schedule, scheduler._counter
    if isinstance(counter, ClockCounter) and has_function(schedule):
        return True  # its text is a name, which says nothing about its value
    present = counter.state_dict()
    if state.get("horizon") == present.get("horizon"):
        return False
    is_share = any(time.unit is TimeUnit.DURATION for time in schedule_times(schedule))
    return getattr(schedule, "relative", True) or (is_share and state["length"] != present.get("length"))


def has_function(schedule: object) -> bool:
    """Whether a function, or a scheduler written for Composer, is bound: not only schedules of this package."""
    return len(select_schedules(schedule)) < len(read_schedules(schedule))


def restore_contents(scheduler: Bound, contents: StateContents) -> None:
    """Continue from the contents that `read_contents` returned. After an error nothing is changed."""
    target, counter = scheduler._target, scheduler._counter
    steps, base_values = int(counter.steps), target.base_values
    try:
        if contents.base_values is not None and scheduler.on_change == "same":
            target.base_values = contents.base_values
        counter.load(contents.moment)
        if counter.clock is None:
            scheduler.refresh()  # a State that is no Clock is loaded by its own code, maybe later
    except BaseException:
        counter.set_steps(steps)
        target.base_values = base_values
        scheduler.refresh()
        raise
    if scheduler.on_change == "new" and scheduler.relative:
        target.note_initial_values(replace=True)  # a loaded optimizer has the initial values of the state
    elif target.base_values != base_values and not are_close(target.base_values, base_values):
        warnings.warn(
            f"{type(scheduler).__name__}.key={scheduler.key!r}: the initial value was {base_values}, and the state has "
            f"{target.base_values}, which replaces it. Pass on_change='new' to keep the present value.",
            stacklevel=4,
        )


def check_saved_state(
    state: Mapping[str, object], class_name: str, identity: Mapping[str, object], relative: bool
) -> None:
    """Raise `ValueError` unless it is the state of a scheduler with this key and these tags."""
    needed = ("key", "tags", "last_epoch", "schedule", "value", *(("base",) if relative else ()))
    missing = ", ".join(repr(name) for name in needed if not isinstance(state, Mapping) or name not in state)
    if missing:
        raise ValueError(
            f"{class_name}.state_dict={reprlib.repr(state)}: it lacks {missing}. Load the state_dict() of a scheduler."
        )
    for name, expected in identity.items():
        if state[name] != expected:
            raise ValueError(
                f"{class_name}.{name}={expected!r}: the state is of {name}={state[name]!r}. Load the state of a "
                f"scheduler with the same {name}."
            )


def check_same_values(saved: Mapping[str, Any], present: Mapping[str, Any], class_name: str, has_moment: bool) -> None:
    """Raise `ValueError` if the present scheduler has a different value at the time of the saved state."""
    lines = []
    if has_moment and ("base" in saved) == ("base" in present):
        if are_close(saved["value"], present["value"]):
            return
        lines = [f"value at step {saved['last_epoch']}: {saved['value']} saved, {present['value']} now"]
    pairs = [(saved.get(name), present.get(name)) for name in ("schedule", "horizon")]
    differing = [f"saved {then}\n    now   {now}" for then, now in pairs if then != now]
    if not differing:
        lines.append("A function may read something that no load restores, such as a metric or a random number.")
    raise ValueError(
        "\n    ".join([f"{class_name}.schedule: the state is of a different schedule.", *differing, *lines])
        + "\nMake the saved schedule again, or pass on_change='new' to continue with the present schedule. "
        "See docs/troubleshooting.md."
    )


def are_close(first: list[float], second: list[float]) -> bool:
    """Whether two lists have the same numbers, apart from the last bits."""
    pairs = list(zip(first, second))
    return len(first) == len(second) and all(abs(a - b) <= _CLOSE * max(abs(a), abs(b)) for a, b in pairs)
