"""Snapshots of a scheduler: what it is and how far it got, in plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .arguments import describe, difference
from .counted import checked_count
from .driving import Driving


class Resumable(Driving):
    """What can be saved and loaded, copied and pickled."""

    _resolve: Callable[[], None]

    def state_dict(self) -> dict[str, Any]:
        """What schedule it is, and the number of steps: plain values that no step changes afterwards."""
        return {
            "schedule": describe(self),
            "key": self.param_group_key,
            "last_epoch": int(self._count),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to the step of a state dict and write its value into the groups.

        Raises `ValueError` when it is not the state of the same schedule, saying what differs; nothing is changed then.
        """
        name = type(self).__name__
        if not isinstance(state_dict, Mapping):
            raise ValueError(f"{name}: {state_dict!r} is no state: pass what state_dict() returned.")
        missing = [key for key in ("schedule", "key", "last_epoch") if key not in state_dict]
        if missing:
            raise ValueError(f"{name}: the state lacks {', '.join(missing)}: it is not of such a scheduler.")
        if self.is_part:
            raise ValueError(f"This {name} is a part of a {self._owner}: load that one.")
        count = checked_count(state_dict["last_epoch"], name)
        own = self.state_dict()
        for key in ("key", "schedule"):
            what = difference(state_dict[key], own[key], key)
            if what:
                raise ValueError(f"{name}: the state is of another schedule: {what}.")
        self._return()
        before = int(self._count)
        self._count_to(count)
        try:
            self.refresh()
        except BaseException:
            self._count_to(before)
            raise

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_function",)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._resolve()
        if self._target.active:
            self._bind()
