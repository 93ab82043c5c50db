"""The values that schedulers write over a run, for tables, pictures and checks."""

from __future__ import annotations

from timesched.binding import Bound
from timesched.binding.groups import read_tags
from timesched.drawing.lines import Source
from timesched.run.horizon import Horizon, State
from timesched.schedulers.composition import ProductScheduler
from timesched.schedulers.schedule import Schedule


def sources(scheduler: object, run: Horizon | State | None = None) -> list[Source]:
    """The values that a scheduler writes over a run: one source for each initial value or factor among its groups.

    The names are such as `lr` and `lr [head]`. If there are several sources, the name has the first group of each.
    `run`: the clock of a run, for a scheduler without a clock; each of its steps is a batch. None means as many steps
    as the scheduler is made for. Raises `ValueError` if neither gives a length. Raises `TypeError` for a scheduler of
    torch or of functions, since its value at another time is not known.
    """
    schedule = getattr(scheduler, "schedule", None)
    if isinstance(schedule, (list, tuple)) and all(isinstance(factor, Schedule) for factor in schedule):
        schedule = ProductScheduler(schedule)
    if not isinstance(scheduler, Bound) or not isinstance(schedule, Schedule):
        raise TypeError(
            f"{type(scheduler).__name__} cannot be drawn: its later values are unknown. Draw a scheduler of optim, or "
            f"of bind() with schedules of timesched."
        )
    horizon = _step_horizon(scheduler, run) if scheduler.clock is None else Horizon.of(scheduler.clock, scheduler.ssr)
    tags = ", ".join("no tags" if tag is None else str(tag) for tag in read_tags(scheduler.tags))
    name = f"{scheduler.key} [{tags}]" if tags else scheduler.key
    first: dict[float, int] = {}
    for i, factor in zip(scheduler.indices, scheduler.factors):
        first.setdefault(factor, i)
    if len(first) == 1:
        return [Source(name, schedule, horizon, scheduler.factors[0], scheduler.key)]
    return [Source(f"{name} of group {i}", schedule, horizon, factor, scheduler.key) for factor, i in first.items()]


def _step_horizon(scheduler: object, run: Horizon | State | None) -> Horizon:
    """The run of a scheduler that counts its own steps. No ratio stretches it."""
    if run is not None:
        horizon = Horizon.of(run)
        return Horizon._make(horizon.max_duration, 1, horizon.conversion_factors)
    total = getattr(scheduler, "total_iters", None)
    if not isinstance(total, int) or not total:
        raise ValueError(
            f"{type(scheduler).__name__} counts its own steps, and their number is unknown. Pass max_duration, the "
            f"length of the run."
        )
    return Horizon(f"{total}ba")
