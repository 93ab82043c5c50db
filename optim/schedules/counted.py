"""The steps of a scheduler: a Python number, or an int64 tensor where the values that it sets are tensors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .overriding import standard


class Counted:
    """What has taken a number of steps. Counts are exact up to 2**63."""

    _count: int | Tensor
    _now: Tensor | None = None  # the step that a closed form is asked for

    def _get_closed_form(self) -> Tensor:
        raise NotImplementedError

    def _steps(self) -> Tensor:
        if self._now is not None:
            return self._now
        return self._count.clone() if isinstance(self._count, Tensor) else torch.tensor(self._count, device="cpu")

    def _go_to(self, count: int | Tensor) -> None:
        self._count_to(int(count))

    last_epoch: Any = property(
        _steps,
        _go_to,
        doc="The steps taken, as a 0-dim int64 tensor of its own; in a closed form, the step that it is asked for.",
    )
    _step_count: Any = property(lambda self: int(self._count) + 1)  # as torch counts them

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

    def at_step(self, count: Any) -> Tensor:
        """The closed form at a step."""
        if not isinstance(count, Tensor):
            count = torch.tensor(math.floor(count), device="cpu")
        elif count.is_floating_point():
            count = count.floor().to(torch.int64)
        before, self._now = self._now, count
        try:
            return self._get_closed_form()
        finally:
            self._now = before

    def advance(self) -> Any:
        """Count a step outside of a graph. Returns what to compute with: a number, or a tensor of an accelerator."""
        count = self._count
        if isinstance(count, int):
            self._count = count = count + 1
            return count
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
