"""The owner of a key: of all schedulers made for it, the scheduler that was created last controls it.

Each scheduler is a `Bound`. Its `refusal` is the reason why it may not write, or None if it may.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from timesched.clock import Clock

if TYPE_CHECKING:
    from timesched.binding.bound import Bound

UNBOUND = "was unbound. Make another scheduler."
_ADVICE = (
    "Step the later scheduler, give them different tags, or combine them: bind a list, or make a SequentialLR or "
    "ChainedLR."
)

# The schedulers of each optimizer, in the order in which they were made. Weak references keep no scheduler alive.
_schedulers: weakref.WeakKeyDictionary[Optimizer, list[weakref.ref[Any]]] = weakref.WeakKeyDictionary()


def _living_schedulers(optimizer: Optimizer) -> list[Any]:
    schedulers = (ref() for ref in _schedulers.get(optimizer, []))
    return [scheduler for scheduler in schedulers if scheduler is not None]


def find_owners(optimizer: Optimizer) -> list[Any]:
    """The schedulers that control a key of an optimizer's groups, in the order in which they were made."""
    return [scheduler for scheduler in _living_schedulers(optimizer) if scheduler.refusal is None]


def take_ownership(scheduler: Bound) -> None:
    """Give a scheduler control of its key in its groups. An earlier scheduler of any of them may not write any more.

    A copy of a scheduler that may not write takes nothing.
    """
    if scheduler.refusal is not None:
        return
    earlier = [other for other in _living_schedulers(scheduler.optimizer) if other is not scheduler]
    indices = set(scheduler.indices)
    for other in earlier:  # all of them, so that each error names the present owner
        if other.refusal != UNBOUND and other._target.overlaps(scheduler.key, indices):
            cause = f"since {scheduler._describe()} was created later"
            other.refusal = f"no longer controls it, {cause}. {_ADVICE}"
            leave_clock(other)
    _schedulers[scheduler.optimizer] = [*map(weakref.ref, earlier), weakref.ref(scheduler)]
    if isinstance(scheduler.clock, Clock):
        scheduler.clock._add_listener(scheduler)
    scheduler._accept_groups()


def renew_initial_values(optimizer: Optimizer) -> None:
    """Write the initial values into groups that have lost them, as by a load, before a new scheduler reads them."""
    groups = optimizer.param_groups
    for scheduler in find_owners(optimizer):
        target = scheduler._target
        if any(i < len(groups) and target.initial_key not in groups[i] for i in target.indices):
            with suppress(ValueError):  # groups that were replaced: the next step of that scheduler says it
                target.find_again()


def leave_clock(scheduler: Bound) -> None:
    """Let the clock of a scheduler forget it."""
    if isinstance(scheduler.clock, Clock):
        scheduler.clock._listeners.discard(scheduler)


def check_single_owner(scheduler: Any) -> None:
    """Raise `ValueError` if an added group has the tags of two schedulers of the same key."""
    new_indices = scheduler._target.new_indices()
    for other in find_owners(scheduler.optimizer):
        shared_indices = new_indices & other._target.present_indices()
        if other is not scheduler and other.key == scheduler.key and shared_indices:
            raise ValueError(
                f"key={scheduler.key!r}: the new parameter group {min(shared_indices)} has tags of two schedulers, "
                f"{scheduler._describe()} and {other._describe()}. Give it tags of one of them, or unbind() one."
            )
