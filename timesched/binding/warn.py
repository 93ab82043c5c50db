"""Warnings: of what runs as it is written, and is likely not what was meant."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any

from timesched.binding.evaluation import schedules_in
from timesched.time.timestamp import Timestamp


def warn_of_long_warmup(schedule: Any, clock: Any, ssr: float | None) -> None:
    """Warn of schedules whose warmup lasts longer than the run, where their units convert."""
    with suppress(TypeError, ValueError):  # of wrong arguments, which are refused later
        for one in schedules_in(schedule):
            on_run = one._resolution(clock, ssr)  # is kept, so that nothing is resolved twice
            horizon, length = on_run.horizon, on_run.horizon.max_duration
            ends = dict.fromkeys(mark.time for name, mark in on_run.notes if name == "warmup")
            for end in ends:
                if length is not None and horizon.change(end.exact, end.unit, length.unit) > length.exact:
                    warnings.warn(
                        f"{one!r} warms up until {end}, and the run ends at {length}: it never gets to its full value.",
                        stacklevel=3,
                    )


def warn_in_second_step(scheduler: Any, first: Timestamp) -> None:
    """Warn where the clock of a scheduler still is where it was in the first step, or where ranks may differ."""
    clock, name = scheduler.clock, scheduler._name
    if clock.timestamp == first:
        warnings.warn(
            f"The clock of this {name()} has not moved in two steps: call clock.tick() after each step of the "
            f"optimizer, before scheduler.step().",
            stacklevel=4,
        )
    alone = clock.counted_alone()
    units = scheduler.units() if alone else set()
    if not alone.isdisjoint(units):
        warnings.warn(
            f"The clock of this {name()} counts on each rank alone, and the ranks may differ in "
            f"{' and '.join(sorted(unit.name.lower() + 's' for unit in units))}: make it with process_group=True, "
            f"which sums the counts over the ranks, or with process_group=False, if tick() is given the numbers "
            f"of all ranks.",
            stacklevel=4,
        )
