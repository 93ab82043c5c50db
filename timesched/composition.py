"""Schedules made of schedules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from timesched.phases import Counts, Frame, Resolved
from timesched.schedule import Schedule


def _read(name: str, value: Any) -> tuple[Schedule, ...]:
    schedules = tuple(value) if isinstance(value, Iterable) else (value,)
    for schedule in schedules:
        if not isinstance(schedule, Schedule):
            raise TypeError(f"{name}: {schedule!r} is not a schedule of this package; bind([...]) takes functions too.")
    if not schedules:
        raise TypeError(f"{name} is empty: pass at least one schedule.")
    return schedules


@dataclass(frozen=True, eq=False, repr=False)
class ProductScheduler(Schedule):
    """The product of several schedules: a warmup of one kind times a decay of another.

    `schedules`: one or more of this package's schedules; for plain functions, `bind([...])` multiplies as well.
    Raises `TypeError` for anything else.

    >>> from timesched import ConstantScheduler, Horizon, LinearScheduler
    >>> ProductScheduler([LinearScheduler(), ConstantScheduler(0.5)]).at("0.5dur", Horizon("4ba"))
    0.25
    """

    schedules: Iterable[Schedule] = field(metadata={"read": _read})

    def resolve(self, frame: Frame) -> Resolved:
        factors = [schedule.resolve(frame) for schedule in self.schedules]

        def product(counts: Counts) -> Any:
            value: Any = 1.0
            for factor in factors:
                value = value * factor(counts)
            return value

        return product
