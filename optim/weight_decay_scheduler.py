"""Weight-decay schedulers in closed form: those of `optim.scheduler`, with their arguments, for one key.

>>> import torch
>>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0, weight_decay=0.1)
>>> LinearWD(optimizer, initial_val=0.5, end_val=0.25, total_iters=4).values(5)
[0.5, 0.4375, 0.375, 0.3125, 0.25]
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from . import scheduler
from .schedules.closed_form import Scheduler

__all__ = [
    "ChainedWD",
    "ConstantWD",
    "CosineAnnealingWD",
    "CosineAnnealingWarmRestartsWD",
    "CosineDecayWD",
    "CyclicWD",
    "ExponentialWD",
    "InverseExponentialTimeDecayWD",
    "InverseSquareRootDecayWD",
    "LambdaWD",
    "LinearWD",
    "MultiStepWD",
    "MultiplicativeWD",
    "OneCycleWD",
    "PiecewiseConstantWD",
    "PolynomialWD",
    "ScalePerParamWD",
    "SequentialWD",
    "StepWD",
    "WarmupStableDecayWD",
    "WeightDecayScheduler",
]


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

    def _get_closed_form(self) -> Tensor:
        return self._get_closed_form_wd()

    def _get_closed_form_wd(self) -> Tensor:
        """The weight decay at `last_epoch`, a 0-dim tensor."""
        return Scheduler._get_closed_form(self)

    def get(self) -> list[Any]:
        """The same as `get_wd()`."""
        return self.get_wd()

    def get_wd(self) -> list[Any]:
        """The weight decay of this moment for each parameter group; the present one where a group is not selected."""
        return Scheduler.get(self)

    def get_last_wd(self) -> list[Any]:
        """The weight decay in each parameter group; a tensor is a copy."""
        return self.get_last_value()


class ConstantWD(scheduler.ConstantScheduler, WeightDecayScheduler):
    """`ConstantLR` for the weight decay; the arguments are those of the base class."""


class PolynomialWD(scheduler.PolynomialScheduler, WeightDecayScheduler):
    """`PolynomialLR` for the weight decay; the arguments are those of the base class."""


class LinearWD(scheduler.LinearScheduler, WeightDecayScheduler):
    """`LinearLR` for the weight decay; the arguments are those of the base class."""


class ExponentialWD(scheduler.ExponentialScheduler, WeightDecayScheduler):
    """`ExponentialLR` for the weight decay; the arguments are those of the base class."""


class InverseExponentialTimeDecayWD(scheduler.InverseExponentialTimeDecayScheduler, WeightDecayScheduler):
    """`InverseExponentialTimeDecayLR` for the weight decay; the arguments are those of the base class."""


class InverseSquareRootDecayWD(scheduler.InverseSquareRootDecayScheduler, WeightDecayScheduler):
    """`InverseSquareRootDecayLR` for the weight decay; the arguments are those of the base class."""


class CosineDecayWD(scheduler.CosineDecayScheduler, WeightDecayScheduler):
    """`CosineDecayLR` for the weight decay; the arguments are those of the base class."""


class WarmupStableDecayWD(scheduler.WarmupStableDecayScheduler, WeightDecayScheduler):
    """`WarmupStableDecayLR` for the weight decay; the arguments are those of the base class."""


class SequentialWD(scheduler.SequentialScheduler, WeightDecayScheduler):
    """`SequentialLR` for the weight decay; the arguments are those of the base class."""


class PiecewiseConstantWD(scheduler.PiecewiseConstantScheduler, WeightDecayScheduler):
    """`PiecewiseConstantLR` for the weight decay; the arguments are those of the base class."""


class MultiStepWD(scheduler.MultiStepScheduler, WeightDecayScheduler):
    """`MultiStepLR` for the weight decay; the arguments are those of the base class."""


class StepWD(scheduler.StepScheduler, WeightDecayScheduler):
    """`StepLR` for the weight decay; the arguments are those of the base class."""


class CosineAnnealingWD(scheduler.CosineAnnealingScheduler, WeightDecayScheduler):
    """`CosineAnnealingLR` for the weight decay; the arguments are those of the base class."""


class LambdaWD(scheduler.LambdaScheduler, WeightDecayScheduler):
    """`LambdaLR` for the weight decay; the arguments are those of the base class."""


class CosineAnnealingWarmRestartsWD(scheduler.CosineAnnealingWarmRestartsScheduler, WeightDecayScheduler):
    """`CosineAnnealingWarmRestarts` for the weight decay; the arguments are those of the base class."""


class MultiplicativeWD(scheduler.MultiplicativeScheduler, WeightDecayScheduler):
    """`MultiplicativeLR` for the weight decay; the arguments are those of the base class."""


class ChainedWD(scheduler.ChainedScheduler, WeightDecayScheduler):
    """`ChainedLR` for the weight decay; the arguments are those of the base class."""


class CyclicWD(scheduler.CyclicScheduler, WeightDecayScheduler):
    """`CyclicLR` for the weight decay; the arguments are those of the base class."""


class OneCycleWD(scheduler.OneCycleScheduler, WeightDecayScheduler):
    """`OneCycleLR` for the weight decay; the arguments are those of the base class."""


class ScalePerParamWD(scheduler.ScalePerParamScheduler, WeightDecayScheduler):
    """`ScalePerParamLR` for the weight decay; the arguments are those of the base class."""
