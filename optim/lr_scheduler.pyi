# Written by tools/stubs.py from the table of formulas: change that, and run it again.
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from timesched.time.value import Time

from .schedules.assembled import Chained, ScalePerParam, Sequential
from .schedules.closed_form import Scheduler as Scheduler
from .schedules.made import Cyclic, Lambda, Made, Multiplicative

Count = float | str | Time[Any]  # a count as it is given
Kept = int | Time[Any]  # and as an attribute

class LRScheduler(Scheduler):
    def _get_closed_form(self) -> Tensor: ...
    def _get_closed_form_lr(self) -> Tensor: ...
    def get(self) -> list[Any]: ...
    def get_lr(self) -> list[Any]: ...
    def update_last_value(self) -> None: ...
    def update_last_lr(self) -> None: ...

class ConstantLR(Made, LRScheduler):
    learning_rate: float
    total_iters: Kept | None
    def __init__(
        self,
        optimizer: Optimizer,
        learning_rate: float,
        total_iters: Count | None = None,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class PolynomialLR(Made, LRScheduler):
    initial_learning_rate: float
    end_learning_rate: float
    total_iters: Kept
    power: float
    cycle: bool
    def __init__(
        self,
        optimizer: Optimizer,
        initial_learning_rate: float,
        end_learning_rate: float,
        total_iters: Count,
        power: float = 1.0,
        cycle: bool = False,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class LinearLR(Made, LRScheduler):
    initial_learning_rate: float
    end_learning_rate: float
    total_iters: Kept
    cycle: bool
    def __init__(
        self,
        optimizer: Optimizer,
        initial_learning_rate: float,
        end_learning_rate: float,
        total_iters: Count,
        cycle: bool = False,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class ExponentialLR(Made, LRScheduler):
    initial_learning_rate: float
    total_iters: Kept
    decay_rate: float
    staircase: bool
    def __init__(
        self,
        optimizer: Optimizer,
        initial_learning_rate: float,
        total_iters: Count,
        decay_rate: float,
        staircase: bool = False,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class InverseExponentialTimeDecayLR(Made, LRScheduler):
    initial_learning_rate: float
    step_exponent: float
    total_iters: Kept
    decay_rate: float
    staircase: bool
    def __init__(
        self,
        optimizer: Optimizer,
        initial_learning_rate: float,
        step_exponent: float,
        total_iters: Count,
        decay_rate: float,
        staircase: bool = False,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class InverseSquareRootDecayLR(Made, LRScheduler):
    initial_learning_rate: float
    scale: float
    warmup_steps: Kept
    def __init__(
        self,
        optimizer: Optimizer,
        initial_learning_rate: float = 1.0,
        scale: float = 1.0,
        warmup_steps: Count = 1.0,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class CosineDecayLR(Made, LRScheduler):
    initial_learning_rate: float
    end_learning_rate: float
    total_iters: Kept
    def __init__(
        self,
        optimizer: Optimizer,
        initial_learning_rate: float,
        end_learning_rate: float,
        total_iters: Count,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class PiecewiseConstantLR(Made, LRScheduler):
    learning_rates: tuple[float, ...]
    milestones: tuple[Kept, ...]
    def __init__(
        self,
        optimizer: Optimizer,
        learning_rates: Sequence[float],
        milestones: Sequence[Count],
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class MultiStepLR(Made, LRScheduler):
    initial_learning_rate: float
    gamma: float
    milestones: tuple[Kept, ...]
    def __init__(
        self,
        optimizer: Optimizer,
        initial_learning_rate: float,
        gamma: float,
        milestones: Sequence[Count],
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class StepLR(Made, LRScheduler):
    initial_learning_rate: float
    step_size: Kept
    gamma: float
    def __init__(
        self,
        optimizer: Optimizer,
        initial_learning_rate: float,
        step_size: Count,
        gamma: float,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class CosineAnnealingLR(Made, LRScheduler):
    initial_learning_rate: float
    T_max: Kept
    eta_min: float
    def __init__(
        self,
        optimizer: Optimizer,
        initial_learning_rate: float,
        T_max: Count,
        eta_min: float = 0.0,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class CosineAnnealingWarmRestarts(Made, LRScheduler):
    initial_learning_rate: float
    T_0: Kept
    T_mult: float
    eta_min: float
    def __init__(
        self,
        optimizer: Optimizer,
        initial_learning_rate: float,
        T_0: Count,
        T_mult: float = 1,
        eta_min: float = 0.0,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class CyclicLR(Cyclic, LRScheduler):
    base_lr: float
    max_lr: float
    step_size_up: Kept
    step_size_down: Kept | None
    mode: str
    gamma: float
    scale_mode: str
    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float,
        max_lr: float,
        step_size_up: Count = 2000,
        step_size_down: Count | None = None,
        mode: str = 'triangular',
        gamma: float = 1.0,
        scale_mode: str = 'cycle',
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class OneCycleLR(Made, LRScheduler):
    initial_learning_rate: float
    max_lr: float
    total_steps: Kept
    pct_start: float
    final_div_factor: float
    three_phase: bool
    anneal_strategy: str
    def __init__(
        self,
        optimizer: Optimizer,
        initial_learning_rate: float,
        max_lr: float,
        total_steps: Count = 1000,
        pct_start: float = 0.3,
        final_div_factor: float = 10000.0,
        three_phase: bool = False,
        anneal_strategy: str = 'cos',
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class LambdaLR(Lambda, LRScheduler):
    initial_learning_rate: float
    def __init__(
        self,
        optimizer: Optimizer,
        initial_learning_rate: float,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class MultiplicativeLR(Multiplicative, LRScheduler):
    initial_learning_rate: float
    coefficient: float
    def __init__(
        self,
        optimizer: Optimizer,
        initial_learning_rate: float,
        coefficient: float,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class SequentialLR(Sequential, LRScheduler): ...

class ChainedLR(Chained, LRScheduler): ...

class ScalePerParamLR(ScalePerParam, LRScheduler): ...

ChainedScheduler = ChainedLR
