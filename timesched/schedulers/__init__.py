"""One small class for each public schedule: Composer's, with its names, arguments and defaults, and newer ones."""

from .cycles import CyclicScheduler, OneCycleScheduler
from .decay import InverseSquareRootWithWarmupScheduler, PowerScheduler, RexScheduler, WarmupStableDecayScheduler
from .piecewise import PiecewiseScheduler
from .warmup import (
    ConstantWithWarmupScheduler,
    CosineAnnealingWithWarmupScheduler,
    LinearWithWarmupScheduler,
    MultiStepWithWarmupScheduler,
    PolynomialWithWarmupScheduler,
)
from .without_warmup import (
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
