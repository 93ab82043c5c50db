"""Warnings of code that runs, but probably does not do what the user wants."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from timesched.binding.evaluation import select_schedules
from timesched.findings import FindingWarning, find_long_warmup
from timesched.horizon import State

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
