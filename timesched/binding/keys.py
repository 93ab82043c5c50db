"""The key of a scheduled hyperparameter in a parameter group, and checks of its values."""

from __future__ import annotations

import math
import numbers
import re
import sys
from typing import Any

import torch
from torch import Tensor

from timesched.hints import name_hint
from timesched.maths.ops import host_scalar
from timesched.time.units import exact_number
from timesched.types import ParamGroup


class Key:
    """The name of a hyperparameter: a key of a parameter group, or one element of its value, as in `betas[0]`."""

    def __init__(self, name: str) -> None:
        match = re.fullmatch(r"(\w+)(?:\[(0|[1-9][0-9]*)\])?", name) if isinstance(name, str) else None
        if match is None:
            raise ValueError(
                f"key={name!r}: it names no key of a parameter group. Pass a name such as 'lr' or 'betas[0]'."
            )
        self.name = name
        self.key = match[1]
        self.index = None if match[2] is None else int(match[2])

    def require_number(self, group: ParamGroup, group_name: str) -> Any:
        """The number in the group, or its 0-dim tensor. Raises `ValueError` if the group has none."""
        if self.key not in group:
            hint = name_hint(self.name, _key_names(group))
            raise ValueError(f"key={self.name!r}: {group_name} has no such key{hint}")
        value = self.peek(group)
        if not can_be_scheduled(value):
            problem = "not a finite number" if self.index is None else f"which has no finite number at [{self.index}]"
            is_tuple = isinstance(group[self.key], (tuple, list))
            advice = f"pass one of its elements, as in '{self.key}[0]'" if is_tuple else "pass another key"
            raise ValueError(
                f"key={self.name!r}: {group_name} has {group[self.key]!r}, {problem}. Give the group a number or a "
                f"tensor with one float, or {advice}."
            )
        return value

    def peek(self, group: ParamGroup) -> Any:
        """The value in the group, without a check; None if there is none."""
        value = group.get(self.key)
        if self.index is None:
            return value
        return value[self.index] if isinstance(value, (tuple, list)) and self.index < len(value) else None

    def read_on_host(self, group: ParamGroup) -> float | None:
        """The number in the group; None for a tensor that is not on the CPU."""
        value = self.peek(group)
        if isinstance(value, Tensor):
            return float(value.detach()) if value.is_cpu else None
        return float(value)

    def write(self, group: ParamGroup, value: float | Tensor) -> None:
        """Write a number: into the tensor of the group, or in place of its number."""
        old = self.peek(group)
        if isinstance(old, Tensor):
            fill(old, value)
            return
        number = value.item() if isinstance(value, Tensor) else value
        if self.index is None:
            group[self.key] = number
        else:
            values = group[self.key]
            group[self.key] = type(values)([*values[: self.index], number, *values[self.index + 1 :]])


def _key_names(group: ParamGroup) -> list[str]:
    """The keys of a group that a scheduler may write, with the elements of tuples one by one."""
    names = []
    for key, value in sorted(group.items()):
        if isinstance(value, (tuple, list)) and key != "params":
            names += [f"{key}[{i}]" for i, _ in enumerate(value)]
        elif can_be_scheduled(value):
            names.append(key)
    return names


def fill(old: Tensor, value: float | Tensor) -> None:
    """Write a number into the memory of a tensor with one element."""
    if old.requires_grad:
        old = old.detach()  # the same memory
    view = old.view(1)  # a graph drops a write into a 0-dim float64 tensor on the CPU, but not a write through a view
    if isinstance(value, Tensor):
        view.copy_(value.detach().view(1))
    elif old.device.type == "xla":
        view.copy_(host_scalar(value, old.dtype).view(1).to(old.device))
    else:
        view.fill_(value)  # a copy from the host would wait for the GPU


def can_be_scheduled(value: object) -> bool:
    """Whether a value is a finite number, or a tensor with one finite float. A tensor is read from its device."""
    if isinstance(value, Tensor):
        is_float = value.numel() == 1 and value.is_floating_point() and not value.is_meta
        value = value.item() if is_float else None
    return may_be_finite(value)


def may_be_finite(value: object) -> bool:
    """Whether a value is a finite number, or a tensor with one number. A tensor on a device is not read."""
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex() or value.dtype is torch.bool or value.is_meta:
            return False
        return value.device.type != "cpu" or math.isfinite(value)
    largest = sys.float_info.max  # an int may be larger
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= largest


def require_count(count: object, name: str, minimum: int = 0) -> int:
    """A number of steps as an int. Raises `ValueError` for anything else."""
    if isinstance(count, numbers.Integral) and not isinstance(count, bool) and minimum <= int(count) < 2**63 - 1:
        return int(count)
    raise ValueError(
        f"{name}.last_epoch={count!r}: it is not a number of steps. Pass a whole number from {minimum} to 2**63 - 2."
    )


def require_finite(value: object, name: str) -> float:
    """An initial value as a float. Raises `TimeError` if it is not a finite number."""
    if type(value) is float and math.isfinite(value):
        return value
    return float(exact_number(value.item() if isinstance(value, Tensor) and value.numel() == 1 else value, name))
