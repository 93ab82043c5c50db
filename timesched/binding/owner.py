"""The owner of a key: of all schedulers made for it, the scheduler that was created last controls it.

A scheduler is a `Bound`. Its `refusal` says why it may not write, and is None if it may.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from enum import Enum
from typing import Any

from torch.optim import Optimizer


class Refusal(Enum):
    """Why a scheduler may not write. The value is the text of the error, in which `cause` is filled in."""

    SUPERSEDED = (
        "no longer controls it, since {cause} was created later. Step the later scheduler, give them different tags, "
        "or combine them: bind a list, or make a SequentialLR or ChainedLR."
    )
    UNBOUND = "was unbound. Make another scheduler."
    UNUSED_FACTOR = "does not use the {cause}. Wrap it, as in ScalePerParamLR(optimizer, scheduler)."


# The schedulers of each optimizer, in the order in which they were made. Weak references keep no scheduler alive.
_schedulers: weakref.WeakKeyDictionary[Optimizer, list[weakref.ref[Any]]] = weakref.WeakKeyDictionary()


def take_key(scheduler: Any) -> None:
    """Make a scheduler the owner of its key. An earlier scheduler of the key in any of its groups writes no more."""
    earlier = [other for other in _living_schedulers(scheduler.optimizer) if other is not scheduler]
    _schedulers[scheduler.optimizer] = [*map(weakref.ref, earlier), weakref.ref(scheduler)]
    for other in earlier:
        if other.refusal is not Refusal.UNBOUND and other._target.shared_indices(scheduler._target):
            other._release(Refusal.SUPERSEDED, scheduler._describe())  # each error names the present owner


def restore_initial_values(optimizer: Optimizer) -> None:
    """Write the initial values that a load of the optimizer has removed from its groups, and that the owners know."""
    for owner in find_owners(optimizer):
        with suppress(ValueError):  # groups that were replaced: the next step of that owner says it
            owner._target.follow_groups()


def check_single_owner(scheduler: Any) -> None:
    """Raise `ValueError` if a group that was added has the tags of this scheduler and of another owner of its key."""
    for other in find_owners(scheduler.optimizer):
        indices = set() if other is scheduler else scheduler._target.shared_indices(other._target)
        if indices:
            raise ValueError(
                f"key={scheduler.key!r}: the new parameter group {min(indices)} has tags of two schedulers, "
                f"{scheduler._describe()} and {other._describe()}. Give it tags of one of them, or unbind() one."
            )


def find_owners(optimizer: Optimizer) -> list[Any]:
    """The schedulers that control a key of an optimizer's groups, in the order in which they were made."""
    return [scheduler for scheduler in _living_schedulers(optimizer) if scheduler.refusal is None]


def _living_schedulers(optimizer: Optimizer) -> list[Any]:
    schedulers = [reference() for reference in _schedulers.get(optimizer, [])]
    return [scheduler for scheduler in schedulers if scheduler is not None]
