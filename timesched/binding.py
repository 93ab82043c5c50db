"""Binding: writing a schedule's multiplier into the parameter groups of an optimizer.

One implementation for every key of a group; with targets.py and slots.py the only place that selects groups by tag or
writes to them.
"""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from timesched.clock import Clock
from timesched.schedule import Schedule
from timesched.slots import Slot
from timesched.targets import Target, targets_of
from timesched.time.units import TimeError, exact


class Bound:
    """A schedule bound to one number of an optimizer's parameter groups.

    `step()` writes `initial value * multiplier` into every selected group, evaluating the schedule once. Nothing is
    patched onto the optimizer, so its `step` may be compiled, before or after. `state_dict()` is small and plain.
    """

    def __init__(self, multiplier: Callable[[], float], target: Target, schedule: Any = None) -> None:
        self.schedule = schedule  # what was bound
        self.optimizer = target.optimizer
        self.tags = target.tags
        self.last_epoch = 0
        self._target = target
        self._multiplier = multiplier
        self._clock: Clock | None = None  # a clock that reports its own loads
        self._bases: list[float] = []
        self._largest = 0.0  # of their sizes
        factor = multiplier()  # before anything is changed: it may raise
        target.take(partial(self._accept, factor))
        target.register(self)
        self._put(factor)

    @property
    def key(self) -> str:
        """What is written: `'lr'`, `'betas[0]'`."""
        return self._target.name

    def _accept(self, factor: float, indices: list[int], values: list[Any]) -> None:
        """Note the initial value of each group, which is to be multiplied by a factor at once."""
        groups = self.optimizer.param_groups
        first = "initial_" + self.key
        values = [value.detach() if isinstance(value, Tensor) else value for value in values]
        bases = [_base(groups[i].get(first, value), first) for i, value in zip(indices, values)]
        self._refuse_infinite(bases, factor)
        for i, value in zip(indices, values):
            groups[i].setdefault(first, value.clone() if isinstance(value, Tensor) else value)
        self._hold([*self._bases, *bases])

    def _hold(self, bases: list[float]) -> None:
        """Take these as the initial values."""
        self._bases = bases
        self._largest = max(map(abs, bases), default=0.0)

    def refresh(self) -> None:
        """Write the value of this moment, without counting a step. Raises `ValueError` as `step` does."""
        self._put(self._multiplier())

    def _put(self, factor: float) -> None:
        target, largest = self._target, self._largest * factor
        if largest - largest != 0.0:  # infinite or NaN; where the largest of the values is finite, all are
            self._refuse_infinite(self._bases, factor)
        if not target.is_current():
            self._refuse_unbound()
            target.refuse_changed()
            if len(target.optimizer.param_groups) != target.seen:
                target.take(partial(self._accept, factor))
        target.scale(self._bases, factor)

    def _refuse_unbound(self) -> None:
        if not self._target.active:
            raise ValueError(f"This {type(self).__name__} of {self.key!r} was unbound: bind() the schedule again.")

    def _refuse_infinite(self, bases: Sequence[float], factor: float) -> None:
        for base in bases:
            value = base * factor
            if not math.isfinite(value):
                raise ValueError(
                    f"{self.schedule!r} would set {self.key!r} to {value!r}, {factor!r} times the initial {base!r}: it "
                    f"is to be a finite number; end the schedule before, or change its arguments."
                )

    def step(self, epoch: int | None = None) -> None:
        """Write the value of this moment. Call it after the optimizer's step and the clock's tick.

        Raises `ValueError` when the value is infinite or NaN, when this one was unbound, and when the optimizer's
        groups were removed, replaced or put in another order; nothing is written then.
        """
        if epoch is not None:
            raise ValueError(f"step({epoch}): a schedule follows its clock; set the clock's timestamp instead.")
        self._put(self._multiplier())
        self.last_epoch += 1

    def get_last_value(self) -> list[float | Tensor]:
        """The value in each selected group; a tensor is a copy."""
        return self._target.read()

    def unbind(self) -> None:
        """Let another schedule be bound to the same number; this one writes no more. The groups keep their values."""
        self._target.release()
        if self._clock is not None:
            self._clock.forget(self)
            self._clock = None

    def state_dict(self) -> dict[str, Any]:
        """The key, the initial values, and the number of steps."""
        return {"key": self.key, "base": list(self._bases), "last_epoch": self.last_epoch}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over the initial values and the number of steps.

        With a `Clock`, the value of its moment is written at once, so that clock, optimizer and scheduler can be
        loaded in any order. Raises `ValueError` when the state is of another key or number of groups, or holds no
        finite numbers, and when this one was unbound; nothing is changed then.
        """
        self._refuse_unbound()
        if not isinstance(state_dict, Mapping):
            raise ValueError(f"{state_dict!r} is no state: pass what state_dict() returned.")
        missing = {"key", "base", "last_epoch"} - set(state_dict)
        if missing:
            raise ValueError(f"The state lacks {', '.join(sorted(missing))}: it is not of a bound schedule.")
        key, base, count = state_dict["key"], state_dict["base"], state_dict["last_epoch"]
        if not isinstance(key, str) or key != self.key:
            raise ValueError(f"The state is of {key!r}, and this schedule is bound to {self.key!r}.")
        if not isinstance(base, (list, tuple)):
            raise ValueError(f"base={base!r}: it is a list of the initial values, as state_dict() returns it.")
        if len(base) != len(self._bases):
            raise ValueError(f"The state has {len(base)} parameter groups, and {len(self._bases)} are bound here.")
        bases = [_base(value, f"the initial {key}") for value in base]
        if type(count) is not int or not 0 <= count < 2**63 - 1:
            raise ValueError(f"last_epoch={count!r} counts steps: it is a whole number, from 0 to 2**63 - 2.")
        before = self._bases
        self._hold(bases)
        if self._clock is not None:
            try:
                self.refresh()
            except BaseException:
                self._hold(before)
                raise
        self.last_epoch = count

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._target.active:
            self._target.register(self)
            if self._clock is not None:
                self._clock.notify(self)


class BoundLR(Bound, LambdaLR):
    """A schedule bound to the learning rate: a `LambdaLR` that runs neither torch's constructor nor its step.

    What torch keeps as attributes is derived here, and read-only: hence the overrides that a type checker dislikes.
    """

    @property
    def _last_lr(self) -> list[float | Tensor]:  # type: ignore[override]  # as torch's, for those who look
        return self.get_last_value()

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
    if not hasattr(clock, "timestamp"):
        raise TypeError(f"{clock!r} is no clock: pass a Clock, or a state with timestamp and max_duration.")
    several = isinstance(scheduler, Sequence) and not isinstance(scheduler, str)
    multiplier = _product([_adapted(s, clock, ssr) for s in (scheduler if several else [scheduler])])
    bound = (BoundLR if slot.name == "lr" else Bound)(multiplier, Target(optimizer, key, tags), scheduler)
    if isinstance(clock, Clock):
        bound._clock = clock
        clock.notify(bound)
    return bound


def compile_composer_scheduler(scheduler: Any, state: Any, ssr: float = 1.0) -> LambdaLR:
    """A schedule as a `LambdaLR` on the one optimizer of `state`, as in Composer, but evaluated once per step.

    Raises `NotImplementedError` when the state has several optimizers, and `ValueError` when the schedule is a
    function of `(state)` alone and `ssr` is not 1.0.
    """
    optimizers = [state.optimizers] if isinstance(state.optimizers, Optimizer) else list(state.optimizers)
    if len(optimizers) != 1:
        raise NotImplementedError(f"The state has {len(optimizers)} optimizers, and a schedule drives one: use bind().")
    multiplier = _adapted(scheduler, state, ssr)
    for earlier in targets_of(optimizers[0]):
        if earlier.replaceable:  # a Trainer compiles again for a second fit, and drops the first
            earlier.release()
    return BoundLR(multiplier, Target(optimizers[0], "lr", replaceable=True), scheduler)


def _adapted(scheduler: Any, state: Any, ssr: float | None = None) -> Callable[[], float]:
    """A schedule as a function of nothing, for functions of `(state)` and of `(state, ssr)`."""
    if not callable(scheduler):
        raise TypeError(f"{scheduler!r} is no schedule: pass one of timesched's, or a function of (state, ssr).")
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


def _base(value: Any, what: str) -> float:
    """An initial value as a float; raises `TimeError` for what is no finite number."""
    number = exact(value.item() if isinstance(value, Tensor) and value.numel() == 1 else value, what)
    try:
        return float(number)
    except OverflowError:
        raise TimeError(f"{str(value)[:40]} is too large, as {what}: a float holds at most about 1.8e308.") from None


def _multiplier(value: Any, scheduler: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ValueError(f"{scheduler!r} returned {value!r}: a schedule returns a finite number.")
    return float(value)


def _product(factors: list[Callable[[], float]]) -> Callable[[], float]:
    if not factors:
        raise ValueError("The list of schedules is empty: pass at least one.")
    return factors[0] if len(factors) == 1 else lambda: math.prod(factor() for factor in factors)
