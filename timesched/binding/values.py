"""What a scheduler writes if the target is no optimizer: one value of any object, at the end of a path.

`ValueTarget` has the attributes and methods of `GroupTarget`, without those for groups that are added.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from timesched.binding.keys import fill, read_number
from timesched.binding.path import Path, Step

_CLOSE = 1e-9  # a product that is so close below a multiple, relative to it, counts as the multiple


class ValueTarget:
    """One value of an object: a float, a whole number, or a tensor with one float.

    `relative`: the initial value multiplies the value of the schedule. `multiple_of`: for a whole number, what the
    product is rounded down to a multiple of. `name`: the name for logs and saved states. Raises `ValueError` if there
    is no such value, or if it cannot be written. Nothing is changed then.
    """

    def __init__(self, root: object, key: object, relative: bool, multiple_of: int | None, name: str | None) -> None:
        if name is not None and (not isinstance(name, str) or not name):
            raise ValueError(f"bind.name={name!r}: it is not a name. Pass a text, or None for the class and the key.")
        self.holder = ValueTarget  # all values are in one registry, since not every object can be hashed
        if key is None:
            raise ValueError(
                f"bind.key=None: the target is a {type(root).__name__}, not a torch.optim.Optimizer, and needs a key. "
                f"Pass the path of a value, as in key='layers.0.dropout.p'."
            )
        self.path = Path(root, key)
        self.key = str(key)
        self.relative = relative
        self.multiple_of = multiple_of
        self.indices = [0]  # there is one value
        self.name = name or f"{type(root).__name__}{'' if self.key.startswith('[') else '.'}{self.key}"
        value = self.path.read()
        number = _require_number(value, self.key)
        initial = _find_initial_value(self.path, value, number)
        if isinstance(value, int) or multiple_of is not None:
            _check_multiple(value, initial, self.key, multiple_of, relative)
        self.tensor: Tensor | None = value if isinstance(value, Tensor) else None  # the tensor as it was seen last
        self._check_writable(value)
        self.initial_values: list[float] = [initial]
        self.base_values: list[float] = [initial if relative else 1.0]

    def _check_writable(self, value: object) -> None:
        """Raise `ValueError` if the present value cannot be written back."""
        try:
            if isinstance(value, Tensor):
                fill(value, value.item())
            else:
                self.path.write(value)
        except Exception as error:  # an object may refuse with any error
            raise ValueError(
                f"bind.key={self.key!r}: {type(self.path.holder).__name__} cannot be written: {error}. Pass an object "
                f"that can be changed."
            ) from error

    def overlaps(self, other: ValueTarget) -> bool:
        """Whether another target is the same value: in the same holder, or in the same tensor."""
        mine, theirs = self.path, other.path
        if self.tensor is not None and self.tensor is other.tensor:
            return True
        return mine.holder is theirs.holder and mine.rest == theirs.rest

    def advise_owner(self) -> str:
        """What to do if two schedulers are made for the value."""
        return "Step the later scheduler, or combine them: bind a list."

    def describe_zero(self) -> str:
        """What to do if the base value is 0."""
        return "the initial value is 0. Multiplied, it stays 0: begin with another value."

    def describe(self) -> str:
        """Where the value is, for the scheduler's text."""
        return type(self.path.root).__name__

    def identity(self) -> dict[str, object]:
        """The entries of a saved state that say what it is of."""
        return {"key": self.key, "tags": None, "name": self.name}

    def is_unchanged(self) -> bool:
        """Whether the objects on the path are the same as before."""
        return self.path.is_unchanged()

    def find_again(self) -> None:
        """Raise `ValueError` if an object on the path was replaced."""
        if not self.path.is_unchanged():
            raise ValueError(
                f"key={self.key!r}: an object on this path from {self.describe()} was replaced after it was "
                f"scheduled. Call unbind() on the scheduler, and make another one."
            )

    def has_new_groups(self) -> bool:
        """An object has no groups."""
        return False

    def copy_with_new_groups(self) -> ValueTarget:
        """The target itself."""
        return self

    def note_initial_values(self, replace: bool = False) -> None:
        """Nothing to do: the initial value is noted with each write."""

    def check_base_values(self, base_values: list[float], class_name: str) -> None:
        """Raise `ValueError` if the base values of a saved state do not fit one value."""
        if len(base_values) != 1:
            raise ValueError(
                f"{class_name}: the state has {len(base_values)} initial values, and {self.name!r} is one value. Load "
                f"the state that was saved for it."
            )

    def values(self) -> list[Any]:
        """The value; a copy, if it is a tensor."""
        value = self.path.read()
        return [value.detach().clone() if isinstance(value, Tensor) else value]

    def values_at(self, value: Any) -> list[Any]:
        """The value that a value of the schedule leads to."""
        return [self._round(self.base_values[0] * value)]

    def named_values(self) -> dict[str, float]:
        """The value by its name for logs."""
        return {self.name: float(self.path.read())}

    def write(self, values: Sequence[Any]) -> None:
        """Write the value, which was checked."""
        number = self._round(float(values[0]))
        old = self.path.read()
        if isinstance(old, Tensor):
            fill(old, number)
            self.tensor = old
        else:
            self.path.write(number)
        _note_write(self.path, self.base_values[0] if self.relative else self.initial_values[0], number)

    def _round(self, number: float) -> float:
        """The number that is written: with `multiple_of` a multiple of it, rounded down, and at least one."""
        if self.multiple_of is None:
            return number
        multiples = number / self.multiple_of
        nearest = round(multiples)
        whole = nearest if abs(multiples - nearest) <= _CLOSE * nearest else math.floor(multiples)
        return self.multiple_of * max(1, whole)

    def tensors(self) -> list[Tensor]:
        """The tensor itself, if the value is one."""
        value = self.path.read()
        return [value] if isinstance(value, Tensor) else []

    def hold_tensors(self) -> None:
        """Nothing to do: a float of an object stays a float."""

    def count_changes(self) -> list[int]:
        """No parameter belongs to the value, so nothing shows whether an optimizer has stepped."""
        return []


def _require_number(value: object, key: str) -> float:
    """The value as a number. Raises `ValueError` if it is not one finite number that may be scheduled."""
    if isinstance(value, Tensor) and value.requires_grad:
        raise ValueError(
            f"bind.key={key!r}: the tensor requires a gradient, so the optimizer changes it. Schedule a buffer, or "
            f"call requires_grad_(False)."
        )
    number = read_number(value)
    if number is None:
        raise ValueError(
            f"bind.key={key!r}: the value is {value!r}, not a finite number. Pass the path of a float, of an int with "
            f"multiple_of, or of a tensor with one float."
        )
    return number


def _check_multiple(value: object, initial: float, key: str, multiple_of: object, relative: bool) -> None:
    """Raise `ValueError` unless `multiple_of` suits the value and its initial value."""
    if multiple_of is None:
        raise ValueError(
            f"bind.key={key!r}: the value {value!r} is a whole number. Pass multiple_of=1 to write whole numbers, or "
            f"make it a float."
        )
    if not isinstance(value, int):
        problem = f"the value {value!r} is not a whole number. Leave multiple_of out, or make the value an int."
    elif not relative:
        problem = "a half-life gives a value below 1, not a whole number. Leave multiple_of out."
    elif isinstance(multiple_of, bool) or not isinstance(multiple_of, int) or multiple_of < 1:
        problem = "it is not a whole number of 1 or more. Pass an int such as 64."
    elif multiple_of > initial:
        problem = f"it is above the value, {initial:.0f}. Pass a smaller multiple_of, or begin with a larger value."
    else:
        return
    raise ValueError(f"bind.multiple_of={multiple_of!r}: {problem}")


# What was written last, for a scheduler that is made later for the same value


class _Note(NamedTuple):
    """The number that a scheduler wrote last, and its initial value."""

    holder: weakref.ref[Any]
    initial: float
    written: float


_notes: dict[tuple[int, tuple[Step, ...]], _Note] = {}  # by the identity of the holder, and the rest of the path


def _note_write(path: Path, initial: float, written: float) -> None:
    """Note what was written. A holder without weak references, such as a dict, has no note."""
    place = id(path.holder), path.rest
    with suppress(TypeError):
        _notes[place] = _Note(weakref.ref(path.holder, lambda ref: _notes.pop(place, None)), initial, written)


def _find_initial_value(path: Path, value: object, number: float) -> float:
    """The initial value: the present number, or the noted one if the number is still what a scheduler wrote last."""
    note = _notes.get((id(path.holder), path.rest))
    if note is None or note.holder() is not path.holder:
        return number
    written = note.written
    if isinstance(value, Tensor):
        written = torch.tensor(written, dtype=torch.float64).to(value.dtype).item()
    return note.initial if written == number else number
