"""The schedules once more, in plain Python: one function of the arguments and the step for each.

Written from their definitions, in terms of exact fractions where a step is divided, so that they hold at any step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Any

Arguments = Mapping[str, Any]


def share(t: int, total: int) -> Fraction:
    return Fraction(1) if t >= total else Fraction(t, total)  # of no steps, all is done from the start


def wave(x: Fraction | float, start: float, end: float) -> float:
    """The falling half of a cosine."""
    return end + (start - end) * (1 + math.cos(math.pi * x)) / 2


def polynomial(a: Arguments, t: int) -> float:
    total = a["total_iters"]
    if a.get("cycle"):
        total *= max(1, math.ceil(Fraction(t, total)))  # Keras: the next multiple of the steps
    left = 1 - share(t, total)
    return (a["initial_val"] - a["end_val"]) * float(left) ** a.get("power", 1.0) + a["end_val"]


def exponential(a: Arguments, t: int) -> float:
    x = Fraction(t, a["total_iters"])
    return a["initial_val"] * a["decay_rate"] ** (t // a["total_iters"] if a.get("staircase") else float(x))


def inverse_exponential_time_decay(a: Arguments, t: int) -> float:
    x = Fraction(t) ** a["step_exponent"] / a["total_iters"]
    return a["initial_val"] / (1 + a["decay_rate"] * (math.floor(x) if a.get("staircase") else float(x)))


def warmup_stable_decay(a: Arguments, t: int) -> float:
    total, warm, fall = a["total_iters"], a["warmup_iters"], a["decay_iters"]
    start, top, end = a.get("initial_val", 0.0), a["val"], a.get("end_val", 0.0)
    if t >= total:
        return end
    if t < warm:
        p = float(Fraction(t, warm))
        shapes = {"cosine": (1 - math.cos(math.pi * p)) / 2, "1-sqrt": 1 - math.sqrt(float(1 - Fraction(t, warm)))}
        return start + (top - start) * (shapes | {"square": p * p, "linear": p})[a.get("warmup", "linear")]
    if t <= total - fall:
        return top
    r, rate, shape = float(Fraction(t - total + fall, fall)), a.get("decay_rate", 0.5), a.get("decay", "linear")
    if shape == "geometric":
        return top * math.exp(r * math.log(end / top))
    if shape == "harmonic":
        return top * end / (r * top + (1 - r) * end)
    left = {
        "linear": lambda: 1 - r,
        "cosine": lambda: (1 + math.cos(math.pi * r)) / 2,
        "1-sqrt": lambda: 1 - math.sqrt(r),
        "1-square": lambda: 1 - r * r,
        "exponential": lambda: (rate**r - rate) / (1 - rate),
    }[shape]()
    return end + (top - end) * left


def warm_restarts(a: Arguments, t: int) -> float:
    length, growth = Fraction(a["T_0"]), Fraction(str(a.get("T_mult", 1)))
    if growth == 1:
        left: Fraction = Fraction(t % a["T_0"])
    else:
        left = Fraction(t)
        while left >= length:  # as many rounds as a logarithm: growth is 2 or so in what is tested at large steps
            left, length = left - length, length * growth
    return wave(left / length, a["initial_val"], a.get("eta_min", 0.0))


def cyclic(a: Arguments, t: int) -> float:
    up = a.get("step_size_up", 2000)
    down = a.get("step_size_down") or up
    cycle, inside = t // (up + down) + 1, t % (up + down)
    height = Fraction(inside, up) if inside <= up else Fraction(up + down - inside, down)
    mode = a.get("mode", "triangular")
    by_cycle = a.get("scale_mode", "iterations" if mode == "exp_range" else "cycle") == "cycle"
    n = cycle if by_cycle else t
    scale = {"triangular": lambda: 1.0, "triangular2": lambda: 0.5 ** (n - 1)}.get(mode, lambda: a["gamma"] ** n)()
    return a["base_val"] + (a["max_val"] - a["base_val"]) * float(height) * scale


def one_cycle(a: Arguments, t: int) -> float:
    total, first, top = a.get("total_steps", 1000), a["initial_val"], a["max_val"]
    low = first / a.get("final_div_factor", 1e4)
    peak = Fraction(str(a.get("pct_start", 0.3))) * total - 1
    ends: list[tuple[Any, float]] = [(0, first), (peak, top), (total - 1, low)]
    if a.get("three_phase"):
        ends.insert(2, (2 * peak, first))
    if t == 0 and peak == 0 < total - 1:
        return first  # all of the way up is step 0
    for (begin, start), (end, to) in pairwise(ends):
        if t < end:
            x = (t - begin) / Fraction(end - begin)
            return wave(x, start, to) if a.get("anneal_strategy", "cos") == "cos" else start + (to - start) * float(x)
    return low


def with_lambdas(a: Arguments, t: int) -> float:
    default = (lambda t: t / 30, lambda t: 0.95**t)
    return a["initial_val"] * math.prod(float(function(t)) for function in a.get("functions", default))


def nested(one: Any) -> Callable[[int], float]:
    stem, arguments = one
    return lambda t: FORMULAS[stem](arguments, t)


def sequential(a: Arguments, t: int) -> float:
    i = sum(t >= milestone for milestone in a["milestones"])
    return nested(a["schedulers"][i])(t - [0, *a["milestones"]][i])


def chained(a: Arguments, t: int) -> float:
    first, *others = map(nested, a["schedulers"])
    return first(t) * math.prod(other(t) / other(0) for other in others)


FORMULAS: dict[str, Callable[[Arguments, int], float]] = {
    "Constant": lambda a, t: a["val"],
    "Polynomial": polynomial,
    "Linear": polynomial,
    "Exponential": exponential,
    "InverseExponentialTimeDecay": inverse_exponential_time_decay,
    "InverseSquareRootDecay": lambda a, t: (
        a.get("initial_val", 1.0) * a.get("scale", 1.0) / math.sqrt(max(t, a.get("warmup_steps", 1)))
    ),
    "CosineDecay": lambda a, t: wave(share(t, a["total_iters"]), a["initial_val"], a["end_val"]),
    "WarmupStableDecay": warmup_stable_decay,
    "Sequential": sequential,
    "PiecewiseConstant": lambda a, t: a["vals"][sum(t >= milestone for milestone in a["milestones"])],
    "MultiStep": lambda a, t: a["initial_val"] * a["gamma"] ** sum(t >= milestone for milestone in a["milestones"]),
    "Step": lambda a, t: a["initial_val"] * a["gamma"] ** (t // a["step_size"]),
    "CosineAnnealing": lambda a, t: wave(
        Fraction(t % (2 * a["T_max"]), a["T_max"]), a["initial_val"], a.get("eta_min", 0.0)
    ),
    "CosineAnnealingWarmRestarts": warm_restarts,
    "Cyclic": cyclic,
    "OneCycle": one_cycle,
    "Multiplicative": lambda a, t: a["initial_val"] * a["coefficient"] ** t,
    "Lambda": with_lambdas,
    "Chained": chained,
    "ScalePerParam": lambda a, t: nested(a["scheduler"])(t),  # before the factor of a group
}
