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

class ConstantScheduler(Made, Scheduler):
    val: float
    total_iters: Kept | None
    def __init__(
        self,
        optimizer: Optimizer,
        val: float,
        total_iters: Count | None = None,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class PolynomialScheduler(Made, Scheduler):
    initial_val: float
    end_val: float
    total_iters: Kept
    power: float
    cycle: bool
    def __init__(
        self,
        optimizer: Optimizer,
        initial_val: float,
        end_val: float,
        total_iters: Count,
        power: float = 1.0,
        cycle: bool = False,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class LinearScheduler(Made, Scheduler):
    initial_val: float
    end_val: float
    total_iters: Kept
    cycle: bool
    def __init__(
        self,
        optimizer: Optimizer,
        initial_val: float,
        end_val: float,
        total_iters: Count,
        cycle: bool = False,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class ExponentialScheduler(Made, Scheduler):
    initial_val: float
    total_iters: Kept
    decay_rate: float
    staircase: bool
    def __init__(
        self,
        optimizer: Optimizer,
        initial_val: float,
        total_iters: Count,
        decay_rate: float,
        staircase: bool = False,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class InverseExponentialTimeDecayScheduler(Made, Scheduler):
    initial_val: float
    step_exponent: float
    total_iters: Kept
    decay_rate: float
    staircase: bool
    def __init__(
        self,
        optimizer: Optimizer,
        initial_val: float,
        step_exponent: float,
        total_iters: Count,
        decay_rate: float,
        staircase: bool = False,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class InverseSquareRootDecayScheduler(Made, Scheduler):
    initial_val: float
    scale: float
    warmup_steps: Kept
    def __init__(
        self,
        optimizer: Optimizer,
        initial_val: float = 1.0,
        scale: float = 1.0,
        warmup_steps: Count = 1.0,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class CosineDecayScheduler(Made, Scheduler):
    initial_val: float
    end_val: float
    total_iters: Kept
    def __init__(
        self,
        optimizer: Optimizer,
        initial_val: float,
        end_val: float,
        total_iters: Count,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class PiecewiseConstantScheduler(Made, Scheduler):
    vals: tuple[float, ...]
    milestones: tuple[Kept, ...]
    def __init__(
        self,
        optimizer: Optimizer,
        vals: Sequence[float],
        milestones: Sequence[Count],
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class MultiStepScheduler(Made, Scheduler):
    initial_val: float
    gamma: float
    milestones: tuple[Kept, ...]
    def __init__(
        self,
        optimizer: Optimizer,
        initial_val: float,
        gamma: float,
        milestones: Sequence[Count],
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class StepScheduler(Made, Scheduler):
    initial_val: float
    step_size: Kept
    gamma: float
    def __init__(
        self,
        optimizer: Optimizer,
        initial_val: float,
        step_size: Count,
        gamma: float,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class CosineAnnealingScheduler(Made, Scheduler):
    initial_val: float
    T_max: Kept
    eta_min: float
    def __init__(
        self,
        optimizer: Optimizer,
        initial_val: float,
        T_max: Count,
        eta_min: float = 0.0,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class CosineAnnealingWarmRestartsScheduler(Made, Scheduler):
    initial_val: float
    T_0: Kept
    T_mult: float
    eta_min: float
    def __init__(
        self,
        optimizer: Optimizer,
        initial_val: float,
        T_0: Count,
        T_mult: float = 1,
        eta_min: float = 0.0,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class CyclicScheduler(Cyclic, Scheduler):
    base_val: float
    max_val: float
    step_size_up: Kept
    step_size_down: Kept | None
    mode: str
    gamma: float
    scale_mode: str
    def __init__(
        self,
        optimizer: Optimizer,
        base_val: float,
        max_val: float,
        step_size_up: Count = 2000,
        step_size_down: Count | None = None,
        mode: str = 'triangular',
        gamma: float = 1.0,
        scale_mode: str = 'cycle',
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class OneCycleScheduler(Made, Scheduler):
    initial_val: float
    max_val: float
    total_steps: Kept
    pct_start: float
    final_div_factor: float
    three_phase: bool
    anneal_strategy: str
    def __init__(
        self,
        optimizer: Optimizer,
        initial_val: float,
        max_val: float,
        total_steps: Count = 1000,
        pct_start: float = 0.3,
        final_div_factor: float = 10000.0,
        three_phase: bool = False,
        anneal_strategy: str = 'cos',
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class LambdaScheduler(Lambda, Scheduler):
    initial_val: float
    def __init__(
        self,
        optimizer: Optimizer,
        initial_val: float,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class MultiplicativeScheduler(Multiplicative, Scheduler):
    initial_val: float
    coefficient: float
    def __init__(
        self,
        optimizer: Optimizer,
        initial_val: float,
        coefficient: float,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class SequentialScheduler(Sequential, Scheduler): ...

class ChainedScheduler(Chained, Scheduler): ...

class ScalePerParamScheduler(ScalePerParam, Scheduler): ...
