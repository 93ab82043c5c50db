"""The state of a scheduler: whether it is for another one, and how two states of one moment are compared.

A state is a dict: `key` and `tags`; `last_epoch`, the steps; `schedule`, as a text for people; `value`, the multiplier
or what the groups get; `base`, the initial values, if the schedule multiplies them; and of a `Clock` its state as
`clock`, its `horizon` and the `length` of the run as texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_CLOSE = 1e-12  # of the larger of two values: the last bit of a cosine differs between processors


def check_saved_state(
    state: Mapping[str, Any], class_name: str, key: str, tags: list[Any] | None, relative: bool
) -> None:
    """Raise `ValueError` for what is not the state of a scheduler of a kind, key and tags."""
    needed = ("key", "tags", "last_epoch", "schedule", "value", *(("base",) if relative else ()))
    missing = [name for name in needed if not isinstance(state, Mapping) or name not in state]
    if missing:
        raise ValueError(f"{class_name}: {str(state)[:80]} is not the state of such a scheduler: it lacks {missing}.")
    for name, expected in (("key", key), ("tags", tags)):
        if state[name] != expected:
            raise ValueError(f"{class_name}: the state is of {name}={state[name]!r}, and here it is {expected!r}.")


def check_same_values(saved: Mapping[str, Any], present: Mapping[str, Any], class_name: str, has_moment: bool) -> None:
    """Raise `ValueError` where the present scheduler has another value at the moment of a saved state."""
    if ("base" in saved) != ("base" in present):
        values = "one of them is a multiplier, the other a value"
    elif not has_moment:
        values = "their values are not compared, as nobody knows the moment of the state"
    elif are_close(saved["value"], present["value"]):
        return
    else:
        kind = "multiplier" if "base" in present else "value"
        values = f"{kind} at step {saved['last_epoch']}: {saved['value']} saved, {present['value']} now"
    pairs = [(saved.get(name), present.get(name)) for name in ("schedule", "horizon")]
    differing = [f"saved {then}\n    now   {now}" for then, now in pairs if then != now]
    raise ValueError(
        "\n    ".join([f"{class_name}: the state is of another schedule:", *differing, values])
        + '\nMake the schedule that was saved, or load with on_change="new" to continue with the present one.'
    )


def are_close(first: list[float], second: list[float]) -> bool:
    """Whether two lists have the same numbers, but for their last bits."""
    pairs = list(zip(first, second))
    return len(first) == len(second) and all(abs(a - b) <= _CLOSE * max(abs(a), abs(b)) for a, b in pairs)
