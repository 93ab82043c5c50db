"""Warnings of code that runs, but probably does not do what the user wants."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress

from torch.optim import Optimizer

from timesched.binding.target import SelectedGroup
from timesched.findings import FindingWarning, find_long_warmup
from timesched.run.horizon import State
from timesched.schedulers.schedule import Schedule

# The texts of `Bound.warn_of_jump`, by the phase of the schedule.
PHASE_TEXTS = {
    "warmup": ("is not over", "goes", "Change the length of the run between the warmup and the decay."),
    "decay": ("had begun", "goes back", "Continue from a checkpoint from before the decay."),
}


def warn_of_long_warmup(schedules: Sequence[object], clock: State | None, ssr: float | None) -> None:
    """Warn of a warmup that lasts longer than the run, if their units convert."""
    with suppress(TypeError, ValueError):  # wrong arguments raise later, with a better message
        for item in schedules:
            text = find_long_warmup(item, clock, ssr) if isinstance(item, Schedule) else None
            if text is not None:
                warnings.warn(f"{item!r}: {text}", FindingWarning, stacklevel=3)


def warn_of_zero(key: str, base_values: Sequence[float]) -> None:
    """Warn of base values that are 0 in all groups."""
    if not any(base_values):
        warnings.warn(
            f"bind.key={key!r}: the value is 0 in every group that is selected. Multiplied, it stays 0: give the "
            f"optimizer a {key} above 0.",
            FindingWarning,
            stacklevel=3,
        )


def find_presumed_peak(optimizer: Optimizer, selection: Sequence[SelectedGroup]) -> str | None:
    """The text for a learning rate that a scheduler multiplies, and that may have decayed already.

    It is the learning rate of a group without `initial_lr`, of an optimizer that has made steps.
    """
    lacking = [selected for selected in selection if "initial_lr" not in selected.group]
    if not lacking or not _has_made_steps(optimizer):  # which may wait for a device
        return None
    index, learning_rate = lacking[0].index, float(lacking[0].initial_value)
    return (
        f"bind.key='lr': the optimizer has made steps, and parameter group {index} has no 'initial_lr'. So its present "
        f"learning rate, {learning_rate:.6g}, is taken for the peak. If it has decayed, set group['initial_lr'] to the "
        f"peak before bind()."
    )


def _has_made_steps(optimizer: Optimizer) -> bool:
    """Whether the state of an optimizer counts steps. A count on a device is read."""
    for state in optimizer.state.values():
        steps = state.get("step") if isinstance(state, Mapping) else None
        if steps is not None:
            with suppress(RuntimeError):  # from a tensor without a number: on meta, or fake
                return float(steps) > 0
    return False
