"""The parameter groups that a scheduler sets: which they are, that nobody else sets them, and writing to them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from timesched.clock import Clock
from timesched.targets import Target

from .arguments import adjustment, is_number
from .counted import Counted
from .overriding import standard


class Driving(Counted):
    """What drives a number of the parameter groups of an optimizer."""

    optimizer: Optimizer
    clock: Any
    param_group_key: ClassVar[str]
    _target: Target
    _scales: int  # how often a group's adjustment is a factor
    _owner: str | None  # the class of what it is a part of
    _waiting: bool  # set aside, when what it was to be a part of could not be made
    _replaced: dict[int, float]  # the numbers of the groups before this scheduler set them

    def get(self) -> list[Any]:
        raise NotImplementedError

    def _accept(self, indices: list[int], values: list[Any]) -> None:
        """Look at the groups to schedule before any is taken."""
        self._replaced.update((i, float(v.detach() if isinstance(v, Tensor) else v)) for i, v in zip(indices, values))
        held: dict[int, float] = {}
        for i, value in zip(indices, values):
            if self._scales:
                factor = adjustment(self.optimizer.param_groups[i], f"{type(self).__name__}, group {i}")
                if isinstance(value, Tensor) and held.setdefault(id(value), factor) != factor:
                    raise ValueError(
                        f"{type(self).__name__}: groups with different factors share one tensor as "
                        f"{self.param_group_key!r}: give each group a tensor of its own."
                    )

    def _hold_tensors(self) -> None:
        """Turn numbers into tensors where the optimizer wants them so, and count where the tensors are."""
        hold = getattr(self.optimizer, "hold_tensor", None)
        groups, slot = self.optimizer.param_groups, self._target.slot
        for i in self._target.indices:
            if hold is not None:
                hold(groups[i], slot.key)
        held = (slot.peek(groups[i]) for i in self._target.indices)
        self.count_beside(next((value for value in held if isinstance(value, Tensor)), None))

    def _take_later_groups(self) -> None:
        refuse_graph("Parameter groups were added")
        self._target.take(self._accept)
        if self._target.rivals:
            self.settle()
        self._hold_tensors()

    def _catch_up(self) -> None:
        """Before a step: refuse what it may not write, and take the groups that were added."""
        target = self._target
        if target.rivals or not target.active:
            self.settle()
        target.refuse_changed()
        if len(self.optimizer.param_groups) != target.seen:
            self._take_later_groups()

    def settle(self) -> None:
        """Raise `ValueError` when another scheduler writes to the same key of a group, as `step()` does."""
        refuse_graph("Another scheduler writes to the same groups, or this one is a part of another")
        if self.is_part:
            raise ValueError(f"This {type(self).__name__} is a part of a {self._owner}: step that one.")
        self._return()
        if not self._target.active:
            raise ValueError(f"This {type(self).__name__} was unbound: make another one.")
        self._target.refuse_rivals()

    @property
    def is_part(self) -> bool:
        """Whether it is a part of another scheduler, which steps it."""
        return self._owner is not None

    @standard
    def update_groups(self, values: Iterable[Any]) -> None:
        """Write a list with one value for each parameter group; those that are not scheduled are passed over."""
        values, target = list(values), self._target
        if not target.active:
            self.settle()
        target.refuse_changed()
        if len(values) != len(self.optimizer.param_groups):
            raise ValueError(
                f"{len(values)} values for {len(self.optimizer.param_groups)} parameter groups: give one for each."
            )
        chosen = values if len(target.indices) == len(values) else [values[i] for i in target.indices]
        if not torch.compiler.is_compiling():
            for i, value in zip(target.indices, chosen):
                if not is_number(value):
                    raise ValueError(
                        f"{type(self).__name__}: the value for parameter group {i} is {value!r}: give a finite int or "
                        f"float, or a 0-dim tensor of one."
                    )
        target.put(chosen)

    def get_last_value(self) -> list[Any]:
        """The value in each parameter group, None for those that are not scheduled; a tensor is a copy."""
        last: list[Any] = [None] * len(self.optimizer.param_groups)
        for i, value in zip(self._target.indices, self._target.read()):
            last[i] = value
        return last

    def refresh(self) -> None:
        """Write the value of this moment, without counting a step."""
        target = self._target
        if not target.active:
            self.settle()
        target.refuse_changed()
        if len(self.optimizer.param_groups) != target.seen:
            self._take_later_groups()
        self._hold_tensors()
        self.update_groups(self.get())

    def _bind(self) -> None:
        """Let other schedulers know of this one, and the clock."""
        self._target.register(self)
        if isinstance(self.clock, Clock):
            self.clock.notify(self)

    def unbind(self) -> None:
        """Let another scheduler have the groups; they keep their present values."""
        self._waiting = False
        self._target.release()
        if isinstance(self.clock, Clock):
            self.clock.forget(self)

    def set_aside(self) -> None:
        """Stand in nobody's way until it is used again; the groups keep their present values."""
        if self._target.active:
            self.unbind()
            self._waiting = True

    def _return(self) -> None:
        if self._waiting:
            self._target.refuse_rivals()
            self._bind()
            self._waiting = False

    def adopt(self, owner: str) -> None:
        """Become a part of a scheduler of a class."""
        self.unbind()
        self._owner = owner


def refuse_graph(why: str) -> None:
    if torch.compiler.is_compiling():
        raise RuntimeError(
            f"{why}: call step() or refresh() once outside the compiled function. Where a scheduler follows a clock, "
            f"call it there always: the group's tensor is updated in place, so nothing is compiled again."
        )


def settle(schedulers: Iterable[Any]) -> None:
    """Raise `ValueError` when one of several schedulers is not alone with a key of a group, as its `step()` would."""
    for scheduler in schedulers:
        if isinstance(scheduler, Driving):
            scheduler.settle()
