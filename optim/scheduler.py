"""The base of absolute-value schedulers, for any key of a parameter group. A subclass names it in `param_group_key`.

An absolute-value scheduler computes the value itself from the number of steps ("closed form" in torch's words), instead
of a multiplier. To schedule any key with a schedule that exists already, use
`timesched.bind(schedule, optimizer, clock, key=...)`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import Self

from timesched.binding import Bound
from timesched.binding.cursor import StepCursor
from timesched.binding.evaluation import Evaluator
from timesched.binding.keys import require_count
from timesched.hints import check_argument_names, show_options
from timesched.maths import Frame
from timesched.maths.counts import Resolved
from timesched.maths.ops import host_scalar
from timesched.run.horizon import Horizon, State
from timesched.schedulers.schedule import Schedule, schedule_times
from timesched.time.timestamp import Timestamp
from timesched.time.units import TimeUnit
from timesched.time.value import Time
from timesched.types import Tags

from .closed_form.formulas import ClosedForm, as_step, as_tensor, as_time

__all__ = ["Scheduler"]

# The methods of a step in the reference suite. They can be called, but `step()` calls none of them.
STEP_METHODS = (
    "increment_last_epoch", "get", "get_lr", "get_wd", "update_groups", "update_last_value", "update_last_lr"
)  # fmt: skip
OWN_PACKAGES = ("timesched", "optim", "torch", "builtins")  # packages whose classes may define these methods
DEFAULTS = {"param_group_tags": None, "clock": None, "on_change": "same"}  # of `Options`
# The attributes that are not arguments of the schedule.
_RUN_ATTRIBUTES = frozenset(("optimizer", "key", "tags", "ssr", "factor_power", *DEFAULTS))


class UserClosedForm(ClosedForm):
    """The schedule of a scheduler whose class computes the value in a method of its own, which `Scheduler.hook` names.

    A step calls, in this order:

        step() -> the evaluator -> the function that `resolve` returns
        -> Scheduler.at_step(), which sets `last_epoch` -> the user's method
        -> if it calls super(): Scheduler._get_closed_form() -> `base`
    """

    reference: Callable[[], Any]  # weak, to the scheduler: it has this schedule
    base: Evaluator | None  # the formula of the class that the user's class derives from, if there is one

    @classmethod
    def of(cls, scheduler: object, base: Evaluator | None) -> UserClosedForm:
        return cls(weakref.ref(scheduler), base)

    def resolve(self, frame: Frame) -> Resolved:
        index, reference = frame.mark(as_time(0)).index, self.reference
        return lambda counts: reference().at_step(counts[index])

    def __reduce__(self) -> tuple[object, ...]:
        return UserClosedForm.of, (self.reference(), self.base)


class Options(TypedDict, total=False):
    """The keyword arguments of all schedulers."""

    param_group_tags: Tags
    clock: State | None
    on_change: str


class Scheduler(Bound, torch.optim.lr_scheduler.LRScheduler):
    """Sets one key of an optimizer's parameter groups to a value that depends on the number of steps alone.

    A subclass names the key. Its method `_get_closed_form()` computes the value from `last_epoch` by operations of
    torch, and returns a 0-dim tensor. The first value is written at construction, the next values by `step()`: into the
    tensor of a group, in place, or in place of its number. If scheduler and optimizer step in one graph, call the
    optimizer's `hold_tensors()` before. Nothing is patched onto the optimizer.

    Args:
        optimizer: the optimizer whose parameter groups are set.
        total_iters: the number of steps that the schedule is meant for. It is kept as an attribute, which the method of
            a subclass may read. Default: None.
        last_epoch: the index of the previous step. Default: -1, which starts at 0.
        param_group_tags: which groups: None for all groups, a tag or several for the groups that have one of them,
            `[None]` for the groups without tags, "!head" for all groups without the tag "head". Default: None.
        clock: a `timesched.Clock` or another state, such as Composer's `State`, whose counters are followed instead of
            the calls of `step()`; counts may then be times, such as "0.1dur" or "2e9tok". Default: None.
        on_change: what a load does with the state of a different schedule or run whose value differs: "same" (the
            default) raises, "new" continues with this schedule.

    Raises:
        ValueError: a number is not finite or out of its range; a time is given without a clock; no group has the tags;
            a group lacks the key.
        TypeError: `optimizer` is not a `torch.optim.Optimizer`, or `clock` is not a clock. In the definition of a
            subclass: it overrides a method that `step()` does not call.

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
    param_group_key: ClassVar[str] = ""  # the key, as the Cerebras API names it
    hook: ClassVar[str] = "_get_closed_form"  # the method in which a subclass computes the value
    argument_names: ClassVar[Mapping[str, str]] = {}  # by field of the closed form, where the names differ
    _has_positional_arguments: bool = False  # whether more than the optimizer was passed by position
    factor_power: int = 0  # of the learning-rate factor of a group, which multiplies the value

    if TYPE_CHECKING:  # the arguments of a class are attributes with their names

        def __getattr__(self, name: str) -> Any: ...

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        show_options(cls, DEFAULTS)
        for base in cls.__mro__:
            methods = [name for name in (*STEP_METHODS, "_get_closed_form") if name in vars(base) and name != cls.hook]
            if methods and base.__module__.partition(".")[0] not in OWN_PACKAGES:
                raise TypeError(
                    f"{base.__name__}.{methods[0]}: step() does not call it. Compute the value in {cls.hook}()."
                )

    def __new__(cls, /, *positional: object, **named: object) -> Self:
        check_argument_names(cls, named)  # before the constructor raises, without a hint
        scheduler = super().__new__(cls)
        scheduler._has_positional_arguments = len(positional) > 1
        return scheduler

    def __init__(
        self, optimizer: Optimizer, total_iters: object = None, last_epoch: int = -1, *, param_group_tags: Tags = None,
        clock: State | None = None, on_change: str = "same", schedule: Schedule | None = None,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        # Whether a user's class computes the value. Our classes have the method of `Scheduler` under the hook's name.
        self._has_own_hook = getattr(type(self), self.hook) is not Scheduler._get_closed_form
        if schedule is None and not self._has_own_hook:
            raise TypeError(f"{name}.{self.hook}: the class does not define this method. Define it in a subclass.")
        for time in schedule_times(schedule) if clock is None else ():
            if time.unit is not TimeUnit.BATCH:
                raise ValueError(
                    f"{name}.clock=None: {time} needs a clock. Pass clock=timesched.Clock(...), or a number of steps."
                )
        self.total_iters = total_iters
        self.param_group_tags = param_group_tags
        if self._has_own_hook:
            schedule = UserClosedForm.of(self, None if schedule is None else Evaluator(schedule, clock, None))
        Bound.__init__(
            self, optimizer, schedule, self.param_group_key, tags=param_group_tags, clock=clock,
            steps=require_count(last_epoch, name, minimum=-1) + 1, on_change=on_change, factor_power=self.factor_power,
        )  # fmt: skip

    def _construct(self, formula: type[ClosedForm], arguments: Mapping[str, Any]) -> None:
        """The common part of the public constructors: make the closed form of their arguments, and schedule it.

        `arguments`: the constructor's `locals()`. They are the optimizer, the options, and the arguments of the closed
        form, which become attributes. `argument_names` says which of them have other names in the closed form.
        """
        names = {field.name: self.argument_names.get(field.name, field.name) for field in formula.arguments()}
        closed_form = formula(**{field: arguments[name] for field, name in names.items()}, scheduler=self)
        for field, name in names.items():  # before `_add_functions`, which may read the attributes
            setattr(self, name, getattr(closed_form, field))
        total = getattr(closed_form, "total_iters", getattr(closed_form, "total_steps", None))
        schedule = self._add_functions(closed_form)
        Scheduler.__init__(self, arguments["optimizer"], total, schedule=schedule, **arguments["options"])

    def _add_functions(self, closed_form: Any) -> Any:
        """The closed form, with the functions that a user's subclass defines: see scheduler_bases/functions.py."""
        return closed_form

    # The value

    def at_step(self, count: object) -> Tensor:
        """The value that a user's method computes at a step. During the call, the scheduler is at this step."""
        own_cursor, self._cursor = self._cursor, StepCursor(as_step(count))  # which `last_epoch` and others read
        try:
            value: Tensor = getattr(self, self.hook)()
        finally:
            self._cursor = own_cursor
        if not isinstance(value, (Tensor, float, int)):
            raise TypeError(f"{type(self).__name__}.{self.hook}: it returned {value!r}. Return a 0-dim tensor.")
        return value

    def _get_closed_form(self) -> Tensor:
        """The value at `last_epoch` by the formula of the class, a 0-dim tensor. A user's method may call it."""
        formula = self.schedule.base if self._has_own_hook else self._evaluator
        if formula is None:
            raise NotImplementedError(f"{type(self).__name__}.{self.hook}: super() has no formula. Do not call it.")
        if self.clock is None:
            return as_tensor(formula.value((self.last_epoch,)))
        return as_tensor(formula.schedule.curve(self._horizon(), TimeUnit.BATCH)(self.last_epoch))

    # The values over the run

    def _horizon(self) -> Horizon:
        """The run of the clock; without a clock, a run whose length is not known."""
        return Horizon(None) if self.clock is None else Horizon.of(self.clock)

    def values(self, n: int) -> list[float]:
        """The values at the steps 0 to n - 1, without the factors of groups. Nothing is changed.

        With a clock, at batches 0 to n - 1.
        """
        curve = self.schedule.curve(self._horizon(), TimeUnit.BATCH)
        return [curve(step) for step in range(n)]

    def _read_initial_values(self) -> list[Any]:
        return self._target.values_at(self.schedule.at(Timestamp(), self._horizon()))

    base_lrs: Any = property(_read_initial_values, doc="The value at step 0 for each parameter group.")

    def _describe(self) -> str:
        attributes = {key: value for key, value in vars(self).items() if key[0] != "_" and key not in _RUN_ATTRIBUTES}
        types = (bool, int, float, str, list, tuple, Time, Scheduler)
        shown = [f"{key}={_describe_argument(value)}" for key, value in attributes.items() if isinstance(value, types)]
        return f"{type(self).__name__}({', '.join(shown)})"

    # The count

    @property
    def last_epoch(self) -> Any:
        """The steps taken, as a new 0-dim int64 tensor. In the method of a subclass, the step to compute."""
        count = self._cursor.steps
        return count.clone() if isinstance(count, Tensor) else host_scalar(count)

    @last_epoch.setter
    def last_epoch(self, count: Any) -> None:
        Bound._set_last_epoch(self, count.item() if isinstance(count, Tensor) and count.numel() == 1 else count)

    # Methods of the reference suite, for training scripts that were written for it. `step()` calls none of them.

    def increment_last_epoch(self) -> None:
        """Count a step."""
        self._cursor.advance()

    def update_groups(self, values: Iterable[object]) -> None:
        """Write a list with one value for each parameter group. Groups that are not selected are skipped."""
        self.catch_up()
        values, group_count = list(values), len(self._target.values())
        if len(values) != group_count:
            raise ValueError(
                f"{type(self).__name__}.update_groups.values={values!r}: there are {group_count} parameter groups. "
                f"Pass one value for each group."
            )
        selected_values = [values[i] for i in self.indices]
        self._check_finite(selected_values)
        self._target.write(selected_values)

    def update_last_value(self) -> None:
        """Do nothing: `get_last_value()` itself reads the groups."""


def _describe_argument(value: object) -> str:
    if isinstance(value, Scheduler):
        return value._describe()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_describe_argument, value))}]"
    return repr(str(value)) if isinstance(value, Time) else repr(value)
