"""Learning-rate schedulers in closed form."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .schedules.closed_form import Scheduler
from .schedules.families import RATES, family
from .schedules.overriding import standard


class LRScheduler(Scheduler):
    """Sets the learning rate of parameter groups to a value that depends on the number of steps alone.

    A subclass says in `_get_closed_form_lr()` what it is: a 0-dim tensor, from `last_epoch`, by operations of torch.
    Its arguments, and what else there is: see `optim.scheduler.Scheduler`.

    >>> import torch
    >>> class Ramp(LRScheduler):
    ...     def __init__(self, optimizer, rate, total_iters):
    ...         self.rate = rate
    ...         super().__init__(optimizer, total_iters=total_iters)
    ...     def _get_closed_form_lr(self):
    ...         return torch.clamp(self.last_epoch / self.total_iters, max=1.0) * self.rate
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> Ramp(optimizer, 0.5, total_iters=2).values(4)
    [0.0, 0.25, 0.5, 0.5]
    """

    param_group_key = "lr"

    @standard
    def _get_closed_form(self) -> Tensor:
        return self._get_closed_form_lr()

    @standard
    def _get_closed_form_lr(self) -> Tensor:
        """The learning rate at `last_epoch`, a 0-dim tensor."""
        return Scheduler._get_closed_form(self)

    @standard
    def get(self) -> list[Any]:
        """The same as `get_lr()`."""
        return self.get_lr()

    @standard
    def get_lr(self) -> list[Any]:
        """The learning rate of this moment for each parameter group: None for those that are not scheduled."""
        return Scheduler.get(self)

    @standard
    def update_last_value(self) -> None:
        """The same as `update_last_lr()`."""
        self.update_last_lr()

    @standard
    def update_last_lr(self) -> None:
        """Called at the end of a step, for subclasses: `get_last_lr()` itself reads the groups."""


globals().update(family(LRScheduler, "LR", __name__, RATES))
ChainedScheduler = globals()["ChainedLR"]
