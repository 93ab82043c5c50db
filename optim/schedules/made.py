"""How a formula becomes a scheduler, and the schedulers that are made of schedulers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from timesched.composition import SequenceScheduler
from timesched.fields import counts
from timesched.schedule import Schedule
from timesched.slots import select
from timesched.targets import targets_of
from timesched.units import TimeError

from . import composites
from .closed_form import Scheduler
from .formulas import Formula, time

Functions = Callable[[Tensor], Any] | Sequence[Callable[[Tensor], Any]]


class Made(Scheduler):
    """A scheduler that a formula was made into: families.py gives it the formula's arguments."""

    formula: ClassVar[type[Formula]]
    names: ClassVar[Mapping[str, str]]
    hidden: ClassVar[tuple[str, ...]] = ("scale_fn", "functions")  # fields that a method fills

    def make(self, given: Mapping[str, Any]) -> None:
        """Construct from the arguments that were given, `self` among them."""
        values = dict(given)
        del values["self"]
        self.optimizer = values.pop("optimizer")
        tags, clock = values.pop("param_group_tags", None), values.pop("clock", None)
        public = {self.names.get(field.name, field.name): field.name for field in dataclasses.fields(self.formula)}
        try:
            schedule = self.formula(**self.adapt({public[name]: value for name, value in values.items()}))
        except TimeError as error:
            raise TimeError(self._in_own_words(str(error))) from None
        self.effective = {name: getattr(schedule, own) for name, own in public.items() if own not in self.hidden}
        self.__dict__.update(self.effective)
        self._formula = schedule
        total = getattr(schedule, "total_iters", getattr(schedule, "total_steps", None))
        Scheduler.__init__(self, self.optimizer, total, -1, tags, clock, schedule=self.filled(schedule))

    def _in_own_words(self, text: str) -> str:
        """A message of the formula with the names that this family has."""
        for old, new in ((self.formula.__name__, type(self).__name__), *self.names.items()):
            text = re.sub(rf"\b{old}\b", new, text)
        return text

    def adapt(self, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments of the formula from those that were given."""
        return given

    def filled(self, schedule: Any) -> Schedule:
        """The formula with the functions that a method of the scheduler returns."""
        return schedule  # type: ignore[no-any-return]  # what came in, of whatever formula


class Cyclic(Made):
    """A cyclic scheduler, whose heights a subclass may scale."""

    def adapt(self, given: dict[str, Any]) -> dict[str, Any]:
        if given.get("mode") == "exp_range":
            given.setdefault("scale_mode", "iterations")
        return given

    def set_scale_fn(self) -> Callable[[Tensor], Any]:
        """The factor of the height, as a function of a tensor: the number of the cycle or of iterations (`scale_mode`).

        A subclass may return another function, which then takes the place of what `mode` says.
        """
        plain: Any = self._formula
        return lambda x: plain._scale(x - 1, x)

    def filled(self, schedule: Any) -> Schedule:
        if type(self).set_scale_fn is not Cyclic.set_scale_fn:
            schedule = dataclasses.replace(schedule, scale_fn=self.set_scale_fn())
        return schedule  # type: ignore[no-any-return]  # what came in, of whatever formula


class Lambda(Made):
    """A scheduler by functions of the step tensor."""

    def set_lr_lambda(self) -> Functions:
        """The same as `set_value_lambda()`, and called for it; override either."""
        return self.set_value_lambda()

    def set_value_lambda(self) -> Functions:
        """The functions of the step, a 0-dim int64 tensor, whose product multiplies the initial value."""
        return [_ramp, _fall]

    def filled(self, schedule: Any) -> Schedule:
        given = self.set_lr_lambda()
        functions = (given,) if callable(given) else tuple(given) if isinstance(given, Sequence) else ()
        if not functions or not all(map(callable, functions)):
            raise TypeError(
                f"{type(self).__name__}: set_lr_lambda() returned {given!r}: it returns a function, or a list of them."
            )
        return composites.Lambda(schedule.initial_val, functions)


def _ramp(t: Tensor) -> Tensor:
    return t.double() / 30.0


def _fall(t: Tensor) -> Tensor:
    return 0.95 ** t.double()


class Multiplicative(Lambda):
    """A scheduler by one factor for each step; or, in a subclass, by functions of the step."""

    def set_value_lambda(self) -> Functions:
        """The functions of the step, a 0-dim int64 tensor, whose product multiplies the initial value."""
        coefficient: float = self.coefficient  # type: ignore[attr-defined]  # an argument
        return [lambda t: coefficient ** t.double()]

    def filled(self, schedule: Any) -> Schedule:
        own = type(self).set_value_lambda is Multiplicative.set_value_lambda
        if own and type(self).set_lr_lambda is Lambda.set_lr_lambda:
            return schedule  # type: ignore[no-any-return]  # what came in, of whatever formula
        return super().filled(schedule)


class Sequential(Scheduler):
    """One scheduler after another: each begins at its milestone, and counts its steps from there.

    Args:
        optimizer: the optimizer that the schedulers were made with.
        schedulers: one or more schedulers of the same key, which become parts of this one and are not stepped any more.
        milestones: the steps at which the second one and each further one begins, rising.
        last_epoch: the index of the last step before this one: -1 starts at 0.
        param_group_tags: which groups; None for those of the schedulers.
        clock: a `timesched.Clock` or Composer's `State`: milestones may then be times; None for that of the schedulers.

    Raises:
        ValueError: the schedulers are of other optimizers, keys or groups, have taken steps, or are parts already; the
            milestones do not rise, or are not one less than the schedulers.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedulers: Sequence[Scheduler],
        milestones: Sequence[Any],
        last_epoch: int = -1,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None:
        schedulers = _parts(self, optimizer, schedulers, param_group_tags, clock)
        steps = counts().metadata["read"](f"{type(self).__name__}.milestones", milestones)
        self.schedulers, self.milestones = list(schedulers), list(steps)
        self.effective = {"schedulers": self.schedulers, "milestones": self.milestones}
        if len(steps) != len(schedulers) - 1:
            raise TimeError(
                f"{type(self).__name__}: {len(schedulers)} schedulers need {len(schedulers) - 1} milestones, one at "
                f"the beginning of each but the first, and there are {len(steps)}."
            )
        schedule = SequenceScheduler([each.schedule() for each in schedulers], [time(step) for step in steps])
        _assemble(self, optimizer, schedulers, schedule, last_epoch, param_group_tags, clock)


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

    def __init__(self, schedulers: Sequence[Scheduler], param_group_tags: Any = None, clock: Any = None) -> None:
        optimizer = getattr(next(iter(schedulers), None), "optimizer", None) if _is_list(schedulers) else None
        schedulers = _parts(self, optimizer, schedulers, param_group_tags, clock)
        self.schedulers = list(schedulers)
        self.effective = {"schedulers": self.schedulers}
        schedule = composites.Chain(tuple(each.schedule() for each in schedulers))
        _assemble(self, optimizer, schedulers, schedule, -1, param_group_tags, clock)


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

    def __init__(
        self, optimizer: torch.optim.Optimizer, scheduler: Scheduler, param_group_tags: Any = None, clock: Any = None
    ) -> None:
        parts = _parts(self, optimizer, [scheduler], param_group_tags, clock)
        self.scheduler = scheduler
        self.effective = {"scheduler": scheduler}
        _assemble(self, optimizer, parts, scheduler.schedule(), -1, param_group_tags, clock, 1)


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
            chosen.setdefault(tuple(each._target.indices), each.param_group_tags)
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
    for part in sorted(parts, key=lambda part: part._serial, reverse=True):
        part.adopt(type(whole).__name__)
        whole._replaced.update(part._replaced)
    target = whole._target
    taken = {i for each in targets_of(optimizer) if each.name == target.name for i in each.indices}
    for i, value in whole._replaced.items():
        if i not in taken:  # a part without tags had set it
            target.slot.write(whole.optimizer.param_groups[i], value)
