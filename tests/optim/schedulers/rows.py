"""Examples and arguments of every absolute-value scheduler, by stem, with the names that the weight-decay classes have.

A scheduler inside another one is a `Nested`; building.py makes both, and translates the names for learning rates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

Arguments = Mapping[str, Any]


class Nested(NamedTuple):
    """A scheduler inside another one."""

    stem: str
    arguments: Arguments


def real(t: Any) -> Any:
    """A step in double precision, also of a tensor."""
    return t.double() if isinstance(t, torch.Tensor) else float(t)


WARMUP = Nested("Linear", dict(initial_val=0.01, end_val=0.1, total_iters=5))
COSINE = Nested("CosineDecay", dict(initial_val=0.1, end_val=0.01, total_iters=30))
HALVING = Nested("Exponential", dict(initial_val=0.1, total_iters=10, decay_rate=0.5))
STEPS = Nested("Step", dict(initial_val=0.3, step_size=7, gamma=0.5))
INNER = Nested("Sequential", dict(schedulers=[WARMUP, COSINE], milestones=[5]))
TWO_DEEP = Nested("Sequential", dict(schedulers=[INNER, STEPS], milestones=[25]))
STABLE = dict(val=0.1, total_iters=40, warmup_iters=6, decay_iters=12, initial_val=0.02, end_val=0.02)
CYCLE = dict(base_val=0.01, max_val=0.1, step_size_up=7, step_size_down=4)
ONE_CYCLE = dict(initial_val=0.02, max_val=0.2, total_steps=60)

# One or two of each formula, as tests/optim/schedulers/test_values.py draws others from the rows of the laws.
EXAMPLES: dict[str, tuple[Arguments, ...]] = {
    "Constant": (dict(val=0.3, total_iters=10),),
    "Polynomial": (dict(initial_val=0.1, end_val=0.0, total_iters=7, power=3.0, cycle=True),),
    "Linear": (WARMUP.arguments, dict(initial_val=0.1, end_val=0.01, total_iters=12, cycle=True)),
    "Exponential": (HALVING.arguments, {**HALVING.arguments, "staircase": True}),
    "InverseExponentialTimeDecay": (
        dict(initial_val=0.1, step_exponent=2, total_iters=50, decay_rate=0.1),
        dict(initial_val=0.1, step_exponent=1, total_iters=12, decay_rate=0.5, staircase=True),
    ),
    "InverseSquareRootDecay": ({}, dict(initial_val=0.1, scale=2.0, warmup_steps=16)),
    "CosineDecay": (COSINE.arguments,),
    "WarmupStableDecay": (
        STABLE,
        {**STABLE, "warmup": "cosine", "decay": "geometric"},
        {**STABLE, "end_val": 0.4, "warmup": "1-sqrt", "decay": "exponential", "decay_rate": 0.25},
    ),
    "Sequential": (
        INNER.arguments,
        dict(schedulers=[WARMUP, HALVING, STEPS], milestones=[3, 20]),
        dict(schedulers=[WARMUP, COSINE], milestones=[0]),
        TWO_DEEP.arguments,
    ),
    "PiecewiseConstant": (dict(vals=[0.3], milestones=[]), dict(vals=[0.3, 0.6, 0.2], milestones=[0, 4])),
    "MultiStep": (dict(initial_val=0.4, gamma=0.5, milestones=[0, 1, 2, 3, 50]),),
    "Step": (STEPS.arguments,),
    "CosineAnnealing": (dict(initial_val=0.1, T_max=15, eta_min=0.01),),
    "CosineAnnealingWarmRestarts": (
        dict(initial_val=0.1, T_0=10),
        dict(initial_val=0.1, T_0=5, T_mult=2, eta_min=0.02),
        dict(initial_val=0.1, T_0=1, T_mult=1.5),
    ),
    "Cyclic": (
        dict(base_val=0.01, max_val=0.1),
        {**CYCLE, "mode": "triangular2", "scale_mode": "iterations"},
        {**CYCLE, "mode": "exp_range", "gamma": 0.97},
    ),
    "OneCycle": (
        {**ONE_CYCLE, "anneal_strategy": "linear"},
        {**ONE_CYCLE, "pct_start": 0.25, "final_div_factor": 10.0, "three_phase": True},
    ),
    "Multiplicative": (dict(initial_val=0.1, coefficient=0.9), dict(initial_val=0.01, coefficient=1.05)),
    "Lambda": (
        dict(initial_val=0.1),
        dict(initial_val=0.5, functions=(lambda t: 1 / (1 + real(t)), lambda t: 1 + 0.1 * real(t))),
    ),
    "Chained": (dict(schedulers=[COSINE, WARMUP, STEPS]), dict(schedulers=[COSINE])),
    "ScalePerParam": (dict(scheduler=COSINE), dict(scheduler=Nested("Chained", dict(schedulers=[HALVING, STEPS])))),
}
CASES = [(stem, arguments) for stem, several in EXAMPLES.items() for arguments in several]
IDS = [f"{stem}{i}" for stem, several in EXAMPLES.items() for i in range(len(several))]

# The arguments, in the names of weight-decay schedulers: facts of the release whose numbers are in
# tests/golden/schedulers.json. WarmupStableDecay is ours.
SIGNATURES = """
Constant(val, total_iters=None)
Polynomial(initial_val, end_val, total_iters, power=1.0, cycle=False)
Linear(initial_val, end_val, total_iters, cycle=False)
Exponential(initial_val, total_iters, decay_rate, staircase=False)
InverseExponentialTimeDecay(initial_val, step_exponent, total_iters, decay_rate, staircase=False)
InverseSquareRootDecay(initial_val=1.0, scale=1.0, warmup_steps=1.0)
CosineDecay(initial_val, end_val, total_iters)
Sequential(schedulers, milestones, last_epoch=-1)
PiecewiseConstant(vals, milestones)
MultiStep(initial_val, gamma, milestones)
Step(initial_val, step_size, gamma)
CosineAnnealing(initial_val, T_max, eta_min=0.0)
Lambda(initial_val)
CosineAnnealingWarmRestarts(initial_val, T_0, T_mult=1, eta_min=0.0)
Multiplicative(initial_val, coefficient)
Chained(schedulers)
Cyclic(base_val, max_val, step_size_up=2000, step_size_down=None, mode='triangular', gamma=1.0, scale_mode='cycle')
OneCycle(initial_val, max_val, total_steps=1000, pct_start=0.3, final_div_factor=10000.0, three_phase=False, \
anneal_strategy='cos')
ScalePerParam(scheduler)
WarmupStableDecay(val, total_iters, warmup_iters, decay_iters, initial_val=0.0, end_val=0.0, warmup='linear', \
decay='linear', decay_rate=0.5)
""".strip().splitlines()
# What an argument is, by its name; and the formulas in which no count may be 0.
NUMBERS = "val initial_val end_val base_val max_val eta_min power decay_rate gamma scale step_exponent coefficient"
NUMBERS += " T_mult pct_start final_div_factor"
COUNTS = "total_iters warmup_iters decay_iters warmup_steps step_size T_max T_0 step_size_up step_size_down total_steps"
LEAST_IS_1 = "Exponential InverseExponentialTimeDecay InverseSquareRootDecay Step CosineAnnealing Cyclic OneCycle"

# Calls by the groups of the gallery, for the pictures there. Lines of one class make one picture.
PICTURES = {
    "WSD": """
WarmupStableDecayLR(optimizer, 0.1, total_iters=100, warmup_iters=10, decay_iters=40, decay="linear")
WarmupStableDecayLR(optimizer, 0.1, total_iters=100, warmup_iters=10, decay_iters=40, decay="cosine")
WarmupStableDecayLR(optimizer, 0.1, total_iters=100, warmup_iters=10, decay_iters=40, decay="1-sqrt")
""",
    "Decay": """
LinearLR(optimizer, 0.1, 0.02, total_iters=40, cycle=False)
LinearLR(optimizer, 0.1, 0.02, total_iters=40, cycle=True)
CosineDecayLR(optimizer, 0.1, 0.01, total_iters=80)
CosineAnnealingLR(optimizer, 0.1, T_max=40)
PolynomialLR(optimizer, 0.1, 0.0, total_iters=100, power=0.5)
PolynomialLR(optimizer, 0.1, 0.0, total_iters=100, power=2.0)
ExponentialLR(optimizer, 0.1, total_iters=20, decay_rate=0.5, staircase=False)
ExponentialLR(optimizer, 0.1, total_iters=20, decay_rate=0.5, staircase=True)
MultiplicativeLR(optimizer, 0.1, coefficient=0.97)
InverseExponentialTimeDecayLR(optimizer, 0.1, step_exponent=1.0, total_iters=20, decay_rate=0.5)
InverseExponentialTimeDecayLR(optimizer, 0.1, step_exponent=1.5, total_iters=20, decay_rate=0.5)
InverseSquareRootDecayLR(optimizer, 0.1, scale=4.0, warmup_steps=16)
LambdaLR(optimizer, 0.1)
""",
    "Piecewise": """
ConstantLR(optimizer, 0.1)
StepLR(optimizer, 0.1, step_size=25, gamma=0.5)
MultiStepLR(optimizer, 0.1, gamma=0.5, milestones=[40, 60, 80])
PiecewiseConstantLR(optimizer, [0.1, 0.05, 0.01], milestones=[40, 80])
""",
    "Cyclic": """
OneCycleLR(optimizer, 0.01, 0.1, total_steps=100, anneal_strategy="cos", three_phase=False)
OneCycleLR(optimizer, 0.01, 0.1, total_steps=100, anneal_strategy="linear", three_phase=True)
CyclicLR(optimizer, 0.02, 0.1, step_size_up=15, mode="triangular")
CyclicLR(optimizer, 0.02, 0.1, step_size_up=15, mode="triangular2")
CyclicLR(optimizer, 0.02, 0.1, step_size_up=15, mode="exp_range", gamma=0.98)
CosineAnnealingWarmRestarts(optimizer, 0.1, T_0=20, T_mult=1)
CosineAnnealingWarmRestarts(optimizer, 0.1, T_0=20, T_mult=2)
""",
    "Made of other schedulers": """
SequentialLR(optimizer, [LinearLR(optimizer, 0.0, 0.1, 20), StepLR(optimizer, 0.1, 30, 0.5)], milestones=[20])
ChainedLR([LinearLR(optimizer, 0.02, 0.1, 20), StepLR(optimizer, 0.1, 30, 0.5)])
""",
}
