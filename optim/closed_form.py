"""Schedulers in closed form: the value of a step is computed from the step alone, on the host or inside a graph."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from timesched.clock import Clock
from timesched.horizon import Horizon
from timesched.phases import Frame, Resolved
from timesched.schedule import Schedule
from timesched.targets import Target
from timesched.units import TimeUnit

from .arguments import bound_arguments, describe, difference, timed
from .composites import Closed

_MOST = 2**63 - 1
F = TypeVar("F", bound=Callable[..., Any])


def standard(method: F) -> F:
    """Mark a method as the suite's own: one without the mark is a user's, and is what counts."""
    method.standard = True  # type: ignore[attr-defined]
    return method


class Scheduler(torch.optim.lr_scheduler.LRScheduler):
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
            cls.__init__ = _noting(cls.__init__)  # type: ignore[method-assign]

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
        self._schedule: Schedule = Closed(self._at) if self._is_custom() else schedule  # type: ignore[assignment]
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
        self._direct = not self._scales and clock is None and not _overridden(type(self))
        self._resolve()
        self._target = Target(optimizer, self.param_group_key, param_group_tags, exclusive=False)
        first = self._value()
        if not _is_number(first):
            raise ValueError(f"{name} starts at {first!r}: a value is a finite number, or a 0-dim tensor of one.")
        self._target.take(self._accept)
        self._target.register()
        self._hold_tensors()
        if isinstance(clock, Clock):
            clock.notify(self)
        self.refresh()

    def _is_custom(self) -> bool:
        names = ("_get_closed_form", "_get_closed_form_lr", "_get_closed_form_wd")
        methods = [getattr(type(self), name) for name in names if hasattr(type(self), name)]
        custom = not all(getattr(method, "standard", False) for method in methods)
        if not custom and self._formula is None:
            raise TypeError(f"{type(self).__name__} has no closed form: define {names[len(methods) - 1]}().")
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
        for i in indices:
            if self._scales:
                _adjustment(self.optimizer.param_groups[i], f"{type(self).__name__}, group {i}")

    def _hold_tensors(self) -> None:
        """Turn numbers into tensors where the optimizer wants them so, and count where the tensors are."""
        hold = getattr(self.optimizer, "hold_tensor", None)
        groups, slot = self.optimizer.param_groups, self._target.slot
        for i in self._target.indices:
            if hold is not None:
                hold(groups[i], slot.key)
        value = slot.read(groups[self._target.indices[0]], "The first group")
        if isinstance(value, Tensor):
            count = self._count if isinstance(self._count, Tensor) else torch.tensor(self._count, device="cpu")
            self._count = count.to(value.device)  # made on the host: see Slot.write

    # The value

    @property
    def last_epoch(self) -> Tensor:
        """The number of steps taken, as a 0-dim int64 tensor of its own; where it is computed with, the step meant."""
        if self._now is not None:
            return self._now
        return self._count.clone() if isinstance(self._count, Tensor) else torch.tensor(self._count, device="cpu")

    @last_epoch.setter
    def last_epoch(self, count: int | Tensor) -> None:
        self._count_to(int(count))

    def _count_to(self, count: int) -> None:
        if isinstance(self._count, Tensor):
            self._count.copy_(torch.tensor(count, device="cpu"))
        else:
            self._count = count

    @property
    def _step_count(self) -> int:
        return int(self._count) + 1

    @standard
    def _get_closed_form(self) -> Tensor:
        """The value at `last_epoch`, a 0-dim tensor."""
        if self._by_formula is None:
            value = self._formula(self.clock) if self._formula else math.nan
        else:
            value = self._by_formula((self.last_epoch,))
        return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64, device="cpu")

    def _at(self, count: Any) -> Tensor:
        """The closed form at a step."""
        if not isinstance(count, Tensor):
            count = torch.tensor(math.floor(count), device="cpu")
        elif count.is_floating_point():
            count = count.floor().to(torch.int64)
        before, self._now = self._now, count
        try:
            return self._get_closed_form()
        finally:
            self._now = before

    def _value(self) -> Any:
        """The value of this moment: a number, or a tensor where the count is on an accelerator or in a graph."""
        count = self._count
        if self._function is None:
            if torch.compiler.is_compiling():
                raise RuntimeError(
                    "A scheduler that follows a clock reads it on the host: call its step() outside the compiled "
                    "function. The group's tensor is updated in place, so nothing is compiled again."
                )
            return self._schedule(self.clock)
        if count.__class__ is int:
            if torch.compiler.is_compiling():
                raise RuntimeError(
                    f"In a graph {self.param_group_key!r} has to be a tensor: give the optimizer one, as in "
                    f"lr=torch.tensor(0.1), before the scheduler is made."
                )
        elif not torch.compiler.is_compiling() and count.is_cpu:  # type: ignore[union-attr]
            count = count.item()  # type: ignore[union-attr]
        return self._function((count,))

    @standard
    def get(self) -> list[Any]:
        """The value of this moment for each parameter group: None for those that are not scheduled."""
        groups, value = self.optimizer.param_groups, self._value()
        if len(groups) != self._target.seen:
            self._target.take(self._accept)
            self._hold_tensors()
        values = [value] * len(groups)
        if self._scales:
            values = [value * _adjustment(group) ** self._scales for group in groups]
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
        target, count = self._target, self._count
        if target.rivals or self._owner is not None:
            self.settle()
        if (
            self._direct
            and count.__class__ is int
            and len(self.optimizer.param_groups) == target.seen
            and epoch is None
            and not torch.compiler.is_compiling()
        ):  # what an eager loop asks for: the same as below, without the detour
            self._count = count = count + 1  # type: ignore[operator]
            target.put([self._function((count,))] * target.seen)  # type: ignore[misc]
            return
        if epoch is not None:
            raise ValueError(f"step({epoch}): the steps are counted here; set last_epoch to go to another one.")
        self.increment_last_epoch()
        self.update_groups(self.get())
        self.update_last_value()

    def settle(self) -> None:
        """Raise `ValueError` when another scheduler writes to the same key of a group, as `step()` does."""
        if self._owner is not None:
            raise ValueError(f"This {type(self).__name__} is a part of a {type(self._owner).__name__}: step that one.")
        self._target.refuse_rivals()

    @standard
    def increment_last_epoch(self) -> None:
        """Count a step."""
        if self._count.__class__ is int:
            self._count += 1
        else:
            self._count.view(1).add_(1)  # type: ignore[union-attr]

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

    # What torch's schedulers have

    @standard
    def get_lr(self) -> list[Any]:
        """The same as `get()`, for those who take it for a scheduler of torch."""
        return self.get()

    def get_last_lr(self) -> list[Any]:
        """The same as `get_last_value()`, for those who take it for a scheduler of torch."""
        return self.get_last_value()

    @property
    def _last_lr(self) -> list[Any]:  # type: ignore[override]
        return self.get_last_value()

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """What schedule it is, and the number of steps: plain values that no step changes afterwards."""
        return {
            "schedule": describe(self),
            "key": self.param_group_key,
            "last_epoch": int(self._count),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to the step of a state dict and write its value into the groups.

        Raises `ValueError` when it is not the state of the same schedule, saying what differs; nothing is changed then.
        """
        name = type(self).__name__
        missing = [key for key in ("schedule", "key", "last_epoch") if key not in (state_dict or ())]
        if missing:
            raise ValueError(f"{name}: the state lacks {', '.join(missing)}: it is not of such a scheduler.")
        count = state_dict["last_epoch"]
        if type(count) is not int or not 0 <= count <= _MOST:
            raise ValueError(f"{name}: last_epoch={count!r} counts steps: it is a whole number, 0 or more.")
        own = self.state_dict()
        for key in ("key", "schedule"):
            what = difference(state_dict[key], own[key], key)
            if what:
                raise ValueError(f"{name}: the state is of another schedule: {what}.")
        self._count_to(count)
        self.refresh()

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_function", "_by_formula")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._resolve()
        if self._owner is None:
            self._target.register()
            if isinstance(self.clock, Clock):
                self.clock.notify(self)


def settle(schedulers: Iterable[Any]) -> None:
    """Raise `ValueError` when one of several schedulers is not alone with a key of a group, as its `step()` would."""
    for scheduler in schedulers:
        if isinstance(scheduler, Scheduler):
            scheduler.settle()


def _overridden(cls: type[Scheduler]) -> bool:
    """Whether a subclass has its own way of stepping."""
    names = ("increment_last_epoch", "get", "get_lr", "update_groups", "update_last_value", "update_last_lr")
    return not all(getattr(getattr(cls, name), "standard", False) for name in names if hasattr(cls, name))


def _noting(init: Callable[..., None]) -> Callable[..., None]:
    """Keep the arguments that the outermost constructor was given, under the names of its signature."""
    signature = inspect.signature(init)

    @wraps(init)
    def noted(self: Scheduler, *args: Any, **kwargs: Any) -> None:
        if "arguments" not in self.__dict__:
            self.arguments = bound_arguments(type(self).__name__, signature, (self, *args), kwargs)
        init(self, *args, **kwargs)

    return noted


def _adjustment(group: Mapping[str, Any], where: str = "A parameter group") -> float:
    """The factor of a group: its `adjust_learning_rate`, else its `adjust_val`, else 1."""
    for key in ("adjust_learning_rate", "adjust_val"):
        factor = group.get(key)
        if factor is not None:
            if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not math.isfinite(factor):
                raise ValueError(f"{where}: {key}={factor!r}: it is a finite number.")
            return float(factor)
    return 1.0


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex() or value.dtype is torch.bool:
            return False
        return value.device.type != "cpu" or math.isfinite(value)
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
