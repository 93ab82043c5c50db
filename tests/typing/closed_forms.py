"""What a type checker knows of the closed-form schedulers: checked by `make lint`, never run.

A line with `type: ignore` has to be an error: mypy refuses an ignore that nothing needs.
"""

from torch.optim import Optimizer

from optim.lr_scheduler import ChainedScheduler, CyclicLR, LinearLR, LRScheduler, PiecewiseConstantLR, SequentialLR
from optim.weight_decay_scheduler import StepWD, WeightDecayScheduler


def arguments_and_attributes(optimizer: Optimizer) -> None:
    line = LinearLR(optimizer, 0.1, 0.0, 1e5)
    steps = PiecewiseConstantLR(optimizer, (0.1, 0.2), milestones=["3ep"], param_group_tags="head")
    cyclic = CyclicLR(optimizer, 0.1, 0.2, mode="exp_range")
    rate: LRScheduler = SequentialLR(optimizer, [line, steps], milestones=[3])
    rate = ChainedScheduler([line])
    decay: WeightDecayScheduler = StepWD(optimizer, 0.1, step_size="3ep", gamma=0.5)
    print(rate, decay, line.initial_learning_rate, cyclic.scale_mode)


def mistakes(optimizer: Optimizer) -> None:
    LinearLR(optimizer, 0.1)  # type: ignore[call-arg]
    LinearLR(optimizer, "0.1", 0.0, 10)  # type: ignore[arg-type]
    LinearLR(optimizer, initial_val=0.1, end_val=0.0, total_iters=4)  # type: ignore[call-arg]
    StepWD(optimizer, initial_learning_rate=0.1, step_size=3, gamma=0.5)  # type: ignore[call-arg]
    CyclicLR(optimizer, 0.1, 0.2, mode=3)  # type: ignore[arg-type]
    PiecewiseConstantLR(optimizer, 0.1, [])  # type: ignore[arg-type]
    SequentialLR(optimizer, 3, [])  # type: ignore[arg-type]
    LinearLR(optimizer, 0.1, 0.0, 4, False, None)  # type: ignore[call-arg]
