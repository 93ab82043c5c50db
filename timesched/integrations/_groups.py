"""The parameter groups around the load of a checkpoint: what they held before it, and what it changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

_ABSENT = object()


def noted(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The numbers of each group, which no later write changes."""
    return [{key: _copied(value) for key, value in group.items() if _is_numbers(value)} for group in groups]


def changed(groups: list[dict[str, Any]], before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of what was noted, what is otherwise now; it also tells which keys there were none of."""
    found = []
    for old, new in zip(before, noted(groups)):
        keys = [key for key in {**old, **new} if _plain(old.get(key)) != _plain(new.get(key))]
        found.append({key: old.get(key, _ABSENT) for key in keys})
    return found


@contextmanager
def as_before(groups: list[dict[str, Any]], change: list[dict[str, Any]]) -> Iterator[None]:
    """The groups as they were before a change, for as long as the context lasts."""
    present = [{key: group.get(key, _ABSENT) for key in old} for group, old in zip(groups, change)]
    _put(groups, [{key: _copied(value) for key, value in old.items()} for old in change])
    try:
        yield
    finally:
        _put(groups, present)


def _put(groups: list[dict[str, Any]], values: list[dict[str, Any]]) -> None:
    for group, each in zip(groups, values):
        for key, value in each.items():
            if value is _ABSENT:
                group.pop(key, None)
            else:
                group[key] = value


def _is_numbers(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_numbers, value))
    return isinstance(value, (int, float, Tensor)) and not (isinstance(value, Tensor) and value.numel() > 1)


def _copied(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(map(_copied, value))
    return value.detach().clone() if isinstance(value, Tensor) else value


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    return value.item() if isinstance(value, Tensor) else value
