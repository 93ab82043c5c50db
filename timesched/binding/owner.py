"""Who owns a key of a group: of the schedulers that set it, the one that was made last.

The schedulers are each a `Bound`; their `refusal` says why they may not write, and is None where they may.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torch.optim import Optimizer

from timesched.binding.groups import describe_tags, select_groups

UNBOUND = "was unbound: make another one"


# Those that were made for each optimizer, in this order. Weakly, so that a scheduler goes with its last name.
_made: weakref.WeakKeyDictionary[Optimizer, list[weakref.ref[Any]]] = weakref.WeakKeyDictionary()


def _made_for(optimizer: Optimizer) -> list[Any]:
    found = (ref() for ref in _made.get(optimizer, []))
    return [each for each in found if each is not None]


def find_owners(optimizer: Optimizer) -> list[Any]:
    """The schedulers that own a key of an optimizer's groups, in the order in which they were made."""
    return [each for each in _made_for(optimizer) if each.refusal is None]


def take_ownership(scheduler: Any) -> None:
    """Give a scheduler its key in the groups that it sets; an earlier one of any of these may not write any more."""
    optimizer, indices = scheduler.optimizer, set(scheduler.indices)
    earlier = [other for other in _made_for(optimizer) if other is not scheduler]
    for other in earlier:  # those superseded before, too: they are to name the owner of now
        shared = other.key == scheduler.key and indices.intersection(select_groups(optimizer.param_groups, other.tags))
        if shared and other.refusal != UNBOUND:
            _supersede(other, scheduler)
    _made[optimizer] = [*map(weakref.ref, earlier), weakref.ref(scheduler)]


def _supersede(earlier: Any, later: Any) -> None:
    if earlier.relative and later.relative:
        both = "bind the list of both, which multiplies them, or make them one sequence"
    else:
        both = "if both are schedulers of optim, make one SequentialLR or ChainedLR of them"
    earlier.refusal = (
        f"was superseded by {later._describe()}, which was made later: step that one. For two schedules of one number, "
        f"{both}; or give them different tags ({describe_tags(later.optimizer.param_groups)})"
    )
    earlier._leave_clock()


def check_single_owner(scheduler: Any, added: Iterable[int]) -> None:
    """Raise `ValueError` where a group that was added is for another scheduler of the same key, too."""
    groups = scheduler.optimizer.param_groups
    wanted = set(added).intersection(select_groups(groups, scheduler.tags))
    for other in find_owners(scheduler.optimizer):
        both = wanted.intersection(select_groups(groups, other.tags))
        if other is not scheduler and other.key == scheduler.key and both:
            raise ValueError(
                f"{scheduler.key!r} of parameter group {min(both)}, which was added, is for two schedulers, "
                f"{scheduler._describe()} and {other._describe()}: give it tags of one of them, or unbind() one."
            )
