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

from timesched.time.value import Time

from .schedules import assembled, by_formula, composites, cycles, formulas
from .schedules.by_formula import schedule_by
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


class ConstantScheduler(Scheduler):
    """The same value throughout: see `ConstantLR`."""

    val: float
    total_iters: int | Time[Any] | None

    def __init__(
        self,
        optimizer: Optimizer,
        val: float,
        total_iters: int | float | str | Time[Any] | None = None,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None:
        given = (val, total_iters)
        schedule_by(self, formulas.Constant, given, optimizer, param_group_tags, clock)


class PolynomialScheduler(Scheduler):
    """From one value to another along a power of the share of the steps that is left: see `PolynomialLR`."""

    initial_val: float
    end_val: float
    total_iters: int | Time[Any]
    power: float
    cycle: bool

    def __init__(
        self,
        optimizer: Optimizer,
        initial_val: float,
        end_val: float,
        total_iters: int | float | str | Time[Any],
        power: float = 1.0,
        cycle: bool = False,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None:
        given = (initial_val, end_val, total_iters, power, cycle)
        schedule_by(self, formulas.Polynomial, given, optimizer, param_group_tags, clock)


class LinearScheduler(Scheduler):
    """A straight line from one value to another; the last one from then on: see `LinearLR`."""

    initial_val: float
    end_val: float
    total_iters: int | Time[Any]
    cycle: bool

    def __init__(
        self,
        optimizer: Optimizer,
        initial_val: float,
        end_val: float,
        total_iters: int | float | str | Time[Any],
        cycle: bool = False,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None:
        given = (initial_val, end_val, total_iters, cycle)
        schedule_by(self, formulas.Linear, given, optimizer, param_group_tags, clock)


class ExponentialScheduler(Scheduler):
    """The initial value, multiplied by `decay_rate` every `total_iters` steps, smoothly or at once: see
    `ExponentialLR`.
    """

    initial_val: float
    total_iters: int | Time[Any]
    decay_rate: float
    staircase: bool

    def __init__(
        self,
        optimizer: Optimizer,
        initial_val: float,
        total_iters: int | float | str | Time[Any],
        decay_rate: float,
        staircase: bool = False,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None:
        given = (initial_val, total_iters, decay_rate, staircase)
        schedule_by(self, formulas.Exponential, given, optimizer, param_group_tags, clock)


class InverseExponentialTimeDecayScheduler(Scheduler):
    """The initial value over one plus a multiple of a power of the step count: see `InverseExponentialTimeDecayLR`."""

    initial_val: float
    step_exponent: float
    total_iters: int | Time[Any]
    decay_rate: float
    staircase: bool

    def __init__(
        self,
        optimizer: Optimizer,
        initial_val: float,
        step_exponent: float,
        total_iters: int | float | str | Time[Any],
        decay_rate: float,
        staircase: bool = False,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None:
        given = (initial_val, step_exponent, total_iters, decay_rate, staircase)
        schedule_by(self, formulas.InverseExponentialTimeDecay, given, optimizer, param_group_tags, clock)


class InverseSquareRootDecayScheduler(Scheduler):
    """Constant at first, then falling with the square root of the step count: see `InverseSquareRootDecayLR`."""

    initial_val: float
    scale: float
    warmup_steps: int | Time[Any]

    def __init__(
        self,
        optimizer: Optimizer,
        initial_val: float = 1.0,
        scale: float = 1.0,
        warmup_steps: int | float | str | Time[Any] = 1.0,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None:
        given = (initial_val, scale, warmup_steps)
        schedule_by(self, formulas.InverseSquareRootDecay, given, optimizer, param_group_tags, clock)


class CosineDecayScheduler(Scheduler):
    """The falling half of a cosine from one value to another; the last one from then on: see `CosineDecayLR`."""

    initial_val: float
    end_val: float
    total_iters: int | Time[Any]

    def __init__(
        self,
        optimizer: Optimizer,
        initial_val: float,
        end_val: float,
        total_iters: int | float | str | Time[Any],
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None:
        given = (initial_val, end_val, total_iters)
        schedule_by(self, formulas.CosineDecay, given, optimizer, param_group_tags, clock)


class WarmupStableDecayScheduler(Scheduler):
    """Up to a value, constant, and down to the last value, which stays: see `WarmupStableDecayLR`."""

    val: float
    total_iters: int | Time[Any]
    warmup_iters: int | Time[Any]
    decay_iters: int | Time[Any]
    initial_val: float
    end_val: float
    warmup: str
    decay: str
    decay_rate: float

    def __init__(
        self,
        optimizer: Optimizer,
        val: float,
        total_iters: int | float | str | Time[Any],
        warmup_iters: int | float | str | Time[Any],
        decay_iters: int | float | str | Time[Any],
        initial_val: float = 0.0,
        end_val: float = 0.0,
        warmup: str = "linear",
        decay: str = "linear",
        decay_rate: float = 0.5,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None:
        given = (val, total_iters, warmup_iters, decay_iters, initial_val, end_val, warmup, decay, decay_rate)
        schedule_by(self, formulas.WarmupStableDecay, given, optimizer, param_group_tags, clock)


class SequentialScheduler(assembled.Sequential):
    """One scheduler after another: each counts its steps from its milestone on: see `SequentialLR`."""


class PiecewiseConstantScheduler(Scheduler):
    """One value after another, each from its milestone on: see `PiecewiseConstantLR`."""

    vals: tuple[float, ...]
    milestones: tuple[int | Time[Any], ...]

    def __init__(
        self,
        optimizer: Optimizer,
        vals: Sequence[float],
        milestones: Sequence[int | float | str | Time[Any]],
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None:
        given = (vals, milestones)
        schedule_by(self, cycles.PiecewiseConstant, given, optimizer, param_group_tags, clock)


class MultiStepScheduler(Scheduler):
    """The initial value, multiplied by `gamma` at each milestone: see `MultiStepLR`."""

    initial_val: float
    gamma: float
    milestones: tuple[int | Time[Any], ...]

    def __init__(
        self,
        optimizer: Optimizer,
        initial_val: float,
        gamma: float,
        milestones: Sequence[int | float | str | Time[Any]],
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None:
        given = (initial_val, gamma, milestones)
        schedule_by(self, cycles.MultiStep, given, optimizer, param_group_tags, clock)


class StepScheduler(Scheduler):
    """The initial value, multiplied by `gamma` after every `step_size` steps: see `StepLR`."""

    initial_val: float
    step_size: int | Time[Any]
    gamma: float

    def __init__(
        self,
        optimizer: Optimizer,
        initial_val: float,
        step_size: int | float | str | Time[Any],
        gamma: float,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None:
        given = (initial_val, step_size, gamma)
        schedule_by(self, cycles.Step, given, optimizer, param_group_tags, clock)


class CosineAnnealingScheduler(Scheduler):
    """A cosine wave from the initial value to `eta_min` at `T_max`, back, and so on: see `CosineAnnealingLR`."""

    initial_val: float
    T_max: int | Time[Any]
    eta_min: float

    def __init__(
        self,
        optimizer: Optimizer,
        initial_val: float,
        T_max: int | float | str | Time[Any],
        eta_min: float = 0.0,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None:
        given = (initial_val, T_max, eta_min)
        schedule_by(self, cycles.CosineAnnealing, given, optimizer, param_group_tags, clock)


class LambdaScheduler(by_formula.Lambda):
    """The initial value times the product of functions of the step tensor: see `LambdaLR`."""

    initial_val: float

    def __init__(
        self,
        optimizer: Optimizer,
        initial_val: float,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None:
        given = (initial_val,)
        schedule_by(self, composites.Lambda, given, optimizer, param_group_tags, clock)


class CosineAnnealingWarmRestartsScheduler(Scheduler):
    """Falling halves of a cosine down to `eta_min`, each `T_mult` times as long as the one before: see
    `CosineAnnealingWarmRestarts`.
    """

    initial_val: float
    T_0: int | Time[Any]
    T_mult: float
    eta_min: float

    def __init__(
        self,
        optimizer: Optimizer,
        initial_val: float,
        T_0: int | float | str | Time[Any],
        T_mult: float = 1,
        eta_min: float = 0.0,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None:
        given = (initial_val, T_0, T_mult, eta_min)
        schedule_by(self, cycles.CosineAnnealingWarmRestarts, given, optimizer, param_group_tags, clock)


class MultiplicativeScheduler(by_formula.Multiplicative):
    """The initial value, multiplied by `coefficient` at each step: see `MultiplicativeLR`."""

    initial_val: float
    coefficient: float

    def __init__(
        self,
        optimizer: Optimizer,
        initial_val: float,
        coefficient: float,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None:
        given = (initial_val, coefficient)
        schedule_by(self, composites.Multiplicative, given, optimizer, param_group_tags, clock)


class ChainedScheduler(assembled.Chained):
    """The first of several schedulers, times the ratio of each other one to its own first value: see `ChainedLR`."""


class CyclicScheduler(by_formula.Cyclic):
    """Straight lines from the base value up to the highest one and down again, over and over: see `CyclicLR`."""

    base_val: float
    max_val: float
    step_size_up: int | Time[Any]
    step_size_down: int | Time[Any] | None
    mode: str
    gamma: float
    scale_mode: str

    def __init__(
        self,
        optimizer: Optimizer,
        base_val: float,
        max_val: float,
        step_size_up: int | float | str | Time[Any] = 2000,
        step_size_down: int | float | str | Time[Any] | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_mode: str = by_formula.CYCLE,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None:
        scale_mode = by_formula.by_mode(scale_mode, mode)
        given = (base_val, max_val, step_size_up, step_size_down, mode, gamma, scale_mode)
        schedule_by(self, cycles.Cyclic, given, optimizer, param_group_tags, clock)


class OneCycleScheduler(Scheduler):
    """Up to the highest value, then down to the least one at the last step; held after: see `OneCycleLR`."""

    initial_val: float
    max_val: float
    total_steps: int | Time[Any]
    pct_start: float
    final_div_factor: float
    three_phase: bool
    anneal_strategy: str

    def __init__(
        self,
        optimizer: Optimizer,
        initial_val: float,
        max_val: float,
        total_steps: int | float | str | Time[Any] = 1000,
        pct_start: float = 0.3,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        anneal_strategy: str = "cos",
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None:
        given = (initial_val, max_val, total_steps, pct_start, final_div_factor, three_phase, anneal_strategy)
        schedule_by(self, cycles.OneCycle, given, optimizer, param_group_tags, clock)


class ScalePerParamScheduler(assembled.ScalePerParam):
    """Another scheduler, times each group's own factor: its `adjust_learning_rate`, else its `adjust_val`, else 1: see
    `ScalePerParamLR`.
    """
