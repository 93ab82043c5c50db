"""Schedulers in closed form: the value of a step is computed from the step alone, on the host or inside a graph."""

from __future__ import annotations

import math
from itertools import count
from typing import Any, ClassVar

import torch
from torch import Tensor

from timesched.horizon import Horizon
from timesched.positions import Frame, Resolved
from timesched.schedule import Schedule
from timesched.targets import Target
from timesched.time.units import TimeUnit

from .arguments import adjustment, is_number, noting, timed
from .composites import Closed
from .counted import checked_count
from .driving import refuse_graph
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
    arguments: dict[str, Any]  # those that the constructor was given, without the optimizer and the clock
    completed: dict[str, Any]  # the same with the defaults of the others

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not getattr(cls.__init__, "notes", False):
            cls.__init__ = noting(cls.__init__)  # type: ignore[method-assign]  # wrapped, as a decorator would

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
        self.__dict__.setdefault("arguments", {})
        self.__dict__.setdefault("completed", {})
        self.optimizer = optimizer
        self.total_iters = total_iters
        self.clock = clock
        self._formula = schedule
        self._custom = self._is_custom()
        if clock is None and schedule is not None:
            for argument in timed(schedule):
                raise ValueError(
                    f"{name}: {argument} is a time, which needs a clock: pass clock=timesched.Clock(...), or a number "
                    f"of steps."
                )
        elif clock is not None and not hasattr(clock, "timestamp"):
            raise TypeError(f"{name}: clock={clock!r} is no clock: pass a timesched.Clock, or Composer's State.")
        self._count: int | Tensor = checked_count(last_epoch, name, least=-1) + 1
        self._owner: str | None = None  # the class of what it is a part of
        self._waiting = False  # set aside, when what it was to be a part of could not be made
        self._scales = getattr(self, "_scales", 0)  # how often a group's adjustment is a factor
        self._direct = not (self._scales or self._custom or clock) and not overridden(type(self), STEPPING)
        self._replaced: dict[int, float] = {}  # the numbers of the groups before this scheduler set them
        self._serial = next(_serials)
        self._resolve()
        self._target = Target(optimizer, self.param_group_key, param_group_tags, exclusive=False)
        self.param_group_tags = self._target.tags
        first = self._value()
        if not is_number(first):
            raise ValueError(f"{name} starts at {first!r}: a value is a finite number, or a 0-dim tensor of one.")
        self._target.take(self._accept)
        self._bind()
        try:
            self.refresh()
        except BaseException:
            self.unbind()
            raise

    def _is_custom(self) -> bool:
        custom = overridden(type(self), CLOSED_FORMS)
        if not custom and self._formula is None:
            form = [name for name in CLOSED_FORMS if hasattr(self, name)][-1]
            raise TypeError(f"{type(self).__name__} has no closed form: define {form}().")
        return custom

    def _resolve(self) -> None:
        """What depends on the formula alone, and is not copied."""
        formula = self._formula if self.clock is None else None
        self._function: Resolved | None = None if formula is None else self._resolved(formula)

    def _resolved(self, schedule: Schedule) -> Resolved:
        """A schedule as a function of a tuple with one count, of steps; with a clock, of its batches."""
        return schedule.resolve(Frame(Horizon(None) if self.clock is None else Horizon.of(self.clock), TimeUnit.BATCH))

    def schedule(self) -> Schedule:
        """The schedule of values, as a part of others."""
        if self._custom or self._formula is None:  # a scheduler without a formula is custom
            return Closed(self.at_step, self._formula)
        return self._formula

    # The value

    @standard
    def _get_closed_form(self) -> Tensor:
        """The value at `last_epoch`, a 0-dim tensor."""
        if self._asked is not None:
            value = self._asked()
        elif self._function is not None:
            value = self._function((self.last_epoch,))
        else:
            value = self._formula(self.clock) if self._formula else math.nan
        return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64, device="cpu")

    def _value(self) -> Any:
        """The value of this moment: a number, or a tensor where the count is on an accelerator or in a graph."""
        count: Any = self._count
        if self.clock is not None:
            refuse_graph("A scheduler that follows a clock reads it on the host")
            return self.schedule()(self.clock)
        if torch.compiler.is_compiling():
            if type(count) is int:
                raise RuntimeError(
                    f"In a graph {self.param_group_key!r} has to be a tensor: give the optimizer one, as in "
                    f"lr=torch.tensor(0.1), before the scheduler is made."
                )
        elif isinstance(count, Tensor) and count.is_cpu:
            count = count.item()
        return self.at_step(count) if self._custom else self._function((count,))  # type: ignore[misc]  # there is one

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
        function = self._resolved(self.schedule())
        return [float(function((step,))) for step in range(n)]

    def first_value(self) -> float:
        """The value at the start of the run."""
        frame = Frame(Horizon(None) if self.clock is None else Horizon.of(self.clock))
        function = self.schedule().resolve(frame)
        return float(function((0,) * len(frame.units)))

    # The step

    def step(self, epoch: int | None = None) -> None:
        """Count a step and write its value into the groups. Call it after the optimizer's step.

        Raises `ValueError` when another scheduler writes to the same key of a group, when it is a part of another or
        was unbound, and when the optimizer's groups were removed, replaced or put in another order.
        """
        target = self._target
        if epoch is not None:
            raise ValueError(f"step({epoch}): the steps are counted here; set last_epoch to go to another one.")
        if target.rivals or not target.is_current():
            self._catch_up()
        if self._direct and not torch.compiler.is_compiling():  # the same as below, without the detour
            count = self._count
            if type(count) is int:
                self._count = count = count + 1
            else:
                count = self.advance()
            value = self._function((count,))  # type: ignore[misc]  # there is one
            if type(value) is float and value - value != 0.0:
                self._refuse_value(value)
            target.fill(value)
            return
        before = None if torch.compiler.is_compiling() else int(self._count)
        self.increment_last_epoch()
        try:
            values = self.get()
            if before is not None and not all(value is None or is_number(value) for value in values):
                self._refuse_value(values)
            self.update_groups(values)
        except BaseException:
            if before is not None:
                self._count_to(before)
            raise
        self.update_last_value()

    def _refuse_value(self, value: Any) -> None:
        step = int(self._count)
        self._count_to(step - 1)
        raise ValueError(
            f"{type(self).__name__} has the value {value!r} at step {step}: it is to be a finite number; end the "
            f"schedule before, or change its arguments."
        )

    @standard
    def update_last_value(self) -> None:
        """Called at the end of a step, for subclasses: `get_last_value()` itself reads the groups."""
