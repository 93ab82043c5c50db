"""Listeners: the schedulers that follow a clock."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from timesched.time.value import Time


class Listeners(WeakSet[Any]):
    """The schedulers that follow a clock, for as long as they live.

    A clock calls three methods of a scheduler. `refresh()` writes its value after each change that is not a tick.
    `expect_new_length()` comes before a new length of the run, and returns a function that is called after it.
    `was_never_stepped()` says whether its loop seems to have forgotten it.
    """

    def refresh(self, undo: Callable[[], None]) -> None:
        """Let all schedulers write their values after a change of the clock.

        If one raises, call `undo`, which changes the clock back, and let the others write their values again.
        """
        written = []
        try:
            for scheduler in list(self):
                scheduler.refresh()
                written.append(scheduler)
        except BaseException:
            undo()
            for scheduler in written:
                scheduler.refresh()
            raise

    def warn_of_missing_step(self, batch: Time[int]) -> None:
        """Warn, at a batch of the clock, of the schedulers that were not stepped since they were made or loaded."""
        names = sorted(scheduler._describe() for scheduler in self if scheduler.was_never_stepped())
        if names:
            warnings.warn(
                f"The clock is at {batch}, and {' and '.join(names)} was not stepped since it was made or loaded. Call "
                f"scheduler.step() after clock.tick().",
                stacklevel=3,
            )
