"""Binding: a schedule sets one key of an optimizer's parameter groups, and owns it until another one is made for it.

One class for all keys and all schedules, those of `bind()` here and the closed forms of `optim`. With keys.py it is the
only place that selects groups by tag or writes to them. It reads in this order: catch up with the groups, count,
evaluate, write; save; load.
"""

from __future__ import annotations

import copy
import math
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from timesched.binding.keys import Key, as_list, checked_count, finite, is_number, known_tags, named_values, select
from timesched.binding.reading import as_several, reader, text_of, units_of, warn_of_long_warmup
from timesched.clock import Clock
from timesched.horizon import Horizon, State
from timesched.ops import check_compiler, refuse_graph
from timesched.positions import Frame
from timesched.schedule import Schedule, times_in
from timesched.time.timestamp import Timestamp, counts_of
from timesched.time.units import TimeUnit

_UNBOUND = "was unbound: make another one"
_CLOSE = 1e-12  # of the larger of two values: the last bit of a cosine differs between processors
_bound: weakref.WeakKeyDictionary[Optimizer, list[weakref.ref[Bound]]] = weakref.WeakKeyDictionary()


def bound_to(optimizer: Optimizer) -> list[Bound]:
    """The schedulers that own a key of an optimizer's groups, in the order in which they were made."""
    found = (ref() for ref in _bound.get(optimizer, []))
    return [each for each in found if each is not None and each.refusal is None]


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
        self.tags = tags if tags is None or isinstance(tags, str) else as_list(tags)
        self.clock = clock
        self.ssr = ssr  # for a clock without a ratio of its own
        self.on_change = on_change  # what a load does where the present schedule has another value
        self.refusal: str | None = None  # why it may not write: superseded, or unbound
        self._count: int | Tensor = steps  # a tensor beside values that are tensors
        self._selected: list[tuple[int, dict[str, Any]]] = []  # the groups that it sets, with their indices
        self.factors: list[float] = []  # what the value is multiplied by in each: the initial value, else 1
        self._seen: list[dict[str, Any]] = []  # all groups that the optimizer had
        self._prepare()
        self._take_groups()
        self.refresh()
        self._own()
        self._begin_watch()

    @property
    def schedule(self) -> Any:
        """What was bound."""
        return self._schedule

    @property
    def indices(self) -> list[int]:
        """The indices of the groups that it sets."""
        return [i for i, _ in self._selected]

    def _prepare(self) -> None:
        """Resolve the schedule. What this makes is not copied."""
        alone = self.clock is None
        self._function: Any = self._schedule.resolve(Frame(Horizon(None), TimeUnit.BATCH)) if alone else None
        self._read: Any = None if alone else reader(self._schedule, self.clock, self.ssr)

    # A step: catch up, count, evaluate, write

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
        if self._watched is not None:
            self._watch()
        self._put(self._value(1))
        self._advance()

    def refresh(self) -> None:
        """Write the value of this moment, without counting a step. Raises `ValueError` as `step` does."""
        self.catch_up()
        self.hold_tensors()
        self._put(self._value())
        if isinstance(self.clock, Clock):
            self.clock.stop_waiting()

    def catch_up(self) -> None:
        """Take the groups that were added. Raises `ValueError` where `step` may not write."""
        self._refuse_to_write()
        if len(self.optimizer.param_groups) > len(self._seen):
            self._take_later_groups()
        if "torch_xla" in sys.modules and not torch.compiler.is_compiling():  # the parameters may be on its device now
            self.hold_tensors()

    def _refuse_to_write(self) -> None:
        """Raise `ValueError` where another scheduler owns the key, or the groups are not those that were scheduled."""
        if self.refusal is not None:
            raise ValueError(f"This {self._name()} of {self.key!r} {self.refusal}.")
        if not torch.compiler.is_compiling():
            self._refuse_changed_groups()
        elif self.clock is not None:
            refuse_graph("A scheduler that follows a clock reads it on the host")

    def _value(self, more: int = 0) -> Any:
        """The schedule's value of this moment; without a clock, after some more steps."""
        return self._function((self._steps_taken() + more,)) if self._read is None else self._read()

    def _steps_taken(self) -> Any:
        """The count to compute with: a number if it can be read, else its tensor."""
        if torch.compiler.is_compiling():
            self._refuse_numbers()
        elif isinstance(self._count, Tensor) and self._count.is_cpu:
            return int(self._count)
        return self._count

    def _advance(self) -> None:
        if isinstance(self._count, int):
            self._count += 1
        else:
            self._count.view(1).add_(1)

    def _put(self, value: Any) -> None:
        """Write a value of the schedule into the selected groups."""
        values = [factor * value for factor in self.factors]
        if type(value) is not float or not math.isfinite(sum(values)):
            self._check_finite(values)
        groups, key, whole = self.optimizer.param_groups, self._key.key, self._key.index is None
        for (i, _), each in zip(self._selected, values):
            group = groups[i]
            if whole and type(group[key]) is type(each) is float:  # as nearly always
                group[key] = each
            else:
                self._key.write(group, each)

    def _check_finite(self, values: list[Any]) -> None:
        bad = [] if torch.compiler.is_compiling() else [each for each in values if not is_number(each)]
        if bad:
            raise ValueError(
                f"{self._name()} would set {self.key!r} to {bad[0]!r} after {int(self._count)} steps: it is to be a "
                f"finite number; end the schedule before, or change its arguments."
            )

    def _name(self) -> str:
        """What it is called in messages and in states."""
        return text_of(self.schedule)

    def __repr__(self) -> str:
        at = f"on {self.clock!r}" if isinstance(self.clock, Clock) else f"after {int(self._count)} steps"
        return f"<{type(self).__name__} of {self.key!r} in groups {self.indices}: {self._name()}, {at}>"

    def _repr_html_(self) -> str:
        from timesched.drawing.schedulers import sources
        from timesched.drawing.svg import page

        return page(self, lambda: sources(self))

    # The values that the groups hold

    def get(self) -> list[Any]:
        """The value of this moment for each parameter group; the present one where a group is not selected."""
        self.catch_up()
        return self._filled_in(self._value())

    def _filled_in(self, value: Any) -> list[Any]:
        values = self.get_last_value()
        for (i, _), factor in zip(self._selected, self.factors):
            values[i] = factor * value
        return values

    def get_last_value(self) -> list[Any]:
        """The value in each parameter group of the optimizer, NaN where a group has no such key; a tensor is a copy."""
        if not torch.compiler.is_compiling():
            self._refuse_changed_groups()
        found = [self._key.peek(group) for group in self.optimizer.param_groups]
        return [math.nan if x is None else x.detach().clone() if isinstance(x, Tensor) else x for x in found]

    def named_values(self) -> dict[str, float]:
        """The value in each group that it sets, by the names that logs show, as in `weight_decay/head`: the key, the
        tags of the group, and its index where other groups have the same tags. A tensor is read.

        >>> from timesched import ConstantScheduler
        >>> groups = [{"params": [torch.zeros(1)]}, {"params": [torch.ones(1)], "tags": "head"}]
        >>> optimizer = torch.optim.SGD(groups, lr=0.4)
        >>> bind(ConstantScheduler(0.5), optimizer, Clock("4ba")).named_values()
        {'lr': 0.2, 'lr/head': 0.2}
        """
        self._refuse_changed_groups()
        return named_values(self.optimizer.param_groups, [(self.key, i) for i in self.indices])

    def get_last_lr(self) -> list[Any]:
        """The same as `get_last_value()`, under the name that loggers look for."""
        return self.get_last_value()

    def get_lr(self) -> list[Any]:
        """The same as `get()`: the value of this moment for each parameter group."""
        return self.get()

    def _first_values(self) -> list[Any]:
        return self._filled_in(1.0)

    # As `Any`: torch has them as plain attributes.
    _last_lr: Any = property(get_last_lr)
    base_lrs: Any = property(
        lambda self: self._first_values(),
        doc="The initial value of each parameter group; of a group that is not selected, its present value.",
    )

    # The count

    def _go_to(self, count: Any) -> None:
        if type(count) is int and count == -1:
            self._refuse_composite()
        self._watched: Any = None  # somebody else counts: that says nothing about the clock
        self._count_to(checked_count(count, type(self).__name__))

    def _refuse_composite(self) -> None:
        """torch's SequentialLR sets its schedulers back to -1, to have them begin again."""
        raise ValueError(
            f"torch's SequentialLR cannot begin a {type(self).__name__}, which counts from 0: make one schedule of "
            f"all, as in bind(SequenceScheduler([first, second], milestones=['10ba']), optimizer, clock)."
        )

    last_epoch: Any = property(lambda self: int(self._count), _go_to, doc="The number of steps taken.")
    # As torch counts; some loops add to it, which says nothing here.
    _step_count: Any = property(lambda self: int(self._count) + 1, lambda self, count: None)

    def _count_to(self, count: int) -> None:
        if isinstance(self._count, Tensor):
            self._count.copy_(torch.tensor(count, device="cpu"))
        else:
            self._count = count

    def hold_tensors(self) -> None:
        """Count in a tensor beside values that are tensors; the optimizer's own `hold_tensors()` calls this.

        On a lazily traced device the numbers of optim's optimizers become tensors here: each new number would otherwise
        be a constant of a new graph.
        """
        hold = getattr(self.optimizer, "hold_tensor", None)
        for _, group in self._selected:
            if hold is not None and any(p.device.type == "xla" for p in group["params"][:1]):
                hold(group, self._key.key)
        held = (self._key.peek(group) for _, group in self._selected)
        beside = next((value for value in held if isinstance(value, Tensor)), None)
        if beside is not None and self.clock is None:
            # made on the host: see keys.py
            count = self._count if isinstance(self._count, Tensor) else torch.tensor(self._count, device="cpu")
            self._count = count.to(beside.device)

    def _refuse_numbers(self) -> None:
        """Raise `RuntimeError` in a graph for a count or a value that is a number, and so a constant there."""
        check_compiler()
        values = [self._key.peek(self.optimizer.param_groups[i]) for i, _ in self._selected]
        if type(self._count) is int or not all([isinstance(value, Tensor) for value in values]):
            raise RuntimeError(
                f"In a graph {self.key!r} has to be a tensor, and is a number: call optimizer.hold_tensors() before "
                f"the compiled function (torch's optimizers: pass lr=torch.tensor(0.1), then make the scheduler)."
            )

    # The groups

    def _refuse_changed_groups(self) -> None:
        """Raise `ValueError` when groups were removed, or a selected one was replaced or moved to another index.

        A group is the same while its dict or its list of parameters is the same object: an optimizer that loads a
        state makes new dicts around the old lists, and what wraps parameters puts new lists into the old dicts.
        """
        groups = self.optimizer.param_groups
        if len(groups) < len(self._seen):
            raise ValueError(
                f"The optimizer has {len(groups)} parameter groups, and had {len(self._seen)} when its {self.key!r} "
                f"was scheduled: which are gone is not known here; unbind() the scheduler and make another one."
            )
        if not all(map(is_, groups, self._seen)):
            for i, known in self._selected:
                if groups[i] is not known and groups[i]["params"] is not known["params"]:
                    raise ValueError(
                        f"Parameter group {i} is not the one whose {self.key!r} was scheduled: the optimizer's groups "
                        f"were replaced or put in another order; unbind() the scheduler and make another one."
                    )
            self._selected, self._seen = [(i, groups[i]) for i, _ in self._selected], groups[: len(self._seen)]

    def _take_groups(self) -> None:
        """Select the groups not seen so far, and note their initial values.

        Raises `ValueError` when no group matches, a group has no such number, or shares its tensor with one that gets
        another value; nothing is changed then.
        """
        groups, first = self.optimizer.param_groups, "initial_" + self.key
        chosen = select(groups, self.tags)
        if not chosen:
            raise ValueError(f"No parameter group carries the tag {self.tags!r}: {known_tags(groups)}.")
        new = [i for i in chosen if i >= len(self._seen)]
        held = [self._key.read(groups[i], f"Parameter group {i}") for i in new]
        factors = [*self.factors, *(self._factor(groups[i], first, x, i) for i, x in zip(new, held))]
        self._refuse_shared(chosen, factors)
        value = self._value()
        self._check_finite([factor * value for factor in factors])
        for i, x in zip(new, held):
            groups[i].setdefault(first, x.detach().clone() if isinstance(x, Tensor) else x)
        self._selected += [(i, groups[i]) for i in new]
        self.factors, self._seen = factors, list(groups)

    def _factor(self, group: Mapping[str, Any], first: str, held: Any, i: int) -> float:
        """What the value is multiplied by in a group."""
        return finite(group.get(first, held), first) if self.relative else 1.0

    def _refuse_shared(self, chosen: list[int], factors: list[float]) -> None:
        """Raise `ValueError` where a chosen group shares its tensor with one that is to have another value."""
        wanted = dict(zip(chosen, factors))
        first: dict[int, int] = {}
        for i, group in enumerate(self.optimizer.param_groups):
            held = self._key.peek(group)
            if isinstance(held, Tensor):
                other = first.setdefault(id(held), i)
                if wanted.get(other) != wanted.get(i):
                    raise ValueError(
                        f"Parameter groups {other} and {i} share one tensor as {self.key!r}, and are to have different "
                        f"values: give each group a tensor of its own."
                    )

    def _take_later_groups(self) -> None:
        refuse_graph("Parameter groups were added")
        groups = self.optimizer.param_groups
        added = set(range(len(self._seen), len(groups)))
        for other in bound_to(self.optimizer):
            both = added.intersection(select(groups, self.tags), select(groups, other.tags))
            if other is not self and other.key == self.key and both:
                raise ValueError(
                    f"{self.key!r} of parameter group {min(both)}, which was added, is for two schedulers, "
                    f"{self._name()} and {other._name()}: give it tags of one of them, or unbind() one."
                )
        self._take_groups()
        self.hold_tensors()

    # The owner

    def _own(self) -> None:
        """Own the key in the selected groups: an earlier scheduler of one of them does not any more."""
        if self.refusal is not None:  # as a copy of one that was superseded
            return
        groups = self.optimizer.param_groups
        others = [other for ref in _bound.get(self.optimizer, []) if (other := ref()) not in (None, self)]
        for other in others:  # those superseded before, too: they are to name the owner of now
            shared = other.key == self.key and set(self.indices).intersection(select(groups, other.tags))
            if shared and other.refusal != _UNBOUND:
                several = "bind the list of both, which multiplies them, or make them one sequence"
                closed = "if both are schedulers of optim, make one SequentialLR or ChainedLR of them"
                other.refusal = (
                    f"was superseded by {self._name()}, which was made later: step that one. For two schedules of one "
                    f"number, {several if self.relative and other.relative else closed}; or give them different tags "
                    f"({known_tags(groups)})"
                )
                other._leave_clock()
        _bound[self.optimizer] = [*map(weakref.ref, others), weakref.ref(self)]
        if isinstance(self.clock, Clock):
            self.clock.notify(self)

    def unbind(self) -> None:
        """Leave the key without an owner; this one writes no more. The groups keep their present values."""
        if self.refusal is None:
            self.refusal = _UNBOUND
        self._leave_clock()

    def _leave_clock(self) -> None:
        if isinstance(self.clock, Clock):
            self.clock.forget(self)

    # A decay that has begun, and a run that becomes longer

    def is_decaying(self) -> bool:
        """Whether a decay of its own has begun, as of a `WarmupStableDecayScheduler`."""
        horizon, stamp = Horizon.of(self.clock, self.ssr), self.clock.timestamp
        schedules = [one for one in as_several(self.schedule) if isinstance(one, Schedule)]
        marks = [mark for one in schedules for mark in one.marks(horizon)]
        begins = [horizon.place(time, scale=False) for name, time in marks if name == "decay"]
        return any([counts_of(stamp, (counter,))[0] >= count for count, counter in begins])

    def warn_of_return(self, before: list[Any]) -> None:
        """Warn where the values are not those within a decay, from before the run became longer."""
        now = self.get()
        for i in self.indices:
            if now[i] != before[i]:
                warnings.warn(
                    f"The decay of {self._name()} had begun: in a run of {self.clock.max_duration} {self.key!r} goes "
                    f"back from {before[i]:.4g} to {now[i]:.4g}. Continue from a checkpoint of before the decay.",
                    stacklevel=4,
                )
                return

    # Saving and loading

    def state_dict(self) -> dict[str, Any]:
        """What the value follows from, the schedule as a string, and the value of this moment, all in plain values.

        The initial values, the steps, the counters of the clock and its horizon are what the value follows from. Groups
        that were added belong to it; raises `ValueError` where one of them is not for this scheduler, as `step` does.
        """
        if self.refusal is None and len(self.optimizer.param_groups) > len(self._seen):
            self._take_later_groups()
        steps = int(self._count)
        state = {"key": self.key, "tags": self._sorted_tags(), "last_epoch": steps, "schedule": self._name()}
        if self.relative:
            state["base"] = list(self.factors)
        if isinstance(self.clock, Clock):
            horizon = self.clock.horizon
            state |= {"clock": self.clock.state_dict(), "horizon": repr(horizon), "length": str(horizon.max_duration)}
        return state | {"value": self._compared(self.clock, steps)}

    def _sorted_tags(self) -> list[Any] | None:
        return None if self.tags is None else sorted(as_list(self.tags), key=str)

    def _compared(self, clock: Any, steps: int) -> list[float]:
        """The value at a moment, by which two schedules are compared: the multiplier, or what the groups get."""
        value = float(self._value_at(clock, steps))
        return [value] if self.relative else [factor * value for factor in self.factors]

    def _value_at(self, clock: Any, steps: int) -> Any:
        """The value at the moment of a clock; without one, after a number of steps."""
        return self._function((steps,)) if clock is None else reader(self._schedule, clock, self.ssr)()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state: its initial values, its steps, and the counters of its clock, whose value is written.

        Initial values that are not those of here are taken with a warning; with `on_change="new"` those of here stay.
        Where several schedulers follow one clock, the last load sets it. With Composer's State as clock, the value is
        written at the next step or `refresh()`. The state of another schedule or horizon is taken where the value of
        its moment, which it holds, is that of the present schedule to 1e-12 of the larger, and that of the same
        `HalfLife` at another batch size; else `on_change` decides.
        Raises `ValueError` where that is "same" and the values differ, when the state is of another key, tags or number
        of groups, holds what is not a finite number, or when `step` would raise; nothing is changed then.
        """
        self.take_state(self.read_state(state_dict))

    def read_state(self, state: Mapping[str, Any]) -> tuple[int, list[float] | None, Timestamp | None]:
        """What `load_state_dict` would take of a state: the steps, the initial values, and the clock's timestamp.

        No initial values where those of the schedule are absolute, and no timestamp but a Clock's.
        """
        self._refuse_to_write()
        name = type(self).__name__
        needed = ("key", "tags", "last_epoch", "schedule", "value", *(("base",) if self.relative else ()))
        missing = [key for key in needed if not isinstance(state, Mapping) or key not in state]
        if missing:
            raise ValueError(f"{name}: {str(state)[:80]} is not the state of such a scheduler: it lacks {missing}.")
        for what, own in (("key", self.key), ("tags", self._sorted_tags())):
            if state[what] != own:
                raise ValueError(f"{name}: the state is of {what}={state[what]!r}, and here it is {own!r}.")
        steps = checked_count(state["last_epoch"], name)
        chosen = select(self.optimizer.param_groups, self.tags)  # with those that were added, which a load takes
        factors = [finite(each, f"the initial {self.key}") for each in state["base"]] if self.relative else None
        if factors is not None and len(factors) != len(chosen):
            raise ValueError(
                f"{name}: the state has {len(factors)} initial values, and {len(chosen)} parameter groups are "
                f"selected here: load it into the groups that were saved."
            )
        if factors is not None:
            self._refuse_shared(chosen, factors)
        clock, stamp = self.clock, None
        if isinstance(clock, Clock):
            if "clock" not in state:
                raise ValueError(f"{name}: the state has no clock: make the scheduler without one, or load another.")
            clock, stamp = copy.copy(clock), clock.read_state(state["clock"])
            clock.timestamp = stamp
        if self.on_change == "same":
            self._refuse_other(state, clock, steps)
        return steps, factors, stamp

    def is_of(self, state: Mapping[str, Any]) -> bool:
        """Whether a state is of this key and of these tags."""
        return (state["key"], state["tags"]) == (self.key, self._sorted_tags())

    def _refuse_other(self, state: Mapping[str, Any], clock: Any, steps: int) -> None:
        """Raise `ValueError` where the state is of another schedule or horizon, and its value not the present one."""
        own = repr(clock.horizon) if isinstance(clock, Clock) else None
        pairs = (state["schedule"], self._name()), (state.get("horizon"), own)
        differing = [f"saved {theirs}\n    now   {ours}" for theirs, ours in pairs if theirs != ours]
        if not differing or self._is_same_half_life(state):
            return
        values = "their values are not compared, as nobody knows the moment of the state"
        if ("base" in state) != self.relative:
            values = "one of them is a multiplier, the other a value"
        elif clock is None or isinstance(clock, Clock):
            saved, now = state["value"], self._compared(clock, steps)
            if _close(saved, now):
                return
            values = f"{'multiplier' if self.relative else 'value'} at step {steps}: {saved} saved, {now} now"
        raise ValueError(
            "\n    ".join([f"{type(self).__name__}: the state is of another schedule:", *differing, values])
            + '\nMake the schedule that was saved, or load with on_change="new" to continue with the present one.'
        )

    def _is_same_half_life(self, state: Mapping[str, Any]) -> bool:
        """Whether the schedule is a `HalfLife`, or several, and that of the state: only the size of the batch differs,
        and with it the value, by its nature. A time in `dur` is the same only in a run of the same length.
        """
        if getattr(self.schedule, "relative", True) or state["schedule"] != self._name():
            return False
        is_share = any(time.unit is TimeUnit.DURATION for time in times_in(self.schedule))
        return not is_share or state["length"] == str(self.clock.max_duration)

    def take_state(self, read: tuple[int, list[float] | None, Timestamp | None]) -> None:
        """Go on from what `read_state` returned."""
        self.catch_up()
        steps, factors, stamp = read
        before = int(self._count), self.factors
        try:
            self._count_to(steps)
            if factors is not None and self.on_change == "same":
                self.factors = factors
            if stamp is not None:
                self.clock.go_to(stamp)  # which refreshes all that follow it
            elif self.clock is None:
                self.refresh()  # any other state is loaded by its owner, maybe later than this
        except BaseException:
            self._count_to(before[0])
            self.factors = before[1]
            self.refresh()
            raise
        if self.on_change == "new" and self.relative:
            for (_, group), factor in zip(self._selected, self.factors):
                group["initial_" + self.key] = factor  # an optimizer that was loaded notes that of the state
        elif not _close(before[1], self.factors):
            warnings.warn(
                f"The state's initial {self.key!r} is {self.factors}, and here it was {before[1]}: the run continues "
                f'with the state\'s. To continue with that of here, make the scheduler with on_change="new".',
                stacklevel=3,
            )
        self._begin_watch()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_function", "_read")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()
        self._own()

    # Warnings in the second step

    def _begin_watch(self) -> None:
        clock = self.clock
        self._watched = (int(self._count), clock.timestamp) if isinstance(clock, Clock) else None

    def _watch(self) -> None:
        """Say so once when the clock stands still for the first two steps, or counts what other ranks may not."""
        steps, stamp = self._watched
        if int(self._count) == steps:
            return
        self._watched = None
        if self.clock.timestamp == stamp:
            warnings.warn(
                f"The clock of this {self._name()} has not moved in two steps: call clock.tick() after each step of "
                f"the optimizer, before scheduler.step().",
                stacklevel=3,
            )
        units = self.units()
        if self.clock.differs_between_ranks(units):
            warnings.warn(
                f"The clock of this {self._name()} counts on each rank alone, and the ranks may differ in "
                f"{' and '.join(sorted(unit.name.lower() + 's' for unit in units))}: make it with process_group=True, "
                f"which sums the counts over the ranks, or with process_group=False, if tick() is given the numbers "
                f"of all ranks.",
                stacklevel=3,
            )

    def units(self) -> set[TimeUnit]:
        """The units that are read of the clock, as far as the schedules say so: functions of a user do not."""
        return units_of(self.schedule, self.clock)


def _close(one: list[float], other: list[float]) -> bool:
    """Whether two lists have the same numbers, but for their last bits."""
    pairs = list(zip(one, other))
    return len(one) == len(other) and all(abs(a - b) <= _CLOSE * max(abs(a), abs(b)) for a, b in pairs)


class BoundLR(Bound, LambdaLR):
    """A schedule bound to the learning rate: a `LambdaLR` that runs neither torch's constructor nor its step."""

    @property
    def lr_lambdas(self) -> list[Callable[[int], float]]:  # type: ignore[override]  # derived here, and read-only
        """The multiplier of this moment as functions of an epoch, which they ignore; 1 for groups not selected."""
        groups = range(len(self.optimizer.param_groups))
        return [(lambda epoch: self._value()) if i in self.indices else (lambda epoch: 1.0) for i in groups]


One = Schedule | Callable[..., float]
OnChange = Literal["same", "new"]


@overload
def bind(
    scheduler: One | Sequence[One],
    optimizer: Optimizer,
    clock: Clock | State,
    key: Literal["lr"] = "lr",
    tags: Any = None,
    ssr: float | None = None,
    on_change: OnChange = "same",
) -> BoundLR: ...


@overload
def bind(
    scheduler: One | Sequence[One],
    optimizer: Optimizer,
    clock: Clock | State,
    key: str | tuple[str, int],
    tags: Any = None,
    ssr: float | None = None,
    on_change: OnChange = "same",
) -> Bound: ...


def bind(
    scheduler: Any,
    optimizer: Optimizer,
    clock: Any,
    key: str | tuple[str, int] = "lr",
    tags: Any = None,
    ssr: float | None = None,
    on_change: str = "same",
) -> Bound:
    """Bind a schedule to a hyperparameter of an optimizer: the learning rate, or any number in its parameter groups.

    Each `step()` of what it returns writes the initial value times the schedule's multiplier, or what a `HalfLife`
    returns as it is; a tensor is updated in place. The first value is written at once.

    Args:
        scheduler: a schedule, a function of `(state)` or `(state, ssr)` that returns a multiplier, or a list of these,
            whose multipliers are multiplied.
        optimizer: any `torch.optim.Optimizer`. The value that a group has now is its initial value, unless the group
            notes one, as `initial_lr`.
        clock: the `Clock` of the run, or another state, such as Composer's.
        key: the hyperparameter, by its name in the parameter groups: "lr" (the default), "weight_decay", "momentum",
            "betas[0]" or any other.
        tags: only groups whose `tags` have one of these. Default: None, all groups; `[None]` is for those without tags.
        ssr: the scale-schedule ratio, if the state has none of its own, as Composer's. Default: None, that of the
            state, or 1.
        on_change: what `load_state_dict` does with the state of another schedule or run whose multiplier at that moment
            is another one. "same" (the default) raises `ValueError`; "new" continues with this schedule. Where only
            the initial value is another one, "same" warns and takes that of the state; "new" keeps the present one.

    Returns:
        A `torch.optim.lr_scheduler.LambdaLR` for "lr", and an object with the same `step`, `state_dict` and
        `load_state_dict` for any other `key`. It owns the hyperparameter: a scheduler made earlier for one of these
        groups raises from then on.

    Raises:
        ValueError: no group has the tags, or a group has no such number; nothing is changed then.
        TypeError: `clock` is not a clock, `scheduler` is not a schedule, or a `HalfLife` is in a list or for "lr".

    >>> import torch
    >>> from timesched import Clock, LinearScheduler
    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    >>> clock = Clock("4ba")
    >>> scheduler = bind(LinearScheduler(), optimizer, clock)
    >>> clock.tick(); scheduler.step(); scheduler.get_last_lr()
    [0.30000000000000004]
    """
    if not hasattr(clock, "timestamp"):
        raise TypeError(f"{clock!r} is not a clock: pass a Clock, or a state with timestamp and max_duration.")
    kind = BoundLR if Key(key).name == "lr" else Bound
    warn_of_long_warmup(scheduler, clock, ssr)
    return kind(optimizer, scheduler, key, tags, clock, ssr, on_change=on_change)


def compile_composer_scheduler(scheduler: Any, state: Any, ssr: float = 1.0) -> LambdaLR:
    """A schedule as a `LambdaLR` on the one optimizer of `state`, as in Composer, but evaluated once per step.

    Raises `NotImplementedError` when the state has several optimizers, and `ValueError` when the schedule is a
    function of `(state)` alone and `ssr` is not 1.0.
    """
    optimizers = [state.optimizers] if isinstance(state.optimizers, Optimizer) else list(state.optimizers)
    if len(optimizers) != 1:
        raise NotImplementedError(f"The state has {len(optimizers)} optimizers, and a schedule takes one: use bind().")
    return BoundLR(optimizers[0], scheduler, "lr", None, state, ssr)
