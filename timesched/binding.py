"""Binding: a schedule sets one key of an optimizer's parameter groups, and owns it until another one is made for it.

One class for all keys and all schedules, those of `bind()` here and the closed forms of `optim`. With keys.py it is the
only place that selects groups by tag or writes to them.
"""

from __future__ import annotations

import copy
import inspect
import logging
import math
import numbers
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.torch_version import TorchVersion

from timesched.clock import Clock
from timesched.description import difference, plain
from timesched.horizon import Horizon
from timesched.keys import Key, is_number, known_tags, listed, select
from timesched.positions import Frame, Resolved
from timesched.resuming import compared, horizon_changes, moment, read_change, read_horizon, rebuilt, refusal
from timesched.schedule import Schedule
from timesched.time.units import TimeError, TimeUnit, exact
from timesched.time.value import counter

_SILENT = TorchVersion(torch.__version__) < "2.9"  # torch 2.7 says that an error was raised in a graph, not which
# Graphs of these versions cannot compare two dicts by identity (seen in 2.7): there it is left to the eager steps.
_BLIND = TorchVersion(torch.__version__) < "2.13"

_log = logging.getLogger(__name__)

_UNBOUND = "was unbound: make another one"
_GIVEN = (TimeUnit.SAMPLE, TimeUnit.TOKEN)  # what a clock counts only where it is told how many
_bound: weakref.WeakKeyDictionary[Optimizer, list[weakref.ref[Bound]]] = weakref.WeakKeyDictionary()


def bound_to(optimizer: Optimizer) -> list[Bound]:
    """The schedulers that own a key of an optimizer's groups, in the order in which they were made."""
    found = (ref() for ref in _bound.get(optimizer, []))
    return [each for each in found if each is not None and each.refusal is None]


class Bound:
    """A schedule that sets one key of an optimizer's parameter groups: what `bind()` returns.

    `step()` evaluates the schedule once and writes its value into all selected groups: `initial value * multiplier`, or
    the value itself where a class sets `relative` to False. A tensor in a group is updated in place. Nothing is patched
    onto the optimizer, so its `step` may be compiled, before or after.

    Of several schedulers on one key of a group, the one that was made last owns it: the earlier ones raise `ValueError`
    from then on, and write nothing.
    """

    relative: ClassVar[bool] = True  # to the initial value of each group
    on_change: str = "same"
    _horizon: Horizon | None = None  # of a saved schedule that goes on, where it is not the clock's
    _direct: bool = True  # no subclass has methods of its own for parts of a step

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
        self.on_change = read_change(name, on_change, clock)
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{name}: {optimizer!r} is not a torch.optim.Optimizer: pass the optimizer to schedule.")
        if clock is not None and not hasattr(clock, "timestamp"):
            raise TypeError(f"{name}: {clock!r} is not a clock: pass a timesched.Clock, or a state with timestamp.")
        self._key = Key(key)
        self._plain = self._key.plain
        self.optimizer = optimizer
        self.key = self._key.name
        self.tags = listed(tags)
        self.clock = clock
        self.ssr = ssr  # for a clock without a ratio of its own
        self.refusal: str | None = None  # why it may not write: superseded, or unbound
        self._schedule = schedule
        self._count: int | Tensor = steps  # a tensor beside values that are tensors
        self.indices: list[int] = []  # of the selected groups
        self._selected: list[tuple[int, dict[str, Any]]] = []  # these groups, with their indices
        self._seen = 0  # how many groups the optimizer had
        self._bases: list[float] = []  # the initial value of each selected group, where values are relative to it
        self._largest = 0.0  # of their sizes
        self._waits: tuple[int, Any] | None = None  # steps since the clock was seen to stand at a timestamp
        self._prepare()
        with unchanged_on_error(optimizer):
            self._take_groups(self._value())
            self.refresh()
        self._own()
        self._watch_clock()

    @property
    def schedule(self) -> Any:
        """What was bound."""
        return self._schedule

    def _prepare(self) -> None:
        """What follows from schedule and clock, and is not copied with them."""
        self._function: Resolved | None = None  # of a tuple with one count
        self._read: Callable[[], Any] | None = None  # of the clock
        if self.clock is None:
            self._function = self.schedule.resolve(Frame(Horizon(None), TimeUnit.BATCH))
        else:
            run = self._run()
            ratio = self.ssr if run is self.clock else None  # the saved run's own
            self._read = _following(_reader(self.schedule, run, ratio), run, self.clock)

    def _run(self) -> Any:
        """What the schedule is called with: the clock, or a copy of it on the horizon that was saved."""
        return self.clock if self._horizon is None else on_horizon(self.clock, self._horizon)

    # The value

    def _value(self) -> Any:
        """The schedule's value of this moment."""
        if self._read is not None:
            refuse_graph("A scheduler that follows a clock reads it on the host")
            return self._read()
        return self._function((self._steps_taken(),))  # type: ignore[misc]  # without a clock there is one

    def _steps_taken(self) -> Any:
        """The count to compute with: a number if it can be read, else its tensor."""
        count = self._count
        if torch.compiler.is_compiling():
            self._refuse_numbers()
        elif isinstance(count, Tensor) and count.is_cpu:
            return count.item()
        return count

    def get(self) -> list[Any]:
        """The value of this moment for each parameter group; the present one where a group is not selected."""
        if len(self.optimizer.param_groups) != self._seen:
            self._take_later_groups()
        value = self._value()
        values = self._present()
        for at, (i, _) in enumerate(self._selected):
            values[i] = self._bases[at] * value if self.relative else value
        return values

    # The step

    def step(self, epoch: int | None = None) -> None:
        """Write the value of this moment. Call it after the optimizer's step and the clock's tick.

        Raises `ValueError` when another scheduler owns the key, when this one was unbound, when the value is not
        finite, and when the optimizer's groups were removed, replaced or put in another order; nothing is written then.
        """
        if epoch is not None:
            raise ValueError(
                f"step({epoch}): the steps are counted here; set last_epoch, or the clock that is followed."
            )
        compiling = torch.compiler.is_compiling()
        if self.refusal is not None or not self._is_current(compiling):
            self._catch_up()
        if self._waits is not None:
            self._watch_clock()
        if not compiling and "torch_xla" in sys.modules:  # the parameters may be on its device by now
            self.hold_tensors()
        if compiling or not self._direct:
            self._step_by_methods()
            return
        count: Any = self._count
        if type(count) is int:
            self._count = now = count + 1
        elif count.is_cpu:
            now = int(count) + 1
            count.fill_(now)
        else:  # which is not read
            now = count.add_(1)
        try:
            if self._function is None:
                self._put(self._read())  # type: ignore[misc]  # with a clock there is one
            else:
                self._put(self._function((now,)))
        except BaseException:
            if type(count) is int:
                self._count = count
            else:
                count.sub_(1)
            raise

    def _step_by_methods(self) -> None:
        """The same in a graph, where nothing is read; and where a subclass has methods of its own for parts of it."""
        self._advance()
        self._put(self._value())

    def refresh(self) -> None:
        """Write the value of this moment, without counting a step. Raises `ValueError` as `step` does."""
        self._catch_up()
        self.hold_tensors()
        self._write()

    def _write(self) -> None:
        self._put(self._value())

    def _catch_up(self) -> None:
        """Refuse what `step` may not write, and take the groups that were added."""
        self.check()
        if len(self.optimizer.param_groups) != self._seen:
            self._take_later_groups()

    def check(self) -> None:
        """Raise `ValueError` where `step` would: another scheduler owns the key, or the groups were changed."""
        if self.refusal is not None:
            raise_in_graph(ValueError, f"This {self._name()} of {self.key!r} {self.refusal}.")
        self._refuse_changed_groups()

    def _put(self, value: Any) -> None:
        """Write a value of the schedule into the selected groups."""
        groups, key = self.optimizer.param_groups, self._plain
        number = value.__class__ is float
        if number:
            largest = value * self._largest if self.relative else value
            if largest - largest != 0.0:  # infinite or NaN; where the largest of the values is finite, all are
                self._refuse_value(value)
        elif not (torch.compiler.is_compiling() or is_number(value)):
            self._refuse_value(value)
        if not self.relative:
            key = key if number else None
            for i in self.indices:
                group = groups[i]
                if key is not None and group[key].__class__ is float:
                    group[key] = value
                else:
                    self._key.write(group, value)
            return
        for i, base in zip(self.indices, self._bases):
            group = groups[i]
            if key is not None and group[key].__class__ is float:
                group[key] = base * value
            else:
                self._key.write(group, base * value)

    def _refuse_value(self, value: Any) -> None:
        what = repr(value)
        for base in self._bases:
            if not math.isfinite(base * value):
                what = f"{base * value!r}, {value!r} times the initial {base!r}"
        raise ValueError(
            f"{self._name()} would set {self.key!r} to {what} at step {int(self._count)}: it is to be a finite number; "
            f"end the schedule before, or change its arguments."
        )

    def _name(self) -> str:
        """What it is called in messages."""
        if not self.relative:
            return type(self).__name__
        one = self.schedule
        return repr(one) if isinstance(one, (Schedule, list, tuple)) else str(getattr(one, "__qualname__", one))

    # The values that the groups hold

    def _present(self) -> list[Any]:
        """The number in each parameter group, NaN where there is none; a tensor is a copy."""
        found = []
        for group in self.optimizer.param_groups:
            value = self._key.peek(group)
            known = value.detach().clone() if isinstance(value, Tensor) else value
            found.append(math.nan if known is None else known)
        return found

    def get_last_value(self) -> list[Any]:
        """The value in each parameter group of the optimizer, NaN where a group has no such key; a tensor is a copy."""
        self._refuse_changed_groups()
        return self._present()

    def get_last_lr(self) -> list[Any]:
        """The same as `get_last_value()`, under the name that loggers look for."""
        return self.get_last_value()

    def get_lr(self) -> list[Any]:
        """The same as `get()`: the value of this moment for each parameter group."""
        return self.get()

    def _first_values(self) -> list[Any]:
        values = self._present()
        for at, (i, _) in enumerate(self._selected):
            values[i] = self._bases[at]
        return values

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
        self._waits = None  # somebody else counts: that says nothing about the clock
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

    def _advance(self) -> None:
        if isinstance(self._count, int):
            self._count += 1
        else:
            self._count.view(1).add_(1)

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
        groups = self.optimizer.param_groups
        hold = getattr(self.optimizer, "hold_tensor", None)
        for i, _ in self._selected:
            if hold is not None and any(p.device.type == "xla" for p in groups[i]["params"][:1]):
                hold(groups[i], self._key.key)
        held = (self._key.peek(groups[i]) for i, _ in self._selected)
        beside = next((value for value in held if isinstance(value, Tensor)), None)
        if beside is not None and self.clock is None:
            # made on the host: see Key.write
            count = self._count if isinstance(self._count, Tensor) else torch.tensor(self._count, device="cpu")
            self._count = count.to(beside.device)

    def _refuse_numbers(self) -> None:
        """Raise `RuntimeError` in a graph for a count or a value that is a number, and so a constant there."""
        values = [self._key.peek(self.optimizer.param_groups[i]) for i in self.indices]
        if type(self._count) is int or not all([isinstance(value, Tensor) for value in values]):
            raise_in_graph(
                RuntimeError,
                f"In a graph {self.key!r} has to be a tensor, and is a number: call optimizer.hold_tensors() before "
                f"the compiled function (torch's optimizers: pass lr=torch.tensor(0.1), then make the scheduler).",
            )

    # The groups, and who owns their key

    def _is_current(self, compiling: bool) -> bool:
        """Whether the groups are those that were seen last."""
        groups = self.optimizer.param_groups
        if len(groups) != self._seen:
            return False
        if compiling and _BLIND:
            return True
        for i, known in self._selected:  # noqa: SIM110  # a generator would take twice as long
            if groups[i] is not known:
                return False
        return True

    def _refuse_changed_groups(self) -> None:
        """Raise `ValueError` when groups were removed, or a selected one was replaced or moved to another index.

        A group is the same while its dict or its list of parameters is the same object: an optimizer that loads a
        state makes new dicts around the old lists, and what wraps parameters puts new lists into the old dicts.
        """
        groups = self.optimizer.param_groups
        if len(groups) < self._seen:
            raise ValueError(
                f"The optimizer has {len(groups)} parameter groups, and had {self._seen} when its {self.key!r} was "
                f"scheduled: which are gone is not known here; unbind() the scheduler and make another one."
            )
        if _BLIND and torch.compiler.is_compiling():
            return
        for at, (i, known) in enumerate(self._selected):
            group = groups[i]
            if group is not known:
                if group["params"] is not known["params"]:
                    raise ValueError(
                        f"Parameter group {i} is not the one whose {self.key!r} was scheduled: the optimizer's groups "
                        f"were replaced or put in another order; unbind() the scheduler and make another one."
                    )
                self._selected[at] = (i, group)

    def _take_groups(self, value: Any) -> None:
        """Select the groups not seen so far, which are to get a value at once.

        Raises `ValueError` when no group matches, a group has no such number, or shares its tensor with one that is not
        selected; nothing is changed then.
        """
        groups = self.optimizer.param_groups
        chosen = select(groups, self.tags)
        if not chosen:
            raise ValueError(f"No parameter group carries the tag {self.tags!r}: the tags are {known_tags(groups)}.")
        new = [i for i in chosen if i >= self._seen]
        values = [self._key.read(groups[i], f"Parameter group {i}") for i in new]
        others = {id(self._key.peek(groups[j])): j for j in set(range(len(groups))).difference(chosen)}
        for i in chosen:
            held = self._key.peek(groups[i])
            if isinstance(held, Tensor) and id(held) in others:
                raise ValueError(
                    f"Parameter groups {i} and {others[id(held)]} share one tensor as {self.key!r}, and only the first "
                    f"is to be scheduled: give each group a tensor of its own."
                )
        self._accept(new, [x.detach() if isinstance(x, Tensor) else x for x in values], value)
        self._selected += [(i, groups[i]) for i in new]
        self.indices += new
        self._seen = len(groups)

    def _accept(self, indices: list[int], values: list[Any], value: Any) -> None:
        """Note the initial values of groups that are to be selected; nothing is changed where this raises."""
        if not self.relative:
            if not (is_number(value) or torch.compiler.is_compiling()):
                self._refuse_value(value)
            return
        groups, first = self.optimizer.param_groups, "initial_" + self.key
        bases = [_base(groups[i].get(first, each), first) for i, each in zip(indices, values)]
        self._refuse_shared([*self.indices, *indices], [*self._bases, *bases])
        self._hold_bases([*self._bases, *bases], value)
        for i, each in zip(indices, values):
            groups[i].setdefault(first, each.clone() if isinstance(each, Tensor) else each)

    def _refuse_shared(self, indices: list[int], bases: list[float]) -> None:
        """Raise `ValueError` where groups share one tensor and would write different values into it."""
        first: dict[int, tuple[int, float]] = {}
        for i, base in zip(indices, bases):
            held = self._key.peek(self.optimizer.param_groups[i])
            if isinstance(held, Tensor):
                other, known = first.setdefault(id(held), (i, base))
                if known != base and not torch.equal(held.new_tensor(known), held.new_tensor(base)):
                    raise ValueError(
                        f"Parameter groups {other} and {i} share one tensor as {self.key!r}, and their initial values "
                        f"are {known!r} and {base!r}: give each group a tensor of its own."
                    )

    def _hold_bases(self, bases: list[float], value: Any) -> None:
        """Take these as the initial values, if they are finite times a value."""
        before = self._bases
        self._bases = bases
        if not all(math.isfinite(base * value) for base in bases):
            try:
                self._refuse_value(value)
            finally:
                self._bases = before
        self._largest = max(map(abs, bases), default=0.0)

    def _take_later_groups(self) -> None:
        refuse_graph("Parameter groups were added")
        self._refuse_changed_groups()
        groups = self.optimizer.param_groups
        added = set(range(self._seen, len(groups)))
        for other in bound_to(self.optimizer):
            both = added.intersection(select(groups, self.tags), select(groups, other.tags))
            if other is not self and other.key == self.key and both:
                raise ValueError(
                    f"{self.key!r} of parameter group {min(both)}, which was added, is for two schedulers, "
                    f"{self._name()} and {other._name()}: give it tags of one of them, or unbind() one."
                )
        self._take_groups(self._value())
        self.hold_tensors()

    def _own(self) -> None:
        """Own the key in the selected groups: an earlier scheduler of one of them does not any more."""
        if self.refusal is not None:  # as a copy of one that was superseded
            return
        mine = set(self.indices)
        others = [other for ref in _bound.get(self.optimizer, []) if (other := ref()) not in (None, self)]
        for other in others:  # those superseded before, too: they are to name the owner of now
            if other.key == self.key and mine.intersection(other.indices) and other.refusal != _UNBOUND:
                several = "bind the list of both, which multiplies them, or make them one sequence"
                closed = "if both are schedulers of optim, make one SequentialLR or ChainedLR of them"
                other.refusal = (
                    f"was superseded by {self._name()}, which was made later: step that one. For two schedules of one "
                    f"number, {several if self.relative and other.relative else closed}; or give them different tags "
                    f"(there are: {known_tags(self.optimizer.param_groups)})"
                )
                other._leave_clock()
        _bound[self.optimizer] = [*map(weakref.ref, others), weakref.ref(self)]
        if isinstance(self.clock, Clock):
            self.clock.notify(self)

    def take_back(self) -> None:
        """Own the key again, where the scheduler made later is given up."""
        self.refusal = None
        self._own()

    def unbind(self) -> None:
        """Leave the key without an owner; this one writes no more. The groups keep their present values."""
        if self.refusal is None:
            self.refusal = _UNBOUND
        self._leave_clock()

    def _leave_clock(self) -> None:
        if isinstance(self.clock, Clock):
            self.clock.forget(self)

    # Snapshots

    def description(self) -> Any:
        """What schedule it is, in plain values."""
        return plain(self.schedule)

    def state_dict(self) -> dict[str, Any]:
        """What is scheduled how, the steps taken, and the clock: plain values that no step changes afterwards.

        The value follows from schedule, horizon, counters and initial values; nothing else is needed to go on. What a
        later version adds has to be optional on load. Groups that were added belong to it; raises `ValueError` where
        one of them is not for this scheduler, as `step` does.
        """
        if self.refusal is None and len(self.optimizer.param_groups) > self._seen:
            self._take_later_groups()
        return self._state()

    def _state(self) -> dict[str, Any]:
        state = {"key": self.key, "schedule": self.description(), "last_epoch": int(self._count)}
        if self.relative:
            tags = [self.tags] if isinstance(self.tags, str) else self.tags
            state |= {"tags": None if tags is None else sorted(tags, key=str), "base": list(self._bases)}
        if isinstance(self.clock, Clock):
            state |= {"clock": self.clock.state_dict(), "horizon": repr(self._horizon or self.clock.horizon)}
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state: its initial values, its steps, and the counters of its clock, whose value is written.

        Where several schedulers follow one clock, the last load sets it. With Composer's State as clock, the value is
        written at the next step or `refresh()`. A state of another schedule or horizon is taken where the value of its
        moment is the same float under both; `on_change` says which one goes on where it is not.
        Raises `ValueError` where that is "same" and the values differ, when the state is of another key, tags or number
        of groups, holds what is not a finite number, or when `step` would raise; nothing is changed then.
        """
        self.check()
        name = type(self).__name__
        if not isinstance(state_dict, Mapping):
            raise ValueError(f"{name}: {state_dict!r} is not a state: pass what state_dict() returned.")
        own = self._state()
        needed = ("key", "last_epoch", *(("base",) if self.relative else ("schedule",)))
        missing = [key for key in needed if key not in state_dict]
        if missing:
            raise ValueError(f"{name}: the state lacks {', '.join(missing)}: it is not of such a scheduler.")
        for key in ("key", "tags"):
            what = difference(state_dict[key], own[key], key) if key in own and key in state_dict else ""
            if what:
                raise ValueError(f"{name}: the state is of another schedule: {what}.")
        count = checked_count(state_dict["last_epoch"], name)
        bases = self._bases
        if self.relative:
            bases = state_dict["base"]
            if isinstance(bases, (list, tuple)) and len(bases) > len(self._bases):
                self._catch_up()  # of groups that were added since
            if not isinstance(bases, (list, tuple)) or len(bases) != len(self._bases):
                raise ValueError(
                    f"{name}: base={bases!r} in the state, and {len(self._bases)} parameter groups are selected here: "
                    f"load it into the groups that were saved."
                )
            bases = [_base(value, f"the initial {self.key}") for value in bases]
            self._refuse_shared(self.indices, bases)
        clock = self.clock if isinstance(self.clock, Clock) else None
        then = None if clock is None else on_horizon(clock, self._run().horizon)
        if then is not None and "clock" in state_dict:
            try:
                then.load_state_dict(state_dict["clock"])
            except KeyError as error:
                raise ValueError(f"{name}: of the clock, {error.args[0]}") from None
        saved = self._goes_on({"schedule": own["schedule"], **state_dict}, own, count, then)
        before = self.snapshot()
        try:
            if saved is not None:
                self._adopt(*saved)
            self._bases, self._largest = bases, max(map(abs, bases), default=0.0)
            self._count_to(count)
            if clock is not None and "clock" in state_dict:
                clock.load_state_dict(state_dict["clock"])  # which refreshes all that follow it
            elif clock is not None or self.clock is None:
                self.refresh()  # any other state is loaded by its owner, maybe later than this
        except BaseException:
            self.restore(before)
            if clock is not None and "clock" in state_dict:
                with suppress(ValueError):  # where this one cannot write, it has not written
                    self.refresh()
            raise
        if clock is not None and "clock" not in state_dict and count and not any(clock.state_dict().values()):
            warnings.warn(
                f"The state of this {self._name()} is of a version that did not save the clock, which stands at 0: "
                f"load the clock's own state too, or the schedule begins anew.",
                stacklevel=2,
            )
        self._waits = None
        self._watch_clock()

    def snapshot(self) -> dict[str, Any]:
        """What a load may change, the clock aside."""
        kept = ("_schedule", "_horizon", "_bases", "_largest", "_seen")
        lists = {"indices": list(self.indices), "_selected": list(self._selected)}
        return {"count": int(self._count), **lists, **{name: getattr(self, name) for name in kept}}

    def restore(self, before: Mapping[str, Any]) -> None:
        """Undo a load, the clock and the values in the groups aside."""
        values = dict(before)
        self._count_to(values.pop("count"))
        self.__dict__.update(values)
        self._prepare()

    def _goes_on(
        self, state: Mapping[str, Any], own: Mapping[str, Any], count: int, clock: Clock | None
    ) -> tuple[Any, Any, Any] | None:
        """What `_adopt` takes, where the saved schedule is to go on instead of the present one; None where it is not.

        `clock` stands at the moment of the state, on the present horizon. Raises `ValueError` where both schedules are
        to be the same and their values at that moment are not, and where the saved one cannot go on.
        """
        what = difference(state["schedule"], own["schedule"], "schedule")
        text: Any = state.get("horizon", own["horizon"]) if "horizon" in own else None
        if not what and text == own.get("horizon"):
            return None
        if clock is None and self.clock is not None:  # a state that its owner loads, maybe later than this
            if self.on_change == "new":
                return None
            raise ValueError(f"{type(self).__name__}: the state is of another schedule: {what}.")
        lines, schedule, horizon = [what or self._name()], self.schedule, None
        theirs = why = None
        try:
            if clock is not None:
                horizon = read_horizon(text)
                lines += horizon_changes(horizon, clock.horizon)
            if what:
                schedule = self._rebuilt(state["schedule"])
            theirs = _value_of(schedule, clock, horizon, count)
        except (ArithmeticError, KeyError, TypeError, ValueError) as error:
            why = f"the state lacks {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
        ours = _value_of(self.schedule, clock, clock and clock.horizon, count)
        where = f"step {count}" if clock is None else moment(clock)
        values = compared("multiplier" if self.relative else "value", where, theirs, ours)
        if not {"same": theirs == ours, "saved": theirs is not None, "new": True}[self.on_change]:
            raise ValueError(refusal(lines, values, theirs is not None, clock is not None and self.relative, why))
        text = "\n    ".join([*lines, values])
        _log.info('%s: a state of another schedule loads, on_change="%s":\n    %s', self._name(), self.on_change, text)
        if self.on_change != "saved":
            return None
        here = clock is None or horizon == self.clock.horizon
        return state["schedule"] if what else None, schedule, None if here else horizon

    def _rebuilt(self, description: Any) -> Any:
        """The schedule of a description. Raises `ValueError` where that does not say all of it."""
        return rebuilt(description)

    def _adopt(self, description: Any, schedule: Any, horizon: Horizon | None) -> None:
        """Go on with a saved schedule, another one if it has a description, on a horizon or on the clock's."""
        self._schedule, self._horizon = schedule, horizon
        self._prepare()

    def _watch_clock(self) -> None:
        """Say so once when the clock stands still for the first two steps, or counts what other ranks may not."""
        clock = self.clock
        if not isinstance(clock, Clock):
            return
        steps = int(self._count)
        if self._waits is None:
            self._waits = steps, clock.timestamp
        elif steps > self._waits[0]:
            still, self._waits = clock.timestamp == self._waits[1], None
            if still:
                warnings.warn(
                    f"The clock of this {self._name()} has not moved in two steps: call clock.tick() after each "
                    f"step of the optimizer, before scheduler.step().",
                    stacklevel=3,
                )
            units = self.units()
            missing = [unit for unit in _GIVEN if unit in units and not counter(clock.timestamp, unit).exact]
            missing = [] if still else [unit for unit in missing if self._depends(clock, unit)]
            if missing:
                names = " and ".join(f"{unit.name.lower()}s" for unit in missing)
                warnings.warn(
                    f"The schedule of this {self._name()} counts {names}, and the clock has counted none in two steps: "
                    f"pass their number to clock.tick(), or give the clock the rates that they follow from.",
                    stacklevel=3,
                )
            if clock.differs_between_ranks(units):
                warnings.warn(
                    f"The clock of this {self._name()} counts on each rank alone, and the ranks may differ in "
                    f"{' and '.join(sorted(unit.name.lower() + 's' for unit in units))}: make it with "
                    f"process_group=True, which sums the counts over the ranks, or with process_group=False, if "
                    f"tick() is given the numbers of all ranks.",
                    stacklevel=3,
                )

    def _depends(self, clock: Clock, unit: TimeUnit) -> bool:
        """Whether the value changes with a count, as it does not where all times in that unit are 0."""
        later = copy.copy(clock)
        later.timestamp = clock.timestamp.copy(**{unit.name.lower(): 2**53})
        horizon = self._run().horizon
        try:
            return _value_of(self.schedule, clock, horizon, 0) != _value_of(self.schedule, later, horizon, 0)
        except (OverflowError, ValueError):
            return True

    def units(self) -> set[TimeUnit]:
        """The units that are read of the clock, as far as the schedules say so: functions of a user do not."""
        several = self.schedule if isinstance(self.schedule, (list, tuple)) else [self.schedule]
        return {unit for one in several if isinstance(one, Schedule) for unit in one.units(self._run())}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_function", "_read")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()
        self._own()


class BoundLR(Bound, LambdaLR):
    """A schedule bound to the learning rate: a `LambdaLR` that runs neither torch's constructor nor its step."""

    @property
    def lr_lambdas(self) -> list[Callable[[int], float]]:  # type: ignore[override]  # derived here, and read-only
        """The multiplier of this moment as functions of an epoch, which they ignore; 1 for groups not selected."""
        selected = {i for i, _ in self._selected}
        groups = range(len(self.optimizer.param_groups))
        return [(lambda epoch: self._value()) if i in selected else (lambda epoch: 1.0) for i in groups]


def bind(
    scheduler: Any,
    optimizer: Optimizer,
    clock: Any,
    key: str | tuple[str, int] = "lr",
    tags: Any = None,
    ssr: float | None = None,
    on_change: str = "same",
) -> Any:
    """Bind a schedule, or the product of several, to a number in the parameter groups of an optimizer.

    `scheduler`: a schedule, a function of `(state)` or `(state, ssr)`, or a list of them, which multiply. `clock`: a
    `Clock`, or another state; `ssr`: the ratio, if the state has none of its own, as Composer's. `key`: `'lr'`,
    `'weight_decay'`, `'betas[0]'`, ... `tags`: only groups whose `tags` have one of these; None for all groups,
    `[None]` for groups without tags. A tensor is updated in place. The first value is written at once. `on_change`:
    what a load does with the state of another schedule or horizon: "same" refuses it, unless the multiplier of that
    moment is the same float under both; "new" goes on with the present schedule, "saved" with that of the state on its
    own horizon.

    Returns a `torch.optim.lr_scheduler.LambdaLR` for `'lr'`, and an object with the same `step`, `state_dict` and
    `load_state_dict` for any other key. It owns the key: a scheduler made earlier for one of these groups raises from
    then on. Raises `ValueError` when no group matches or a group has no such number; nothing is changed then.

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


@contextmanager
def unchanged_on_error(optimizer: Optimizer) -> Iterator[None]:
    """On an error, give the optimizer its groups and their values back, and the keys to those that owned them."""
    earlier = bound_to(optimizer)
    groups = [(group, dict(group)) for group in optimizer.param_groups]
    tensors = [(each, each.detach().clone()) for _, values in groups for each in _tensors(values)]
    try:
        yield
    except BaseException:
        for each in bound_to(optimizer):
            if each not in earlier:
                each.unbind()
        for each in earlier:
            if each.refusal is not None:
                each.take_back()
        with torch.no_grad():
            for tensor, value in tensors:
                tensor.copy_(value)
        optimizer.param_groups[:] = [group for group, _ in groups]
        for group, values in groups:
            group.clear()
            group.update(values)
        raise


def _tensors(values: dict[str, Any]) -> Iterator[Tensor]:
    for name, value in values.items():
        for each in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(each, Tensor) and name != "params":
                yield each


def refuse_graph(why: str) -> None:
    """Raise `RuntimeError` in a graph."""
    if torch.compiler.is_compiling():
        raise_in_graph(
            RuntimeError,
            f"{why}: call step() or refresh() once outside the compiled function. Where a scheduler follows a clock, "
            f"call it there always: the group's tensor is updated in place, so nothing is compiled again.",
        )


def raise_in_graph(kind: type[Exception], message: str) -> NoReturn:
    """Raise an error whose message is shown also while a graph is traced."""
    if _SILENT and torch.compiler.is_compiling():
        torch._dynamo.graph_break(message)
    raise kind(message)


def checked_count(count: Any, name: str, least: int = 0) -> int:
    """A number of steps; raises `ValueError` for what is none."""
    if isinstance(count, numbers.Integral) and not isinstance(count, bool) and least <= int(count) < 2**63 - 1:
        return int(count)
    start = " (or -1, to start at 0)" if least < 0 else ""
    raise ValueError(f"{name}: last_epoch={count!r} counts steps: it is a whole number, from 0{start} to 2**63 - 2.")


def schedules_in(schedule: Any) -> list[Any]:
    """The schedules of a list, or the one; raises `TypeError` for what is none, and `ValueError` for an empty list."""
    found = list(schedule) if isinstance(schedule, Sequence) and not isinstance(schedule, str) else [schedule]
    for one in found:
        if isinstance(one, type) or not callable(one):
            raise TypeError(f"{one!r} is not a schedule: pass one of timesched's, or a function of (state, ssr).")
    if not found:
        raise ValueError("The list of schedules is empty: pass at least one.")
    return found


def _reader(schedule: Any, clock: Any, ssr: float | None) -> Callable[[], Any]:
    """A schedule, a function or a list of them, which multiply, as a function of nothing that reads the clock."""
    factors = [_adapted(each, clock, ssr) for each in schedules_in(schedule)]
    return factors[0] if len(factors) == 1 else lambda: math.prod(factor() for factor in factors)


def _adapted(scheduler: Any, state: Any, ssr: float | None) -> Callable[[], Any]:
    """A schedule as a function of nothing, for functions of `(state)` and of `(state, ssr)`."""
    ratio = getattr(state, "ssr", None) if ssr is None else ssr
    if isinstance(scheduler, Schedule):
        return partial(scheduler.__call__, state, 1.0 if ratio is None else ratio)  # a method is quicker to call
    try:
        inspect.signature(scheduler).bind(state, 1.0)
    except TypeError:
        if ratio not in (None, 1):
            raise ValueError(
                f"{scheduler!r} takes the state alone, and so cannot follow the scale-schedule ratio {ratio}: "
                f"let it take (state, ssr)."
            ) from None
        return lambda: _multiplier(scheduler(state), scheduler)
    return lambda: _multiplier(scheduler(state, 1.0 if ratio is None else ratio), scheduler)


def on_horizon(clock: Clock, horizon: Horizon) -> Clock:
    """A copy of a clock on a horizon."""
    other = copy.copy(clock)
    other.horizon = horizon
    return other


def _following(read: Callable[[], Any], other: Any, clock: Any) -> Callable[[], Any]:
    """A function that reads a copy of a clock, at the moment at which the clock stands."""

    def follow() -> Any:
        other.timestamp = clock.timestamp
        return read()

    return read if other is clock else follow


def _value_of(schedule: Any, clock: Clock | None, horizon: Any, count: int) -> float:
    """The value of a schedule at the moment of a clock, on a horizon; without a clock, after a number of steps."""
    if clock is None:
        return float(schedule.resolve(Frame(Horizon(None), TimeUnit.BATCH))((count,)))
    return float(_reader(schedule, on_horizon(clock, horizon), None)())


def _multiplier(value: Any, scheduler: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ValueError(f"{scheduler!r} returned {value!r}: a schedule returns a finite number.")
    return float(value)


def _base(value: Any, what: str) -> float:
    """An initial value as a float; raises `TimeError` for what is no finite number."""
    number = exact(value.item() if isinstance(value, Tensor) and value.numel() == 1 else value, what)
    try:
        return float(number)
    except OverflowError:
        raise TimeError(f"{str(value)[:40]} is too large, as {what}: a float holds at most about 1.8e308.") from None
