"""One small class for each public schedule: Composer's, with its names, arguments and defaults, and newer ones."""

from timesched.schedulers.cycles import CyclicScheduler, OneCycleScheduler
from timesched.schedulers.decay import (
    InverseSquareRootWithWarmupScheduler,
    PowerScheduler,
    RexScheduler,
    WarmupStableDecayScheduler,
)
from timesched.schedulers.piecewise import PiecewiseScheduler
from timesched.schedulers.warmup import (
    ConstantWithWarmupScheduler,
    CosineAnnealingWithWarmupScheduler,
    LinearWithWarmupScheduler,
    MultiStepWithWarmupScheduler,
    PolynomialWithWarmupScheduler,
)
from timesched.schedulers.without_warmup import (
    ConstantScheduler,
    CosineAnnealingScheduler,
    CosineAnnealingWarmRestartsScheduler,
    ExponentialScheduler,
    LinearScheduler,
    MultiStepScheduler,
    PolynomialScheduler,
    StepScheduler,
)

__all__ = [
    "ConstantScheduler",
    "ConstantWithWarmupScheduler",
    "CosineAnnealingScheduler",
    "CosineAnnealingWarmRestartsScheduler",
    "CosineAnnealingWithWarmupScheduler",
    "CyclicScheduler",
    "ExponentialScheduler",
    "InverseSquareRootWithWarmupScheduler",
    "LinearScheduler",
    "LinearWithWarmupScheduler",
    "MultiStepScheduler",
    "MultiStepWithWarmupScheduler",
    "OneCycleScheduler",
    "PiecewiseScheduler",
    "PolynomialScheduler",
    "PolynomialWithWarmupScheduler",
    "PowerScheduler",
    "RexScheduler",
    "StepScheduler",
    "WarmupStableDecayScheduler",
]
