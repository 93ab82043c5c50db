"""Binding: a schedule controls one key of an optimizer's parameter groups, until another scheduler is made for it.

`Bound` is the class for all keys and all schedules. `bind()` (functions.py) returns it, and the absolute-value
schedulers of `optim` derive from it. A step catches up with the groups (groups.py), evaluates the schedule
(evaluation.py), writes the value and counts. Other modules: owner.py records which scheduler controls a key, saved.py
compares saved states, and warn.py has the warnings.
"""

from __future__ import annotations

import copy
import math
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from timesched.binding.evaluation import (
    describe_schedule,
    find_phase,
    is_composer_scheduler,
    make_evaluator,
    read_schedules,
    schedule_units,
)
from timesched.binding.groups import ScheduledGroups, learning_rate_factor, named_values, read_tags
from timesched.binding.keys import Key, is_finite_number, require_count, require_finite
from timesched.binding.owner import UNBOUND, check_single_owner, take_ownership
from timesched.binding.saved import are_close, check_same_values, check_saved_state
from timesched.binding.warn import PHASE_TEXTS, Beginning, count_changes, warn_of_clock
from timesched.clock import Clock
from timesched.horizon import Horizon
from timesched.ops import check_compiler, check_not_in_graph
from timesched.positions import Frame
from timesched.schedule import schedule_times
from timesched.time.timestamp import Timestamp
from timesched.time.units import TimeUnit

OnChange = Literal["same", "new"]


class StateContents(NamedTuple):
    """The contents of a saved state, after the checks."""

    steps: int
    base_values: list[float] | None  # if the schedule multiplies them
    timestamp: Timestamp | None  # of a `Clock`


class Bound:
    """A schedule that controls one key of an optimizer's parameter groups. `bind()` returns it.

    `step()` evaluates the schedule once and writes its value into all selected groups: `initial value * multiplier`, or
    the value itself where `relative` is False, as for a `HalfLife`. A tensor in a group is updated in place. Nothing is
    patched onto the optimizer, so its `step` may be compiled, before or after.

    If several schedulers are made for one key of a group, the scheduler created last controls it. The earlier
    schedulers raise `ValueError` in their next step, and write nothing.
    """

    relative: bool = True  # whether the value multiplies the initial value of each group

    def __init__(
        self,
        optimizer: Optimizer,
        schedule: Any,
        key: str | tuple[str, int],
        tags: Any = None,
        clock: Any = None,
        ssr: float | None = None,
        steps: int = 0,
        on_change: str = "same",
    ) -> None:
        name = type(self).__name__
        if on_change not in ("same", "new"):
            raise ValueError(f"{name}.on_change={on_change!r}: the option does not exist. Pass 'same' or 'new'.")
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{name}.optimizer={optimizer!r}: it is not a torch.optim.Optimizer. Pass an optimizer.")
        if clock is not None and not hasattr(clock, "timestamp"):
            raise TypeError(
                f"{name}.clock={clock!r}: it is not a clock. Pass a timesched.Clock, or a state with timestamp."
            )
        self._key = Key(key)
        self._schedule = schedule
        self.optimizer = optimizer
        self.key = self._key.name
        if not getattr(schedule, "relative", True):
            self.relative = False
            if self.key == "lr":
                schedule.refuse_to_multiply()
        self.tags = tags if tags is None or isinstance(tags, str) else read_tags(tags)
        self.clock = clock
        self.ssr = ssr  # the scale-schedule ratio, for a clock that has none
        self.on_change = on_change  # what a load does if the present schedule has a different value
        self.refusal: str | None = None  # why it may not write: a later scheduler, or unbind()
        self._count: int | Tensor = steps  # a tensor if the values are tensors
        self._beginning: Beginning | None = None  # until the second step, if it follows a `Clock`
        self._groups = ScheduledGroups(optimizer, self._key, self.tags)
        self._make_function()
        self._add_groups()
        self.refresh()
        self._take_ownership()  # last: a constructor that raises changes no other scheduler
        self._watch_first_steps()

    @property
    def schedule(self) -> Any:
        """The schedule that was bound: a schedule, a function, or a list of them."""
        return self._schedule

    @property
    def indices(self) -> list[int]:
        """The indices of the parameter groups that it writes."""
        return self._groups.indices

    @property
    def factors(self) -> list[float]:
        """The base value of each of these groups: the factor that multiplies the schedule's value.

        It is the group's initial value, for `lr` times the group's `adjust_learning_rate`. If the schedule returns
        values instead of multipliers, it is 1.
        """
        return self._groups.base_values

    def _make_function(self) -> None:
        """Make the function that evaluates the schedule: from the clock, or without a clock from the count of steps.

        A copy of a scheduler makes its own function, since functions are not copied.
        """
        has_no_clock = self.clock is None
        self._function: Any = self._schedule.resolve(Frame(Horizon(None), TimeUnit.BATCH)) if has_no_clock else None
        self._evaluate: Any = None if has_no_clock else make_evaluator(self._schedule, self.clock, self.ssr)

    # A step: catch up with the groups, evaluate, write, count

    def step(self, epoch: int | None = None) -> None:
        """Write the current value. Call it after the optimizer's step and the clock's tick.

        Raises `ValueError` if a later scheduler controls the key, after `unbind()`, and if the value is not finite.
        Also if the optimizer's groups were removed, replaced or put in a different order. Nothing is written then.
        """
        if epoch is not None:
            name = type(self).__name__
            raise ValueError(
                f"{name}.step.epoch={epoch!r}: the scheduler counts its own steps. Set last_epoch or its clock instead."
            )
        self.catch_up()
        if self._beginning is not None:
            self._warn_of_first_steps(self._beginning)
        self._write(self._value(1))
        self._advance()

    def refresh(self) -> None:
        """Write the current value without counting a step. Raises `ValueError` as `step` does."""
        self.catch_up()
        self.hold_tensors()
        self._write(self._value())
        if isinstance(self.clock, Clock):
            self.clock.stop_waiting()

    def catch_up(self) -> None:
        """Select the groups that were added to the optimizer. Raises `ValueError` where `step` may not write."""
        self._check_write_access()
        if len(self.optimizer.param_groups) > len(self._groups.known_groups):
            self._add_new_groups()
        if "torch_xla" in sys.modules and not torch.compiler.is_compiling():  # its device may have the parameters
            self.hold_tensors()

    def _check_write_access(self) -> None:
        """Raise `ValueError` if this scheduler may not write, or if the scheduled groups were removed or replaced."""
        if self.refusal is not None:
            raise ValueError(f"{type(self).__name__}.key={self.key!r}: {self._describe()} {self.refusal}")
        if not torch.compiler.is_compiling():
            self._groups.follow_optimizer()
        elif self.clock is not None:
            check_not_in_graph(
                "A scheduler that follows a clock reads it on the host. Call step() or refresh() outside of the "
                "compiled function: the group's tensor is updated in place, so nothing is compiled again."
            )

    def _value(self, steps_ahead: int = 0) -> Any:
        """The schedule's current value; without a clock, its value `steps_ahead` steps later."""
        if self.clock is None:
            return self._function((self._current_count() + steps_ahead,))
        return self._evaluate(self.clock)

    def _value_at(self, clock: Any, steps: int) -> Any:
        """The value at the time of a clock; without a clock, after a number of steps."""
        return self._function((steps,)) if clock is None else self._evaluate(clock)

    def _current_count(self) -> Any:
        """The count of steps for the computation: an integer if it can be read, else the tensor."""
        if torch.compiler.is_compiling():
            self._check_tensors()
        elif isinstance(self._count, Tensor) and self._count.is_cpu:
            return int(self._count)
        return self._count

    def _advance(self) -> None:
        if isinstance(self._count, int):
            self._count += 1
        else:
            self._count.view(1).add_(1)

    def _write(self, value: Any) -> None:
        """Write a value of the schedule into the selected groups, times their base values."""
        values = [factor * value for factor in self._groups.base_values]
        if type(value) is not float or not math.isfinite(sum(values)):
            self._check_finite(values)
        groups, key, is_whole = self.optimizer.param_groups, self._key.key, self._key.index is None
        for (i, _), number in zip(self._groups.indexed_groups, values):
            group = groups[i]
            if is_whole and type(group[key]) is type(number) is float:  # the usual case
                group[key] = number
            else:
                self._key.write(group, number)

    def _check_finite(self, values: list[Any]) -> None:
        is_read = not torch.compiler.is_compiling()
        invalid = [value for value in values if not is_finite_number(value)] if is_read else []
        if invalid:
            raise ValueError(
                f"{type(self).__name__}.key={self.key!r}: {self._describe()} would set it to {invalid[0]!r} after "
                f"{int(self._count)} steps, which is not a finite number. End the schedule before, or change it."
            )

    def _describe(self) -> str:
        """The text of the schedule, for messages and saved states."""
        return describe_schedule(self.schedule)

    def __repr__(self) -> str:
        at = f"on {self.clock!r}" if isinstance(self.clock, Clock) else f"after {int(self._count)} steps"
        return f"<{type(self).__name__} of {self.key!r} in groups {self.indices}: {self._describe()}, {at}>"

    def _repr_html_(self) -> str:
        from timesched.drawing.schedulers import sources
        from timesched.drawing.svg import notebook_html

        return notebook_html(self, lambda: sources(self))

    # The values that the groups hold

    def get(self) -> list[Any]:
        """The scheduled value for each parameter group; for a group that is not selected, the value that it has."""
        self.catch_up()
        return self._group_values(self._value())

    def _group_values(self, value: Any) -> list[Any]:
        values = self.get_last_value()
        for i, factor in zip(self.indices, self.factors):
            values[i] = factor * value
        return values

    def get_last_value(self) -> list[Any]:
        """The value in each parameter group of the optimizer; NaN if a group lacks the key. Tensors are copies."""
        if not torch.compiler.is_compiling():
            self._groups.follow_optimizer()
        return self._groups.current_values()

    def named_values(self) -> dict[str, float]:
        """The value in each selected group, by a name for logs, such as `weight_decay/head`.

        A name is the key, the tags of the group, and its index if other groups have the same tags. Tensors are read.

        >>> from timesched import Clock, ConstantScheduler, bind
        >>> groups = [{"params": [torch.zeros(1)]}, {"params": [torch.ones(1)], "tags": "head"}]
        >>> optimizer = torch.optim.SGD(groups, lr=0.4)
        >>> bind(ConstantScheduler(0.5), optimizer, Clock("4ba")).named_values()
        {'lr': 0.2, 'lr/head': 0.2}
        """
        self._groups.follow_optimizer()
        return named_values(self.optimizer.param_groups, [(self.key, i) for i in self.indices])

    def get_last_lr(self) -> list[Any]:
        """The same as `get_last_value()`, under the name that loggers look for."""
        return self.get_last_value()

    def get_lr(self) -> list[Any]:
        """The same as `get()`: the scheduled value for each parameter group."""
        return self.get()

    def _initial_values(self) -> list[Any]:
        return self._group_values(1.0)

    # Typed as `Any`, since they are plain attributes in torch.
    _last_lr: Any = property(get_last_lr)
    base_lrs: Any = property(
        lambda self: self._initial_values(),
        doc="The initial value of each parameter group; for a group that is not selected, the value that it has.",
    )

    # The count

    def _set_last_epoch(self, count: Any) -> None:
        if type(count) is int and count == -1:
            self._raise_for_torch_sequential()
        self._beginning = None  # the caller counts, so these steps show nothing about the clock
        self._set_count(require_count(count, type(self).__name__))

    def _raise_for_torch_sequential(self) -> None:
        """Raise `ValueError`: torch's SequentialLR sets its schedulers back to -1, so that they start again."""
        raise ValueError(
            f"{type(self).__name__}.last_epoch=-1: torch's SequentialLR cannot restart this scheduler. Bind one "
            f"schedule, as in bind(SequenceScheduler([first, second], milestones=['10ba']), optimizer, clock)."
        )

    last_epoch: Any = property(lambda self: int(self._count), _set_last_epoch, doc="The number of steps taken.")
    # As torch counts. Some training loops add to it, which has no effect here.
    _step_count: Any = property(lambda self: int(self._count) + 1, lambda self, count: None)

    def _set_count(self, count: int) -> None:
        if isinstance(self._count, Tensor):
            self._count.copy_(torch.tensor(count, device="cpu"))
        else:
            self._count = count

    def hold_tensors(self) -> None:
        """Count in a tensor if the values are tensors. The optimizer's own `hold_tensors()` calls this.

        On a lazy device (XLA) the hyperparameters of optim's optimizers become tensors here. Otherwise each new number
        would be a constant, and each constant needs a new graph.
        """
        hold = getattr(self.optimizer, "hold_tensor", None)
        for _, group in self._groups.indexed_groups:
            if hold is not None and any(p.device.type == "xla" for p in group["params"][:1]):
                hold(group, self._key.key)
        if self.clock is None:
            values = (self._key.peek(group) for _, group in self._groups.indexed_groups)
            tensors = [value for value in values if isinstance(value, Tensor)]
            if tensors:  # made on the host: see `_fill` in keys.py
                count = self._count if isinstance(self._count, Tensor) else torch.tensor(self._count, device="cpu")
                self._count = count.to(tensors[0].device)

    def _check_tensors(self) -> None:
        """Raise `RuntimeError` in a graph if the count or a value is a Python number, which is a constant there."""
        check_compiler()
        values = [self._key.peek(self.optimizer.param_groups[i]) for i in self.indices]
        if type(self._count) is int or not all([isinstance(value, Tensor) for value in values]):
            raise RuntimeError(
                f"{type(self).__name__}.key={self.key!r}: in a graph the value must be a tensor, and it is a number. "
                f"Call optimizer.hold_tensors() first, or pass lr=torch.tensor(0.1) to an optimizer of torch."
            )

    # The groups

    def _add_groups(self) -> None:
        """Select the groups that are new. Raises `ValueError` before anything is changed: see `step`."""
        groups, value = self._groups.copy_with_new_groups(self._base_value), self._value()
        self._check_finite([factor * value for factor in groups.base_values])
        groups.write_initial_values()
        self._groups = groups

    def _add_new_groups(self) -> None:
        """Select the groups that were added after the scheduler was made, if any."""
        known, present = len(self._groups.known_groups), len(self.optimizer.param_groups)
        if present > known:
            check_not_in_graph("Parameter groups were added. Call step() once outside of the compiled function.")
            check_single_owner(self, range(known, present))
            self._add_groups()
            self.hold_tensors()

    def _base_value(self, group: Mapping[str, Any], initial: Any, i: int) -> float:
        """The base value of group `i`, which has this initial value."""
        if not self.relative:
            return 1.0
        factor = learning_rate_factor(group, f"parameter group {i}") if self.key == "lr" else 1.0
        return factor * require_finite(initial, f"initial_{self.key}")

    # The owner

    def _take_ownership(self) -> None:
        """Take control of the key in the selected groups. Earlier schedulers of them may not write any more."""
        if self.refusal is None:  # else it is a copy of a scheduler that may not write
            take_ownership(self)
            if isinstance(self.clock, Clock):
                self.clock.notify(self)

    def unbind(self) -> None:
        """Release the key: this scheduler writes no more. The groups keep their present values."""
        if self.refusal is None:
            self.refusal = UNBOUND
        self._leave_clock()

    def _leave_clock(self) -> None:
        if isinstance(self.clock, Clock):
            self.clock.forget(self)

    # A warmup or a decay, and a run whose length changes

    def current_phase(self) -> str | None:
        """The phase in which a new length of the run may change the value: "warmup", "decay" or None."""
        return find_phase(self.schedule, self.clock, self.ssr)

    def warn_of_jump(self, phase: str, before: list[Any]) -> None:
        """Warn if a new length of the run changed the values within a phase."""
        now = self.get()
        for i in self.indices:
            if now[i] != before[i]:
                state, goes, advice = PHASE_TEXTS[phase]
                warnings.warn(
                    f"The {phase} of {self._describe()} {state}: in a run of {self.clock.max_duration} {self.key!r} "
                    f"{goes} from {before[i]:.4g} to {now[i]:.4g}. {advice}",
                    stacklevel=4,
                )
                return

    # Saving and loading

    def state_dict(self) -> dict[str, Any]:
        """The state of the scheduler, in plain Python values.

        It has the initial values, the steps, the counters of the clock and its horizon, which determine the value. It
        also has the schedule as a string, and the current value. Groups that were added are in it. Raises `ValueError`
        if an added group is not for this scheduler, as `step` does.
        """
        if self.refusal is None:
            self._add_new_groups()
        return self._state_at(self.clock, int(self._count))

    def _state_at(self, clock: Any, steps: int) -> dict[str, Any]:
        """The state at the time of a clock; without a clock, after a number of steps."""
        value = float(self._value_at(clock, steps))
        state = {"key": self.key, "tags": self._sorted_tags(), "last_epoch": steps, "schedule": self._describe()}
        if self.relative:
            state |= {"base": list(self.factors), "value": [value]}
        else:
            state["value"] = [factor * value for factor in self.factors]
        if isinstance(clock, Clock):
            horizon = clock.horizon
            state |= {"clock": clock.state_dict(), "horizon": repr(horizon), "length": str(horizon.max_duration)}
        return state

    def _sorted_tags(self) -> list[Any] | None:
        return None if self.tags is None else sorted(read_tags(self.tags), key=str)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a saved state: restore its initial values, steps and clock counters, and write the value.

        If the saved initial values differ from the present initial values, they replace them with a warning. With
        `on_change="new"` the present initial values are kept.
        If several schedulers follow one clock, the last load sets the clock. With Composer's State as clock, the value
        is written at the next step or `refresh()`. A state holds the value at the time of the save. The state of a
        different schedule or horizon is accepted if the present schedule has the same value there, to 1e-12 of the
        larger value. The same `HalfLife` at a different batch size is accepted, too. Otherwise `on_change` decides.
        Raises `ValueError` if `on_change` is "same" and the values differ. Also if the state has a different key, tags
        or number of groups, if it has a number that is not finite, or if `step` would raise. Nothing is changed then.
        """
        self.restore(self.read_state(state_dict))

    def read_state(self, state: Mapping[str, Any]) -> StateContents:
        """The contents of a saved state, for `restore`. Raises as `load_state_dict` does."""
        self._check_write_access()
        class_name = type(self).__name__
        check_saved_state(state, class_name, self.key, self._sorted_tags(), self.relative)
        steps, base_values = require_count(state["last_epoch"], class_name), None
        if self.relative:
            base_values = [require_finite(value, f"the initial {self.key}") for value in state["base"]]
            self._groups.check_base_values(base_values, class_name)
        clock, timestamp = self.clock, None
        if isinstance(clock, Clock):
            if "clock" not in state:
                raise ValueError(
                    f"{class_name}.clock={clock!r}: the state has no clock. Load it into a scheduler without a clock."
                )
            timestamp = clock.read_state(state["clock"])
            clock = copy.copy(clock)  # at the time of the save
            clock.timestamp = timestamp
        if self.on_change == "same" and self._is_of_other_schedule(state):
            has_moment = clock is None or isinstance(clock, Clock)
            check_same_values(state, self._state_at(clock, steps), class_name, has_moment)
        return StateContents(steps, base_values, timestamp)

    def is_of(self, state: Mapping[str, Any]) -> bool:
        """Whether a saved state has the key and the tags of this scheduler."""
        return (state["key"], state["tags"]) == (self.key, self._sorted_tags())

    def _is_of_other_schedule(self, state: Mapping[str, Any]) -> bool:
        """Whether a saved state is of a different schedule or horizon, by their texts.

        False for the same `HalfLife` at a different batch size, or for several: their values must change with the batch
        size. A time in `dur` is the same only in a run of the same length.
        """
        if state["schedule"] != self._describe():
            return True
        if isinstance(self.clock, Clock) and any(map(is_composer_scheduler, read_schedules(self.schedule))):
            return True  # its text is the name of its class, without the arguments
        horizon = repr(self.clock.horizon) if isinstance(self.clock, Clock) else None
        if state.get("horizon") == horizon:
            return False
        is_share = any(time.unit is TimeUnit.DURATION for time in schedule_times(self.schedule))
        relative = getattr(self.schedule, "relative", True)
        return relative or (is_share and state["length"] != str(self.clock.max_duration))

    def restore(self, contents: StateContents) -> None:
        """Continue from the contents that `read_state` returned."""
        self._add_new_groups()
        steps, base_values = int(self._count), self.factors
        try:
            self._restore_contents(contents)
        except BaseException:
            self._set_count(steps)
            self._groups.base_values = base_values
            self.refresh()
            raise
        if self.on_change == "new" and self.relative:
            self._groups.write_initial_values(replace=True)  # a loaded optimizer has the initial values of the state
        elif self.factors != base_values and not are_close(self.factors, base_values):
            warnings.warn(
                f"{type(self).__name__}.key={self.key!r}: the initial value was {base_values}, and the state has "
                f"{self.factors}, which replaces it. Pass on_change='new' to keep the present value.",
                stacklevel=3,
            )
        self._watch_first_steps()

    def _restore_contents(self, contents: StateContents) -> None:
        """Set the count, the base values and the clock, and write the value at that time."""
        self._set_count(contents.steps)
        if contents.base_values is not None and self.on_change == "same":
            self._groups.base_values = contents.base_values
        if contents.timestamp is not None:
            self.clock.go_to(contents.timestamp)  # which refreshes all schedulers that follow it
        elif self.clock is None:
            self.refresh()  # a State that is no Clock is loaded by its own code, maybe later

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_function", "_evaluate")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._groups = copy.copy(self._groups)  # a shallow copy of a scheduler has its own groups
        self._make_function()
        self._take_ownership()

    # The first two steps: does the clock tick, and before the scheduler?

    def _watch_first_steps(self) -> None:
        """Watch the clock in the next two steps."""
        if isinstance(self.clock, Clock):
            changes = count_changes(self.optimizer, self.indices)
            self._beginning = Beginning(int(self._count), self.clock.timestamp, changes)

    def _warn_of_first_steps(self, beginning: Beginning) -> None:
        """Warn once if the clock does not tick, ticks after the step, or counts each rank alone."""
        if int(self._count) == beginning.steps:
            is_early = self.clock.timestamp == beginning.timestamp and self.is_forgotten()
            self._beginning = beginning._replace(is_early=is_early)
        else:
            self._beginning = None
            warn_of_clock(self, beginning)

    def is_forgotten(self) -> bool:
        """Whether the optimizer has stepped since this scheduler was made or loaded, and the scheduler has not."""
        beginning = self._beginning
        if beginning is None or int(self._count) != beginning.steps:
            return False
        changes = count_changes(self.optimizer, self.indices)
        return changes[: len(beginning.changes)] != beginning.changes  # groups may have been added

    def units(self) -> set[TimeUnit]:
        """The units that the schedules read on the clock. The units of a user's function are not known."""
        return set() if self.clock is None else schedule_units(self.schedule, self.clock)


class BoundLR(Bound, LambdaLR):
    """A schedule bound to the learning rate: a `LambdaLR` that calls neither torch's constructor nor torch's step."""

    @property
    def lr_lambdas(self) -> list[Callable[[int], float]]:  # type: ignore[override]  # derived here, and read-only
        """The current multiplier as functions of an epoch, which they ignore; 1 for a group that is not selected."""
        groups = range(len(self.optimizer.param_groups))
        return [(lambda epoch: self._value()) if i in self.indices else (lambda epoch: 1.0) for i in groups]
