"""Absolute-value weight-decay schedulers. As in `optim.lr_scheduler`, but learning rates are named `val` here.

>>> import torch
>>> optimizer = torch.optim.SGD(
...     [torch.nn.Parameter(torch.zeros(1))], lr=1.0, weight_decay=0.1
... )
>>> LinearWD(optimizer, initial_val=0.5, end_val=0.25, total_iters=4).values(5)
[0.5, 0.4375, 0.375, 0.3125, 0.25]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer
from typing_extensions import Unpack

from .closed_form import formulas
from .closed_form.formulas import Steps
from .scheduler import Options, Scheduler
from .scheduler_bases import composed, functions

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

    A subclass computes the weight decay in `_get_closed_form_wd()`, from `last_epoch` by operations of torch, and
    returns a 0-dim tensor.

    Common arguments and errors: `help(optim.scheduler.Scheduler)`.

    >>> import torch
    >>> class Ramp(WeightDecayScheduler):
    ...     def _get_closed_form_wd(self):
    ...         return torch.clamp(self.last_epoch / self.total_iters, max=1.0) * 0.1
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> [round(value, 4) for value in Ramp(optimizer, total_iters=2).values(4)]
    [0.0, 0.05, 0.1, 0.1]
    """

    param_group_key = "weight_decay"
    hook = "_get_closed_form_wd"

    _get_closed_form_wd = Scheduler._get_closed_form

    # Methods of the reference suite, for training scripts that were written for it. `step()` calls none of them.

    def get_wd(self) -> list[Any]:
        """The scheduled weight decay for each parameter group; for a group that is not selected, its present one."""
        return self.get()

    def get_last_wd(self) -> list[Any]:
        """The weight decay in each parameter group. Tensors are copies."""
        return self.get_last_value()


class ConstantWD(WeightDecayScheduler):
    """`ConstantLR` for the weight decay: `val` for `learning_rate`."""

    def __init__(
        self, optimizer: Optimizer, val: float, total_iters: Steps | None = None, **options: Unpack[Options]
    ) -> None:
        self._construct(formulas.Constant, locals())


class PolynomialWD(WeightDecayScheduler):
    """`PolynomialLR` for the weight decay: `initial_val` for `initial_learning_rate`, `end_val` for
    `end_learning_rate`.
    """

    def __init__(
        self, optimizer: Optimizer, initial_val: float, end_val: float, total_iters: Steps, power: float = 1.0,
        cycle: bool = False, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self._construct(formulas.Polynomial, locals())


class LinearWD(WeightDecayScheduler):
    """`LinearLR` for the weight decay: `initial_val` for `initial_learning_rate`, `end_val` for `end_learning_rate`."""

    def __init__(
        self, optimizer: Optimizer, initial_val: float, end_val: float, total_iters: Steps, cycle: bool = False,
        **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self._construct(formulas.Linear, locals())


class ExponentialWD(WeightDecayScheduler):
    """`ExponentialLR` for the weight decay: `initial_val` for `initial_learning_rate`."""

    def __init__(
        self, optimizer: Optimizer, initial_val: float, total_iters: Steps, decay_rate: float,
        staircase: bool = False, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self._construct(formulas.Exponential, locals())


class InverseExponentialTimeDecayWD(WeightDecayScheduler):
    """`InverseExponentialTimeDecayLR` for the weight decay: `initial_val` for `initial_learning_rate`."""

    def __init__(
        self, optimizer: Optimizer, initial_val: float, step_exponent: float, total_iters: Steps, decay_rate: float,
        staircase: bool = False, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self._construct(formulas.InverseExponentialTimeDecay, locals())


class InverseSquareRootDecayWD(WeightDecayScheduler):
    """`InverseSquareRootDecayLR` for the weight decay: `initial_val` for `initial_learning_rate`."""

    def __init__(
        self, optimizer: Optimizer, initial_val: float = 1.0, scale: float = 1.0, warmup_steps: Steps = 1.0,
        **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self._construct(formulas.InverseSquareRootDecay, locals())


class CosineDecayWD(WeightDecayScheduler):
    """`CosineDecayLR` for the weight decay: `initial_val` for `initial_learning_rate`, `end_val` for
    `end_learning_rate`.
    """

    def __init__(
        self, optimizer: Optimizer, initial_val: float, end_val: float, total_iters: Steps, **options: Unpack[Options]
    ) -> None:
        self._construct(formulas.CosineDecay, locals())


class WarmupStableDecayWD(WeightDecayScheduler):
    """`WarmupStableDecayLR` for the weight decay: `val` for `learning_rate`, `initial_val` for `initial_learning_rate`,
    `end_val` for `end_learning_rate`.
    """

    def __init__(
        self, optimizer: Optimizer, val: float, total_iters: Steps, warmup_iters: Steps, decay_iters: Steps,
        initial_val: float = 0.0, end_val: float = 0.0, warmup: str = "linear", decay: str = "linear",
        decay_rate: float = 0.5, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self._construct(formulas.WarmupStableDecay, locals())


class SequentialWD(composed.Sequential, WeightDecayScheduler):
    """`SequentialLR` for the weight decay."""


class PiecewiseConstantWD(WeightDecayScheduler):
    """`PiecewiseConstantLR` for the weight decay: `vals` for `learning_rates`."""

    def __init__(
        self, optimizer: Optimizer, vals: Sequence[float], milestones: Sequence[Steps], **options: Unpack[Options]
    ) -> None:
        self._construct(formulas.PiecewiseConstant, locals())


class MultiStepWD(WeightDecayScheduler):
    """`MultiStepLR` for the weight decay: `initial_val` for `initial_learning_rate`."""

    def __init__(
        self, optimizer: Optimizer, initial_val: float, gamma: float, milestones: Sequence[Steps],
        **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self._construct(formulas.MultiStep, locals())


class StepWD(WeightDecayScheduler):
    """`StepLR` for the weight decay: `initial_val` for `initial_learning_rate`."""

    def __init__(
        self, optimizer: Optimizer, initial_val: float, step_size: Steps, gamma: float, **options: Unpack[Options]
    ) -> None:
        self._construct(formulas.Step, locals())


class CosineAnnealingWD(WeightDecayScheduler):
    """`CosineAnnealingLR` for the weight decay: `initial_val` for `initial_learning_rate`."""

    def __init__(
        self, optimizer: Optimizer, initial_val: float, T_max: Steps, eta_min: float = 0.0, **options: Unpack[Options]
    ) -> None:
        self._construct(formulas.CosineAnnealing, locals())


class LambdaWD(functions.Functions, WeightDecayScheduler):
    """`LambdaLR` for the weight decay: `initial_val` for `initial_learning_rate`."""

    def __init__(self, optimizer: Optimizer, initial_val: float, **options: Unpack[Options]) -> None:
        self._construct(formulas.Lambda, locals())


class CosineAnnealingWarmRestartsWD(WeightDecayScheduler):
    """`CosineAnnealingWarmRestarts` for the weight decay: `initial_val` for `initial_learning_rate`."""

    def __init__(
        self, optimizer: Optimizer, initial_val: float, T_0: Steps, T_mult: float = 1, eta_min: float = 0.0,
        **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self._construct(formulas.CosineAnnealingWarmRestarts, locals())


class MultiplicativeWD(functions.Coefficient, WeightDecayScheduler):
    """`MultiplicativeLR` for the weight decay: `initial_val` for `initial_learning_rate`."""

    def __init__(
        self, optimizer: Optimizer, initial_val: float, coefficient: float, **options: Unpack[Options]
    ) -> None:
        self._construct(formulas.Multiplicative, locals())


class ChainedWD(composed.Chained, WeightDecayScheduler):
    """`ChainedLR` for the weight decay."""


class CyclicWD(functions.ScaleFunction, WeightDecayScheduler):
    """`CyclicLR` for the weight decay: `base_val` for `base_lr`, `max_val` for `max_lr`."""

    def __init__(
        self, optimizer: Optimizer, base_val: float, max_val: float, step_size_up: Steps = 2000,
        step_size_down: Steps | None = None, mode: str = "triangular", gamma: float = 1.0, scale_mode: str = "cycle",
        **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self._construct(formulas.Cyclic, locals())


class OneCycleWD(WeightDecayScheduler):
    """`OneCycleLR` for the weight decay: `initial_val` for `initial_learning_rate`, `max_val` for `max_lr`."""

    def __init__(
        self, optimizer: Optimizer, initial_val: float, max_val: float, total_steps: Steps = 1000,
        pct_start: float = 0.3, final_div_factor: float = 1e4, three_phase: bool = False,
        anneal_strategy: str = "cos", **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self._construct(formulas.OneCycle, locals())


class ScalePerParamWD(composed.ScaledPerGroup, WeightDecayScheduler):
    """`ScalePerParamLR` for the weight decay. It does not use the `lr_factor` of a group."""
