"""Schedulers of any key of a parameter group: a subclass names it in `param_group_key`.

The schedules are those of `optim.lr_scheduler`, where formulas, arguments, errors and sources stand. What are learning
rates there are values here: `initial_val`, `end_val`, `base_val`, `max_val`, `val` and `vals`.

>>> import torch
>>> class Momentum(CosineDecayScheduler):
...     param_group_key = "momentum"
>>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0, momentum=0.9)
>>> Momentum(optimizer, initial_val=0.9, end_val=0.5, total_iters=2).values(4)
[0.9, 0.7, 0.5, 0.5]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

from .schedules import assembled, by_formula, composites, cycles, formulas
from .schedules.by_formula import Steps, computed_by
from .schedules.closed_form import Scheduler

__all__ = [
    "ChainedScheduler",
    "ConstantScheduler",
    "CosineAnnealingScheduler",
    "CosineAnnealingWarmRestartsScheduler",
    "CosineDecayScheduler",
    "CyclicScheduler",
    "ExponentialScheduler",
    "InverseExponentialTimeDecayScheduler",
    "InverseSquareRootDecayScheduler",
    "LambdaScheduler",
    "LinearScheduler",
    "MultiStepScheduler",
    "MultiplicativeScheduler",
    "OneCycleScheduler",
    "PiecewiseConstantScheduler",
    "PolynomialScheduler",
    "ScalePerParamScheduler",
    "Scheduler",
    "SequentialScheduler",
    "StepScheduler",
    "WarmupStableDecayScheduler",
]


@computed_by(formulas.Constant)
class ConstantScheduler(Scheduler):
    """The same value throughout: see `ConstantLR`."""

    optimizer: Optimizer
    val: float
    total_iters: Steps | None = None
    param_group_tags: Any = None
    clock: Any = None
    on_change: str = "same"


@computed_by(formulas.Polynomial)
class PolynomialScheduler(Scheduler):
    """From one value to another along a power of the share of the steps that is left: see `PolynomialLR`."""

    optimizer: Optimizer
    initial_val: float
    end_val: float
    total_iters: Steps
    power: float = 1.0
    cycle: bool = False
    param_group_tags: Any = None
    clock: Any = None
    on_change: str = "same"


@computed_by(formulas.Linear)
class LinearScheduler(Scheduler):
    """A straight line from one value to another; the last one from then on: see `LinearLR`."""

    optimizer: Optimizer
    initial_val: float
    end_val: float
    total_iters: Steps
    cycle: bool = False
    param_group_tags: Any = None
    clock: Any = None
    on_change: str = "same"


@computed_by(formulas.Exponential)
class ExponentialScheduler(Scheduler):
    """The initial value, multiplied by `decay_rate` every `total_iters` steps, smoothly or at once: see
    `ExponentialLR`.
    """

    optimizer: Optimizer
    initial_val: float
    total_iters: Steps
    decay_rate: float
    staircase: bool = False
    param_group_tags: Any = None
    clock: Any = None
    on_change: str = "same"


@computed_by(formulas.InverseExponentialTimeDecay)
class InverseExponentialTimeDecayScheduler(Scheduler):
    """The initial value over one plus a multiple of a power of the step count: see `InverseExponentialTimeDecayLR`."""

    optimizer: Optimizer
    initial_val: float
    step_exponent: float
    total_iters: Steps
    decay_rate: float
    staircase: bool = False
    param_group_tags: Any = None
    clock: Any = None
    on_change: str = "same"


@computed_by(formulas.InverseSquareRootDecay)
class InverseSquareRootDecayScheduler(Scheduler):
    """Constant at first, then falling with the square root of the step count: see `InverseSquareRootDecayLR`."""

    optimizer: Optimizer
    initial_val: float = 1.0
    scale: float = 1.0
    warmup_steps: Steps = 1.0
    param_group_tags: Any = None
    clock: Any = None
    on_change: str = "same"


@computed_by(formulas.CosineDecay)
class CosineDecayScheduler(Scheduler):
    """The falling half of a cosine from one value to another; the last one from then on: see `CosineDecayLR`."""

    optimizer: Optimizer
    initial_val: float
    end_val: float
    total_iters: Steps
    param_group_tags: Any = None
    clock: Any = None
    on_change: str = "same"


@computed_by(formulas.WarmupStableDecay)
class WarmupStableDecayScheduler(Scheduler):
    """Up to a value, constant, and down to the last value, which stays: see `WarmupStableDecayLR`."""

    optimizer: Optimizer
    val: float
    total_iters: Steps
    warmup_iters: Steps
    decay_iters: Steps
    initial_val: float = 0.0
    end_val: float = 0.0
    warmup: str = "linear"
    decay: str = "linear"
    decay_rate: float = 0.5
    param_group_tags: Any = None
    clock: Any = None
    on_change: str = "same"


class SequentialScheduler(assembled.Sequential):
    """One scheduler after another: each counts its steps from its milestone on: see `SequentialLR`."""


@computed_by(cycles.PiecewiseConstant)
class PiecewiseConstantScheduler(Scheduler):
    """One value after another, each from its milestone on: see `PiecewiseConstantLR`."""

    optimizer: Optimizer
    vals: Sequence[float]
    milestones: Sequence[Steps]
    param_group_tags: Any = None
    clock: Any = None
    on_change: str = "same"


@computed_by(cycles.MultiStep)
class MultiStepScheduler(Scheduler):
    """The initial value, multiplied by `gamma` at each milestone: see `MultiStepLR`."""

    optimizer: Optimizer
    initial_val: float
    gamma: float
    milestones: Sequence[Steps]
    param_group_tags: Any = None
    clock: Any = None
    on_change: str = "same"


@computed_by(cycles.Step)
class StepScheduler(Scheduler):
    """The initial value, multiplied by `gamma` after every `step_size` steps: see `StepLR`."""

    optimizer: Optimizer
    initial_val: float
    step_size: Steps
    gamma: float
    param_group_tags: Any = None
    clock: Any = None
    on_change: str = "same"


@computed_by(cycles.CosineAnnealing)
class CosineAnnealingScheduler(Scheduler):
    """A cosine wave from the initial value to `eta_min` at `T_max`, back, and so on: see `CosineAnnealingLR`."""

    optimizer: Optimizer
    initial_val: float
    T_max: Steps
    eta_min: float = 0.0
    param_group_tags: Any = None
    clock: Any = None
    on_change: str = "same"


@computed_by(composites.Lambda)
class LambdaScheduler(by_formula.Lambda):
    """The initial value times the product of functions of the step tensor: see `LambdaLR`."""

    optimizer: Optimizer
    initial_val: float
    param_group_tags: Any = None
    clock: Any = None
    on_change: str = "same"


@computed_by(cycles.CosineAnnealingWarmRestarts)
class CosineAnnealingWarmRestartsScheduler(Scheduler):
    """Falling halves of a cosine down to `eta_min`, each `T_mult` times as long as the one before: see
    `CosineAnnealingWarmRestarts`.
    """

    optimizer: Optimizer
    initial_val: float
    T_0: Steps
    T_mult: float = 1
    eta_min: float = 0.0
    param_group_tags: Any = None
    clock: Any = None
    on_change: str = "same"


@computed_by(composites.Multiplicative)
class MultiplicativeScheduler(by_formula.Multiplicative):
    """The initial value, multiplied by `coefficient` at each step: see `MultiplicativeLR`."""

    optimizer: Optimizer
    initial_val: float
    coefficient: float
    param_group_tags: Any = None
    clock: Any = None
    on_change: str = "same"


class ChainedScheduler(assembled.Chained):
    """The first of several schedulers, times the ratio of each other one to its own first value: see `ChainedLR`."""


@computed_by(cycles.Cyclic)
class CyclicScheduler(by_formula.Cyclic):
    """Straight lines from the base value up to the highest one and down again, over and over: see `CyclicLR`."""

    optimizer: Optimizer
    base_val: float
    max_val: float
    step_size_up: Steps = 2000
    step_size_down: Steps | None = None
    mode: str = "triangular"
    gamma: float = 1.0
    scale_mode: str = by_formula.CYCLE
    param_group_tags: Any = None
    clock: Any = None
    on_change: str = "same"


@computed_by(cycles.OneCycle)
class OneCycleScheduler(Scheduler):
    """Up to the highest value, then down to the least one at the last step; held after: see `OneCycleLR`."""

    optimizer: Optimizer
    initial_val: float
    max_val: float
    total_steps: Steps = 1000
    pct_start: float = 0.3
    final_div_factor: float = 1e4
    three_phase: bool = False
    anneal_strategy: str = "cos"
    param_group_tags: Any = None
    clock: Any = None
    on_change: str = "same"


class ScalePerParamScheduler(assembled.ScalePerParam):
    """Another scheduler, times each group's own factor: its `adjust_learning_rate`, else its `adjust_val`, else 1: see
    `ScalePerParamLR`.
    """
