"""The saved state of a scheduler: does it fit the scheduler, and has it the same value?

A saved state is a dict. `key` and `tags` select the hyperparameter, and `last_epoch` counts the steps. `schedule` is a
text for people. `value` is the multiplier, or the value of each group. `base` has the base values, if the schedule
multiplies them. With a `Clock` there are also `clock`, its state, and `horizon` and `length` of the run as texts.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

_CLOSE = 1e-12  # of the larger value: the last bit of a cosine differs between processors


def check_saved_state(
    state: Mapping[str, Any], class_name: str, key: str, tags: list[Any] | None, relative: bool
) -> None:
    """Raise `ValueError` unless it is the state of a scheduler with this key and these tags."""
    needed = ("key", "tags", "last_epoch", "schedule", "value", *(("base",) if relative else ()))
    missing = ", ".join(repr(name) for name in needed if not isinstance(state, Mapping) or name not in state)
    if missing:
        raise ValueError(
            f"{class_name}.state_dict={reprlib.repr(state)}: it lacks {missing}. Load the state_dict() of a scheduler."
        )
    for name, expected in (("key", key), ("tags", tags)):
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
    pairs = [(saved.get(name), present.get(name)) for name in ("horizon", "schedule")]
    for then, now in pairs:
        if then != now:
            lines.insert(0, f"saved {then}\n    now   {now}")
    raise ValueError(
        "\n    ".join([f"{class_name}.schedule: the state is of a different schedule.", *lines])
        + "\nMake the saved schedule again, or pass on_change='new' to continue with the present schedule."
    )


def are_close(first: list[float], second: list[float]) -> bool:
    """Whether two lists have the same numbers, apart from the last bits."""
    pairs = list(zip(first, second))
    return len(first) == len(second) and all(abs(a - b) <= _CLOSE * max(abs(a), abs(b)) for a, b in pairs)
