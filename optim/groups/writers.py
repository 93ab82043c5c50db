"""Which schedulers write to the parameter groups of an optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from timesched.binding import Bound, bound_to
from timesched.keys import known_tags

from ..scheduler import Scheduler


def is_scheduled(optimizer: torch.optim.Optimizer) -> bool:
    """Whether there are schedulers of ours that write to the groups of an optimizer."""
    return bool(bound_to(optimizer))


def written(scheduler: Any) -> tuple[str, set[int]]:
    """The key that a scheduler writes, and the groups; torch's own write the learning rate of all groups."""
    if isinstance(scheduler, Bound):
        return scheduler.key, set(scheduler.indices)
    if isinstance(scheduler, LRScheduler):
        return "lr", set(range(len(scheduler.optimizer.param_groups)))
    return "", set()  # nobody knows


def refuse_shared(schedulers: Sequence[Any], path: str) -> None:
    """Raise `ValueError` where the last scheduler writes what an earlier one does. Torch's own may share."""
    last = schedulers[-1]
    key, groups = written(last)
    for i, other in enumerate(schedulers[:-1]):
        its, theirs = written(other)
        both = groups & theirs if key == its else set()
        if both and (isinstance(last, Bound) or isinstance(other, Bound)):
            raise ValueError(
                f"{path}[{len(schedulers) - 1}]: {key!r} of parameter group {min(both)} is bound already, by "
                f"{path}[{i}] ({type(other).__name__}): make them one, as a SequentialLR or ChainedLR; give them "
                f"different tags (there are: {known_tags(last.optimizer.param_groups)}); or leave out one."
            )


def refuse_decay(scheduler: Any, spared: frozenset[int], path: str) -> None:
    """Raise `ValueError` where a scheduler sets weight decay that is to stay 0; a bound schedule multiplies the 0."""
    key, groups = written(scheduler)
    hit = sorted(spared & groups)
    if hit and key == "weight_decay" and isinstance(scheduler, Scheduler):
        names = ", ".join(scheduler.optimizer.param_groups[hit[0]]["param_names"][:2])
        raise ValueError(
            f"{path}: it would give weight decay to parameter group {hit[0]} ({names}, ...), which 'no_decay' leaves "
            f"without: give the optimizer a 'decay_tag', and the scheduler that tag as 'param_group_tags'."
        )
