"""Schedulers written for Composer, on a `Clock`: they get its timestamp and length in Composer's types.

`timesched.binding` imports this module, and Composer with it, only where a class derives from Composer's class.
"""

from __future__ import annotations

from typing import Any

from composer.core import Time, Timestamp

from timesched.run.clock import Clock
from timesched.time.units import TimeUnit


def call_on_clock(scheduler: Any, units: set[TimeUnit], clock: Clock, *positional_ratio: float, **ratio: float) -> Any:
    """Call a scheduler written for Composer with the state of a clock, and return its value.

    `units`: receives the units of the counters that the scheduler reads. The rest passes the scale-schedule ratio, as
    `timesched.schedulers.schedule.pass_ratio` says.

    Raises `ValueError` if Composer cannot convert or compare the scheduler's times, or if the length of the run is not
    a whole count. Raises `AttributeError` if the scheduler reads more of the state than a clock has. Other errors are
    the scheduler's own.
    """
    try:
        return scheduler(ClockState(clock, units), *positional_ratio, **ratio)
    except RuntimeError as error:  # Composer's, for times of different units
        raise ValueError(
            f"{type(scheduler).__name__}: {str(error).removesuffix('.')}. Give the clock batches_per_epoch, by which "
            f"Composer converts epochs to batches, or write all times in the unit of max_duration."
        ) from error


class ClockState:
    """The part of Composer's `State` that schedulers read, in Composer's types."""

    def __init__(self, clock: Clock, units: set[TimeUnit]) -> None:
        length, batches = clock.max_duration, clock.dataloader_len
        if not isinstance(length.exact, int):
            raise ValueError(
                f"Clock.max_duration={length}: Composer's schedulers need a whole count. Choose another length or ssr."
            )
        whole = int(clock.timestamp.batch_in_epoch)  # a load may ask at a fraction of a batch
        self.timestamp = ReadTimestamp(**clock.timestamp.state_dict() | {"batch_in_epoch": whole})
        self.timestamp.units = units
        self.max_duration = Time(length.exact, length.unit.value)
        self.dataloader_len = None if batches is None else Time.from_batch(batches)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"state.{name}: a clock has timestamp, max_duration and dataloader_len alone. Use this scheduler in "
            f"Composer's Trainer."
        )


class ReadTimestamp(Timestamp):
    """Composer's timestamp, which records the units in which it is read or compared."""

    units: set[TimeUnit]

    def get(self, unit: Any) -> Any:
        """The counter of a unit, as Composer's `Timestamp.get` returns it."""
        self.units.add(TimeUnit(unit))
        return super().get(unit)
