"""Binding: a schedule controls one key of parameter groups, until another scheduler is made for it.

`Bound` is the class for all keys and all schedules. `bind()` (functions.py) returns it, and the absolute-value
schedulers of `optim` derive from it. It has four parts, which know nothing of each other:

* a cursor says where the scheduler is (cursor.py),
* an evaluator computes the value there (evaluation.py),
* a target writes the value into the groups (target.py),
* a watch looks for mistakes in the first two steps (watch.py).

owner.py knows the schedulers of each optimizer, and saved.py compares a saved state with the present one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

from torch import Tensor
from torch.compiler import is_compiling
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from timesched.binding.cursor import StepCursor, make_cursor
from timesched.binding.evaluation import Evaluator, describe_schedule, schedule_units
from timesched.binding.groups import named_values, read_tags
from timesched.binding.keys import Key, may_be_finite, require_count
from timesched.binding.owner import Refusal, check_single_owner, restore_initial_values, take_key
from timesched.binding.saved import StateContents, are_close, check_same_values, check_saved_state, is_of_other_schedule
from timesched.binding.target import GroupTarget, SelectedGroup
from timesched.binding.warn import find_presumed_peak, make_jump_check
from timesched.binding.watch import Watch
from timesched.maths.ops import check_compiler, check_not_in_graph
from timesched.run.clock import Clock
from timesched.run.horizon import State
from timesched.time.units import TimeUnit
from timesched.types import StateDict, Tags

OnChange = Literal["same", "new"]


# These methods run, in this order:
#
#     a scheduler is made             _begin            select the groups with the tags, and write the first value
#                                     _take_ownership   control their key (owner.py): earlier schedulers are released
#                                     _review_groups    a subclass may refuse the groups
#     step(), or refresh()            catch_up          nothing, if the groups are the same dicts as before
#                                     _write            write the present value
#     the groups have changed:        catch_up          refuse if it may not write
#       in a graph                      _check_graph         refuse what a graph cannot do
#       new dicts, after a load         GroupTarget          follow the groups, if they have the same parameters
#       groups were added               _add_new_groups      select those with the tags, if they have no other owner
#     load_state_dict(state)          read_state        refuse a state that does not fit, before anything is changed
#                                     restore           set the base values and the steps, or the clock
#                                     refresh           with a clock, the clock calls it on all its schedulers
#     a later scheduler of the key    _release          write no more: the next step raises
#     the clock gets a new length     expect_new_length, refresh
class Bound:
    """A schedule that controls one key of an optimizer's parameter groups. `bind()` returns it.

    `step()` evaluates the schedule once and writes its value into all selected groups: `initial value * multiplier`, or
    the value itself where `relative` is False, as for a `HalfLife`. A tensor in a group is updated in place. Nothing is
    patched onto the optimizer, so its `step` may be compiled, before or after.

    If several schedulers are made for one key of a group, the scheduler created last controls it. The earlier
    schedulers raise `ValueError` in their next step, and write nothing.
    """

    relative: bool = True  # whether the value multiplies the initial value of each group; the constructor may change it
    _warning_depth: ClassVar[int] = 3  # the stack level of the code that calls `step`, in a warning of the step

    def __init__(
        self,
        optimizer: Optimizer,
        schedule: Any,
        key: str,
        tags: Tags = None,
        clock: State | None = None,
        ssr: float | None = None,
        steps: int = 0,
        on_change: str = "same",
        factor_power: int | None = None,
    ) -> None:
        _check_arguments(type(self), optimizer, clock, on_change)
        self.optimizer = optimizer
        self.key = key
        self.tags = tags if tags is None or isinstance(tags, str) else read_tags(tags)
        self.clock = clock
        self.ssr = ssr  # the scale-schedule ratio, for a clock that has none
        self.on_change = on_change  # what a load does if the present schedule has a different value
        # The base value of a group, by which its values are multiplied, is the product of
        # * its initial value, if `relative`: not for the values of a `HalfLife`, and not in a scheduler of `optim`;
        # * its learning-rate factor to a power: 1 to multiply a learning rate, else 0. `optim` passes its own.
        if not getattr(schedule, "relative", True):
            if key == "lr":
                schedule.refuse_to_multiply()
            self.relative = False
        if factor_power is None:
            factor_power = int(self.relative and key == "lr")
        self._target = GroupTarget(optimizer, Key(key), self.tags, self.relative, factor_power)
        self._cursor = make_cursor(clock, steps)
        self._evaluator = Evaluator(schedule, clock, ssr)
        self._watch: Watch | None = None  # until the second step
        self._begin()

    def _begin(self) -> None:
        """Select the groups, write the first value, control the key. After an error no other scheduler is changed."""
        restore_initial_values(self.optimizer)
        selection = self._target.extended_selection()
        presumed_peak = find_presumed_peak(self.optimizer, selection) if self.relative and self.key == "lr" else None
        value = self._value()
        self._adopt(selection, value)
        self._write(value)
        self._take_ownership()
        self._watch = self._make_watch(presumed_peak)

    @property
    def schedule(self) -> Any:
        """The schedule that was bound: a schedule, a function, or a list of them."""
        return self._evaluator.schedule

    @property
    def refusal(self) -> Refusal | None:
        """Why it may not write: a later scheduler, `unbind()`, or a learning-rate factor of a group. None if it may."""
        return self._target.refusal

    @property
    def indices(self) -> list[int]:
        """The indices of the parameter groups that it writes."""
        return self._target.indices

    @property
    def factors(self) -> list[float]:
        """The base value of each of these groups, which multiplies the value of the schedule.

        It is the group's initial value, for `lr` times the group's `adjust_learning_rate`. If the schedule returns
        values instead of multipliers, it is 1.
        """
        return self._target.base_values

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
        if self._watch is not None:
            self._warn_of_mistakes(self._watch)
        self._write(self._evaluator.value(self._cursor.position(1)))
        self._cursor.advance()
        if self._watch is not None:
            self._watch.note_step(self._target)

    def refresh(self) -> None:
        """Write the current value without counting a step. Raises `ValueError` as `step` does."""
        self.catch_up()
        self.hold_tensors()
        self._write(self._value())
        if self._watch is not None:
            self._watch.note_refresh(self._target)

    def _write(self, value: Any) -> None:
        """Write a value of the schedule into the selected groups, times their base values."""
        if not self._target.write_floats(value):
            values = [base_value * value for base_value in self._target.base_values]
            self._check_finite(values)
            self._target.write(values)

    def _check_finite(self, values: Sequence[object]) -> None:
        """Raise `ValueError` if a value is not a finite number. In a graph, nothing is read."""
        invalid = [] if is_compiling() else [value for value in values if not may_be_finite(value)]
        if invalid:
            raise ValueError(
                f"{type(self).__name__}.key={self.key!r}: {self._describe()} would set it to {invalid[0]!r} after "
                f"{int(self._cursor.steps)} steps, which is not a finite number. End the schedule before, or change "
                f"it."
            )

    def _value(self) -> Any:
        """The current value of the schedule."""
        return self._evaluator.value(self._cursor.position())

    def _describe(self) -> str:
        """The text of the schedule, for messages and saved states."""
        return describe_schedule(self.schedule)

    def __repr__(self) -> str:
        at = f"on {self.clock!r}" if isinstance(self.clock, Clock) else f"after {int(self._cursor.steps)} steps"
        return f"<{type(self).__name__} of {self.key!r} in groups {self.indices}: {self._describe()}, {at}>"

    def _repr_html_(self) -> str:
        from timesched.drawing.schedulers import sources
        from timesched.drawing.svg import notebook_html

        return notebook_html(self, lambda: sources(self))

    # The groups: the same as before, in new dicts, or more of them

    def catch_up(self) -> None:
        """Follow the optimizer's groups, and select those that were added. Raises `ValueError` where `step` does.

        It does nothing if the groups are the same dicts as before.
        """
        if self._target.is_ready():
            return
        self._check_may_write()
        if is_compiling():
            self._check_graph()
            return
        self._target.follow_groups()
        self._add_new_groups()
        if self._target.may_be_lazy:  # its device may have the parameters
            self.hold_tensors()

    def _check_may_write(self) -> None:
        """Raise `ValueError` if it may not write: see `refusal`."""
        if self.refusal is not None:
            reason = self.refusal.value.format(cause=self._target.cause)
            raise ValueError(f"{type(self).__name__}.key={self.key!r}: {self._describe()} {reason}")

    def _check_graph(self) -> None:
        """Raise `RuntimeError` if a graph cannot evaluate the schedule, or cannot write the value into these groups."""
        if self.clock is not None:
            check_not_in_graph(
                "A scheduler that follows a clock reads it on the host. Call step() or refresh() outside of the "
                "compiled function: the group's tensor is updated in place, so nothing is compiled again."
            )
        check_compiler()
        if type(self._cursor.steps) is int or len(self._target.tensors()) < len(self.indices):
            raise RuntimeError(  # a Python number would be a constant in the graph
                f"{type(self).__name__}.key={self.key!r}: in a graph the value must be a tensor, and it is a number. "
                f"Call optimizer.hold_tensors() first, or pass lr=torch.tensor(0.1) to an optimizer of torch."
            )
        if self._target.has_new_groups():
            check_not_in_graph("Parameter groups were added. Call step() once outside of the compiled function.")

    def _add_new_groups(self) -> None:
        """Select the groups that were added to the optimizer after the scheduler was made, if any."""
        if self._target.has_new_groups():
            check_single_owner(self)
            self._adopt(self._target.extended_selection(), self._value())
            self._review_groups()
            self._check_may_write()  # since a subclass may have refused the groups

    def _adopt(self, selection: list[SelectedGroup], value: Any) -> None:
        """Write into these groups from now on. Raises `ValueError` before, if `value` gives one no finite number."""
        self._check_finite([selected.base_value * value for selected in selection])
        self._target.adopt(selection)
        self.hold_tensors()

    def _review_groups(self) -> None:
        """A subclass may refuse the groups that were selected, with `GroupTarget.refuse`."""

    def hold_tensors(self) -> None:
        """Count in a tensor if the values are tensors. The optimizer's own `hold_tensors()` calls this.

        On a lazy device (XLA) the hyperparameters of optim's optimizers become tensors here. Otherwise each new number
        would be a constant, and each constant needs a new graph.
        """
        self._target.hold_tensors()
        tensors = self._target.tensors() if self.clock is None else []
        if tensors:
            self._watch = None  # a graph may count the steps
            self._cursor.hold_tensor(tensors[0].device)

    # The owner of the key

    def _take_ownership(self) -> None:
        """Control the key in the selected groups. An earlier scheduler of any of them may not write any more.

        A copy of a scheduler that may not write takes nothing.
        """
        if self.refusal is not None:
            return
        take_key(self)
        if isinstance(self.clock, Clock):
            self.clock._add_listener(self)
        self._review_groups()

    def _release(self, refusal: Refusal, cause: str = "") -> None:
        """Write no more, and leave the clock."""
        self._target.refuse(refusal, cause)
        if isinstance(self.clock, Clock):
            self.clock._listeners.discard(self)

    def unbind(self) -> None:
        """Release the key: this scheduler writes no more. The groups keep their present values."""
        self._release(self.refusal or Refusal.UNBOUND, self._target.cause)

    # The values that the groups hold

    def get(self) -> list[Any]:
        """The scheduled value for each parameter group; for a group that is not selected, the value that it has."""
        self.catch_up()
        return self._target.values_at(self._value())

    def get_last_value(self) -> list[Any]:
        """The value in each parameter group of the optimizer; NaN if a group lacks the key. Tensors are copies."""
        if not is_compiling():
            self._target.follow_groups()
        return self._target.values()

    def named_values(self) -> dict[str, float]:
        """The value in each selected group, by a name for logs, such as `weight_decay/head`.

        A name is the key, the tags of the group, and its index if other groups have the same tags. Tensors are read.

        >>> import torch
        >>> from timesched import Clock, ConstantScheduler, bind
        >>> groups = [{"params": [torch.zeros(1)]}, {"params": [torch.ones(1)], "tags": "head"}]
        >>> optimizer = torch.optim.SGD(groups, lr=0.4)
        >>> bind(ConstantScheduler(0.5), optimizer, Clock("4ba")).named_values()
        {'lr': 0.2, 'lr/head': 0.2}
        """
        self._target.follow_groups()
        return named_values(self.optimizer.param_groups, [(self.key, i) for i in self.indices])

    # The names in torch. A method has its own types, which an alias would take from torch's class.

    def get_lr(self) -> list[Any]:
        """The same as `get()`."""
        return self.get()

    def get_last_lr(self) -> list[Any]:
        """The same as `get_last_value()`."""
        return self.get_last_value()

    # Those that are plain attributes in torch are typed as `Any`.
    _last_lr: Any = property(get_last_lr)
    base_lrs: Any = property(
        lambda self: self._target.values_at(1.0),
        doc="The initial value of each parameter group; for a group that is not selected, the value that it has.",
    )

    # The count

    def _set_last_epoch(self, count: object) -> None:
        if type(count) is int and count == -1:
            raise ValueError(
                f"{type(self).__name__}.last_epoch=-1: torch's SequentialLR cannot restart this scheduler. Make one "
                f"scheduler of SequenceScheduler([first, second], milestones=['10ba']), or pass absolute-value "
                f"schedulers to optim.lr_scheduler.SequentialLR."
            )
        self._watch = None  # the caller counts, so these steps show nothing about the clock
        self._cursor.set_steps(require_count(count, type(self).__name__))

    last_epoch: Any = property(lambda self: int(self._cursor.steps), _set_last_epoch, doc="The number of steps taken.")
    # As torch counts. Some training loops add to it, which has no effect here.
    _step_count: Any = property(lambda self: int(self._cursor.steps) + 1, lambda self, count: None)

    # The calls of the clock: these, and `refresh`

    def was_never_stepped(self) -> bool:
        """Whether it was not stepped since it was made or loaded."""
        return self._watch is not None and not self._watch.has_stepped

    def expect_new_length(self) -> Callable[[], None]:
        """A function that the clock calls after a new length of the run: it warns of a jump within a phase."""
        return make_jump_check(self)

    # Saving and loading

    def state_dict(self) -> StateDict:
        """The state of the scheduler, in plain Python values.

        It has the initial values, the steps, the counters of the clock and its horizon, which determine the value. It
        also has the schedule as a string, and the current value. Groups that were added are in it. Raises `ValueError`
        if an added group is not for this scheduler, as `step` does.
        """
        if self.refusal is None:
            self._add_new_groups()
        return self._state_at(self._cursor)

    def _state_at(self, cursor: StepCursor) -> StateDict:
        """The state at the position of a cursor."""
        target, value = self._target, float(self._evaluator.value(cursor.position()))
        state = {**target.identity(), "last_epoch": int(cursor.steps), "schedule": self._describe()}
        if self.relative:
            state |= {"base": target.base_values, "value": [value]}
        else:
            state["value"] = [base_value * value for base_value in target.base_values]
        return state | cursor.state_dict()

    def load_state_dict(self, state_dict: StateDict) -> None:
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

    def read_state(self, state: StateDict) -> StateContents:
        """The contents of a saved state, for `restore`. Raises as `load_state_dict` does."""
        self._check_may_write()
        self._target.follow_groups()
        name, target, cursor = type(self).__name__, self._target, self._cursor
        check_saved_state(state, name, target.identity(), self.relative)
        base_values = target.read_base_values(state["base"], name) if self.relative else None
        moment = cursor.read_state(state, name)
        present = {"schedule": self._describe(), **cursor.state_dict()}
        if self.on_change == "same" and is_of_other_schedule(state, present, self.schedule):
            has_position = self.clock is None or "clock" in present
            check_same_values(state, self._state_at(moment), name, has_position)
        return StateContents(moment, base_values if self.on_change == "same" else None)

    def is_of(self, state: StateDict) -> bool:
        """Whether a saved state has the key and the tags of this scheduler."""
        return all(state.get(name) == value for name, value in self._target.identity().items())

    def restore(self, contents: StateContents) -> None:
        """Continue from the contents that `read_state` returned. After an error nothing is changed."""
        self._add_new_groups()
        target, cursor = self._target, self._cursor
        steps, base_values = int(cursor.steps), target.base_values
        try:
            if contents.base_values is not None:
                target.set_base_values(contents.base_values)
            cursor.load(contents.moment)
            if cursor.clock is None:
                self.refresh()  # a State that is no Clock is loaded by its own code, maybe later
        except BaseException:
            # The clock has moved back by itself, and its schedulers have written their values again. But this scheduler
            # had the base values of the state then, so it writes once more.
            cursor.set_steps(steps)
            target.set_base_values(base_values)
            self.refresh()
            raise
        self._settle_initial_values(base_values)
        self._watch = self._make_watch()

    def _settle_initial_values(self, before: list[float]) -> None:
        """After a load, keep the initial values of `before`, if `on_change` is "new"; else warn if they changed."""
        if self.on_change == "new" and self.relative:
            self._target.keep_initial_values(replace=True)  # a loaded optimizer has the initial values of the state
        elif not are_close(self._target.base_values, before):
            warnings.warn(
                f"{type(self).__name__}.key={self.key!r}: the initial value was {before}, and the state has "
                f"{self._target.base_values}, which replaces it. Pass on_change='new' to keep the present value.",
                stacklevel=4,
            )

    def __setstate__(self, state: StateDict) -> None:
        self.__dict__.update(state)
        self._take_ownership()

    # The first steps, and the units

    def _make_watch(self, presumed_peak: str | None = None) -> Watch | None:
        """The watch over the next two steps; None if a graph may count the steps."""
        return None if isinstance(self._cursor.steps, Tensor) else Watch(self.clock, self._target, presumed_peak)

    def _warn_of_mistakes(self, watch: Watch) -> None:
        """Warn of each mistake that shows before the first and the second step. The second step ends the watch."""
        if watch.has_stepped:
            self._watch = None
        for text in watch.find_mistakes(self._describe(), self._target, self.units):
            warnings.warn(text, stacklevel=self._warning_depth)

    def units(self) -> set[TimeUnit]:
        """The units that the schedules read on the clock. The units of a user's function are not known."""
        return set() if self.clock is None else schedule_units(self.schedule, self.clock, self.ssr)


def _check_arguments(bound_class: type[Bound], optimizer: object, clock: object, on_change: str) -> None:
    """Raise `TypeError` or `ValueError` for an argument of the wrong kind. `bind` makes the classes of this module."""
    name = "bind" if bound_class in (Bound, BoundLR) else bound_class.__name__
    if on_change not in ("same", "new"):
        raise ValueError(f"{name}.on_change={on_change!r}: the option does not exist. Pass 'same' or 'new'.")
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"{name}.optimizer: it is of the class {type(optimizer).__name__}, not a torch.optim.Optimizer. Set any "
            f"other value in the training loop: value = initial * schedule(clock)."
        )
    counts_own_steps = clock is None and name != "bind"
    if not counts_own_steps and not hasattr(clock, "timestamp"):
        raise TypeError(f"{name}.clock={clock!r}: it is not a clock. Pass a Clock, or a state with timestamp.")


class BoundLR(Bound, LambdaLR):
    """A schedule bound to the learning rate: a `LambdaLR` that calls neither torch's constructor nor torch's step."""

    @property
    def lr_lambdas(self) -> list[Callable[[int], float]]:  # type: ignore[override]  # derived here, and read-only
        """The current multiplier as functions of an epoch, which they ignore; 1 for a group that is not selected."""
        groups = range(len(self._target.values()))
        return [(lambda epoch: self._value()) if i in self.indices else (lambda epoch: 1.0) for i in groups]
