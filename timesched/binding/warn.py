"""Warnings: of what runs as it is written, and is likely not what was meant."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer

from timesched.binding.evaluation import select_schedules
from timesched.time.timestamp import Timestamp

# The texts of `Bound.warn_of_jump`, by the phase of the schedule.
PHASE_TEXTS = {
    "warmup": ("is not over", "goes", "Change the length of the run between the warmup and the decay."),
    "decay": ("had begun", "goes back", "Continue from a checkpoint from before the decay."),
}


class Beginning(NamedTuple):
    """Where a scheduler stood when it was made or loaded."""

    steps: int
    timestamp: Timestamp  # of its clock
    changes: list[int]  # of its weights: see `count_changes`
    is_early: bool = False  # whether its first step came after the optimizer's, and before the clock's tick


def count_changes(optimizer: Optimizer, indices: Sequence[int]) -> list[int]:
    """How often each parameter of some groups was changed, as autograd counts it: more often after an optimizer's step.

    A fused step of torch changes parameters without a count; its state "step" has one.
    """
    changes = []
    for i in indices:
        for p in optimizer.param_groups[i]["params"]:
            state = optimizer.state.get(p)
            counters = [p, state.get("step")] if isinstance(state, Mapping) else [p]
            changes.append(sum(x._version for x in counters if isinstance(x, Tensor) and not x.is_inference()))
    return changes


def warn_of_long_warmup(schedule: Any, clock: Any, ssr: float | None) -> None:
    """Warn of schedules whose warmup lasts longer than the run, where their units convert."""
    with suppress(TypeError, ValueError):  # of wrong arguments, which are refused later
        for item in select_schedules(schedule):
            on_run = item._resolution(clock, ssr)  # is kept, so that nothing is resolved twice
            horizon, length = on_run.horizon, on_run.horizon.max_duration
            ends = dict.fromkeys(mark.time for name, mark in on_run.notes if name == "warmup")
            for end in ends:
                if length is not None and horizon.change(end.exact, end.unit, length.unit) > length.exact:
                    warnings.warn(
                        f"{item!r} warms up until {end}, and the run ends at {length}: it never gets to its full "
                        f"value.",
                        stacklevel=3,
                    )


def warn_of_zero(scheduler: Any) -> None:
    """Warn of a scheduler that multiplies 0 in all its groups."""
    if scheduler.relative and not any(scheduler.factors):
        warnings.warn(
            f"bind.key={scheduler.key!r}: the value is 0 in every group that is selected. Multiplied, it stays 0: give "
            f"the optimizer a {scheduler.key} above 0.",
            stacklevel=3,
        )


def warn_of_clock(scheduler: Any, beginning: Beginning) -> None:
    """Warn where the clock of a scheduler does not move, or moves after the step, or where ranks may differ."""
    clock, describe = scheduler.clock, scheduler._describe
    if beginning.is_early and clock.timestamp.batch.value == beginning.timestamp.batch.value + 1:
        warnings.warn(
            f"This {describe()} is stepped before clock.tick(), and each value comes one batch late: call "
            f"scheduler.step() after clock.tick().",
            stacklevel=4,
        )
    if clock.timestamp == beginning.timestamp:
        warnings.warn(
            f"The clock of this {describe()} has not moved in two steps: call clock.tick() after each step of the "
            f"optimizer, before scheduler.step().",
            stacklevel=4,
        )
    alone = clock.rank_local_units()
    units = scheduler.units() if alone else set()
    if not alone.isdisjoint(units):
        warnings.warn(
            f"The clock of this {describe()} counts on each rank alone, and the ranks may differ in "
            f"{' and '.join(sorted(unit.name.lower() + 's' for unit in units))}: make it with process_group=True, "
            f"which sums the counts over the ranks, or with process_group=False, if tick() is given the numbers "
            f"of all ranks.",
            stacklevel=4,
        )
