"""The schedulers that are made of schedulers: they take their schedules, and own the key from then on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from timesched.composition import SequenceScheduler
from timesched.fields import counts
from timesched.keys import listed, select
from timesched.time.units import TimeError

from . import composites
from .closed_form import STEPPING, Scheduler, overridden
from .formulas import time


class Sequential(Scheduler):
    """One scheduler after another: the arguments stand at `SequentialLR`."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedulers: Sequence[Scheduler],
        milestones: Sequence[Any],
        last_epoch: int = -1,
        param_group_tags: Any = None,
        clock: Any = None,
        on_change: str = "same",
    ) -> None:
        tags, clock = _take(self, optimizer, schedulers, param_group_tags, clock)
        steps = counts().metadata["read"](f"{type(self).__name__}.milestones", milestones)
        self._keep(schedulers=list(schedulers), milestones=list(steps))
        if len(steps) != len(schedulers) - 1:
            raise TimeError(
                f"{type(self).__name__}: {len(schedulers)} schedulers need {len(schedulers) - 1} milestones, one at "
                f"the beginning of each but the first, and there are {len(steps)}."
            )
        if len({each.scales for each in schedulers}) > 1:
            raise ValueError(
                f"{type(self).__name__}: some schedulers are scaled per group and some are not: scale the "
                f"sequence, as in ScalePerParamLR(optimizer, SequentialLR(...)), or each scheduler in it."
            )
        self.scales = schedulers[0].scales
        schedule = SequenceScheduler([each.schedule for each in schedulers], [time(step) for step in steps])
        Scheduler.__init__(self, optimizer, None, last_epoch, tags, clock, on_change, schedule=schedule)


class Chained(Scheduler):
    """The product of several schedulers: the arguments stand at `ChainedLR`."""

    def __init__(
        self,
        schedulers: Sequence[Scheduler],
        param_group_tags: Any = None,
        clock: Any = None,
        on_change: str = "same",
    ) -> None:
        optimizer: Any = getattr(next(iter(schedulers), None), "optimizer", None) if _is_list(schedulers) else None
        tags, clock = _take(self, optimizer, schedulers, param_group_tags, clock)
        self._keep(schedulers=list(schedulers))
        self.scales = schedulers[0].scales
        schedule = composites.Chain(tuple(each.schedule for each in schedulers))
        Scheduler.__init__(self, optimizer, None, -1, tags, clock, on_change, schedule=schedule)


class ScalePerParam(Scheduler):
    """Another scheduler, times a factor of each group: the arguments stand at `ScalePerParamLR`."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        scheduler: Scheduler,
        param_group_tags: Any = None,
        clock: Any = None,
        on_change: str = "same",
    ) -> None:
        tags, clock = _take(self, optimizer, [scheduler], param_group_tags, clock)
        self._keep(scheduler=scheduler)
        self.scales = scheduler.scales + 1
        Scheduler.__init__(self, optimizer, None, -1, tags, clock, on_change, schedule=scheduler.schedule)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _take(parent: Scheduler, optimizer: Any, schedulers: Any, tags: Any, clock: Any) -> tuple[Any, Any]:
    """Check the children of a composed scheduler. Returns its tags and its clock, which are theirs if it has none."""
    name = type(parent).__name__
    if not _is_list(schedulers) or not schedulers:
        raise TypeError(f"{name}: schedulers={schedulers!r}: pass a list of one scheduler or more.")
    tags = listed(tags)
    for i, each in enumerate(schedulers):
        where = f"{name}: schedulers[{i}]"
        if not isinstance(each, Scheduler):
            kind = f"{type(each).__module__}.{type(each).__name__}"
            raise TypeError(f"{where} is a {kind}: pass a scheduler of optim, such as optim.lr_scheduler.ConstantLR.")
        for method in STEPPING:
            if overridden(type(each), [method]):
                raise ValueError(
                    f"{where} is a {type(each).__name__}, whose {method}() is not called in a {name}, which takes its "
                    f"schedule alone: say in _get_closed_form() what the value is."
                )
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
    return tags, clock
