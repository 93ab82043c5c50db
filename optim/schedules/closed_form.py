"""Schedulers in closed form: the value of a step is computed from the step alone, on the host or inside a graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from timesched.binding import Bound, checked_count, raise_in_graph, refuse_graph
from timesched.description import difference, plain
from timesched.horizon import Horizon
from timesched.keys import is_number, listed
from timesched.positions import Frame, asked_in
from timesched.schedule import Schedule
from timesched.time.units import TimeUnit

from .arguments import adjustment, noting, timed
from .composites import Closed, as_step
from .formulas import Formula

# What a subclass may define; where one does, its methods count.
CLOSED_FORMS = ("_get_closed_form", "_get_closed_form_lr", "_get_closed_form_wd")
STEPPING = ("increment_last_epoch", "get", "get_lr", "get_wd", "update_groups", "update_last_value", "update_last_lr")

_HERE = str(Path(__file__).parents[1])  # the package


def overridden(cls: type, names: Iterable[str]) -> bool:
    """Whether one of the methods that a class has under these names is a user's."""
    methods = (getattr(cls, name) for name in names if hasattr(cls, name))
    # where the code stands, which functools.wraps does not bring along as it does the module's name
    files = (getattr(getattr(method, "__code__", None), "co_filename", "") for method in methods)
    return not all(file.startswith(_HERE) for file in files)


class Scheduler(Bound, torch.optim.lr_scheduler.LRScheduler):
    """Sets one key of an optimizer's parameter groups to a value that depends on the number of steps alone.

    A subclass names the key and says in `_get_closed_form()` what the value is: a 0-dim tensor, from `last_epoch`, by
    operations of torch. The first value is written at construction, the next ones by `step()`: into the tensor that a
    group holds, in place, or in place of its number. Where both are to step in one graph, call the optimizer's
    `hold_tensors()` before. Nothing is patched onto the optimizer.

    Args:
        optimizer: the optimizer.
        total_iters: how many steps the schedule is meant for; kept as an attribute, which a closed form may read.
        last_epoch: the index of the last step before this one: -1 starts at 0.
        param_group_tags: which groups: None for all, a tag or several for those that carry one, `[None]` for those
            without tags.
        clock: a `timesched.Clock` or another state, whose counters are followed instead of the calls of `step()`.
        on_change: what a load does with the state of another schedule or run: "same", "new" or "saved", as in `bind`.

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
    scales: int = 0  # how often a group's adjustment is a factor
    formula: ClassVar[type[Formula]]  # of a class that is made of one
    arguments: dict[str, Any]  # those that say which schedule it is, in plain values
    _at: Tensor | None = None  # the step that a closed form is asked for
    _asked: Callable[[], Any] | None = None  # and what the formula has there

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not getattr(cls.__init__, "notes", False):
            cls.__init__ = noting(cls.__init__)  # type: ignore[method-assign]  # wrapped, as a decorator would

    @noting
    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        total_iters: Any = None,
        last_epoch: int = -1,
        param_group_tags: Any = None,
        clock: Any = None,
        on_change: str = "same",
        *,
        schedule: Schedule | None = None,
    ) -> None:
        name = type(self).__name__
        if not self.param_group_key:
            raise TypeError(f"{name} has no param_group_key: name the key to schedule in a subclass, such as 'lr'.")
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
        self.param_group_tags = listed(param_group_tags)
        key, tags = self.param_group_key, self.param_group_tags
        Bound.__init__(self, optimizer, schedule, key, tags, clock, None, steps, on_change)

    def __post_init__(self) -> None:
        """The constructor of a class that is made of a formula, whose arguments are in attributes of their names."""
        formula = self._of({field.name: getattr(self, field.name) for field in _arguments_of(type(self))})
        tags, clock, on_change = self.param_group_tags, self.clock, self.on_change
        Scheduler.__init__(self, self.optimizer, self.total_iters, -1, tags, clock, on_change, schedule=formula)

    def _of(self, given: Mapping[str, Any]) -> Formula:
        """The formula of arguments, which are kept."""
        names = [field.name for field in _arguments_of(type(self))]
        formula = self.formula(*(given[name] for name in names), called=(type(self).__name__, *names))
        self._keep(**{name: getattr(formula, own.name) for name, own in zip(names, dataclasses.fields(formula))})
        self.total_iters = getattr(formula, "total_iters", getattr(formula, "total_steps", None))
        return self._filled(formula)

    def _keep(self, **effective: Any) -> None:
        """Keep arguments as they were read: in attributes of their names, and for the description."""
        self.__dict__.update(effective)
        self.arguments.pop("args", None)  # these are among them
        self.arguments.update(plain(effective))

    def _filled(self, formula: Formula) -> Formula:
        """The formula, with the functions that a subclass has for it."""
        return formula

    @property
    def schedule(self) -> Any:
        """The schedule of values: the formula, or what `_get_closed_form()` makes of it."""
        return Closed(self.at_step, self._schedule) if self._custom else self._schedule

    def _prepare(self) -> None:
        if not self._custom:
            Bound._prepare(self)
            return
        # what a closed form that is made of a formula may ask for: the formula alone, without the form
        self._function = self._read = None
        if self._schedule is not None and self.clock is None:
            self._function = self._schedule.resolve(self._frame())
        elif self._schedule is not None:
            self._read = partial(self._schedule, self._run())

    def _frame(self, unit: TimeUnit | None = TimeUnit.BATCH) -> Frame:
        return Frame(Horizon(None) if self.clock is None else Horizon.of(self._run()), unit)

    # The value

    def _get_closed_form(self) -> Tensor:
        """The value at `last_epoch`, a 0-dim tensor."""
        if self._asked is not None:
            value = self._asked()
        elif self._read is not None:
            value = self._read()
        elif self._function is not None:
            value = self._function((self.last_epoch,))
        else:
            raise TypeError(f"{type(self).__name__} has no formula that its closed form could be made of.")
        return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64, device="cpu")

    def _value(self) -> Any:
        if not self._custom:
            return Bound._value(self)
        if self.clock is not None:
            refuse_graph("A scheduler that follows a clock reads it on the host")
            return self.schedule(self._run())
        return self.at_step(self._steps_taken())

    def at_step(self, count: Any, formula: Callable[[], Any] | None = None) -> Tensor:
        """The closed form at a step; `formula` has the value there that the scheduler's own formula gives."""
        before, self._at, self._asked = (self._at, self._asked), as_step(count), formula
        try:
            return self._get_closed_form()
        finally:
            self._at, self._asked = before

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
        horizon = Horizon(None) if self.clock is None else Horizon.of(self.clock)
        function = asked_in(TimeUnit.BATCH, horizon, self.schedule.resolve)
        return [float(function((step,))) for step in range(n)]

    def _first_values(self) -> list[Any]:
        frame = self._frame(None)
        function = self.schedule.resolve(frame)
        first, values = float(function((0,) * len(frame.units))), self._present()
        for i, _ in self._selected:
            values[i] = first
        return values

    # The step

    def _steps(self) -> Tensor:
        if self._at is not None:
            return self._at.clone()
        return self._count.clone() if isinstance(self._count, Tensor) else torch.tensor(self._count, device="cpu")

    def _go_to(self, count: Any) -> None:
        if torch.compiler.is_compiling():
            raise_in_graph(RuntimeError, "A graph cannot set last_epoch: call increment_last_epoch() instead.")
        if isinstance(count, Tensor):
            whole = count.numel() == 1 and not (count.is_floating_point() or count.is_complex())
            count = int(count) if whole and count.dtype is not torch.bool else count
        Bound._go_to(self, count)

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

    def increment_last_epoch(self) -> None:
        """Count a step."""
        self._advance()

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

    def update_last_value(self) -> None:
        """Called at the end of a step, for subclasses: `get_last_value()` itself reads the groups."""

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

    # The state of another schedule

    def _rebuilt(self, description: Any) -> Any:
        name, own = type(self).__name__, hasattr(self, "formula") and not self._custom
        names = {field.name for field in _arguments_of(type(self))} if own else set()
        given = description.get("arguments") if isinstance(description, Mapping) else None
        if not own or not isinstance(given, Mapping) or (description["class"], set(given)) != (name, names):
            raise ValueError(f"a {name} makes a schedule of the arguments of one formula, its own, and of nothing else")
        blank = type(self).__new__(type(self))  # with what a subclass of a user has for its functions
        blank.__dict__ |= {**self.__dict__, "arguments": {}}
        return blank._of(given)

    def _adopt(self, description: Any, schedule: Any, horizon: Horizon | None) -> None:
        if description is not None:
            self.arguments = {}
            self._schedule = self._of(description["arguments"])
        self._horizon = horizon
        self._prepare()

    def _goes_on(self, state: Mapping[str, Any], own: Mapping[str, Any], count: int, clock: Any) -> Any:
        tags, theirs = "param_group_tags", state["schedule"]
        if isinstance(theirs, Mapping) and tags in theirs:
            what = difference(theirs[tags], own["schedule"][tags], f"schedule.{tags}")
            if what:
                raise ValueError(f"{type(self).__name__}: the state is of another schedule: {what}.")
        return Bound._goes_on(self, state, own, count, clock)

    def snapshot(self) -> dict[str, Any]:
        """What a load may change, the clock aside."""
        names = [field.name for field in _arguments_of(type(self))] if hasattr(self, "formula") else []
        kept = {name: self.__dict__[name] for name in (*names, "arguments", "total_iters") if name in self.__dict__}
        return {**Bound.snapshot(self), **kept}

    def description(self) -> Any:
        tags = [self.tags] if isinstance(self.tags, str) else self.tags or ()
        arguments = plain(self.arguments)
        return {"class": type(self).__name__, "arguments": arguments, "param_group_tags": sorted(tags, key=str)}


def _arguments_of(cls: type) -> Sequence[dataclasses.Field[Any]]:
    """The fields of a scheduler's class that are arguments of its formula."""
    return dataclasses.fields(cls)[1:-3]  # without the optimizer, and tags, clock and on_change
