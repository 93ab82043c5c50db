"""Schedules made of schedules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from timesched.fields import times
from timesched.positions import Counts, Frame, Resolved, stages
from timesched.schedule import Schedule
from timesched.time.units import TimeError
from timesched.time.value import TimeLike


def _read(name: str, value: Any) -> tuple[Schedule, ...]:
    schedules = tuple(value) if isinstance(value, Iterable) else (value,)
    for schedule in schedules:
        if not isinstance(schedule, Schedule):
            raise TypeError(f"{name}: {schedule!r} is not a schedule of this package; bind([...]) takes functions too.")
    if not schedules:
        raise TypeError(f"{name} is empty: pass at least one schedule.")
    return schedules


@dataclass(frozen=True, eq=False, repr=False)
class SequenceScheduler(Schedule):
    """One schedule after another: each begins at its milestone, and counts its times from there.

    `schedules`: one or more of this package's schedules. `milestones`: the times at which the second and each further
    one begins; not falling, one less than the schedules. A `dur` in a schedule is a share of the whole run. Raises
    `ValueError` for other numbers of milestones, and where a milestone cannot be converted to the unit in which the
    schedule after it counts.

    >>> from timesched import Horizon, LinearScheduler
    >>> up, down = LinearScheduler(0.0, 1.0, t_max="4ba"), LinearScheduler(1.0, 0.5, t_max="8ba")
    >>> schedule = SequenceScheduler([up, down], milestones=["4ba"])
    >>> [schedule.at(t, Horizon("12ba")) for t in ("2ba", "4ba", "8ba", "12ba")]
    [0.5, 1.0, 0.75, 0.5]
    """

    schedules: Iterable[Schedule] = field(metadata={"read": _read})
    milestones: Sequence[TimeLike] = times()

    def __post_init__(self) -> None:
        super().__post_init__()
        number = len(tuple(self.schedules))
        if len(self.milestones) != number - 1:
            raise TimeError(
                f"SequenceScheduler: {number} schedules need {number - 1} milestones, one at the beginning of each but "
                f"the first, and there are {len(self.milestones)}."
            )

    def resolve(self, frame: Frame) -> Resolved:
        first, *others = self.schedules
        start = first.resolve(frame)
        marks = frame.rising(self.milestones)
        later = [frame.later(mark, schedule.resolve) for mark, schedule in zip(marks, others)]
        return stages(marks, [start, *later])


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
