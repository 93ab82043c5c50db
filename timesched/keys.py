"""Keys: the number in a parameter group that is scheduled, and the groups that are selected by tag."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor


class Key:
    """A number in a parameter group: the value of a key, or one element of it, as in `betas[0]`."""

    def __init__(self, key: str | tuple[str, int]) -> None:
        match = re.fullmatch(r"(\w+)(?:\[(\d+)\])?", key) if isinstance(key, str) else None
        if match:
            key, index = match[1], match[2]
        elif isinstance(key, tuple) and len(key) == 2 and type(key[1]) is int and key[1] >= 0:
            key, index = key
        else:
            raise ValueError(f"key={key!r}: name a key of the parameter groups, as in 'lr' or 'betas[0]'.")
        self.key = key
        self.index = None if index is None else int(index)
        self.name = self.key if self.index is None else f"{self.key}[{self.index}]"
        self.plain = self.key if self.index is None else None  # for a quick way to write numbers

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
        readable = isinstance(value, Tensor) and value.numel() == 1 and not value.is_meta
        number = value.item() if readable else value
        whole = isinstance(value, Tensor) and not value.is_floating_point()
        if whole or isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
            raise ValueError(
                f"{where} has {self.name}={value!r}: only a finite number can be scheduled, or a tensor of floats that "
                f"has one."
            )
        return value

    def peek(self, group: Mapping[str, Any]) -> Any:
        """What is there, unchecked; None where there is nothing."""
        value = group.get(self.key)
        if self.index is None:
            return value
        return value[self.index] if isinstance(value, (tuple, list)) and self.index < len(value) else None

    def write(self, group: dict[str, Any], value: float | Tensor) -> None:
        """Put a number in: into the tensor that is there, or in place of the number."""
        old = self.peek(group)
        if isinstance(old, Tensor):
            _fill(old, value)
            return
        if isinstance(value, Tensor):
            value = value.item()
        if self.index is None:
            group[self.key] = value
        else:
            values = group[self.key]
            group[self.key] = type(values)([*values[: self.index], value, *values[self.index + 1 :]])


def _fill(old: Tensor, value: float | Tensor) -> None:
    if old.requires_grad:
        old = old.detach()  # the same memory
    # what is written into a 0-dim float64 tensor on the CPU itself, a graph drops: there it goes through a view
    if not isinstance(value, Tensor):
        if old.is_cpu or old.device.type != "xla":
            (old.view(1) if torch.compiler.is_compiling() else old).fill_(value)
            return
        # made on the host and moved: there, a number may be a constant of the traced graph, and each a new graph
        value = torch.tensor([value], dtype=old.dtype, device="cpu").to(old.device)
    old.view(1).copy_(value.detach().view(1))


def select(groups: Iterable[Mapping[str, Any]], tags: Any) -> list[int]:
    """The indices of the groups that carry one of `tags`: None takes all, and a None among them the untagged."""
    if tags is None:
        return list(range(len(list(groups))))
    if not isinstance(tags, (str, Iterable)):
        raise ValueError(f"tags={tags!r}: pass a tag, a list of tags, or None for all groups.")
    names = [tags] if isinstance(tags, str) else list(tags)
    for name in names:
        if name is not None and not isinstance(name, str):
            raise ValueError(f"tags={tags!r}: {name!r} is neither a tag nor None (for the groups without tags).")
    if len(set(names)) < len(names):
        raise ValueError(f"tags={tags!r} names a tag twice: name each once.")
    return [i for i, group in enumerate(groups) if (_tags(group.get("tags")) or {None}).intersection(names)]


def _tags(tags: Any) -> set[Any]:
    if tags is not None and not isinstance(tags, Iterable):
        raise ValueError(f"A parameter group has tags={tags!r}: they are a name, or a list or set of names.")
    return {tags} if isinstance(tags, str) else set(tags or ())


def known_tags(groups: Iterable[Mapping[str, Any]]) -> str:
    """The tags there are, for a message."""
    return ", ".join(sorted({repr(tag) for group in groups for tag in _tags(group.get("tags"))})) or "none"


def listed(tags: Any) -> Any:
    """Tags as a scheduler keeps them: several in a list of its own."""
    return tags if tags is None or isinstance(tags, str) or not isinstance(tags, Iterable) else list(tags)


def is_number(value: Any) -> bool:
    """Whether a value is a finite number, or a 0-dim tensor of one; a tensor elsewhere is not read."""
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex() or value.dtype is torch.bool or value.is_meta:
            return False
        return value.device.type != "cpu" or math.isfinite(value)
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
