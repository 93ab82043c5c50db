"""Targets: the one number that a schedule drives in the parameter groups of an optimizer, and who drives which."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from timesched.slots import Slot, known_tags, select

# A graph of these versions cannot compare two dicts by identity (seen in 2.7): there it is left to the eager steps.
_BLIND = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)

_targets: weakref.WeakKeyDictionary[Optimizer, list[weakref.ref[Target]]] = weakref.WeakKeyDictionary()


class Target:
    """A number of the parameter groups that carry one of `tags`: found, checked, and written in place.

    `take(accept)` selects the groups, also those added since; `put(values)` writes. Two targets for the same number
    are refused at once where one of them is `exclusive`. Otherwise each has the other among its `rivals` for as long as
    both live, and `refuse_rivals()` is to be called before writing: so a schedule can be made before the one that it
    becomes a part of.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        key: str | tuple[str, int],
        tags: Any = None,
        exclusive: bool = True,
        replaceable: bool = False,
    ) -> None:
        self.optimizer = optimizer
        self.tags = listed(tags)
        self.slot = Slot(key)
        self.plain_key = self.slot.key if self.slot.index is None else None  # for a quick way to write numbers
        self.exclusive = exclusive
        self.replaceable = replaceable  # by the next of its kind
        self.indices: list[int] = []
        self.places: list[tuple[int, dict[str, Any]]] = []  # the same, with the groups that were last found there
        self.seen = 0
        self.active = False  # registered, and not released since
        self._driver: weakref.ref[Any] | None = None
        self.rivals: list[weakref.ref[Target]] = []

    @property
    def name(self) -> str:
        """What is written: `'lr'`, `'betas[0]'`."""
        return self.slot.name

    def take(self, accept: Callable[[list[int], list[Any]], None]) -> None:
        """Select the groups not seen so far; `accept` gets their indices and numbers, and may still refuse them.

        Raises `ValueError` when no group matches, a group has no such number, shares its tensor with one that is not
        selected, or belongs to an exclusive target, and when groups were removed, replaced or moved.
        """
        groups = self.optimizer.param_groups
        self.refuse_changed()
        chosen = select(groups, self.tags)
        if not chosen:
            raise ValueError(f"No parameter group carries the tag {self.tags!r}: the tags are {known_tags(groups)}.")
        rivals = self._others(chosen)
        new = [i for i in chosen if i >= self.seen]
        values = [self.slot.read(groups[i], f"Parameter group {i}") for i in new]
        others = {id(self.slot.peek(groups[j])): j for j in set(range(len(groups))).difference(chosen)}
        for i in chosen:
            value = self.slot.peek(groups[i])
            if isinstance(value, Tensor) and id(value) in others:
                raise ValueError(
                    f"Parameter groups {i} and {others[id(value)]} share one tensor as {self.name!r}, and only the "
                    f"first is to be scheduled: give each group a tensor of its own."
                )
        accept(new, values)
        self.indices += new
        self.places += [(i, groups[i]) for i in new]
        self.seen = len(groups)
        if self.active:
            self._meet(rivals)

    def register(self, driver: Any = None) -> None:
        """Let other targets know of this one, until it is released or dies, and of what writes to it by `refresh()`."""
        if driver is not None:
            self._driver = weakref.ref(driver)
        self._meet(self._others(self.indices))
        self.active = True
        _targets[self.optimizer] = [*map(weakref.ref, targets_of(self.optimizer)), weakref.ref(self)]

    def refresh(self) -> None:
        """Have its driver write the value of this moment."""
        driver = self._driver() if self._driver else None
        if driver is not None:
            driver.refresh()

    def unbind(self) -> None:
        """Have its driver let another target write to the same number, and leave its clock."""
        driver = self._driver() if self._driver else None
        (self.release if driver is None else driver.unbind)()

    def release(self) -> None:
        """Let another target write to the same number; the groups keep their present values."""
        for other in targets_of(self.optimizer):
            other.rivals[:] = [ref for ref in other.rivals if ref() is not self]
        self.rivals.clear()
        self.active = False
        _targets[self.optimizer] = [weakref.ref(other) for other in targets_of(self.optimizer) if other is not self]

    def is_current(self) -> bool:
        """Whether it may write at once: it was not released, and the groups are those that it has seen."""
        groups = self.optimizer.param_groups
        if len(groups) != self.seen or not self.active:
            return False
        if _BLIND and torch.compiler.is_compiling():
            return True
        for i, known in self.places:  # noqa: SIM110  # a generator would take twice as long
            if groups[i] is not known:
                return False
        return True

    def refuse_changed(self) -> None:
        """Raise `ValueError` when groups were removed, or one of its own was replaced or moved to another index.

        A group is the same while its dict or its list of parameters is the same object: an optimizer that loads a
        state makes new dicts around the old lists, and what wraps parameters puts new lists into the old dicts.
        """
        groups = self.optimizer.param_groups
        if len(groups) < self.seen:
            raise ValueError(
                f"The optimizer has {len(groups)} parameter groups, and had {self.seen} when its {self.name!r} was "
                f"scheduled: which are gone is not known here; unbind() the scheduler and make another one."
            )
        if _BLIND and torch.compiler.is_compiling():
            return
        for at, (i, known) in enumerate(self.places):
            group = groups[i]
            if group is not known:
                if group["params"] is not known["params"]:
                    raise ValueError(
                        f"Parameter group {i} is not the one whose {self.name!r} was scheduled: the optimizer's groups "
                        f"were replaced or put in another order; unbind() the scheduler and make another one."
                    )
                self.places[at] = (i, group)

    def refuse_rivals(self) -> None:
        """Raise `ValueError` when another target writes to the same number."""
        self._others(self.indices, refuse=True)

    def _others(self, chosen: list[int], refuse: bool = False) -> list[Target]:
        if refuse or self.exclusive:
            try:
                return self._found(chosen, refuse)
            except ValueError:
                gc.collect()  # what nobody holds any more may be waiting for it
        return self._found(chosen, refuse)

    def _found(self, chosen: list[int], refuse: bool) -> list[Target]:
        others = []
        for other in targets_of(self.optimizer):
            both = set(chosen).intersection(other.indices)
            if other is self or other.name != self.name or not both:
                continue
            if refuse or self.exclusive or other.exclusive:
                raise ValueError(
                    f"{self.name!r} of parameter group {min(both)} is bound already: bind the list of both schedules, "
                    f"which multiplies them, or make them one sequence; give them different tags (there are: "
                    f"{known_tags(self.optimizer.param_groups)}); or call unbind() on the first."
                )
            others.append(other)
        return others

    def _meet(self, others: list[Target]) -> None:
        for one, two in [*((self, other) for other in others), *((other, self) for other in others)]:
            if not any(ref() is two for ref in one.rivals):
                one.rivals.append(weakref.ref(two, one.rivals.remove))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "rivals": [], "_driver": None}  # a copy registers anew

    # Three ways to write, each a loop of its own: a step is little else, and a call for each group would double it.

    def scale(self, bases: Sequence[float], factor: float) -> None:
        """Write a number times a factor into each selected group."""
        groups, key = self.optimizer.param_groups, self.plain_key
        for i, base in zip(self.indices, bases):
            group = groups[i]
            if key is not None and group[key].__class__ is float:
                group[key] = base * factor
            else:
                self.slot.write(group, base * factor)

    def fill(self, value: Any) -> None:
        """Write one value into all selected groups."""
        groups, key = self.optimizer.param_groups, self.plain_key if value.__class__ is float else None
        for i in self.indices:
            group = groups[i]
            if key is not None and group[key].__class__ is float:
                group[key] = value
            else:
                self.slot.write(group, value)

    def put(self, values: Sequence[Any]) -> None:
        """Write one value into each selected group."""
        groups, key = self.optimizer.param_groups, self.plain_key
        for i, value in zip(self.indices, values):
            group = groups[i]
            if key is not None and group[key].__class__ is float and value.__class__ is float:
                group[key] = value
            else:
                self.slot.write(group, value)

    def read(self) -> list[float | Tensor]:
        """The number in each selected group; a tensor is a copy."""
        self.refuse_changed()
        values = [self.slot.peek(self.optimizer.param_groups[i]) for i in self.indices]
        return [value.detach().clone() if isinstance(value, Tensor) else value for value in values]


def listed(tags: Any) -> Any:
    """Tags as they are kept: a list where there may be several, a copy of which nobody else has."""
    return tags if tags is None or isinstance(tags, str) or not isinstance(tags, Iterable) else list(tags)


def targets_of(optimizer: Optimizer) -> list[Target]:
    """The registered targets of an optimizer that are still alive."""
    return [target for ref in _targets.get(optimizer, []) if (target := ref()) is not None]
