"""Schedulers that are made of schedulers: they take their schedules, and own the key from then on.

Each function is the constructor of a class: `parent` is the scheduler to be, the others are its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from timesched.binding.groups import select
from timesched.composition import SequenceScheduler
from timesched.fields import counts
from timesched.time.units import TimeError

from ..scheduler import Scheduler
from .formulas import Chain, time


def sequence(
    parent: Any,
    optimizer: torch.optim.Optimizer,
    schedulers: Sequence[Scheduler],
    milestones: Sequence[Any],
    last_epoch: int,
    common: dict[str, Any],
) -> None:
    """One scheduler after another: `SequentialLR`."""
    name, common = type(parent).__name__, _checked(parent, optimizer, schedulers, common)
    steps = counts().metadata["read"](f"{name}.milestones", milestones)
    if len(steps) != len(schedulers) - 1:
        raise TimeError(
            f"{name}: {len(schedulers)} schedulers need {len(schedulers) - 1} milestones, one at the beginning of each "
            f"but the first, and there are {len(steps)}."
        )
    if len({each.scales for each in schedulers}) > 1:
        raise ValueError(
            f"{name}: some schedulers are scaled per group and some are not: scale the sequence, as in "
            f"ScalePerParamLR(optimizer, SequentialLR(...)), or each scheduler in it."
        )
    parent.schedulers, parent.milestones, parent.scales = list(schedulers), list(steps), schedulers[0].scales
    schedule = SequenceScheduler([each.schedule for each in schedulers], [time(step) for step in steps])
    Scheduler.__init__(parent, optimizer, None, last_epoch, schedule=schedule, **common)


def chain(parent: Any, schedulers: Sequence[Scheduler], common: dict[str, Any]) -> None:
    """The product of several schedulers: `ChainedLR`."""
    optimizer = getattr(schedulers[0], "optimizer", None) if isinstance(schedulers, Sequence) and schedulers else None
    common = _checked(parent, optimizer, schedulers, common)
    parent.schedulers, parent.scales = list(schedulers), schedulers[0].scales
    schedule = Chain(tuple(each.schedule for each in schedulers))
    Scheduler.__init__(parent, schedulers[0].optimizer, schedule=schedule, **common)


def scale_per_param(
    parent: Any, optimizer: torch.optim.Optimizer, scheduler: Scheduler, common: dict[str, Any]
) -> None:
    """Another scheduler, times a factor of each group: `ScalePerParamLR`."""
    common = _checked(parent, optimizer, [scheduler], common)
    parent.scheduler, parent.scales = scheduler, scheduler.scales + 1
    Scheduler.__init__(parent, optimizer, schedule=scheduler.schedule, **common)


def _checked(parent: Scheduler, optimizer: Any, schedulers: Any, common: dict[str, Any]) -> dict[str, Any]:
    """The common arguments of a scheduler, with the tags and the clock of its children where it has none."""
    name, tags, clock = type(parent).__name__, common["param_group_tags"], common["clock"]
    if not isinstance(schedulers, Sequence) or isinstance(schedulers, str) or not schedulers:
        raise TypeError(f"{name}: schedulers={schedulers!r}: pass a list of one scheduler or more.")
    for i, each in enumerate(schedulers):
        where = f"{name}: schedulers[{i}]"
        if not isinstance(each, Scheduler):
            kind = f"{type(each).__module__}.{type(each).__name__}"
            raise TypeError(f"{where} is a {kind}: pass a scheduler of optim, such as optim.lr_scheduler.ConstantLR.")
        if each.optimizer is not optimizer:
            raise ValueError(f"{where} has another optimizer: make each with the same optimizer.")
        if each.param_group_key != parent.param_group_key:
            raise ValueError(f"{where} schedules {each.param_group_key!r}, and {name} {parent.param_group_key!r}.")
        if int(each.last_epoch):
            raise ValueError(f"{where} is at step {int(each.last_epoch)}: put schedulers together before any step.")
        if each.clock is not None and clock not in (None, each.clock):
            raise ValueError(f"{where} follows another clock: give all the same one.")
        clock = clock or each.clock
        tags = each.tags if tags is None and i == 0 else tags
        if select(optimizer.param_groups, each.tags) != select(optimizer.param_groups, tags):
            raise ValueError(
                f"{where} is for the groups with tags {each.tags!r}, and not those of the rest ({tags!r}): give all "
                f"the same param_group_tags."
            )
    return {**common, "param_group_tags": tags, "clock": clock}
