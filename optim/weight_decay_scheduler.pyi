# Written by tools/stubs.py from the table of formulas: change that, and run it again.
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from timesched.timevalue import Time

from .schedules.closed_form import Scheduler as Scheduler
from .schedules.made import Chained, Cyclic, Lambda, Made, Multiplicative, ScalePerParam, Sequential

Count = float | str | Time[Any]  # a count as it is given
Kept = int | Time[Any]  # and as an attribute

class WeightDecayScheduler(Scheduler):
    def _get_closed_form(self) -> Tensor: ...
    def _get_closed_form_wd(self) -> Tensor: ...
    def get(self) -> list[Any]: ...
    def get_wd(self) -> list[Any]: ...
    def get_last_wd(self) -> list[Any]: ...

class ConstantWD(Made, WeightDecayScheduler):
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

class PolynomialWD(Made, WeightDecayScheduler):
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

class LinearWD(Made, WeightDecayScheduler):
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

class ExponentialWD(Made, WeightDecayScheduler):
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

class InverseExponentialTimeDecayWD(Made, WeightDecayScheduler):
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

class InverseSquareRootDecayWD(Made, WeightDecayScheduler):
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

class CosineDecayWD(Made, WeightDecayScheduler):
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

class PiecewiseConstantWD(Made, WeightDecayScheduler):
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

class MultiStepWD(Made, WeightDecayScheduler):
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

class StepWD(Made, WeightDecayScheduler):
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

class CosineAnnealingWD(Made, WeightDecayScheduler):
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

class CosineAnnealingWarmRestartsWD(Made, WeightDecayScheduler):
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

class CyclicWD(Cyclic, WeightDecayScheduler):
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

class OneCycleWD(Made, WeightDecayScheduler):
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

class LambdaWD(Lambda, WeightDecayScheduler):
    initial_val: float
    def __init__(
        self,
        optimizer: Optimizer,
        initial_val: float,
        param_group_tags: Any = None,
        clock: Any = None,
    ) -> None: ...

class MultiplicativeWD(Multiplicative, WeightDecayScheduler):
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

class SequentialWD(Sequential, WeightDecayScheduler): ...

class ChainedWD(Chained, WeightDecayScheduler): ...

class ScalePerParamWD(ScalePerParam, WeightDecayScheduler): ...
