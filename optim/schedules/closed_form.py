"""Schedulers in closed form: the value of a step is computed from the step alone, on the host or inside a graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from timesched.binding import Bound, checked_count, refuse_graph
from timesched.horizon import Horizon
from timesched.keys import is_number, listed
from timesched.positions import Frame, Resolved
from timesched.schedule import Schedule
from timesched.time.units import TimeUnit

from .arguments import adjustment, describe, noting, timed
from .composites import Closed
from .overriding import CLOSED_FORMS, STEPPING, overridden, standard

# A graph of these versions runs the setter of a property after what comes later in the code (seen in 2.7 and 2.9).
_LATE = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)


class Scheduler(Bound, torch.optim.lr_scheduler.LRScheduler):
    """Sets one key of an optimizer's parameter groups to a value that depends on the number of steps alone.

    A subclass names the key and says in `_get_closed_form()` what the value is: a 0-dim tensor, from `last_epoch`, by
    operations of torch. The first value is written at construction, the next ones by `step()`: into the tensor that a
    group holds, in place, or in place of its number. Where both are to step in one graph, call the optimizer's
    `hold_tensors()` before. Nothing is patched onto the optimizer.

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

    relative = False
    param_group_key: ClassVar[str] = ""  # the key, in the words of the API
    _words: ClassVar[Mapping[str, str]] = {}  # what fields of a formula are called as arguments, where it differs
    scales: int = 0  # how often a group's adjustment is a factor
    arguments: dict[str, Any]  # those that the constructor was given, without the optimizer and the clock
    completed: dict[str, Any]  # the same with the defaults of the others
    effective: dict[str, Any]  # what became of those of a formula, by name
    _formula: Schedule | None = None  # before a method of a subclass fills in functions
    _at: Tensor | None = None  # the step that a closed form is asked for
    _asked: Callable[[], Any] | None = None  # and what the formula has there

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
        if not self.param_group_key:
            raise TypeError(f"{name} has no param_group_key: name the key to schedule in a subclass, such as 'lr'.")
        self.__dict__.setdefault("arguments", {})
        self.__dict__.setdefault("completed", {})
        self.total_iters = total_iters
        self._custom = overridden(type(self), CLOSED_FORMS)
        if not self._custom and schedule is None:
            form = [each for each in CLOSED_FORMS if hasattr(self, each)][-1]
            raise TypeError(f"{name} has no closed form: define {form}().")
        if clock is None and schedule is not None:
            for argument in timed(schedule):
                raise ValueError(
                    f"{name}: {argument} is a time, which needs a clock: pass clock=timesched.Clock(...), or a number "
                    f"of steps."
                )
        self._direct = not (self.scales or self._custom or overridden(type(self), STEPPING))
        steps = checked_count(last_epoch, name, least=-1) + 1
        self.optimizer, self._count = optimizer, steps  # what a closed form may ask for
        Bound.__init__(self, optimizer, schedule, self.param_group_key, listed(param_group_tags), clock, None, steps)

    @property
    def param_group_tags(self) -> Any:
        """The same as `tags`."""
        return self.tags

    @property
    def schedule(self) -> Any:
        """The schedule of values: the formula, or what `_get_closed_form()` makes of it."""
        return Closed(self.at_step, self._schedule) if self._custom else self._schedule

    def _prepare(self) -> None:
        self._function = self._read = None
        if not self._custom:
            Bound._prepare(self)

    def _resolved(self) -> Resolved:
        """The schedule as a function of a tuple with one count, of steps; with a clock, of its batches."""
        horizon = Horizon(None) if self.clock is None else Horizon.of(self.clock)
        schedule: Schedule = self.schedule
        return schedule.resolve(Frame(horizon, TimeUnit.BATCH))

    # The value

    @standard
    def _get_closed_form(self) -> Tensor:
        """The value at `last_epoch`, a 0-dim tensor."""
        if self._asked is not None:
            value = self._asked()
        elif self._function is not None:
            value = self._function((self.last_epoch,))
        else:
            value = math.nan if self._read is None else self._read()
        return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64, device="cpu")

    def _value(self) -> Any:
        if not self._custom:
            return Bound._value(self)
        if self.clock is not None:
            refuse_graph("A scheduler that follows a clock reads it on the host")
            return self.schedule(self.clock)
        return self.at_step(self._steps_taken())

    def at_step(self, count: Any, formula: Callable[[], Any] | None = None) -> Tensor:
        """The closed form at a step; `formula` has the value there that the scheduler's own formula gives."""
        if not isinstance(count, Tensor):
            count = torch.tensor(math.floor(count), device="cpu")
        elif count.is_floating_point():
            count = count.floor().to(torch.int64)
        before, self._at, self._asked = (self._at, self._asked), count, formula
        try:
            return self._get_closed_form()
        finally:
            self._at, self._asked = before

    @standard
    def get(self) -> list[Any]:
        """The value of this moment for each parameter group; the present one where a group is not selected."""
        values = Bound.get(self)
        if self.scales:
            for i, group in self._selected:
                values[i] = values[i] * adjustment(group) ** self.scales
        return values

    def values(self, n: int) -> list[float]:
        """The values at the steps 0 to n - 1, without an adjustment of groups; nothing is changed.

        With a clock, at its batches.
        """
        function = self._resolved()
        return [float(function((step,))) for step in range(n)]

    def first_value(self) -> float:
        """The value at the start of the run."""
        frame = Frame(Horizon(None) if self.clock is None else Horizon.of(self.clock))
        function = self.schedule.resolve(frame)
        return float(function((0,) * len(frame.units)))

    def _first_values(self) -> list[Any]:
        first, values = self.first_value(), self._present()
        for i, _ in self._selected:
            values[i] = first
        return values

    # The step

    def _steps(self) -> Tensor:
        if self._at is not None:
            return self._at.clone()
        return self._count.clone() if isinstance(self._count, Tensor) else torch.tensor(self._count, device="cpu")

    def _go_to(self, count: Any) -> None:
        if _LATE and torch.compiler.is_compiling():
            raise RuntimeError("Before torch 2.13 a graph cannot set last_epoch: call increment_last_epoch() instead.")
        if isinstance(count, Tensor):
            other = count.is_floating_point() or count.is_complex() or count.dtype is torch.bool
            whole = count.numel() == 1 and not other
            read = whole and count.is_cpu and not torch.compiler.is_compiling()
            if read and count == -1:
                self._refuse_composite()
            if read or not whole:
                checked_count(int(count) if read else count, type(self).__name__)
        elif type(count) is int and count == -1:
            self._refuse_composite()
        if not torch.compiler.is_compiling():
            self._waits = None  # somebody else counts: that says nothing about the clock
        if isinstance(count, Tensor) and isinstance(self._count, Tensor):
            self._count.view(1).copy_(count.view(1))
        else:
            self._count_to(checked_count(int(count) if isinstance(count, Tensor) else count, type(self).__name__))

    last_epoch: Any = property(
        _steps,
        _go_to,
        doc="The steps taken, as a 0-dim int64 tensor of its own; in a closed form, the step that it is asked for.",
    )

    def _refuse_composite(self) -> None:
        raise ValueError(
            f"torch's SequentialLR cannot begin a {type(self).__name__}, which counts from 0: write "
            f"optim.lr_scheduler.SequentialLR(optimizer, [first, second], milestones=[10])."
        )

    def _step_by_methods(self) -> None:
        count: Any = self._count
        before = count.clone() if isinstance(count, Tensor) and not torch.compiler.is_compiling() else count  # not read
        self.increment_last_epoch()
        try:
            self._write()
        except BaseException:
            if isinstance(count, Tensor):
                count.copy_(before)
            self._count = count
            raise
        self.update_last_value()

    def _write(self) -> None:
        if self._direct:
            self._put(self._value())
        else:
            self.update_groups(self.get())

    @standard
    def increment_last_epoch(self) -> None:
        """Count a step."""
        self._advance()

    @standard
    def update_groups(self, values: Iterable[Any]) -> None:
        """Write a list with one value for each parameter group; those that are not selected are passed over."""
        self.check()
        values = list(values)
        if len(values) != len(self.optimizer.param_groups):
            raise ValueError(
                f"{len(values)} values for {len(self.optimizer.param_groups)} parameter groups: give one for each."
            )
        if not torch.compiler.is_compiling():
            for i, _ in self._selected:
                if not is_number(values[i]):
                    raise ValueError(
                        f"{type(self).__name__}: the value for parameter group {i} is {values[i]!r} at step "
                        f"{int(self._count)}: give a finite int or float, or a 0-dim tensor of one."
                    )
        for i, _ in self._selected:
            self._key.write(self.optimizer.param_groups[i], values[i])

    @standard
    def update_last_value(self) -> None:
        """Called at the end of a step, for subclasses: `get_last_value()` itself reads the groups."""

    @standard
    def get_lr(self) -> list[Any]:
        """The same as `get()`."""
        return self.get()

    def _accept(self, indices: list[int], values: list[Any], value: Any) -> None:
        Bound._accept(self, indices, values, value)
        held: dict[int, float] = {}
        for i, each in zip(indices, values) if self.scales else ():
            factor = adjustment(self.optimizer.param_groups[i], f"{type(self).__name__}, group {i}")
            tensor = self._key.peek(self.optimizer.param_groups[i])
            if isinstance(each, Tensor) and held.setdefault(id(tensor), factor) != factor:
                raise ValueError(
                    f"{type(self).__name__}: groups with different factors share one tensor as {self.key!r}: give each "
                    f"group a tensor of its own."
                )

    def description(self) -> Any:
        return describe(self)
