"""Warnings of code that runs, but probably does not do what the user wants."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from timesched.binding.evaluation import select_schedules
from timesched.binding.groups import select_groups
from timesched.binding.keys import read_number
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


def find_presumed_peak(scheduler: Bound) -> str | None:
    """The text for a learning rate that a scheduler multiplies, and that may have decayed already.

    It is the learning rate of a group without `initial_lr`, of an optimizer that has made steps.
    """
    groups, key = scheduler.optimizer.param_groups, scheduler._target.key
    if not scheduler.relative or key.name != "lr":
        return None
    lacking = [i for i in select_groups(groups, scheduler.tags) if "initial_lr" not in groups[i]]
    if not lacking or not _has_made_steps(scheduler.optimizer):  # which may wait for a device
        return None
    for i in lacking:
        learning_rate = read_number(key.peek(groups[i]))
        if learning_rate is not None:
            return (
                f"bind.key='lr': the optimizer has made steps, and parameter group {i} has no 'initial_lr'. So its "
                f"present learning rate, {learning_rate:.6g}, is taken for the peak. If it has decayed, set "
                f"group['initial_lr'] to the peak before bind()."
            )
    return None


def _has_made_steps(optimizer: Optimizer) -> bool:
    """Whether the state of an optimizer counts steps. A count on a device is read."""
    for state in optimizer.state.values():
        steps = state.get("step") if isinstance(state, Mapping) else None
        if steps is not None:
            with suppress(RuntimeError):  # from a tensor without a number: on meta, or fake
                return float(steps) > 0
    return False


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
