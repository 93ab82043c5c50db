"""Schedulers that are made of other schedulers: they use the schedules of their children, and control the key.

Each class is the base of a learning-rate scheduler and of a weight-decay scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.optim import Optimizer
from typing_extensions import Unpack

from timesched.binding.groups import select_groups
from timesched.rules import COUNTS
from timesched.schedulers.composition import SequenceScheduler
from timesched.time.units import TimeError
from timesched.types import Tags

from ..closed_form.formulas import Chain, Steps, as_time
from ..scheduler import Options, Scheduler


class Sequential(Scheduler):
    """One scheduler after another."""

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[Scheduler], milestones: Sequence[Steps], last_epoch: int = -1,
        **options: Unpack[Options],
    ) -> None:  # fmt: skip
        name, children = type(self).__name__, _require_schedulers(self, schedulers)
        options = _resolve_options(self, optimizer, children, options)
        steps = COUNTS.read(f"{name}.milestones", milestones)
        if len(steps) != len(children) - 1:
            raise TimeError(
                f"{name}.milestones={milestones!r}: the number of milestones does not fit {len(children)} schedulers. "
                f"Pass {len(children) - 1}: one for each scheduler except the first."
            )
        if len({child.factor_power for child in children}) > 1:
            raise ValueError(
                f"{name}.schedulers: some are scaled per group and some are not. Scale the sequence, as in "
                f"ScalePerParamLR(optimizer, SequentialLR(...)), or each scheduler in it."
            )
        self.schedulers, self.milestones, self.factor_power = children, list(steps), children[0].factor_power
        schedule = SequenceScheduler([child.schedule for child in children], [as_time(step) for step in steps])
        super().__init__(optimizer, None, last_epoch, schedule=schedule, **options)


class Chained(Scheduler):
    """The product of several schedulers."""

    def __init__(self, schedulers: Sequence[Scheduler], **options: Unpack[Options]) -> None:
        children = _require_schedulers(self, schedulers)
        options = _resolve_options(self, children[0].optimizer, children, options)
        self.schedulers, self.factor_power = children, children[0].factor_power
        super().__init__(children[0].optimizer, schedule=Chain(tuple(child.schedule for child in children)), **options)


class ScaledPerGroup(Scheduler):
    """A scheduler, times the factor of each group."""

    def __init__(self, optimizer: Optimizer, scheduler: Scheduler, **options: Unpack[Options]) -> None:
        options = _resolve_options(self, optimizer, _require_schedulers(self, [scheduler]), options)
        self.scheduler, self.factor_power = scheduler, scheduler.factor_power + 1
        super().__init__(optimizer, schedule=scheduler.schedule, **options)


def _require_schedulers(parent: Scheduler, schedulers: object) -> list[Scheduler]:
    """Return the children of a scheduler as a list. Raises `TypeError` for anything but schedulers of optim."""
    name = type(parent).__name__
    if not isinstance(schedulers, Sequence) or isinstance(schedulers, str) or not schedulers:
        raise TypeError(
            f"{name}.schedulers={schedulers!r}: it is not a list of schedulers. Pass one or more in a list."
        )
    for i, child in enumerate(schedulers):
        if not isinstance(child, Scheduler):
            raise TypeError(
                f"{_child_path(parent, i)}: it is a {type(child).__module__}.{type(child).__name__}. Pass a scheduler "
                f"of optim, such as optim.lr_scheduler.ConstantLR."
            )
    return list(schedulers)


def _child_path(parent: Scheduler, i: int) -> str:
    """The argument that has the child `i` of a scheduler, for a message."""
    name = type(parent).__name__
    return f"{name}.scheduler" if isinstance(parent, ScaledPerGroup) else f"{name}.schedulers[{i}]"


def _resolve_options(parent: Scheduler, optimizer: object, children: Sequence[Scheduler], options: Options) -> Options:
    """The options of a parent. Where they have no tags or no clock, it gets the tags and the clock of its children.

    Raises `ValueError` unless the children are new schedulers of one optimizer, key, clock and choice of groups.
    """
    tags, clock = options.get("param_group_tags"), options.get("clock")
    tags = children[0].tags if tags is None else tags
    for i, child in enumerate(children):
        path = _child_path(parent, i)
        _check_child(path, child, optimizer, parent.param_group_key, tags)
        if child.clock is not None and clock not in (None, child.clock):
            raise ValueError(f"{path}: its clock differs. Make all schedulers with one clock.")
        clock = clock or child.clock
    return {**options, "param_group_tags": tags, "clock": clock}


def _check_child(path: str, child: Scheduler, optimizer: object, key: str, tags: Tags) -> None:
    """Raise `ValueError` unless a child is a new scheduler of its parent's optimizer, key and tags."""
    if child.optimizer is not optimizer:
        raise ValueError(f"{path}: its optimizer differs. Make all schedulers with the same optimizer.")
    if child.param_group_key != key:
        raise ValueError(f"{path}: it schedules {child.param_group_key!r}. Pass schedulers of {key!r}.")
    if int(child.last_epoch):
        raise ValueError(f"{path}: it is at step {int(child.last_epoch)}. Combine schedulers before their first step.")
    groups = child.optimizer.param_groups
    if select_groups(groups, child.tags) != select_groups(groups, tags):
        raise ValueError(
            f"{path}: its tags are {child.tags!r}, and the others have {tags!r}. Make all schedulers with the same "
            f"param_group_tags."
        )
