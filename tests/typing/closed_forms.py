"""What a type checker knows of the closed-form schedulers: checked by `make lint`, never run.

A line with `type: ignore` has to be an error: mypy refuses an ignore that nothing needs.
"""

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer
from typing_extensions import assert_type

from optim import scheduler
from optim.lr_scheduler import ChainedScheduler, CyclicLR, LinearLR, LRScheduler, PiecewiseConstantLR, SequentialLR
from optim.weight_decay_scheduler import StepWD, WeightDecayScheduler
from timesched import Time


class Momentum(scheduler.CosineDecayScheduler):
    param_group_key = "momentum"


def arguments_and_attributes(optimizer: Optimizer) -> None:
    line = LinearLR(optimizer, 0.1, 0.0, 1e5)
    assert_type(line.initial_learning_rate, float)
    assert_type(line.total_iters, int | float | str | Time[Any])
    assert_type(line.cycle, bool)
    steps = PiecewiseConstantLR(optimizer, (0.1, 0.2), milestones=["3ep"])
    assert_type(steps.learning_rates, Sequence[float])
    assert_type(CyclicLR(optimizer, 0.1, 0.2, mode="exp_range").scale_mode, str)
    assert_type(Momentum(optimizer, 0.9, 0.5, "0.5dur").initial_val, float)
    rate: LRScheduler = SequentialLR(optimizer, [line, steps], milestones=[3])
    rate = ChainedScheduler([line])
    decay: WeightDecayScheduler = StepWD(optimizer, 0.1, step_size="3ep", gamma=0.5)
    generic: scheduler.StepScheduler = StepWD(optimizer, 0.1, 10, 0.5)
    assert_type(generic.step_size, int | float | str | Time[Any])
    print(rate, decay)


def mistakes(optimizer: Optimizer) -> None:
    LinearLR(optimizer, 0.1)  # type: ignore[call-arg]
    LinearLR(optimizer, "0.1", 0.0, 10)  # type: ignore[arg-type]
    LinearLR(optimizer, initial_val=0.1, end_val=0.0, total_iters=4)  # type: ignore[call-arg]
    StepWD(optimizer, initial_learning_rate=0.1, step_size=3, gamma=0.5)  # type: ignore[call-arg]
    CyclicLR(optimizer, 0.1, 0.2, mode=3)  # type: ignore[arg-type]
    PiecewiseConstantLR(optimizer, 0.1, [])  # type: ignore[arg-type]
    SequentialLR(optimizer, 3, [])  # type: ignore[arg-type]
