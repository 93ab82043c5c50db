"""What schedulers write over a run, for tables, pictures and checks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from timesched.binding import Bound
from timesched.composition import ProductScheduler
from timesched.drawing.lines import Source
from timesched.horizon import Horizon
from timesched.schedule import Schedule

from .arguments import adjustment


def sources(scheduler: Any, run: Any = None) -> list[Source]:
    """What a scheduler writes over a run, once for each initial value or factor among its groups, under names such as
    `lr` and `lr [head]`.

    `run`: the clock of a run, for a scheduler that has none; each of its steps is a batch. None for as many steps as it
    is made for. Raises `ValueError` where neither says how long that is, and `TypeError` for a scheduler of torch's, or
    one of functions, whose value at another time is not known.
    """
    schedule = getattr(scheduler, "schedule", None)
    if isinstance(schedule, (list, tuple)) and all(isinstance(each, Schedule) for each in schedule):
        schedule = ProductScheduler(schedule)
    if not isinstance(scheduler, Bound) or not isinstance(schedule, Schedule):
        raise TypeError(
            f"{type(scheduler).__name__} cannot be drawn: what it does later is known of the schedulers of optim and "
            f"of bind() with schedules of timesched alone."
        )
    horizon = _steps(scheduler, run) if scheduler.clock is None else Horizon.of(scheduler.clock)
    name = column(scheduler.key, scheduler.tags)
    factors: list[tuple[int, float]] = []
    for at, i in enumerate(scheduler.indices):
        scales = getattr(scheduler, "scales", 0)
        factor = scheduler._bases[at] if scheduler.relative else 1.0
        factor *= adjustment(scheduler.optimizer.param_groups[i]) ** scales if scales else 1.0
        factors.append((i, factor))
    return of_groups(name, schedule, horizon, factors)


def of_groups(name: str, schedule: Schedule, horizon: Horizon, factors: Iterable[tuple[int, float]]) -> list[Source]:
    """What a schedule writes into groups, once for each factor; with several of them, the first group is in the name.

    `factors`: the index of each group, and what its values are multiples of.
    """
    first: dict[float, int] = {}
    for i, factor in factors:
        first.setdefault(factor, i)
    several = len(first) > 1
    return [
        Source(f"{name} of group {i}" if several else name, schedule, horizon, factor) for factor, i in first.items()
    ]


def column(key: str, tags: Any) -> str:
    """What a scheduler of a key is called, as in `lr [head]`."""
    several = [tags] if isinstance(tags, str) else tags or ()
    shown = ", ".join("no tags" if tag is None else str(tag) for tag in several)
    return f"{key} [{shown}]" if shown else key


def _steps(scheduler: Any, run: Any) -> Horizon:
    """The run of a scheduler that counts its own steps, which no ratio stretches."""
    if run is not None:
        horizon = Horizon.of(run)
        return Horizon._of(horizon.max_duration, 1, horizon._rates, scaled=True)
    total = getattr(scheduler, "total_iters", None)
    if not isinstance(total, int) or not total:
        raise ValueError(
            f"{type(scheduler).__name__} counts its own steps, and does not say how many there are: give the length of "
            f"the run, as max_duration."
        )
    return Horizon(f"{total}ba")
