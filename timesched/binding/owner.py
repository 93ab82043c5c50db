"""The owner of a key: of all schedulers made for a key of a group, the scheduler that was created last controls it.

Each scheduler is a `Bound`. Its `refusal` is the reason why it may not write, or None if it may.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torch.optim import Optimizer

from timesched.binding.groups import select_groups

UNBOUND = "was unbound. Make another scheduler."


# The schedulers of each optimizer, in the order in which they were made. Weak references keep no scheduler alive.
_schedulers: weakref.WeakKeyDictionary[Optimizer, list[weakref.ref[Any]]] = weakref.WeakKeyDictionary()


def _living_schedulers(optimizer: Optimizer) -> list[Any]:
    schedulers = (ref() for ref in _schedulers.get(optimizer, []))
    return [scheduler for scheduler in schedulers if scheduler is not None]


def find_owners(optimizer: Optimizer) -> list[Any]:
    """The schedulers that control a key of an optimizer's groups, in the order in which they were made."""
    return [scheduler for scheduler in _living_schedulers(optimizer) if scheduler.refusal is None]


def take_ownership(scheduler: Any) -> None:
    """Give a scheduler control of its key in its groups. An earlier scheduler of any of them may not write any more."""
    optimizer, indices = scheduler.optimizer, set(scheduler.indices)
    earlier = [other for other in _living_schedulers(optimizer) if other is not scheduler]
    for other in earlier:  # all of them, so that each error names the present owner
        is_rival = other.key == scheduler.key and other.refusal != UNBOUND
        if is_rival and indices.intersection(select_groups(optimizer.param_groups, other.tags)):
            _supersede(other, scheduler)
    _schedulers[optimizer] = [*map(weakref.ref, earlier), weakref.ref(scheduler)]


def _supersede(earlier: Any, later: Any) -> None:
    earlier.refusal = (
        f"no longer controls it, since {later._describe()} was created later. Step the later scheduler, give them "
        f"different tags, or combine them: bind a list, or make a SequentialLR or ChainedLR."
    )
    earlier._leave_clock()


def check_single_owner(scheduler: Any, new_indices: Iterable[int]) -> None:
    """Raise `ValueError` if an added group has the tags of two schedulers of the same key."""
    groups = scheduler.optimizer.param_groups
    own_indices = set(new_indices).intersection(select_groups(groups, scheduler.tags))
    for other in find_owners(scheduler.optimizer):
        shared_indices = own_indices.intersection(select_groups(groups, other.tags))
        if other is not scheduler and other.key == scheduler.key and shared_indices:
            raise ValueError(
                f"key={scheduler.key!r}: the new parameter group {min(shared_indices)} has tags of two schedulers, "
                f"{scheduler._describe()} and {other._describe()}. Give it tags of one of them, or unbind() one."
            )
