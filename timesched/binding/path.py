"""A path from an object to one of its values, such as `layers.0.dropout.p` or `loss.weights[1]`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

_STEP = re.compile(r"""(?:^|(?<!^)\.)(?P<name>\w+)|\[(?P<index>\d+)\]|\[(?P<quote>['"])(?P<text>.*?)(?P=quote)\]""")


class Step(NamedTuple):
    """One step of a path: an item, or else an attribute."""

    key: str | int
    is_item: bool

    def read(self, holder: Any) -> Any:
        """The object behind this step."""
        return holder[self.key] if self.is_item else getattr(holder, str(self.key))

    def write(self, holder: Any, value: object) -> None:
        """Put a value in its place."""
        if self.is_item:
            holder[self.key] = value
        else:
            setattr(holder, str(self.key), value)


class Path:
    """A path from a root object to a value. It knows the objects on the way, and sees whether one was replaced.

    A tuple is no place of its own, since it cannot be written: a write replaces it in its holder. The holder of the
    value is the innermost object on the path that is not a tuple.
    """

    def __init__(self, root: object, key: object) -> None:
        self.root = root
        self.steps: list[Step] = []
        objects = [root]
        for written_step in _read_steps(key):
            step = _resolve_name(objects[-1], written_step)
            try:
                objects.append(step.read(objects[-1]))
            except Exception as error:  # an object on the path raises what it likes
                raise ValueError(
                    f"bind.key={key!r}: {type(objects[-1]).__name__} has no {step.key!r}. Pass the path of a number, "
                    f"as in key='layers.0.dropout.p' or key='weights[1]'."
                ) from error
            self.steps.append(step)
        self.objects = [None if isinstance(item, tuple) else item for item in objects[:-1]]  # None for a tuple
        depths = [i for i, item in enumerate(self.objects) if item is not None]
        if not depths:
            raise ValueError(f"bind.key={key!r}: a tuple cannot be written. Pass the object that has the tuple.")
        self.depth = depths[-1]  # of the holder

    @property
    def holder(self) -> object:
        """The innermost object on the path that can be written."""
        return self.objects[self.depth]

    @property
    def rest(self) -> tuple[Step, ...]:
        """The steps from the holder to the value."""
        return tuple(self.steps[self.depth :])

    def is_unchanged(self) -> bool:
        """Whether the path leads through the same objects as before. Tuples may differ."""
        try:
            present = self._follow()
        except Exception:  # an object on the path raises what it likes
            return False
        return all(known is None or known is item for known, item in zip(self.objects, present))

    def read(self) -> Any:
        """The present value."""
        return self._follow()[-1]

    def write(self, value: object) -> None:
        """Put a value in the place of the present one. Tuples on the way are replaced."""
        objects = self._follow()
        for i in range(len(self.steps) - 1, self.depth, -1):
            value = _replace_item(objects[i], self.steps[i].key, value)
        self.steps[self.depth].write(self.holder, value)

    def _follow(self) -> list[Any]:
        """The present objects on the path, from the root to the value."""
        objects: list[Any] = [self.root]
        for step in self.steps:
            objects.append(step.read(objects[-1]))
        return objects


def _read_steps(key: object) -> list[Step]:
    """The steps of a key, with each name as an attribute. Raises `ValueError` for any other text."""
    steps, position = [], 0
    while isinstance(key, str) and (match := _STEP.match(key, position)):
        position = match.end()
        if match["name"]:
            steps.append(Step(match["name"], is_item=False))
        else:
            steps.append(Step(int(match["index"]) if match["index"] else match["text"], is_item=True))
    if not steps or position < len(str(key)):
        raise ValueError(
            f"bind.key={key!r}: it is not a path. Pass names with dots between them, [0] or ['any text'], as in "
            f"key='loss.weights[1]'."
        )
    return steps


def _resolve_name(holder: object, step: Step) -> Step:
    """A name is a key of a mapping that has it, a field of a named tuple, or else an attribute."""
    if step.is_item:
        return step
    if isinstance(holder, Mapping) and step.key in holder:
        return Step(step.key, is_item=True)
    if isinstance(holder, tuple) and step.key in getattr(holder, "_fields", ()):
        return Step(holder._fields.index(step.key), is_item=True)  # type: ignore[attr-defined]  # a named tuple
    return step


def _replace_item(items: tuple[object, ...], key: Any, value: object) -> tuple[object, ...]:
    """A tuple of the same class with another item."""
    replaced = [*items[:key], value, *items[key + 1 :]]
    make = getattr(type(items), "_make", type(items))  # a named tuple takes its items one by one
    result: tuple[object, ...] = make(replaced)
    return result
