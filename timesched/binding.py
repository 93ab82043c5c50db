"""Binding: writing a schedule's multiplier into the parameter groups of an optimizer.

One implementation for every key of a group, and the only place that selects groups by tag or writes to them.
"""

from __future__ import annotations

import inspect
import math
import re
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from timesched.clock import Clock
from timesched.schedule import Schedule
from timesched.units import exact

_bound: weakref.WeakKeyDictionary[Optimizer, list[weakref.ref[Bound]]] = weakref.WeakKeyDictionary()


class Slot:
    """A number in a parameter group: the value of a key, or one element of it, as in `betas[0]`."""

    def __init__(self, key: str | tuple[str, int]) -> None:
        match = re.fullmatch(r"(\w+)(?:\[(\d+)\])?", key) if isinstance(key, str) else None
        if match:
            key, index = match[1], match[2]
        elif isinstance(key, tuple) and len(key) == 2:
            key, index = key
        else:
            raise ValueError(f"key={key!r}: name a key of the parameter groups, as in 'lr' or 'betas[0]'.")
        self.key = key
        self.index = None if index is None else int(index)
        self.name = self.key if self.index is None else f"{self.key}[{self.index}]"

    def read(self, group: Mapping[str, Any], where: str) -> Any:
        """The number, or its 0-dim tensor; raises `ValueError` where the group has none."""
        if self.key not in group:
            known = ", ".join(sorted(str(key) for key in group if key != "params"))
            raise ValueError(f"{where} has no {self.key!r} to schedule: its keys are {known}.")
        value = group[self.key]
        if self.index is not None:
            if not isinstance(value, (tuple, list)) or self.index >= len(value):
                raise ValueError(f"{where} has {self.key}={value!r}, which has no element {self.index}.")
            value = value[self.index]
        number = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
            raise ValueError(f"{where} has {self.name}={value!r}: only a finite number can be scheduled.")
        return value

    def write(self, group: dict[str, Any], value: float) -> None:
        """Put a number in: into the tensor that is there, or in place of the number."""
        old = group[self.key] if self.index is None else group[self.key][self.index]
        if isinstance(old, Tensor):
            old.fill_(value)
        elif self.index is None:
            group[self.key] = value
        else:
            values = group[self.key]
            group[self.key] = type(values)([*values[: self.index], value, *values[self.index + 1 :]])


class Bound:
    """A schedule bound to one number of an optimizer's parameter groups.

    `step()` writes `initial value * multiplier` into every selected group, evaluating the schedule once. Nothing is
    patched onto the optimizer, so its `step` may be compiled, before or after. `state_dict()` is small and plain.
    """

    def __init__(
        self,
        multiplier: Callable[[], float],
        optimizer: Optimizer,
        key: str | tuple[str, int] = "lr",
        tags: Any = None,
    ) -> None:
        self.optimizer = optimizer
        self.tags = tags
        self.last_epoch = 0
        self._slot = Slot(key)
        self._multiplier = multiplier
        self._clock: Clock | None = None  # a clock that reports its own loads
        self._plain = self._slot.index is None
        self._indices: list[int] = []
        self._bases: list[float] = []
        self._seen = 0
        factor = multiplier()  # before anything is changed: it may raise
        self._take_groups()
        self._put(factor)

    @property
    def key(self) -> str:
        """What is written: `'lr'`, `'betas[0]'`."""
        return self._slot.name

    def _take_groups(self) -> None:
        """Select the groups not seen so far, and note the initial value of each."""
        groups = self.optimizer.param_groups
        first = "initial_" + self._slot.name
        chosen = select(groups, self.tags)
        if not chosen:
            raise ValueError(f"No parameter group carries the tag {self.tags!r}: the tags are {_known_tags(groups)}.")
        chosen = [i for i in chosen if i >= self._seen]
        bases = []
        for i in chosen:
            value = self._slot.read(groups[i], f"Parameter group {i}")
            initial = groups[i].get(first, value)
            bases.append(float(initial))
        for i in chosen:
            value = self._slot.read(groups[i], f"Parameter group {i}")
            groups[i].setdefault(first, value.clone() if isinstance(value, Tensor) else value)
        self._indices += chosen
        self._bases += bases
        self._seen = len(groups)

    def refresh(self) -> None:
        """Write the value of this moment, without counting a step."""
        self._put(self._multiplier())

    def _put(self, factor: float) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != self._seen:
            self._take_groups()
        key, write = self._slot.key, self._slot.write
        for i, base in zip(self._indices, self._bases):
            group = groups[i]
            if self._plain and group[key].__class__ is float:
                group[key] = base * factor
            else:
                write(group, base * factor)

    def step(self, epoch: int | None = None) -> None:
        """Write the value of this moment. Call it after the optimizer's step and the clock's tick."""
        if epoch is not None:
            raise ValueError(f"step({epoch}): a schedule follows its clock; set the clock's timestamp instead.")
        self.last_epoch += 1
        self._put(self._multiplier())

    def get_last_value(self) -> list[float | Tensor]:
        """The value in each selected group; a tensor is a copy."""
        groups = self.optimizer.param_groups
        values = [self._slot.read(groups[i], f"Parameter group {i}") for i in self._indices]
        return [value.clone() if isinstance(value, Tensor) else value for value in values]

    def unbind(self) -> None:
        """Let another schedule be bound to the same number; the groups keep their present values."""
        _bound[self.optimizer] = [ref for ref in _bound.get(self.optimizer, []) if ref() not in (None, self)]

    def state_dict(self) -> dict[str, Any]:
        """The key, the initial values, and the number of steps."""
        return {"key": self._slot.name, "base": list(self._bases), "last_epoch": self.last_epoch}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over the initial values and the number of steps.

        With a `Clock`, the value of its moment is written at once, so that clock, optimizer and scheduler can be
        loaded in any order. Raises `ValueError` when the state is of another key or number of groups, or holds no
        finite numbers; nothing is changed then.
        """
        missing = {"key", "base", "last_epoch"} - set(state_dict)
        if missing:
            raise ValueError(f"The state lacks {', '.join(sorted(missing))}: it is not of a bound schedule.")
        key, base, count = state_dict["key"], state_dict["base"], state_dict["last_epoch"]
        if key != self._slot.name:
            raise ValueError(f"The state is of {key!r}, and this schedule is bound to {self._slot.name!r}.")
        if len(base) != len(self._bases):
            raise ValueError(f"The state has {len(base)} parameter groups, and {len(self._bases)} are bound here.")
        bases = [float(exact(value, f"the initial {key}")) for value in base]
        self.last_epoch = int(exact(count, "last_epoch"))
        self._bases = bases
        if self._clock is not None:
            self.refresh()


class BoundLR(Bound, LambdaLR):
    """A schedule bound to the learning rate: a `LambdaLR` that runs neither torch's constructor nor its step."""

    @property
    def base_lrs(self) -> list[float]:  # type: ignore[override]
        """The initial learning rate of each selected group."""
        return list(self._bases)

    @property
    def lr_lambdas(self) -> list[Callable[[int], float]]:  # type: ignore[override]
        """The multiplier of this moment as functions of an epoch, which they ignore."""
        return [lambda epoch: self._multiplier()] * len(self._bases)

    def get_last_lr(self) -> list[float | Tensor]:
        """The learning rate in each selected group; a tensor is a copy."""
        return self.get_last_value()

    def get_lr(self) -> list[float]:  # type: ignore[override]
        """The learning rate of this moment for each selected group."""
        factor = self._multiplier()
        return [base * factor for base in self._bases]


def bind(
    scheduler: Any,
    optimizer: Optimizer,
    clock: Any,
    key: str | tuple[str, int] = "lr",
    tags: Any = None,
    ssr: float | None = None,
) -> Any:
    """Bind a schedule, or the product of several, to a number in the parameter groups of an optimizer.

    `scheduler`: a schedule, a function of `(state)` or `(state, ssr)`, or a list of them, which multiply. `clock`: a
    `Clock`, or another state; `ssr`: the ratio, if the state has none of its own, as Composer's. `key`: `'lr'`,
    `'weight_decay'`, `'betas[0]'`, ... `tags`: only groups whose `tags` have one of these; None for all groups,
    `[None]` for groups without tags. A tensor is updated in place. The first value is written at once.

    Returns a `torch.optim.lr_scheduler.LambdaLR` for `'lr'`, and an object with the same `step`, `state_dict` and
    `load_state_dict` for any other key. Raises `ValueError` when no group matches, a group has no such number, or a
    schedule is bound to it already; nothing is changed then.

    >>> import torch
    >>> from timesched import Clock, LinearScheduler
    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    >>> clock = Clock("4ba")
    >>> scheduler = bind(LinearScheduler(), optimizer, clock)
    >>> clock.tick(); scheduler.step(); scheduler.get_last_lr()
    [0.30000000000000004]
    """
    slot = Slot(key)
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not a torch.optim.Optimizer: pass the optimizer to schedule.")
    taken = set(select(optimizer.param_groups, tags))
    alive = [bound for ref in _bound.get(optimizer, []) if (bound := ref()) is not None]
    for other in alive:
        both = taken.intersection(other._indices)
        if other.key == slot.name and both:
            raise ValueError(
                f"{slot.name!r} of parameter group {min(both)} is bound already: bind the list of both schedules, "
                f"which multiplies them, or call unbind() on the first."
            )
    several = isinstance(scheduler, Sequence) and not isinstance(scheduler, str)
    multiplier = _product([_adapted(s, clock, ssr) for s in (scheduler if several else [scheduler])])
    bound = (BoundLR if slot.name == "lr" else Bound)(multiplier, optimizer, key, tags)
    _bound[optimizer] = [weakref.ref(each) for each in (*alive, bound)]
    if isinstance(clock, Clock):
        bound._clock = clock
        clock.notify(bound)
    return bound


def compile_composer_scheduler(scheduler: Any, state: Any, ssr: float = 1.0) -> LambdaLR:
    """A schedule as a `LambdaLR` on the one optimizer of `state`, as in Composer, but evaluated once per step.

    Raises `NotImplementedError` when the state has several optimizers, and `ValueError` when the schedule is a
    function of `(state)` alone and `ssr` is not 1.0.
    """
    optimizers = list(state.optimizers)
    if len(optimizers) != 1:
        raise NotImplementedError(f"The state has {len(optimizers)} optimizers, and a schedule drives one: use bind().")
    return BoundLR(_adapted(scheduler, state, ssr), optimizers[0])


def select(groups: Iterable[Mapping[str, Any]], tags: Any) -> list[int]:
    """The indices of the groups that carry one of `tags`: None takes all, and a None among them the untagged."""
    if tags is None:
        return list(range(len(list(groups))))
    wanted = _tags(tags)
    return [i for i, group in enumerate(groups) if (_tags(group.get("tags")) or {None}) & wanted]


def _tags(tags: Any) -> set[Any]:
    return {tags} if isinstance(tags, str) else set(tags or ())


def _known_tags(groups: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(sorted({repr(tag) for group in groups for tag in _tags(group.get("tags"))})) or "none"


def _adapted(scheduler: Any, state: Any, ssr: float | None = None) -> Callable[[], float]:
    """A schedule as a function of nothing, for functions of `(state)` and of `(state, ssr)`."""
    if not callable(scheduler):
        raise TypeError(f"{scheduler!r} is no schedule: pass one of timesched's, or a function of (state, ssr).")
    ratio = getattr(state, "ssr", None) if ssr is None else ssr
    if len(inspect.signature(scheduler).parameters) == 1:
        if ratio not in (None, 1):
            raise ValueError(
                f"{scheduler!r} takes the state alone, and so cannot follow the scale-schedule ratio {ratio}: "
                f"let it take (state, ssr)."
            )
        return partial(scheduler, state)
    call = scheduler.__call__ if isinstance(scheduler, Schedule) else scheduler  # a method is quicker to call
    return partial(call, state, 1.0 if ratio is None else ratio)


def _product(factors: list[Callable[[], float]]) -> Callable[[], float]:
    if not factors:
        raise ValueError("The list of schedules is empty: pass at least one.")
    return factors[0] if len(factors) == 1 else lambda: math.prod(factor() for factor in factors)
