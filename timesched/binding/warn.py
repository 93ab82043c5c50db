"""Warnings of code that runs, but probably does not do what the user wants."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch.optim import Optimizer

from timesched.binding.evaluation import select_schedules
from timesched.binding.target import SelectedGroup
from timesched.findings import FindingWarning, find_long_warmup
from timesched.run.horizon import Horizon, State
from timesched.schedulers.schedule import Schedule
from timesched.time.timestamp import counts_of


def warn_of_long_warmup(schedules: Sequence[object], clock: State | None, ssr: float | None) -> None:
    """Warn of a warmup that lasts longer than the run, if their units convert."""
    with suppress(AttributeError, TypeError, ValueError):  # wrong arguments raise later, with a better message
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


# A new length of the run


def make_jump_check(scheduler: Any) -> Callable[[], None]:
    """Note the phase and the values of a `Bound`, before its clock gets a new length.

    Returns a function that warns if the new length has changed the values within a warmup or a decay.
    """
    phase = _find_phase(scheduler)
    if phase is None:
        return lambda: None
    old_values = scheduler.get()

    def warn_of_jump() -> None:
        new_values = scheduler.get()
        changed = [i for i in scheduler.indices if new_values[i] != old_values[i]]
        if changed:
            state, goes, advice = _PHASE_TEXTS[phase]
            old, new = old_values[changed[0]], new_values[changed[0]]
            warnings.warn(
                f"The {phase} of {scheduler._describe()} {state}: in a run of {scheduler.clock.max_duration} "
                f"{scheduler.key!r} {goes} from {old:.4g} to {new:.4g}. {advice}",
                stacklevel=4,
            )

    return warn_of_jump


_PHASE_TEXTS = {
    "warmup": ("is not over", "goes", "Change the length of the run between the warmup and the decay."),
    "decay": ("had begun", "goes back", "Continue from a checkpoint from before the decay."),
}


def _find_phase(scheduler: Any) -> str | None:
    """The phase in which a new length of the run may change the value: "decay", "warmup" or None.

    "decay": one of the schedules has begun its decay phase, as a `WarmupStableDecayScheduler` has. "warmup": the end of
    a warmup is the next mark of one of the schedules.
    """
    horizon, phase = Horizon.of(scheduler.clock, scheduler.ssr), None
    for schedule in select_schedules(scheduler.schedule):
        upcoming = []
        for name, time in schedule.marks(horizon):
            count, counter = horizon.place(time, scale=False)
            if counts_of(scheduler.clock.timestamp, (counter,))[0] < count:
                upcoming.append(name)
            elif name == "decay":
                return name
        if upcoming[:1] == ["warmup"]:
            phase = "warmup"
    return phase
