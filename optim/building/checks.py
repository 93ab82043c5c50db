"""What can be seen only when the optimizer, the clock and the schedulers of a config come together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from timesched.binding import Bound
from timesched.schedule import Schedule

from ..groups.rules import FACTOR
from ..schedules.closed_form import Scheduler
from .plans import Plan
from .undoing import living_targets


def check_clock(plan: Any, path: str, clock: Any) -> None:
    """Raise `ValueError` for a schedule without a clock."""
    timed = isinstance(plan, Schedule) or (isinstance(plan, Plan) and plan.binding is not None)
    if timed and clock is None:
        raise ValueError(
            f"{getattr(plan, 'path', path)} is a schedule over the time of a run: pass clock=timesched.Clock(...), or "
            f"write the length of the run as 'max_duration' into the config."
        )


def check_decay(optimizer: torch.optim.Optimizer, schedulers: list[Any], spared: frozenset[int]) -> None:
    """Raise `ValueError` where a scheduler writes weight decay into the groups that are to have none."""
    factors = tuple(each._target for each in schedulers if isinstance(each, Bound))  # which multiply the 0 there
    for target in living_targets(optimizer, factors) if spared else ():
        hit = sorted(spared.intersection(target.indices))
        if target.name == "weight_decay" and hit:
            group = optimizer.param_groups[hit[0]]
            raise ValueError(
                f"it would give weight decay to parameter group {hit[0]} ({', '.join(group['param_names'][:2])}, ...), "
                f"which 'no_decay' leaves without: give the optimizer a 'decay_tag', and the scheduler that tag as "
                f"'param_group_tags'."
            )


def check_rates(optimizer: torch.optim.Optimizer, schedulers: list[Any], groups: Mapping[str, Any]) -> None:
    """Raise `ValueError` for factors that do nothing, and for two kinds of schedulers on the learning rate."""
    if groups.get(FACTOR) and not any(isinstance(each, Scheduler) and each._scales for each in schedulers):
        raise ValueError(
            "optimizer: 'adjust_learning_rate' does nothing by itself: wrap the LR scheduler in a ScalePerParamLR, or "
            "give the parameters an 'lr' in 'params'."
        )
    for i, each in enumerate(schedulers):
        other = isinstance(each, LRScheduler) and not isinstance(each, (Scheduler, Bound))
        if other and any(target.name == "lr" for target in living_targets(optimizer)):
            raise ValueError(
                f"schedulers[{i}]: {type(each).__name__} of torch sets the lr of all parameter groups, and so does "
                f"another scheduler for some: leave out one, or make the first one by its name here."
            )
