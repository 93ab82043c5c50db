"""Binding: a schedule sets one key of an optimizer's parameter groups, and owns it until another one is made for it.

One class for all keys and all schedules: those of `bind()` (functions.py), and the closed forms of `optim`. A step
catches up with the groups (groups.py), evaluates the schedule (evaluation.py), writes, and counts. Who owns a key is in
owner.py, what is saved and compared in saved.py, and what it warns of in warn.py.
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
    """What a state holds, once it is checked."""

    steps: int
    base_values: list[float] | None  # the initial values, if the schedule multiplies them
    timestamp: Timestamp | None  # of a `Clock`


class Bound:
    """A schedule that sets one key of an optimizer's parameter groups: what `bind()` returns.

    `step()` evaluates the schedule once and writes its value into all selected groups: `initial value * multiplier`, or
    the value itself where `relative` is False, as for a `HalfLife`. A tensor in a group is updated in place. Nothing is
    patched onto the optimizer, so its `step` may be compiled, before or after.

    Of several schedulers on one key of a group, the one that was made last owns it: the earlier ones raise `ValueError`
    from then on, and write nothing.
    """

    relative: bool = True  # to the initial value of each group

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
            raise ValueError(f"{name}: on_change={on_change!r}: it is 'same' or 'new'.")
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{name}: {optimizer!r} is not a torch.optim.Optimizer: pass the optimizer to schedule.")
        if clock is not None and not hasattr(clock, "timestamp"):
            raise TypeError(f"{name}: {clock!r} is not a clock: pass a timesched.Clock, or a state with timestamp.")
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
        self.ssr = ssr  # for a clock without a ratio of its own
        self.on_change = on_change  # what a load does where the present schedule has another value
        self.refusal: str | None = None  # why it may not write: superseded, or unbound
        self._count: int | Tensor = steps  # a tensor beside values that are tensors
        self._beginning: Beginning | None = None  # until its second step, if it follows a `Clock`
        self._groups = ScheduledGroups(optimizer, self._key, self.tags)
        self._make_function()
        self._add_groups()
        self.refresh()
        self._take_ownership()  # last, so that a constructor that raises leaves the key to its owner
        self._watch_first_steps()

    @property
    def schedule(self) -> Any:
        """What was bound."""
        return self._schedule

    @property
    def indices(self) -> list[int]:
        """The indices of the groups that it sets."""
        return self._groups.indices

    @property
    def factors(self) -> list[float]:
        """What the schedule's value is multiplied by in each of these groups: the initial value, for `lr` times the
        group's `adjust_learning_rate`; of a schedule of values 1.
        """
        return self._groups.base_values

    def _make_function(self) -> None:
        """Make what evaluates the schedule: a function of its own steps, or with a clock, of that one.

        They are not copied with a scheduler, but made anew.
        """
        has_no_clock = self.clock is None
        self._function: Any = self._schedule.resolve(Frame(Horizon(None), TimeUnit.BATCH)) if has_no_clock else None
        self._evaluate: Any = None if has_no_clock else make_evaluator(self._schedule, self.clock, self.ssr)

    # A step: catch up with the groups, evaluate, write, count

    def step(self, epoch: int | None = None) -> None:
        """Write the value of this moment. Call it after the optimizer's step and the clock's tick.

        Raises `ValueError` when another scheduler owns the key, when this one was unbound, when the value is not
        finite, and when the optimizer's groups were removed, replaced or put in another order; nothing is written then.
        """
        if epoch is not None:
            raise ValueError(
                f"step({epoch}): the steps are counted here; set last_epoch, or the clock that is followed."
            )
        self.catch_up()
        if self._beginning is not None:
            self._warn_of_first_steps(self._beginning)
        self._write(self._value(1))
        self._advance()

    def refresh(self) -> None:
        """Write the value of this moment, without counting a step. Raises `ValueError` as `step` does."""
        self.catch_up()
        self.hold_tensors()
        self._write(self._value())
        if isinstance(self.clock, Clock):
            self.clock.stop_waiting()

    def catch_up(self) -> None:
        """Set the groups that were added, too. Raises `ValueError` where `step` may not write."""
        self._check_write_access()
        if len(self.optimizer.param_groups) > len(self._groups.known_groups):
            self._add_new_groups()
        if "torch_xla" in sys.modules and not torch.compiler.is_compiling():  # the parameters may be on its device now
            self.hold_tensors()

    def _check_write_access(self) -> None:
        """Raise `ValueError` where another scheduler owns the key, or the groups are not those that were scheduled."""
        if self.refusal is not None:
            raise ValueError(f"This {self._describe()} of {self.key!r} {self.refusal}.")
        if not torch.compiler.is_compiling():
            self._groups.follow_optimizer()
        elif self.clock is not None:
            check_not_in_graph("A scheduler that follows a clock reads it on the host")

    def _value(self, steps_ahead: int = 0) -> Any:
        """The schedule's value of this moment; without a clock, after some more steps."""
        if self.clock is None:
            return self._function((self._current_count() + steps_ahead,))
        return self._evaluate(self.clock)

    def _value_at(self, clock: Any, steps: int) -> Any:
        """The value at the moment of a clock; without one, after a number of steps."""
        return self._function((steps,)) if clock is None else self._evaluate(clock)

    def _current_count(self) -> Any:
        """The count to compute with: a number if it can be read, else its tensor."""
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
        """Write a value of the schedule into the selected groups."""
        values = [factor * value for factor in self._groups.base_values]
        if type(value) is not float or not math.isfinite(sum(values)):
            self._check_finite(values)
        groups, key, is_whole = self.optimizer.param_groups, self._key.key, self._key.index is None
        for (i, _), number in zip(self._groups.indexed_groups, values):
            group = groups[i]
            if is_whole and type(group[key]) is type(number) is float:  # as nearly always
                group[key] = number
            else:
                self._key.write(group, number)

    def _check_finite(self, values: list[Any]) -> None:
        is_read = not torch.compiler.is_compiling()
        invalid = [value for value in values if not is_finite_number(value)] if is_read else []
        if invalid:
            raise ValueError(
                f"{self._describe()} would set {self.key!r} to {invalid[0]!r} after {int(self._count)} steps: it is to "
                f"be a finite number; end the schedule before, or change its arguments."
            )

    def _describe(self) -> str:
        """What it is called in messages and in states."""
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
        """The value of this moment for each parameter group; the present one where a group is not selected."""
        self.catch_up()
        return self._group_values(self._value())

    def _group_values(self, value: Any) -> list[Any]:
        values = self.get_last_value()
        for i, factor in zip(self.indices, self.factors):
            values[i] = factor * value
        return values

    def get_last_value(self) -> list[Any]:
        """The value in each parameter group of the optimizer, NaN where a group has no such key; a tensor is a copy."""
        if not torch.compiler.is_compiling():
            self._groups.follow_optimizer()
        return self._groups.current_values()

    def named_values(self) -> dict[str, float]:
        """The value in each group that it sets, by the names that logs show, as in `weight_decay/head`: the key, the
        tags of the group, and its index where other groups have the same tags. A tensor is read.

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
        """The same as `get()`: the value of this moment for each parameter group."""
        return self.get()

    def _initial_values(self) -> list[Any]:
        return self._group_values(1.0)

    # As `Any`: torch has them as plain attributes.
    _last_lr: Any = property(get_last_lr)
    base_lrs: Any = property(
        lambda self: self._initial_values(),
        doc="The initial value of each parameter group; of a group that is not selected, its present value.",
    )

    # The count

    def _set_last_epoch(self, count: Any) -> None:
        if type(count) is int and count == -1:
            self._raise_for_torch_sequential()
        self._beginning = None  # somebody else counts: that says nothing about the clock
        self._set_count(require_count(count, type(self).__name__))

    def _raise_for_torch_sequential(self) -> None:
        """torch's SequentialLR sets its schedulers back to -1, to have them begin again."""
        raise ValueError(
            f"torch's SequentialLR cannot begin a {type(self).__name__}, which counts from 0: make one schedule of "
            f"all, as in bind(SequenceScheduler([first, second], milestones=['10ba']), optimizer, clock)."
        )

    last_epoch: Any = property(lambda self: int(self._count), _set_last_epoch, doc="The number of steps taken.")
    # As torch counts; some loops add to it, which says nothing here.
    _step_count: Any = property(lambda self: int(self._count) + 1, lambda self, count: None)

    def _set_count(self, count: int) -> None:
        if isinstance(self._count, Tensor):
            self._count.copy_(torch.tensor(count, device="cpu"))
        else:
            self._count = count

    def hold_tensors(self) -> None:
        """Count in a tensor beside values that are tensors; the optimizer's own `hold_tensors()` calls this.

        On a lazy device (XLA) the numbers of optim's optimizers become tensors here: each new number would otherwise
        be a constant of a new graph.
        """
        hold = getattr(self.optimizer, "hold_tensor", None)
        for _, group in self._groups.indexed_groups:
            if hold is not None and any(p.device.type == "xla" for p in group["params"][:1]):
                hold(group, self._key.key)
        if self.clock is None:
            values = (self._key.peek(group) for _, group in self._groups.indexed_groups)
            tensors = [value for value in values if isinstance(value, Tensor)]
            if tensors:  # made on the host: see keys.py
                count = self._count if isinstance(self._count, Tensor) else torch.tensor(self._count, device="cpu")
                self._count = count.to(tensors[0].device)

    def _check_tensors(self) -> None:
        """Raise `RuntimeError` in a graph for a count or a value that is a number, and so a constant there."""
        check_compiler()
        values = [self._key.peek(self.optimizer.param_groups[i]) for i in self.indices]
        if type(self._count) is int or not all([isinstance(value, Tensor) for value in values]):
            raise RuntimeError(
                f"In a graph {self.key!r} has to be a tensor, and is a number: call optimizer.hold_tensors() before "
                f"the compiled function (torch's optimizers: pass lr=torch.tensor(0.1), then make the scheduler)."
            )

    # The groups

    def _add_groups(self) -> None:
        """Set the groups not known so far, too. Raises `ValueError` before anything is changed: see `step`."""
        groups, value = self._groups.copy_with_new_groups(self._base_value), self._value()
        self._check_finite([factor * value for factor in groups.base_values])
        groups.write_initial_values()
        self._groups = groups

    def _add_new_groups(self) -> None:
        """Set the groups that were added, if any, too."""
        known, present = len(self._groups.known_groups), len(self.optimizer.param_groups)
        if present > known:
            check_not_in_graph("Parameter groups were added")
            check_single_owner(self, range(known, present))
            self._add_groups()
            self.hold_tensors()

    def _base_value(self, group: Mapping[str, Any], initial: Any, i: int) -> float:
        """What the value is multiplied by in group `i`, which has this initial value."""
        if not self.relative:
            return 1.0
        factor = learning_rate_factor(group, f"Parameter group {i}") if self.key == "lr" else 1.0
        return factor * require_finite(initial, f"initial_{self.key}")

    # The owner

    def _take_ownership(self) -> None:
        """Own the key in the selected groups: an earlier scheduler of one of them does not any more."""
        if self.refusal is None:  # else it is a copy of one that was superseded
            take_ownership(self)
            if isinstance(self.clock, Clock):
                self.clock.notify(self)

    def unbind(self) -> None:
        """Leave the key without an owner; this one writes no more. The groups keep their present values."""
        if self.refusal is None:
            self.refusal = UNBOUND
        self._leave_clock()

    def _leave_clock(self) -> None:
        if isinstance(self.clock, Clock):
            self.clock.forget(self)

    # A warmup or a decay, and a run that gets another length

    def current_phase(self) -> str | None:
        """The phase in which another length of the run may change the value: "warmup", "decay" or None."""
        return find_phase(self.schedule, self.clock, self.ssr)

    def warn_of_jump(self, phase: str, before: list[Any]) -> None:
        """Warn where another length of the run changed the values within a phase."""
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
        """What the value follows from, the schedule as a string, and the value of this moment, all in plain values.

        The initial values, the steps, the counters of the clock and its horizon are what the value follows from. Groups
        that were added belong to it; raises `ValueError` where one of them is not for this scheduler, as `step` does.
        """
        if self.refusal is None:
            self._add_new_groups()
        return self._state_at(self.clock, int(self._count))

    def _state_at(self, clock: Any, steps: int) -> dict[str, Any]:
        """Its state at the moment of a clock; without one, after a number of steps."""
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
        """Continue from a state: its initial values, its steps, and the counters of its clock, whose value is written.

        Initial values that are not those of here replace these with a warning; with `on_change="new"` these stay.
        Where several schedulers follow one clock, the last load sets it. With Composer's State as clock, the value is
        written at the next step or `refresh()`. The state of another schedule or horizon is accepted where the value of
        its moment, which it holds, is that of the present schedule to 1e-12 of the larger, and that of the same
        `HalfLife` at another batch size; else `on_change` decides.
        Raises `ValueError` where that is "same" and the values differ, when the state is of another key, tags or number
        of groups, holds what is not a finite number, or when `step` would raise; nothing is changed then.
        """
        self.restore(self.read_state(state_dict))

    def read_state(self, state: Mapping[str, Any]) -> StateContents:
        """What a state holds, for `restore`; raises where `load_state_dict` does."""
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
                    f"{class_name}: the state has no clock: make the scheduler without one, or load another."
                )
            timestamp = clock.read_state(state["clock"])
            clock = copy.copy(clock)  # at the moment of the state
            clock.timestamp = timestamp
        if self.on_change == "same" and self._is_of_other_schedule(state):
            has_moment = clock is None or isinstance(clock, Clock)
            check_same_values(state, self._state_at(clock, steps), class_name, has_moment)
        return StateContents(steps, base_values, timestamp)

    def is_of(self, state: Mapping[str, Any]) -> bool:
        """Whether a state is of this key and of these tags."""
        return (state["key"], state["tags"]) == (self.key, self._sorted_tags())

    def _is_of_other_schedule(self, state: Mapping[str, Any]) -> bool:
        """Whether a state is of another schedule or horizon, by their texts.

        Not so of the same `HalfLife`, or several, at another size of the batch, with which the value differs by its
        nature. A time in `dur` is the same only in a run of the same length.
        """
        if state["schedule"] != self._describe():
            return True
        if isinstance(self.clock, Clock) and any(map(is_composer_scheduler, read_schedules(self.schedule))):
            return True  # its text is the name of its class, whatever its arguments are
        horizon = repr(self.clock.horizon) if isinstance(self.clock, Clock) else None
        if state.get("horizon") == horizon:
            return False
        is_share = any(time.unit is TimeUnit.DURATION for time in schedule_times(self.schedule))
        relative = getattr(self.schedule, "relative", True)
        return relative or (is_share and state["length"] != str(self.clock.max_duration))

    def restore(self, contents: StateContents) -> None:
        """Go on from what `read_state` returned."""
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
            self._groups.write_initial_values(replace=True)  # an optimizer that was loaded has the notes of the state
        elif self.factors != base_values and not are_close(self.factors, base_values):
            warnings.warn(
                f"The state's initial {self.key!r} is {self.factors}, and here it was {base_values}: the run continues "
                f'with the state\'s. To continue with that of here, make the scheduler with on_change="new".',
                stacklevel=3,
            )
        self._watch_first_steps()

    def _restore_contents(self, contents: StateContents) -> None:
        """Set the count, the initial values and the clock, and write the value of that moment."""
        self._set_count(contents.steps)
        if contents.base_values is not None and self.on_change == "same":
            self._groups.base_values = contents.base_values
        if contents.timestamp is not None:
            self.clock.go_to(contents.timestamp)  # which refreshes all that follow it
        elif self.clock is None:
            self.refresh()  # any other state is loaded by its owner, maybe later than this

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_function", "_evaluate")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._groups = copy.copy(self._groups)  # a shallow copy of a scheduler shares no groups with it
        self._make_function()
        self._take_ownership()

    # The first two steps: are they taken, and after the tick of the clock?

    def _watch_first_steps(self) -> None:
        """Look at the clock in the first two steps from now on."""
        if isinstance(self.clock, Clock):
            changes = count_changes(self.optimizer, self.indices)
            self._beginning = Beginning(int(self._count), self.clock.timestamp, changes)

    def _warn_of_first_steps(self, beginning: Beginning) -> None:
        """Warn once where the clock does not move, or later, or counts what other ranks may not."""
        if int(self._count) == beginning.steps:
            is_early = self.clock.timestamp == beginning.timestamp and self.is_forgotten()
            self._beginning = beginning._replace(is_early=is_early)
        else:
            self._beginning = None
            warn_of_clock(self, beginning)

    def is_forgotten(self) -> bool:
        """Whether the optimizer has stepped since this one was made or loaded, and this one has not."""
        beginning = self._beginning
        if beginning is None or int(self._count) != beginning.steps:
            return False
        changes = count_changes(self.optimizer, self.indices)
        return changes[: len(beginning.changes)] != beginning.changes  # groups may have been added

    def units(self) -> set[TimeUnit]:
        """The units that are counted on the clock, as far as the schedules say so: functions of a user do not."""
        return set() if self.clock is None else schedule_units(self.schedule, self.clock)


class BoundLR(Bound, LambdaLR):
    """A schedule bound to the learning rate: a `LambdaLR` that runs neither torch's constructor nor its step."""

    @property
    def lr_lambdas(self) -> list[Callable[[int], float]]:  # type: ignore[override]  # derived here, and read-only
        """The multiplier of this moment as functions of an epoch, which they ignore; 1 for groups not selected."""
        groups = range(len(self.optimizer.param_groups))
        return [(lambda epoch: self._value()) if i in self.indices else (lambda epoch: 1.0) for i in groups]
