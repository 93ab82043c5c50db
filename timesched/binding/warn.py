"""Warnings of code that runs, but probably does not do what the user wants."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from timesched.binding.evaluation import select_schedules
from timesched.clock import Clock
from timesched.findings import FindingWarning, find_long_warmup
from timesched.horizon import State
from timesched.time.timestamp import Timestamp

if TYPE_CHECKING:
    from timesched.binding.bound import Bound

# The texts of `warn_of_jump`, by the phase of the schedule.
PHASE_TEXTS = {
    "warmup": ("is not over", "goes", "Change the length of the run between the warmup and the decay."),
    "decay": ("had begun", "goes back", "Continue from a checkpoint from before the decay."),
}


def warn_of_long_warmup(schedule: object, clock: State | None, ssr: float | None) -> None:
    """Warn of a warmup that lasts longer than the run, if their units convert."""
    with suppress(TypeError, ValueError):  # wrong arguments raise later, with a better message
        for item in select_schedules(schedule):
            text = find_long_warmup(item, clock, ssr)
            if text is not None:
                warnings.warn(f"{item!r}: {text}", FindingWarning, stacklevel=3)


def warn_of_zero(scheduler: Bound) -> None:
    """Warn of a scheduler whose base value is 0, in all groups."""
    if scheduler.relative and not any(scheduler.factors):
        warnings.warn(
            f"bind.key={scheduler.key!r}: the value is 0 in every group that is selected. Multiplied, it stays 0: give "
            f"the optimizer a {scheduler.key} above 0.",
            FindingWarning,
            stacklevel=3,
        )


def warn_of_jump(scheduler: Any, phase: str, before: list[object]) -> None:
    """Warn if a new length of the run changed the values within a phase."""
    now = scheduler.get()
    for i in scheduler.indices:
        if now[i] != before[i]:
            state, goes, advice = PHASE_TEXTS[phase]
            warnings.warn(
                f"The {phase} of {scheduler._describe()} {state}: in a run of {scheduler.clock.max_duration} "
                f"{scheduler.key!r} {goes} from {before[i]:.4g} to {now[i]:.4g}. {advice}",
                stacklevel=5,
            )
            return


# The first two steps: does the clock tick, and before the scheduler?


class Beginning(NamedTuple):
    """The position of a scheduler when it was made or loaded."""

    steps: int
    timestamp: Timestamp  # of its clock
    changes: list[int]  # of its parameters: see `GroupTarget.count_changes`
    is_early: bool = False  # whether its first step came between the optimizer's step and the clock's tick


def note_beginning(scheduler: Bound) -> Beginning | None:
    """The position of a scheduler, for the checks in its next two steps; None if it does not follow a `Clock`."""
    clock = scheduler.clock
    if not isinstance(clock, Clock):
        return None
    return Beginning(int(scheduler._counter.steps), clock.timestamp, scheduler._target.count_changes())


def is_forgotten(scheduler: Bound, beginning: Beginning | None) -> bool:
    """Whether the optimizer has stepped since a scheduler was made or loaded, and the scheduler has not."""
    if beginning is None or int(scheduler._counter.steps) != beginning.steps:
        return False
    changes = scheduler._target.count_changes()
    return bool(changes[: len(beginning.changes)] != beginning.changes)  # groups may have been added


def check_first_steps(scheduler: Any, beginning: Beginning) -> Beginning | None:
    """Warn in the second step if the clock does not tick, ticks after the step, or counts each rank alone.

    Returns the beginning for the next step; None when the check is done.
    """
    if int(scheduler._counter.steps) == beginning.steps:
        is_unmoved = scheduler.clock.timestamp == beginning.timestamp
        return beginning._replace(is_early=is_unmoved and is_forgotten(scheduler, beginning))
    for text in _find_clock_faults(scheduler, beginning):
        warnings.warn(text, stacklevel=3)
    return None


def _find_clock_faults(scheduler: Any, beginning: Beginning) -> Iterator[str]:
    """The texts for a clock that does not tick, ticks after the scheduler's step, or counts each rank alone."""
    clock, describe = scheduler.clock, scheduler._describe
    if beginning.is_early and clock.timestamp.batch.value == beginning.timestamp.batch.value + 1:
        yield (
            f"This {describe()} is stepped before clock.tick(), so each value comes one batch late. Call "
            f"scheduler.step() after clock.tick()."
        )
    if clock.timestamp == beginning.timestamp:
        yield (
            f"The clock of this {describe()} has not moved in two steps. Call clock.tick() after each step of the "
            f"optimizer, before scheduler.step(). See docs/troubleshooting.md."
        )
    alone = clock.rank_local_units()
    units = scheduler.units() if alone else set()
    if not alone.isdisjoint(units):
        yield (
            f"The clock of this {describe()} counts each rank alone, and the ranks may differ in "
            f"{' and '.join(sorted(unit.name.lower() + 's' for unit in units))}. Make the clock with "
            f"process_group=True, which sums the counts, or with process_group=False if tick() gets the sums."
        )
