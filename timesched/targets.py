"""Targets: the one number that a schedule drives in the parameter groups of an optimizer, and who drives which."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from timesched.slots import Slot, known_tags, select

_targets: weakref.WeakKeyDictionary[Optimizer, list[weakref.ref[Target]]] = weakref.WeakKeyDictionary()


class Target:
    """A number of the parameter groups that carry one of `tags`: found, checked, and written in place.

    `take(accept)` selects the groups, also those added since; `put(values)` writes. No two targets that are in use
    write to the same number: `settle()` refuses it. A registered target is in use from its `settle()` on, so
    that a schedule can be made before the one that it becomes a part of.
    """

    def __init__(self, optimizer: Optimizer, key: str | tuple[str, int], tags: Any = None, replaceable: bool = False):
        self.optimizer = optimizer
        self.tags = tags
        self.slot = Slot(key)
        self.replaceable = replaceable  # by the next of its kind
        self.indices: list[int] = []
        self.seen = 0
        self.settled = False

    @property
    def name(self) -> str:
        """What is written: `'lr'`, `'betas[0]'`."""
        return self.slot.name

    def take(self, accept: Callable[[list[int], list[Any]], None]) -> None:
        """Select the groups not seen so far; `accept` gets their indices and numbers, and may still refuse them.

        Raises `ValueError` when no group matches, a group has no such number or shares its tensor with another one.
        """
        groups = self.optimizer.param_groups
        chosen = select(groups, self.tags)
        if not chosen:
            raise ValueError(f"No parameter group carries the tag {self.tags!r}: the tags are {known_tags(groups)}.")
        if self.settled:
            self._refuse_shared(chosen)
        new = [i for i in chosen if i >= self.seen]
        values = [self.slot.read(groups[i], f"Parameter group {i}") for i in new]
        for i, value in zip(new, values):
            for j, group in enumerate(groups):
                if isinstance(value, Tensor) and group.get(self.slot.key) is value and j not in chosen:
                    raise ValueError(
                        f"Parameter groups {i} and {j} share one tensor as {self.name!r}, and only the first is "
                        f"to be scheduled: give each group a tensor of its own."
                    )
        accept(new, values)
        self.indices += new
        self.seen = len(groups)

    def register(self) -> None:
        """Let later targets know of this one."""
        _targets[self.optimizer] = [*_alive(self.optimizer), weakref.ref(self)]

    def release(self) -> None:
        """Let another target write to the same number; the groups keep their present values."""
        _targets[self.optimizer] = [ref for ref in _alive(self.optimizer) if ref() is not self]

    def settle(self) -> None:
        """Be in use. Raises `ValueError` when another registered target writes to the same number."""
        self._refuse_shared(self.indices)
        self.settled = True

    def refuse_settled(self) -> None:
        """Raise `ValueError` when a target that is in use for good writes to the same number."""
        self._refuse_shared(self.indices, settled=True)

    def _refuse_shared(self, chosen: list[int], settled: bool = False) -> None:
        for ref in _alive(self.optimizer):
            other = ref()
            if other is None or other is self or other.name != self.name or (settled and not other.settled):
                continue
            both = set(chosen).intersection(other.indices)
            if both:
                groups = self.optimizer.param_groups
                raise ValueError(
                    f"{self.name!r} of parameter group {min(both)} is bound already: bind the list of both schedules, "
                    f"which multiplies them, or make them one sequence; give them different tags (there are: "
                    f"{known_tags(groups)}); or call unbind() on the first."
                )

    def put(self, values: Sequence[Any]) -> None:
        """Write one value into each selected group."""
        groups, key = self.optimizer.param_groups, self.slot.key
        plain = self.slot.index is None
        for i, value in zip(self.indices, values):
            group = groups[i]
            if plain and group[key].__class__ is float and value.__class__ is float:
                group[key] = value
            else:
                self.slot.write(group, value)

    def read(self) -> list[float | Tensor]:
        """The number in each selected group; a tensor is a copy."""
        groups = self.optimizer.param_groups
        values = [self.slot.read(groups[i], f"Parameter group {i}") for i in self.indices]
        return [value.clone() if isinstance(value, Tensor) else value for value in values]


def targets_of(optimizer: Optimizer) -> list[Target]:
    """The registered targets of an optimizer that are still alive."""
    return [target for ref in _alive(optimizer) if (target := ref()) is not None]


def _alive(optimizer: Optimizer) -> list[weakref.ref[Target]]:
    return [ref for ref in _targets.get(optimizer, []) if ref() is not None]
