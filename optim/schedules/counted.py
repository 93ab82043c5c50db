"""The steps of a scheduler: a Python number, or an int64 tensor where the values that it sets are tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from .overriding import standard

# A graph of these versions runs the setter of a property after what comes later in the code (seen in 2.7 and 2.9).
_LATE = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)


class Counted:
    """What has taken a number of steps. Counts are exact up to 2**63."""

    _count: int | Tensor
    _now: Tensor | None = None  # the step that a closed form is asked for
    _asked: Callable[[], Any] | None = None  # and what the formula has there

    def _get_closed_form(self) -> Tensor:
        raise NotImplementedError

    def _steps(self) -> Tensor:
        if self._now is not None:
            return self._now.clone()
        return self._count.clone() if isinstance(self._count, Tensor) else torch.tensor(self._count, device="cpu")

    def _go_to(self, count: int | Tensor) -> None:
        if _LATE and torch.compiler.is_compiling():
            raise RuntimeError("Before torch 2.13 a graph cannot set last_epoch: call increment_last_epoch() instead.")
        if isinstance(count, Tensor):
            other = count.is_floating_point() or count.is_complex() or count.dtype is torch.bool
            whole = count.numel() == 1 and not other
            read = whole and count.is_cpu and not torch.compiler.is_compiling()
            if read or not whole:
                checked_count(int(count) if read else count, type(self).__name__)
        if isinstance(count, Tensor) and isinstance(self._count, Tensor):
            self._count.view(1).copy_(count.view(1))
        else:
            self._count_to(checked_count(int(count) if isinstance(count, Tensor) else count, type(self).__name__))

    last_epoch: Any = property(
        _steps,
        _go_to,
        doc="The steps taken, as a 0-dim int64 tensor of its own; in a closed form, the step that it is asked for.",
    )
    # As torch counts them; some loops add to it, which says nothing here.
    _step_count: Any = property(lambda self: int(self._count) + 1, lambda self, count: None)

    def _count_to(self, count: int) -> None:
        if isinstance(self._count, Tensor):
            self._count.copy_(torch.tensor(count, device="cpu"))
        else:
            self._count = count

    def count_beside(self, value: Any) -> None:
        """Count in a tensor on the device of a value that is a tensor. It is made on the host: see Slot.write."""
        if isinstance(value, Tensor):
            count = self._count if isinstance(self._count, Tensor) else torch.tensor(self._count, device="cpu")
            self._count = count.to(value.device)

    def at_step(self, count: Any, formula: Callable[[], Any] | None = None) -> Tensor:
        """The closed form at a step; `formula` has the value there that the scheduler's own formula gives."""
        if not isinstance(count, Tensor):
            count = torch.tensor(math.floor(count), device="cpu")
        elif count.is_floating_point():
            count = count.floor().to(torch.int64)
        before, self._now, self._asked = (self._now, self._asked), count, formula
        try:
            return self._get_closed_form()
        finally:
            self._now, self._asked = before

    def advance(self) -> Any:
        """Count a step in the tensor, outside of a graph. Returns what to compute with: a number if it can be read."""
        count: Any = self._count
        if not count.is_cpu:
            return count.add_(1)
        steps = int(count) + 1
        count.fill_(steps)
        return steps

    @standard
    def increment_last_epoch(self) -> None:
        """Count a step."""
        if isinstance(self._count, int):
            self._count += 1
        else:
            self._count.view(1).add_(1)


def checked_count(count: Any, name: str, least: int = 0) -> int:
    """A number of steps; raises `ValueError` for what is none."""
    if isinstance(count, Integral) and not isinstance(count, bool) and least <= int(count) < 2**63 - 1:
        return int(count)
    start = " (or -1, to start at 0)" if least < 0 else ""
    raise ValueError(f"{name}: last_epoch={count!r} counts steps: it is a whole number, from 0{start} to 2**63 - 2.")
