"""The saved state of a scheduler: does it fit the scheduler, and has it the same value?

A saved state is a dict. `key` and `tags` select the hyperparameter. `last_epoch` counts the steps. `schedule` is a text
for people. `value` is the multiplier, or the value of each group. `base` has the base values, if the schedule
multiplies them. With a `Clock` there are also `clock`, its state, and `horizon` and `length` of the run as texts.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import NamedTuple

from timesched.binding.cursor import StepCursor
from timesched.binding.evaluation import read_schedules, select_schedules
from timesched.schedulers.schedule import schedule_times
from timesched.time.units import TimeUnit
from timesched.types import StateDict

_CLOSE = 1e-12  # of the larger value: the last bit of a cosine differs between processors


class StateContents(NamedTuple):
    """The contents of a saved state, after the checks of `Bound.read_state`."""

    moment: StepCursor  # a cursor at the moment of the save
    base_values: list[float] | None  # which replace the present base values; None if these stay


def is_of_other_schedule(saved: StateDict, present: StateDict, schedule: object) -> bool:
    """Whether a saved state is of a different schedule or horizon than the present `schedule`, by their texts.

    False for the same `HalfLife` at a different batch size, or for several: their values must change with the batch
    size. A time in `dur` is the same only in a run of the same length.
    """
    if saved["schedule"] != present["schedule"]:
        return True
    has_function = len(select_schedules(schedule)) < len(read_schedules(schedule))  # or a scheduler for Composer
    if "horizon" in present and has_function:
        return True  # the text of a function is a name, which says nothing about its value
    if saved.get("horizon") == present.get("horizon"):
        return False
    is_share = any(time.unit is TimeUnit.DURATION for time in schedule_times(schedule))
    return getattr(schedule, "relative", True) or (is_share and saved["length"] != present.get("length"))


def check_saved_state(state: StateDict, class_name: str, identity: StateDict, relative: bool) -> None:
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


def check_same_values(saved: StateDict, present: StateDict, class_name: str, has_position: bool) -> None:
    """Raise `ValueError` if the present scheduler has a different value at the time of the saved state."""
    lines = []
    if has_position and ("base" in saved) == ("base" in present):
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
