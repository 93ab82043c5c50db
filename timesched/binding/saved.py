"""The state of a scheduler: what is saved, and how it is compared with the scheduler that loads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from timesched.binding.keys import checked_count, finite

_CLOSE = 1e-12  # of the larger of two values: the last bit of a cosine differs between processors


@dataclass(frozen=True)
class Saved:
    """A scheduler at one moment. The fields have the names that they have in a state dict."""

    key: str
    tags: list[Any] | None
    last_epoch: int  # the steps
    schedule: str  # for people, and to see whether it is another one
    value: list[float]  # by which two schedules are compared: the multiplier, or what the groups get
    base: list[float] | None = None  # the initial values, if the schedule multiplies them
    # Of a `Clock`: its counters, its horizon as text, and the length of the run as text.
    clock: Mapping[str, Any] | None = None
    horizon: str | None = None
    length: str | None = None

    @classmethod
    def read(cls, state: Mapping[str, Any], kind: str, key: str, tags: list[Any] | None, relative: bool) -> Saved:
        """A state dict for a scheduler of a kind, key and tags; raises `ValueError` for that of another."""
        needed = ("key", "tags", "last_epoch", "schedule", "value", *(("base",) if relative else ()))
        missing = [name for name in needed if not isinstance(state, Mapping) or name not in state]
        if missing:
            raise ValueError(f"{kind}: {str(state)[:80]} is not the state of such a scheduler: it lacks {missing}.")
        for what, own in (("key", key), ("tags", tags)):
            if state[what] != own:
                raise ValueError(f"{kind}: the state is of {what}={state[what]!r}, and here it is {own!r}.")
        return cls(
            key=key,
            tags=tags,
            last_epoch=checked_count(state["last_epoch"], kind),
            schedule=state["schedule"],
            value=state["value"],
            base=[finite(each, f"the initial {key}") for each in state["base"]] if relative else state.get("base"),
            clock=state.get("clock"),
            horizon=state.get("horizon"),
            length=state.get("length"),
        )

    def state_dict(self) -> dict[str, Any]:
        """In plain values."""
        return {name: value for name, value in vars(self).items() if value is not None or name == "tags"}

    def refuse_other(self, present: Saved, kind: str, moment_is_known: bool) -> None:
        """Raise `ValueError` where the present scheduler, at the moment of this state, has another value."""
        if (self.base is None) != (present.base is None):
            values = "one of them is a multiplier, the other a value"
        elif not moment_is_known:
            values = "their values are not compared, as nobody knows the moment of the state"
        elif are_close(self.value, present.value):
            return
        else:
            what = "value" if present.base is None else "multiplier"
            values = f"{what} at step {self.last_epoch}: {self.value} saved, {present.value} now"
        pairs = (self.schedule, present.schedule), (self.horizon, present.horizon)
        differing = [f"saved {then}\n    now   {now}" for then, now in pairs if then != now]
        raise ValueError(
            "\n    ".join([f"{kind}: the state is of another schedule:", *differing, values])
            + '\nMake the schedule that was saved, or load with on_change="new" to continue with the present one.'
        )


def are_close(one: list[float], other: list[float]) -> bool:
    """Whether two lists have the same numbers, but for their last bits."""
    pairs = list(zip(one, other))
    return len(one) == len(other) and all(abs(a - b) <= _CLOSE * max(abs(a), abs(b)) for a, b in pairs)
