"""Warnings of code that runs, but probably does not do what the user wants."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer

from timesched.binding.evaluation import select_schedules
from timesched.findings import FindingWarning, find_long_warmup
from timesched.time.timestamp import Timestamp

# The texts of `Bound.warn_of_jump`, by the phase of the schedule.
PHASE_TEXTS = {
    "warmup": ("is not over", "goes", "Change the length of the run between the warmup and the decay."),
    "decay": ("had begun", "goes back", "Continue from a checkpoint from before the decay."),
}


class Beginning(NamedTuple):
    """The position of a scheduler when it was made or loaded."""

    steps: int
    timestamp: Timestamp  # of its clock
    changes: list[int]  # of its parameters: see `count_changes`
    is_early: bool = False  # whether its first step came between the optimizer's step and the clock's tick


def count_changes(optimizer: Optimizer, indices: Sequence[int]) -> list[int]:
    """How often each parameter of some groups was changed, by autograd's counter. A step of an optimizer adds to it.

    A fused step of torch changes parameters without counting, but counts the change of its state "step".
    """
    changes = []
    for i in indices:
        for p in optimizer.param_groups[i]["params"]:
            state = optimizer.state.get(p)
            counters = [p, state.get("step")] if isinstance(state, Mapping) else [p]
            changes.append(sum(x._version for x in counters if isinstance(x, Tensor) and not x.is_inference()))
    return changes


def warn_of_long_warmup(schedule: Any, clock: Any, ssr: float | None) -> None:
    """Warn of a warmup that lasts longer than the run, if their units convert."""
    with suppress(TypeError, ValueError):  # wrong arguments raise later, with a better message
        for item in select_schedules(schedule):
            text = find_long_warmup(item, clock, ssr)
            if text is not None:
                warnings.warn(f"{item!r}: {text}", FindingWarning, stacklevel=3)


def warn_of_zero(scheduler: Any) -> None:
    """Warn of a scheduler whose base value is 0 in all groups."""
    if scheduler.relative and not any(scheduler.factors):
        warnings.warn(
            f"bind.key={scheduler.key!r}: the value is 0 in every group that is selected. Multiplied, it stays 0: give "
            f"the optimizer a {scheduler.key} above 0.",
            FindingWarning,
            stacklevel=3,
        )


def warn_of_clock(scheduler: Any, beginning: Beginning) -> None:
    """Warn if the clock of a scheduler does not tick, ticks after the step, or counts each rank alone."""
    clock, describe = scheduler.clock, scheduler._describe
    if beginning.is_early and clock.timestamp.batch.value == beginning.timestamp.batch.value + 1:
        warnings.warn(
            f"This {describe()} is stepped before clock.tick(), so each value comes one batch late. Call "
            f"scheduler.step() after clock.tick().",
            stacklevel=4,
        )
    if clock.timestamp == beginning.timestamp:
        warnings.warn(
            f"The clock of this {describe()} has not moved in two steps. Call clock.tick() after each step of the "
            f"optimizer, before scheduler.step().",
            stacklevel=4,
        )
    alone = clock.rank_local_units()
    units = scheduler.units() if alone else set()
    if not alone.isdisjoint(units):
        warnings.warn(
            f"The clock of this {describe()} counts each rank alone, and the ranks may differ in "
            f"{' and '.join(sorted(unit.name.lower() + 's' for unit in units))}. Make the clock with "
            f"process_group=True, which sums the counts, or with process_group=False if tick() gets the sums.",
            stacklevel=4,
        )
