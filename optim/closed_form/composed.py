"""Schedulers that are made of other schedulers: they use the schedules of their children, and control the key.

Each class is the base of a learning-rate scheduler and of a weight-decay scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer
from typing_extensions import Unpack

from timesched.binding.groups import select_groups
from timesched.rules import COUNTS
from timesched.schedulers.composition import SequenceScheduler
from timesched.time.units import TimeError

from ..scheduler import Options, Scheduler
from .formulas import Chain, Steps, as_time


class Sequential(Scheduler):
    """One scheduler after another."""

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[Scheduler], milestones: Sequence[Steps], last_epoch: int = -1,
        **options: Unpack[Options],
    ) -> None:  # fmt: skip
        name = type(self).__name__
        options = _resolve_options(self, optimizer, schedulers, options)
        steps = COUNTS.read(f"{name}.milestones", milestones)
        if len(steps) != len(schedulers) - 1:
            raise TimeError(
                f"{name}.milestones={milestones!r}: the number of milestones does not fit {len(schedulers)} "
                f"schedulers. Pass {len(schedulers) - 1}: one for each scheduler except the first."
            )
        if len({child.scales for child in schedulers}) > 1:
            raise ValueError(
                f"{name}.schedulers: some are scaled per group and some are not. Scale the sequence, as in "
                f"ScalePerParamLR(optimizer, SequentialLR(...)), or each scheduler in it."
            )
        self.schedulers, self.milestones, self.scales = list(schedulers), list(steps), schedulers[0].scales
        schedule = SequenceScheduler([child.schedule for child in schedulers], [as_time(step) for step in steps])
        super().__init__(optimizer, None, last_epoch, schedule=schedule, **options)


class Chained(Scheduler):
    """The product of several schedulers."""

    def __init__(self, schedulers: Sequence[Scheduler], **options: Unpack[Options]) -> None:
        has_first = isinstance(schedulers, Sequence) and bool(schedulers)  # otherwise `_check_children` raises
        optimizer: Any = getattr(schedulers[0], "optimizer", None) if has_first else None
        options = _resolve_options(self, optimizer, schedulers, options)
        self.schedulers, self.scales = list(schedulers), schedulers[0].scales
        schedule = Chain(tuple(child.schedule for child in schedulers))
        super().__init__(optimizer, schedule=schedule, **options)


class ScaledPerGroup(Scheduler):
    """A scheduler, times the factor of each group."""

    def __init__(self, optimizer: Optimizer, scheduler: Scheduler, **options: Unpack[Options]) -> None:
        options = _resolve_options(self, optimizer, [scheduler], options)
        self.scheduler, self.scales = scheduler, scheduler.scales + 1
        super().__init__(optimizer, schedule=scheduler.schedule, **options)


def _resolve_options(parent: Scheduler, optimizer: Any, schedulers: Any, options: Options) -> Options:
    """The options of a parent. Where they have no tags or no clock, it gets the tags and the clock of its children.

    Raises `TypeError` for a child that is not a scheduler of optim, and `ValueError` for children that do not match.
    """
    _check_children(parent, optimizer, schedulers)
    name = type(parent).__name__
    tags, clock = options.get("param_group_tags"), options.get("clock")
    tags = schedulers[0].tags if tags is None else tags
    for i, child in enumerate(schedulers):
        if child.clock is not None and clock not in (None, child.clock):
            raise ValueError(f"{name}.schedulers[{i}]: its clock differs. Make all schedulers with one clock.")
        clock = clock or child.clock
        if select_groups(optimizer.param_groups, child.tags) != select_groups(optimizer.param_groups, tags):
            raise ValueError(
                f"{name}.schedulers[{i}]: its tags are {child.tags!r}, and the others have {tags!r}. Make all "
                f"schedulers with the same param_group_tags."
            )
    return {**options, "param_group_tags": tags, "clock": clock}


def _check_children(parent: Scheduler, optimizer: object, schedulers: object) -> None:
    """Raise an error unless the children are new schedulers with the key and the optimizer of their parent."""
    name = type(parent).__name__
    if not isinstance(schedulers, Sequence) or isinstance(schedulers, str) or not schedulers:
        raise TypeError(
            f"{name}.schedulers={schedulers!r}: it is not a list of schedulers. Pass one or more in a list."
        )
    for i, child in enumerate(schedulers):
        path = f"{name}.schedulers[{i}]"
        if not isinstance(child, Scheduler):
            kind = f"{type(child).__module__}.{type(child).__name__}"
            raise TypeError(
                f"{path}: it is a {kind}. Pass a scheduler of optim, such as optim.lr_scheduler.ConstantLR."
            )
        if child.optimizer is not optimizer:
            raise ValueError(f"{path}: its optimizer differs. Make all schedulers with the same optimizer.")
        if child.param_group_key != parent.param_group_key:
            key = child.param_group_key
            raise ValueError(f"{path}: it schedules {key!r}. Pass schedulers of {parent.param_group_key!r}.")
        if int(child.last_epoch):
            raise ValueError(
                f"{path}: it is at step {int(child.last_epoch)}. Combine schedulers before their first step."
            )
