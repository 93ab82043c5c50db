"""Weight-decay schedulers in closed form."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from . import scheduler
from .schedules.closed_form import Scheduler
from .schedules.families import family
from .schedules.overriding import standard


class WeightDecayScheduler(Scheduler):
    """Sets the weight decay of parameter groups to a value that depends on the number of steps alone.

    A subclass says in `_get_closed_form_wd()` what it is: a 0-dim tensor, from `last_epoch`, by operations of torch.
    Its arguments, and what else there is: see `optim.scheduler.Scheduler`.

    >>> import torch
    >>> class Ramp(WeightDecayScheduler):
    ...     def _get_closed_form_wd(self):
    ...         return torch.clamp(self.last_epoch / self.total_iters, max=1.0) * 0.1
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> [round(value, 4) for value in Ramp(optimizer, total_iters=2).values(4)]
    [0.0, 0.05, 0.1, 0.1]
    """

    param_group_key = "weight_decay"

    @standard
    def _get_closed_form(self) -> Tensor:
        return self._get_closed_form_wd()

    @standard
    def _get_closed_form_wd(self) -> Tensor:
        """The weight decay at `last_epoch`, a 0-dim tensor."""
        return Scheduler._get_closed_form(self)

    @standard
    def get(self) -> list[Any]:
        """The same as `get_wd()`."""
        return self.get_wd()

    @standard
    def get_wd(self) -> list[Any]:
        """The weight decay of this moment for each parameter group: None for those that are not scheduled."""
        return Scheduler.get(self)

    def get_last_wd(self) -> list[Any]:
        """The weight decay in each parameter group, None for those that are not scheduled; a tensor is a copy."""
        return self.get_last_value()


globals().update(family(WeightDecayScheduler, "WD", __name__, like=scheduler))
