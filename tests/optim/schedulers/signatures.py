"""The public arguments and defaults of every scheduler, as data that the code is held to.

The facts of the release whose numbers are in tests/golden/schedulers.json; ours end with two arguments more.
WarmupStableDecay is not in it.
"""

from __future__ import annotations

import re

# Names of weight-decay schedulers; those of learning rates follow.
GENERIC = """
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
RENAMED = [
    (r"\bval\b", "learning_rate"),
    (r"\bvals\b", "learning_rates"),
    (r"\b(initial|end)_val\b", r"\1_learning_rate"),
    (r"\b(base|max)_val\b", r"\1_lr"),
]


def parsed(text: str) -> tuple[str, dict[str, str]]:
    """The stem, and each argument after the optimizer with its default as Python writes it, or an empty text."""
    stem, rest = text.rstrip(")").split("(")
    pairs = (each.partition("=") for each in rest.split(", "))
    return stem, {name: default for name, _, default in pairs}


def renamed(text: str) -> str:
    for old, new in RENAMED:
        text = re.sub(old, new, text)
    return text


WD = dict(map(parsed, GENERIC))
LR = dict(parsed(renamed(text)) for text in GENERIC)
