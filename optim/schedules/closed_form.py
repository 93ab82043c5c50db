"""Schedulers in closed form: the value of a step is computed from the step alone, on the host or inside a graph."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import count
from typing import Any, ClassVar

import torch
from torch import Tensor

from timesched.clock import Clock
from timesched.horizon import Horizon
from timesched.phases import Frame, Resolved
from timesched.schedule import Schedule
from timesched.targets import Target
from timesched.units import TimeUnit

from .arguments import adjustment, is_number, noting, timed
from .composites import Closed
from .likeness import Likeness
from .overriding import CLOSED_FORMS, STEPPING, overridden, standard
from .resumable import Resumable

_serials = count()


class Scheduler(Resumable, Likeness, torch.optim.lr_scheduler.LRScheduler):
    """Sets one key of an optimizer's parameter groups to a value that depends on the number of steps alone.

    A subclass names the key and says in `_get_closed_form()` what the value is: a 0-dim tensor, from `last_epoch`, by
    operations of torch. The first value is written at construction, the next ones by `step()`: into the tensor that a
    group holds, in place, or in place of its number. In the groups of one of this suite's optimizers, numbers become
    tensors, so that optimizer and scheduler step in one graph. Nothing is patched onto the optimizer.

    Args:
        optimizer: the optimizer.
        total_iters: how many steps the schedule is meant for; for those who ask.
        last_epoch: the index of the last step before this one: -1 starts at 0.
        param_group_tags: which groups: None for all, a tag or several for those that carry one, `[None]` for those
            without tags.
        clock: a `timesched.Clock` or another state, whose counters are followed instead of the calls of `step()`.

    Raises:
        ValueError: no group carries such a tag, a group lacks the key, or a value is not a finite number.

    >>> class Beta(Scheduler):
    ...     param_group_key = "betas[0]"
    ...     def _get_closed_form(self):
    ...         return 0.95 - 0.1 * torch.exp(-self.last_epoch.double())
    >>> scheduler = Beta(torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))]))
    >>> scheduler.step()
    >>> round(scheduler.get_last_value()[0], 4)
    0.9132
    """

    param_group_key: ClassVar[str] = ""
    arguments: dict[str, Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in cls.__dict__:
            cls.__init__ = noting(cls.__init__)  # type: ignore[method-assign]

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        total_iters: Any = None,
        last_epoch: int = -1,
        param_group_tags: Any = None,
        clock: Any = None,
        *,
        schedule: Schedule | None = None,
    ) -> None:
        name = type(self).__name__
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"{name}: optimizer={optimizer!r} is no torch.optim.Optimizer: pass the one to schedule.")
        if not self.param_group_key:
            raise TypeError(f"{name} has no param_group_key: name the key to schedule in a subclass, such as 'lr'.")
        if type(last_epoch) is not int or last_epoch < -1:
            raise ValueError(f"{name}: last_epoch={last_epoch!r}: it is -1 to start, or the index of the last step.")
        self.__dict__.setdefault("arguments", {})
        self.optimizer = optimizer
        self.total_iters = total_iters
        self.param_group_tags = param_group_tags
        self.clock = clock
        self._formula = schedule
        self._schedule: Schedule = Closed(self.at_step) if self._is_custom() else schedule  # type: ignore[assignment]
        if clock is None:
            for argument in timed(self._schedule):
                raise ValueError(
                    f"{name}: {argument} is a time, which needs a clock: pass clock=timesched.Clock(...), or a number "
                    f"of steps."
                )
        elif not hasattr(clock, "timestamp"):
            raise TypeError(f"{name}: clock={clock!r} is no clock: pass a timesched.Clock, or Composer's State.")
        self._count: int | Tensor = last_epoch + 1
        self._now: Tensor | None = None
        self._owner: Scheduler | None = None
        self._scales = getattr(self, "_scales", 0)  # how often a group's adjustment is a factor
        self._direct = not self._scales and clock is None and not overridden(type(self), STEPPING)
        self._replaced: dict[int, float] = {}  # the numbers of the groups before this scheduler set them
        self._serial = next(_serials)
        self._resolve()
        self._target = Target(optimizer, self.param_group_key, param_group_tags, exclusive=False)
        first = self._value()
        if not is_number(first):
            raise ValueError(f"{name} starts at {first!r}: a value is a finite number, or a 0-dim tensor of one.")
        self._target.take(self._accept)
        self._target.register()
        self._hold_tensors()
        if isinstance(clock, Clock):
            clock.notify(self)
        self.refresh()

    def _is_custom(self) -> bool:
        custom = overridden(type(self), CLOSED_FORMS)
        if not custom and self._formula is None:
            form = [name for name in CLOSED_FORMS if hasattr(self, name)][-1]
            raise TypeError(f"{type(self).__name__} has no closed form: define {form}().")
        return custom

    def _resolve(self) -> None:
        horizon = Horizon(None) if self.clock is None else Horizon.of(self.clock)

        def function(schedule: Schedule) -> Resolved:
            return schedule.resolve(Frame(horizon, TimeUnit.BATCH))

        unclocked = self.clock is None
        self._function: Resolved | None = function(self._schedule) if unclocked else None
        self._by_formula: Resolved | None = function(self._formula) if self._formula and unclocked else None

    def _accept(self, indices: list[int], values: list[Any]) -> None:
        """Look at the groups to schedule before any is taken."""
        self._replaced.update((i, float(value)) for i, value in zip(indices, values))
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
        self.count_beside(slot.read(groups[self._target.indices[0]], "The first group"))

    def _take_later_groups(self) -> None:
        self._target.take(self._accept)
        if self._target.rivals:
            self.settle()
        self._hold_tensors()

    # The value

    @standard
    def _get_closed_form(self) -> Tensor:
        """The value at `last_epoch`, a 0-dim tensor."""
        if self._by_formula is None:
            value = self._formula(self.clock) if self._formula else math.nan
        else:
            value = self._by_formula((self.last_epoch,))
        return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64, device="cpu")

    def _value(self) -> Any:
        """The value of this moment: a number, or a tensor where the count is on an accelerator or in a graph."""
        count: Any = self._count
        if self._function is None:
            if torch.compiler.is_compiling():
                raise RuntimeError(
                    "A scheduler that follows a clock reads it on the host: call its step() outside the compiled "
                    "function. The group's tensor is updated in place, so nothing is compiled again."
                )
            return self._schedule(self.clock)
        if type(count) is int:
            if torch.compiler.is_compiling():
                raise RuntimeError(
                    f"In a graph {self.param_group_key!r} has to be a tensor: give the optimizer one, as in "
                    f"lr=torch.tensor(0.1), before the scheduler is made."
                )
        elif not torch.compiler.is_compiling() and count.is_cpu:
            count = count.item()
        return self._function((count,))

    @standard
    def get(self) -> list[Any]:
        """The value of this moment for each parameter group: None for those that are not scheduled."""
        groups = self.optimizer.param_groups
        if len(groups) != self._target.seen:
            self._take_later_groups()
        value = self._value()
        values = [value] * len(groups)
        if self._scales:
            values = [value * adjustment(group) ** self._scales for group in groups]
        if self.param_group_tags is not None:
            chosen = set(self._target.indices)
            values = [each if i in chosen else None for i, each in enumerate(values)]
        return values

    def values(self, n: int) -> list[float]:
        """The values at the steps 0 to n - 1, without an adjustment of groups; nothing is changed.

        With a clock, at its batches.
        """
        horizon = Horizon(None) if self.clock is None else Horizon.of(self.clock)
        function = self._schedule.resolve(Frame(horizon, TimeUnit.BATCH))
        return [float(function((step,))) for step in range(n)]

    # The step

    def step(self, epoch: int | None = None) -> None:
        """Count a step and write its value into the groups. Call it after the optimizer's step.

        Raises `ValueError` when another scheduler writes to the same key of a group, and when it is a part of another.
        """
        target = self._target
        if epoch is not None:
            raise ValueError(f"step({epoch}): the steps are counted here; set last_epoch to go to another one.")
        if target.rivals or self._owner is not None:
            self.settle()
        if len(self.optimizer.param_groups) != target.seen:
            self._take_later_groups()
        if self._direct and not torch.compiler.is_compiling():  # the same as below, without the detour
            target.put([self._function((self.advance(),))] * target.seen)  # type: ignore[misc]  # there is one
            return
        self.increment_last_epoch()
        self.update_groups(self.get())
        self.update_last_value()

    def settle(self) -> None:
        """Raise `ValueError` when another scheduler writes to the same key of a group, as `step()` does."""
        if self._owner is not None:
            raise ValueError(f"This {type(self).__name__} is a part of a {type(self._owner).__name__}: step that one.")
        self._target.refuse_rivals()

    @standard
    def update_groups(self, values: Iterable[Any]) -> None:
        """Write a list with one value for each parameter group; those that are not scheduled are passed over."""
        values, target = list(values), self._target
        if len(values) != len(self.optimizer.param_groups):
            raise ValueError(
                f"{len(values)} values for {len(self.optimizer.param_groups)} parameter groups: give one for each."
            )
        target.put(values if len(target.indices) == len(values) else [values[i] for i in target.indices])

    @standard
    def update_last_value(self) -> None:
        """Called at the end of a step, for subclasses: `get_last_value()` itself reads the groups."""

    def get_last_value(self) -> list[Any]:
        """The value in each parameter group, None for those that are not scheduled; a tensor is a copy."""
        last: list[Any] = [None] * len(self.optimizer.param_groups)
        for i, value in zip(self._target.indices, self._target.read()):
            last[i] = value
        return last

    def refresh(self) -> None:
        """Write the value of this moment, without counting a step."""
        if self._owner is None:
            self.update_groups(self.get())

    def unbind(self) -> None:
        """Let another scheduler have the groups; they keep their present values."""
        self._target.release()
        if isinstance(self.clock, Clock):
            self.clock.forget(self)

    def adopt(self, owner: Scheduler) -> Schedule:
        """Become a part of another scheduler. Returns the schedule of values, for it to make use of."""
        if self._owner is not None:
            raise ValueError(
                f"This {type(self).__name__} is a part of a {type(self._owner).__name__} already: make one for each."
            )
        self.unbind()
        self._owner = owner
        return self._schedule


def settle(schedulers: Iterable[Any]) -> None:
    """Raise `ValueError` when one of several schedulers is not alone with a key of a group, as its `step()` would."""
    for scheduler in schedulers:
        if isinstance(scheduler, Scheduler):
            scheduler.settle()
