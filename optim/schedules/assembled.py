"""The schedulers that are made of schedulers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import torch

from timesched.composition import SequenceScheduler
from timesched.fields import counts
from timesched.schedule import Schedule
from timesched.slots import select
from timesched.targets import listed, targets_of
from timesched.time.units import TimeError

from . import composites
from .closed_form import Scheduler
from .formulas import time

F = TypeVar("F", bound=Callable[..., None])


def _composing(init: F) -> F:
    """Set the parts aside when the whole cannot be made: nobody may be left to unbind them."""

    @wraps(init)
    def composed(*args: Any, **kwargs: Any) -> None:
        try:
            init(*args, **kwargs)
        except BaseException:
            for value in (*args[1:], *kwargs.values()):
                for each in value if isinstance(value, (list, tuple)) else (value,):
                    if isinstance(each, Scheduler):
                        each.set_aside()
            raise

    return composed  # type: ignore[return-value]  # of the same signature


class Sequential(Scheduler):
    """One scheduler after another: each begins at its milestone, and counts its steps from there.

    Args:
        optimizer: the optimizer that the schedulers were made with.
        schedulers: one or more schedulers of the same key, which become parts of this one and are not stepped any more.
        milestones: the steps at which the second one and each further one begins, not falling; of those that begin at
            the same step, the last one does.
        last_epoch: the index of the last step before this one: -1 starts at 0.
        param_group_tags: which groups; None for those of the schedulers.
        clock: a `timesched.Clock` or Composer's `State`: milestones may then be times; None for that of the schedulers.

    Raises:
        ValueError: the schedulers are of other optimizers, keys or groups, have taken steps, or are parts already; the
            milestones fall, or are not one less than the schedulers.
    """

    @_composing
    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedulers: Sequence[Scheduler],
        milestones: Sequence[Any],
        last_epoch: int = -1,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None:
        tags = listed(param_group_tags)
        schedulers = _parts(self, optimizer, schedulers, tags, clock)
        steps = counts().metadata["read"](f"{type(self).__name__}.milestones", milestones)
        self.schedulers, self.milestones = list(schedulers), list(steps)
        self.effective = {"schedulers": self.schedulers, "milestones": self.milestones}
        if len(steps) != len(schedulers) - 1:
            raise TimeError(
                f"{type(self).__name__}: {len(schedulers)} schedulers need {len(schedulers) - 1} milestones, one at "
                f"the beginning of each but the first, and there are {len(steps)}."
            )
        schedule = SequenceScheduler([each.schedule() for each in schedulers], [time(step) for step in steps])
        _assemble(self, optimizer, schedulers, schedule, last_epoch, tags, clock)


class Chained(Scheduler):
    """The product of several schedulers: the first, times what each further one has become of its own first value.

    Args:
        schedulers: one or more schedulers of the same optimizer and key, which become parts of this one and are not
            stepped any more.
        param_group_tags: which groups; None for those of the schedulers.
        clock: a `timesched.Clock` or Composer's `State`; None for that of the schedulers.

    Raises:
        ValueError: the schedulers are of several optimizers, keys or groups, have taken steps, or are parts already;
            one but the first starts at 0.
    """

    @_composing
    def __init__(self, schedulers: Sequence[Scheduler], param_group_tags: Any = None, clock: Any = None) -> None:
        optimizer = getattr(next(iter(schedulers), None), "optimizer", None) if _is_list(schedulers) else None
        tags = listed(param_group_tags)
        schedulers = _parts(self, optimizer, schedulers, tags, clock)
        self.schedulers = list(schedulers)
        self.effective = {"schedulers": self.schedulers}
        schedule = composites.Chain(tuple(each.schedule() for each in schedulers))
        _assemble(self, optimizer, schedulers, schedule, -1, tags, clock)


class ScalePerParam(Scheduler):
    """Another scheduler, times each group's own factor: its `adjust_learning_rate`, else its `adjust_val`, else 1.

    Args:
        optimizer: the optimizer that the scheduler was made with.
        scheduler: the scheduler, which becomes a part of this one and is not stepped any more.
        param_group_tags: which groups; None for those of the scheduler.
        clock: a `timesched.Clock` or Composer's `State`; None for that of the scheduler.

    Raises:
        ValueError: a factor that is not a finite number; a scheduler of another optimizer or key, that has taken steps,
            or that is a part already.
    """

    @_composing
    def __init__(
        self, optimizer: torch.optim.Optimizer, scheduler: Scheduler, param_group_tags: Any = None, clock: Any = None
    ) -> None:
        tags = listed(param_group_tags)
        parts = _parts(self, optimizer, [scheduler], tags, clock)
        self.scheduler = scheduler
        self.effective = {"scheduler": scheduler}
        _assemble(self, optimizer, parts, scheduler.schedule(), -1, tags, clock, 1)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _parts(whole: Scheduler, optimizer: Any, schedulers: Any, tags: Any, clock: Any) -> list[Scheduler]:
    """The schedulers that are to become parts of another, checked."""
    name = type(whole).__name__
    if not _is_list(schedulers) or not schedulers:
        raise TypeError(f"{name}: schedulers={schedulers!r}: pass a list of one scheduler or more.")
    groups = getattr(optimizer, "param_groups", ())
    chosen: dict[tuple[int, ...], Any] = {} if tags is None else {tuple(select(groups, tags)): tags}
    for i, each in enumerate(schedulers):
        where = f"{name}: schedulers[{i}]"
        if not isinstance(each, Scheduler):
            raise TypeError(f"{where} is a {type(each).__name__}: pass a closed-form scheduler, such as ConstantLR.")
        if each.optimizer is not optimizer or any(each is other for other in schedulers[:i]):
            raise ValueError(f"{where} is there twice, or has another optimizer: make each with the same optimizer.")
        if each.param_group_key != whole.param_group_key:
            raise ValueError(f"{where} schedules {each.param_group_key!r}, and {name} {whole.param_group_key!r}.")
        if int(each.last_epoch):
            raise ValueError(f"{where} is at step {int(each.last_epoch)}: put schedulers together before any step.")
        if each.clock is not None and clock not in (None, each.clock):
            raise ValueError(f"{where} follows another clock: give all the same one.")
        clock = clock or each.clock
        if each.is_part:
            raise ValueError(f"{where} is a part of a {each._owner} already: make one for each.")
        if each.param_group_tags is not None or tags is None:
            chosen.setdefault(tuple(select(groups, each.param_group_tags)), each.param_group_tags)
        if len(chosen) > 1:
            raise ValueError(
                f"{where} is for the groups with tags {each.param_group_tags!r}, and not those of the rest "
                f"({next(iter(chosen.values()))!r}): give all the same param_group_tags."
            )
    return list(schedulers)


def _assemble(
    whole: Scheduler,
    optimizer: Any,
    parts: list[Scheduler],
    schedule: Schedule,
    last_epoch: int,
    tags: Any,
    clock: Any,
    scaled: int = 0,
) -> None:
    """Construct a scheduler of parts, then make them its own."""
    depths = {part._scales for part in parts}
    if len(depths) > 1 and not isinstance(whole, Chained):
        raise ValueError(
            f"{type(whole).__name__}: some schedulers are scaled per group and some are not: scale the whole, as in "
            f"ScalePerParamLR(optimizer, SequentialLR(...)), or each part."
        )
    whole._scales = parts[0]._scales + scaled
    clocks = [part.clock for part in parts if part.clock is not None]
    tags = parts[0].param_group_tags if tags is None else tags
    Scheduler.__init__(whole, optimizer, None, last_epoch, tags, clock or next(iter(clocks), None), schedule=schedule)
    before: dict[int, float] = {}  # what there was when the first of them came
    for each in sorted((*parts, whole), key=lambda each: each._serial):
        before = each._replaced | before
    for part in parts:
        part.adopt(type(whole).__name__)
    target = whole._target
    whole._replaced = {i: value for i, value in before.items() if i in target.indices}
    elsewhere = {i: value for i, value in before.items() if i not in target.indices}
    if elsewhere:  # a part without tags had set groups that the whole does not
        others = [each for each in targets_of(optimizer) if each.name == target.name and each is not target]
        for i, value in elsewhere.items():
            if not any(i in other.indices for other in others):
                target.slot.write(whole.optimizer.param_groups[i], value)
        for other in others:  # each wrote to its groups after those before it
            other.refresh()
        whole.refresh()
