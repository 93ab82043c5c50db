"""One small class per public schedule, with Composer's names, arguments and defaults."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from timesched.horizon import Horizon
from timesched.schedulers.plain import ConstantScheduler as ConstantScheduler
from timesched.schedulers.plain import CosineAnnealingScheduler as CosineAnnealingScheduler
from timesched.schedulers.plain import CosineAnnealingWarmRestartsScheduler as CosineAnnealingWarmRestartsScheduler
from timesched.schedulers.plain import ExponentialScheduler as ExponentialScheduler
from timesched.schedulers.plain import LinearScheduler as LinearScheduler
from timesched.schedulers.plain import MultiStepScheduler as MultiStepScheduler
from timesched.schedulers.plain import PolynomialScheduler as PolynomialScheduler
from timesched.schedulers.plain import StepScheduler as StepScheduler
from timesched.schedulers.warmup import ConstantWithWarmupScheduler as ConstantWithWarmupScheduler
from timesched.schedulers.warmup import CosineAnnealingWithWarmupScheduler as CosineAnnealingWithWarmupScheduler
from timesched.schedulers.warmup import LinearWithWarmupScheduler as LinearWithWarmupScheduler
from timesched.schedulers.warmup import MultiStepWithWarmupScheduler as MultiStepWithWarmupScheduler
from timesched.schedulers.warmup import PolynomialWithWarmupScheduler as PolynomialWithWarmupScheduler
from timesched.timevalue import Time


def _convert_time(time: Time[Any] | str, state: Any, ssr: float = 1.0) -> Time[Any]:
    """The count at which a time is reached on a run; Composer's tests and some of its users call it by this name."""
    count, unit = Horizon.of(state, ssr).locate(Time.from_input(time))
    return Time._of(count, unit)


if "hypothesis" in sys.modules:  # whose hook cannot register these before they are imported
    importlib.import_module("timesched.testing.rows")
