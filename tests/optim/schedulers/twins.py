"""torch's class of the same name, where its formula agrees: the value to start from, and the scheduler on an optimizer.

A function of the arguments for each; None where torch has no such schedule, or another formula for these arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch.optim import Optimizer
from torch.optim import lr_scheduler as lr

Arguments = Mapping[str, Any]


class Twin(NamedTuple):
    """`base`: the optimizer's rate; `steps`: how many values agree; `closed`: those of its closed form are meant."""

    base: float
    make: Callable[[Optimizer], Any]
    steps: int = 300
    closed: bool = False


def nothing(a: Arguments) -> None:
    """No twin."""


def constant(a: Arguments) -> Twin:
    return Twin(a["val"], lambda one: lr.ConstantLR(one, factor=1.0, total_iters=5))


def polynomial(a: Arguments) -> Twin | None:
    if a["end_val"] or a.get("cycle") or not a["total_iters"]:
        return None
    given = {"total_iters": a["total_iters"], "power": a.get("power", 1.0)}
    return Twin(a["initial_val"], lambda one: lr.PolynomialLR(one, **given))


def linear(a: Arguments) -> Twin | None:
    start, end, total = a["initial_val"], a["end_val"], a["total_iters"]
    base = max(start, end)
    if a.get("cycle") or not total or start <= 1e-3 * base:  # torch starts above 0, and multiplies its way up
        return None
    return Twin(base, lambda one: lr.LinearLR(one, start / base, end / base, total))


def exponential(a: Arguments) -> Twin | None:
    gamma = a["decay_rate"] ** (1 / a["total_iters"])
    return None if a.get("staircase") else Twin(a["initial_val"], lambda one: lr.ExponentialLR(one, gamma))


def multi_step(a: Arguments) -> Twin | None:
    given = {"milestones": a["milestones"], "gamma": a["gamma"]}
    return None if 0 in a["milestones"] else Twin(a["initial_val"], lambda one: lr.MultiStepLR(one, **given))


def step(a: Arguments) -> Twin:
    return Twin(a["initial_val"], lambda one: lr.StepLR(one, a["step_size"], a["gamma"]))


def cosine_annealing(a: Arguments) -> Twin:
    """By the closed form: step by step, torch's rounding errors grow past T_max."""
    low = a.get("eta_min", 0.0)
    return Twin(a["initial_val"], lambda one: lr.CosineAnnealingLR(one, a["T_max"], low), closed=True)


def warm_restarts(a: Arguments) -> Twin | None:
    growth, low = a.get("T_mult", 1), a.get("eta_min", 0.0)
    if type(growth) is not int:
        return None
    return Twin(a["initial_val"], lambda one: lr.CosineAnnealingWarmRestarts(one, a["T_0"], growth, low))


def cyclic(a: Arguments) -> Twin | None:
    """torch takes its own scale_mode for each mode."""
    mode = a.get("mode", "triangular")
    own = "iterations" if mode == "exp_range" else "cycle"
    if a.get("scale_mode", own) != own:
        return None
    given = {key: a[key] for key in ("step_size_up", "step_size_down", "gamma") if key in a}
    return Twin(
        a["base_val"],
        lambda one: lr.CyclicLR(one, a["base_val"], a["max_val"], mode=mode, cycle_momentum=False, **given),
    )


def one_cycle(a: Arguments) -> Twin | None:
    if not a["initial_val"] or not a["max_val"] or a.get("pct_start", 0.3) * a["total_steps"] <= 1:
        return None
    keys = ("total_steps", "pct_start", "final_div_factor", "three_phase", "anneal_strategy")
    given = {key: a[key] for key in keys if key in a}
    return Twin(
        a["initial_val"],
        lambda one: lr.OneCycleLR(
            one, a["max_val"], div_factor=a["max_val"] / a["initial_val"], cycle_momentum=False, **given
        ),
        steps=a["total_steps"],
    )


def multiplicative(a: Arguments) -> Twin:
    return Twin(a["initial_val"], lambda one: lr.MultiplicativeLR(one, lambda t: a["coefficient"]))


def with_lambdas(a: Arguments) -> Twin | None:
    functions = a.get("functions", (lambda t: t / 30, lambda t: 0.95**t))

    def product(t: int) -> float:
        value = 1.0
        for function in functions:
            value *= function(t)
        return value

    return Twin(a["initial_val"], lambda one: lr.LambdaLR(one, product))


def sequential(a: Arguments) -> Twin | None:
    """torch's have one rate to start from, and restart it at each milestone: here, where ours do the same."""
    twins = [BY_STEM.get(stem, nothing)(arguments) for stem, arguments in a["schedulers"]]
    if len({twin and twin.base for twin in twins}) > 1 or not all(twins) or 0 in a["milestones"]:
        return None
    return Twin(twins[0].base, lambda one: lr.SequentialLR(one, [twin.make(one) for twin in twins], a["milestones"]))


def chained(a: Arguments) -> Twin | None:
    """torch multiplies by the ratio of one step to the last: the same, where no value is 0 on the way."""
    twins = [BY_STEM.get(stem, nothing)(arguments) for stem, arguments in a["schedulers"]]
    if not all(twins) or any(stem not in ("Exponential", "Step", "MultiStep") for stem, _ in a["schedulers"]):
        return None
    return Twin(twins[0].base, lambda one: lr.ChainedScheduler([twin.make(one) for twin in twins]))


BY_STEM: dict[str, Callable[[Arguments], Twin | None]] = {
    "Linear": linear,
    "Exponential": exponential,
    "Step": step,
    "MultiStep": multi_step,
}
