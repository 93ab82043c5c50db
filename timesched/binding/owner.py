"""The owner of a key: of all schedulers made for it, the scheduler that was created last controls it.

A scheduler is a `Bound`. Its `refusal` says why it may not write, and is None if it may.
"""

from __future__ import annotations

import weakref
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


def add_scheduler(scheduler: Any) -> list[Any]:
    """Note a scheduler as the last one of its optimizer. Returns the earlier schedulers that are alive."""
    earlier = [other for other in _living_schedulers(scheduler.optimizer) if other is not scheduler]
    _schedulers[scheduler.optimizer] = [*map(weakref.ref, earlier), weakref.ref(scheduler)]
    return earlier


def find_owners(optimizer: Optimizer) -> list[Any]:
    """The schedulers that control a key of an optimizer's groups, in the order in which they were made."""
    return [scheduler for scheduler in _living_schedulers(optimizer) if scheduler.refusal is None]


def _living_schedulers(optimizer: Optimizer) -> list[Any]:
    schedulers = [reference() for reference in _schedulers.get(optimizer, [])]
    return [scheduler for scheduler in schedulers if scheduler is not None]
