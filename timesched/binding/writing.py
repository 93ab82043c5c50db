"""Writing a value: may the scheduler write, into which groups, and is the value a finite number?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from timesched.binding.keys import is_finite_number
from timesched.binding.owner import check_single_owner
from timesched.ops import check_compiler, check_not_in_graph

if TYPE_CHECKING:
    from timesched.binding.bound import Bound


def check_write_access(scheduler: Bound) -> None:
    """Raise `ValueError` if a scheduler may not write, or if its groups were removed or replaced.

    Raises `RuntimeError` in a graph that cannot evaluate the schedule or write the value.
    """
    if scheduler.refusal is not None:
        name = type(scheduler).__name__
        raise ValueError(f"{name}.key={scheduler.key!r}: {scheduler._describe()} {scheduler.refusal}")
    if not torch.compiler.is_compiling():
        scheduler._target.find_again()
    elif scheduler.clock is not None:
        check_not_in_graph(
            "A scheduler that follows a clock reads it on the host. Call step() or refresh() outside of the "
            "compiled function: the group's tensor is updated in place, so nothing is compiled again."
        )
    else:  # a Python number would be a constant in the graph
        check_compiler()
        target = scheduler._target
        if type(scheduler._counter.steps) is int or len(target.tensors()) < len(target.indices):
            raise RuntimeError(
                f"{type(scheduler).__name__}.key={scheduler.key!r}: in a graph the value must be a tensor, and it is a "
                f"number. Call optimizer.hold_tensors() first, or pass lr=torch.tensor(0.1) to an optimizer of torch."
            )


def write(scheduler: Bound, value: Any) -> None:
    """Write a value of the schedule into the selected groups, times their base values."""
    target = scheduler._target
    values = [factor * value for factor in target.base_values]
    if type(value) is not float or not math.isfinite(sum(values)):
        check_finite(scheduler, values)
    target.write(values)


def check_finite(scheduler: Bound, values: Sequence[object]) -> None:
    """Raise `ValueError` if a value is not a finite number. In a graph, nothing is read."""
    is_read = not torch.compiler.is_compiling()
    invalid = [value for value in values if not is_finite_number(value)] if is_read else []
    if invalid:
        raise ValueError(
            f"{type(scheduler).__name__}.key={scheduler.key!r}: {scheduler._describe()} would set it to {invalid[0]!r} "
            f"after {int(scheduler._counter.steps)} steps, which is not a finite number. End the schedule before, or "
            f"change it."
        )


def select_new_groups(scheduler: Bound) -> None:
    """Select the groups that are new to a scheduler. Raises `ValueError` before anything is changed."""
    target, value = scheduler._target.copy_with_new_groups(), scheduler._value()
    check_finite(scheduler, [factor * value for factor in target.base_values])
    target.note_initial_values()
    scheduler._target = target


def add_new_groups(scheduler: Bound) -> None:
    """Select the groups that were added to the optimizer after a scheduler was made, if any."""
    if scheduler._target.has_new_groups():
        check_not_in_graph("Parameter groups were added. Call step() once outside of the compiled function.")
        check_single_owner(scheduler)
        select_new_groups(scheduler)
        scheduler.hold_tensors()
        scheduler._accept_groups()
        check_write_access(scheduler)
