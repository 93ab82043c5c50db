# Written by tools/stubs.py from the table of formulas: change that, and run it again.
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from timesched.time.value import Time

from .schedules.assembled import Chained, ScalePerParam, Sequential
from .schedules.closed_form import Scheduler as Scheduler
from .schedules.made import Cyclic, Lambda, Made, Multiplicative
from .scheduler import (
    ChainedScheduler,
    ConstantScheduler,
    CosineAnnealingScheduler,
    CosineAnnealingWarmRestartsScheduler,
    CosineDecayScheduler,
    CyclicScheduler,
    ExponentialScheduler,
    InverseExponentialTimeDecayScheduler,
    InverseSquareRootDecayScheduler,
    LambdaScheduler,
    LinearScheduler,
    MultiStepScheduler,
    MultiplicativeScheduler,
    OneCycleScheduler,
    PiecewiseConstantScheduler,
    PolynomialScheduler,
    ScalePerParamScheduler,
    SequentialScheduler,
    StepScheduler,
)

Count = float | str | Time[Any]  # a count as it is given
Kept = int | Time[Any]  # and as an attribute

class WeightDecayScheduler(Scheduler):
    def _get_closed_form(self) -> Tensor: ...
    def _get_closed_form_wd(self) -> Tensor: ...
    def get(self) -> list[Any]: ...
    def get_wd(self) -> list[Any]: ...
    def get_last_wd(self) -> list[Any]: ...

class ConstantWD(ConstantScheduler, WeightDecayScheduler): ...

class PolynomialWD(PolynomialScheduler, WeightDecayScheduler): ...

class LinearWD(LinearScheduler, WeightDecayScheduler): ...

class ExponentialWD(ExponentialScheduler, WeightDecayScheduler): ...

class InverseExponentialTimeDecayWD(InverseExponentialTimeDecayScheduler, WeightDecayScheduler): ...

class InverseSquareRootDecayWD(InverseSquareRootDecayScheduler, WeightDecayScheduler): ...

class CosineDecayWD(CosineDecayScheduler, WeightDecayScheduler): ...

class PiecewiseConstantWD(PiecewiseConstantScheduler, WeightDecayScheduler): ...

class MultiStepWD(MultiStepScheduler, WeightDecayScheduler): ...

class StepWD(StepScheduler, WeightDecayScheduler): ...

class CosineAnnealingWD(CosineAnnealingScheduler, WeightDecayScheduler): ...

class CosineAnnealingWarmRestartsWD(CosineAnnealingWarmRestartsScheduler, WeightDecayScheduler): ...

class CyclicWD(CyclicScheduler, WeightDecayScheduler): ...

class OneCycleWD(OneCycleScheduler, WeightDecayScheduler): ...

class LambdaWD(LambdaScheduler, WeightDecayScheduler): ...

class MultiplicativeWD(MultiplicativeScheduler, WeightDecayScheduler): ...

class SequentialWD(SequentialScheduler, WeightDecayScheduler): ...

class ChainedWD(ChainedScheduler, WeightDecayScheduler): ...

class ScalePerParamWD(ScalePerParamScheduler, WeightDecayScheduler): ...
