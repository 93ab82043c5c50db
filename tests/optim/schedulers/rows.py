"""The one table of the scheduler tests: a row for each schedule, with its arguments, its formula and its promises.

Arguments have their generic names, as the weight-decay classes; building.py translates them for learning rates. A
schedule inside another one is a `Nested`. All that is tested for every scheduler follows from its row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from hypothesis import settings
from hypothesis import strategies as st

from tests.optim.schedulers.formulas import FORMULAS
from timesched import shapes

Arguments = Mapping[str, Any]
SOME = settings.default.max_examples // 7  # as each property is tried for every row


class Nested(NamedTuple):
    """A scheduler inside another one."""

    stem: str
    arguments: Arguments


@dataclass(frozen=True)
class Promise:
    """The value at step 0, the value from the step `until` on, and the range; None and infinity: no promise."""

    start: float | None = None
    end: float | None = None
    until: int = 0
    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True)
class Row:
    """`stem`: the name without family; `examples`: sets of arguments; `drawn`: a strategy for more of them.

    `counts`: which arguments count steps, so may be times.
    """

    stem: str
    examples: tuple[Arguments, ...]
    drawn: st.SearchStrategy[dict[str, Any]]
    promise: Callable[[Arguments], Promise] = lambda a: Promise()
    counts: tuple[str, ...] = ()

    def formula(self, arguments: Arguments, t: int) -> float:
        """The value at a step, from the formula in plain Python."""
        return FORMULAS[self.stem](arguments, t)

    def values(self, arguments: Arguments, steps: int) -> list[float]:
        return [self.formula(arguments, t) for t in range(steps)]


def from_to(a: Arguments) -> Promise:
    """From one value to another, without end where it cycles."""
    both = a["initial_val"], a["end_val"]
    end = None if a.get("cycle") else a["end_val"]
    return Promise(a["initial_val"] if a["total_iters"] else end, end, a["total_iters"], min(both), max(both))


def falling(a: Arguments) -> Promise:
    """From the initial value towards 0, where a factor is at most 1."""
    factor = a.get("gamma", a.get("coefficient", a.get("decay_rate")))
    start = None if 0 in a.get("milestones", ()) else a["initial_val"]
    return Promise(start, low=0.0, high=a["initial_val"] if factor <= 1 else math.inf)


def wave(a: Arguments) -> Promise:
    both = a["initial_val"], a.get("eta_min", 0.0)
    return Promise(a["initial_val"], low=min(both), high=max(both))


def warmed(a: Arguments) -> Promise:
    """A ramp if it has a length, the highest value, and the last one."""
    levels = (a["val"], a.get("end_val", 0.0), *([a.get("initial_val", 0.0)] if a["warmup_iters"] else []))
    return Promise(levels[2] if a["warmup_iters"] else a["val"], levels[1], a["total_iters"], min(levels), max(levels))


def one_cycle(a: Arguments) -> Promise:
    low, total = a["initial_val"] / a.get("final_div_factor", 1e4), a["total_steps"]
    three = (a["initial_val"], a["max_val"], low)
    starts = a["pct_start"] * total >= 1 < total
    return Promise(a["initial_val"] if starts else None, low, total - 1, min(three), max(three))


VALUES = st.sampled_from([0.0, 0.1, 0.3, 1.0]) | st.floats(1e-4, 2.0)
COUNTS = st.integers(1, 40)
SHARES = st.floats(0.125, 1.0) | st.sampled_from([0.5, 1.0])
FLAGS = st.booleans()
ENDS = {"initial_val": VALUES, "end_val": VALUES, "total_iters": st.integers(0, 40)}


def drawn(**strategies: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(strategies)


def milestones(least: int = 0) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 60), min_size=least, max_size=5).map(sorted)


def sequences(schedulers: list[Nested]) -> st.SearchStrategy[dict[str, Any]]:
    """A sequence of these, with a milestone before each but the first."""
    n = len(schedulers) - 1
    steps = st.lists(st.integers(0, 60), min_size=n, max_size=n, unique=True)
    return drawn(schedulers=st.just(schedulers), milestones=steps.map(sorted))


def pieces(milestones: list[int]) -> st.SearchStrategy[dict[str, Any]]:
    n = len(milestones) + 1
    return drawn(vals=st.lists(VALUES, min_size=n, max_size=n), milestones=st.just(milestones))


def cycles_have_a_length(a: Arguments) -> bool:
    return a["total_iters"] > 0 or not a["cycle"]


def double(t: Any) -> Any:
    """A step, or a tensor of it, in double precision."""
    return t.double() if isinstance(t, torch.Tensor) else float(t)


WARMUP = Nested("Linear", dict(initial_val=0.01, end_val=0.1, total_iters=5))
COSINE = Nested("CosineDecay", dict(initial_val=0.1, end_val=0.01, total_iters=30))
HALVING = Nested("Exponential", dict(initial_val=0.1, total_iters=10, decay_rate=0.5))
STEPS = Nested("Step", dict(initial_val=0.3, step_size=7, gamma=0.5))
TWO_DEEP = Nested(
    "Sequential",
    dict(schedulers=[Nested("Sequential", dict(schedulers=[WARMUP, COSINE], milestones=[5])), STEPS], milestones=[25]),
)
NESTED = st.sampled_from([WARMUP, COSINE, HALVING, STEPS])

ROWS = (
    Row(
        "Constant",
        (dict(val=0.1), dict(val=0.3, total_iters=10)),
        drawn(val=VALUES, total_iters=st.none() | COUNTS),
        lambda a: Promise(a["val"], a["val"], 0, a["val"], a["val"]),
        ("total_iters",),
    ),
    Row(
        "Polynomial",
        (
            dict(initial_val=0.1, end_val=0.0, total_iters=40),
            dict(initial_val=0.1, end_val=0.01, total_iters=30, power=2.0),
            dict(initial_val=0.05, end_val=0.2, total_iters=25, power=0.5),
            dict(initial_val=0.1, end_val=0.0, total_iters=7, power=3.0, cycle=True),
        ),
        drawn(**ENDS, power=st.sampled_from([0.5, 1.0, 2.0, 3.5]), cycle=FLAGS).filter(cycles_have_a_length),
        from_to,
        ("total_iters",),
    ),
    Row(
        "Linear",
        (
            dict(initial_val=0.1, end_val=0.0, total_iters=40),
            dict(initial_val=0.0, end_val=0.1, total_iters=10),
            dict(initial_val=0.1, end_val=0.01, total_iters=12, cycle=True),
        ),
        drawn(**ENDS, cycle=FLAGS).filter(cycles_have_a_length),
        from_to,
        ("total_iters",),
    ),
    Row(
        "Exponential",
        (
            dict(initial_val=0.1, total_iters=10, decay_rate=0.5),
            dict(initial_val=0.1, total_iters=10, decay_rate=0.5, staircase=True),
            dict(initial_val=0.01, total_iters=20, decay_rate=1.7),
        ),
        drawn(initial_val=VALUES, total_iters=COUNTS, decay_rate=SHARES, staircase=FLAGS),
        falling,
        ("total_iters",),
    ),
    Row(
        "InverseExponentialTimeDecay",
        (
            dict(initial_val=0.1, step_exponent=1, total_iters=10, decay_rate=0.5),
            dict(initial_val=0.1, step_exponent=2, total_iters=50, decay_rate=0.1),
            dict(initial_val=0.1, step_exponent=1, total_iters=12, decay_rate=0.5, staircase=True),
        ),
        drawn(
            **dict(initial_val=VALUES, step_exponent=st.sampled_from([0, 1, 2]), total_iters=COUNTS),
            **dict(decay_rate=SHARES, staircase=FLAGS),
        ),
        lambda a: Promise(None if a["step_exponent"] == 0 else a["initial_val"], low=0.0, high=a["initial_val"]),
        ("total_iters",),
    ),
    Row(
        "InverseSquareRootDecay",
        ({}, dict(initial_val=0.1, scale=2.0, warmup_steps=16)),
        drawn(initial_val=VALUES, scale=VALUES, warmup_steps=COUNTS),
        lambda a: Promise(low=0.0, high=a.get("initial_val", 1.0) * a.get("scale", 1.0)),
        ("warmup_steps",),
    ),
    Row(
        "CosineDecay",
        (dict(initial_val=0.1, end_val=0.0, total_iters=40), dict(initial_val=0.01, end_val=0.1, total_iters=70)),
        drawn(**ENDS),
        from_to,
        ("total_iters",),
    ),
    Row(
        "WarmupStableDecay",
        (
            {"val": 0.1, "total_iters": 40, "warmup_iters": 0, "decay_iters": 0},
            {
                "val": 0.1,
                "total_iters": 40,
                "warmup_iters": 6,
                "decay_iters": 12,
                "decay": "1-sqrt",
                "warmup": "square",
            },
            {
                **{"val": 0.3, "total_iters": 50, "warmup_iters": 10, "decay_iters": 40, "initial_val": 0.01},
                **{"end_val": 0.03, "warmup": "cosine", "decay": "geometric"},
            },
            {"val": 0.2, "total_iters": 30, "warmup_iters": 7, "decay_iters": 9, "end_val": 0.02, "decay": "harmonic"},
            {
                **{"val": 0.1, "total_iters": 40, "warmup_iters": 6, "decay_iters": 12, "end_val": 0.4},
                **{"warmup": "1-sqrt", "decay": "exponential", "decay_rate": 0.25},
            },
        ),
        drawn(
            val=st.floats(1e-2, 2.0),
            total_iters=st.integers(40, 70),
            warmup_iters=st.integers(0, 20),
            decay_iters=st.integers(0, 20),
            initial_val=VALUES,
            end_val=st.floats(1e-2, 2.0),
            warmup=st.sampled_from(list(shapes.WARMUPS)),
            decay=st.sampled_from(list(shapes.DECAYS)),
            decay_rate=st.floats(0.1, 0.9),
        ),
        warmed,
        ("total_iters", "warmup_iters", "decay_iters"),
    ),
    Row(
        "Sequential",
        (
            dict(schedulers=[WARMUP, COSINE], milestones=[5]),
            dict(schedulers=[WARMUP, HALVING, STEPS], milestones=[3, 20]),
            dict(schedulers=[WARMUP, COSINE], milestones=[0]),
            TWO_DEEP.arguments,
        ),
        st.lists(NESTED, min_size=1, max_size=4).flatmap(sequences),
        counts=("milestones",),
    ),
    Row(
        "PiecewiseConstant",
        (
            dict(vals=[0.1, 0.01, 0.001], milestones=[10, 30]),
            dict(vals=[0.3, 0.6, 0.2], milestones=[0, 4]),
            dict(vals=[0.3], milestones=[]),
        ),
        milestones(1).flatmap(pieces),
        lambda a: Promise(None, a["vals"][-1], max([0, *a["milestones"]]), min(a["vals"]), max(a["vals"])),
        ("milestones",),
    ),
    Row(
        "MultiStep",
        (
            dict(initial_val=0.1, gamma=0.1, milestones=[10, 30]),
            dict(initial_val=0.4, gamma=0.5, milestones=[0, 1, 2, 3, 50]),
        ),
        drawn(initial_val=VALUES, gamma=SHARES, milestones=milestones()),
        falling,
        ("milestones",),
    ),
    Row(
        "Step",
        (dict(initial_val=0.1, step_size=10, gamma=0.1), dict(initial_val=0.5, step_size=3, gamma=0.9)),
        drawn(initial_val=VALUES, step_size=COUNTS, gamma=SHARES),
        falling,
        ("step_size",),
    ),
    Row(
        "CosineAnnealing",
        (
            dict(initial_val=0.1, T_max=20),
            dict(initial_val=0.1, T_max=15, eta_min=0.01),
            dict(initial_val=0.1, T_max=1, eta_min=0.2),
        ),
        drawn(initial_val=VALUES, T_max=COUNTS, eta_min=VALUES),
        wave,
        ("T_max",),
    ),
    Row(
        "CosineAnnealingWarmRestarts",
        (
            dict(initial_val=0.1, T_0=10),
            dict(initial_val=0.1, T_0=5, T_mult=2, eta_min=0.02),
            dict(initial_val=0.1, T_0=3, T_mult=3),
            dict(initial_val=0.1, T_0=1, T_mult=1.5),
        ),
        drawn(initial_val=VALUES, T_0=COUNTS, T_mult=st.sampled_from([1, 2, 3, 1.5]), eta_min=VALUES),
        wave,
        ("T_0",),
    ),
    Row(
        "Cyclic",
        (
            dict(base_val=0.01, max_val=0.1, step_size_up=8),
            dict(base_val=0.01, max_val=0.1, step_size_up=5, step_size_down=10),
            dict(base_val=0.02, max_val=0.2, step_size_up=6, mode="triangular2"),
            dict(base_val=0.01, max_val=0.1, step_size_up=7, step_size_down=4, mode="exp_range", gamma=0.97),
            dict(base_val=0.01, max_val=0.1, step_size_up=7, mode="exp_range", gamma=0.97, scale_mode="cycle"),
            dict(base_val=0.01, max_val=0.1),
        ),
        drawn(
            **dict(base_val=VALUES, max_val=VALUES, step_size_up=COUNTS, step_size_down=st.none() | COUNTS),
            **dict(mode=st.sampled_from(["triangular", "triangular2", "exp_range"]), gamma=SHARES),
            scale_mode=st.sampled_from(["cycle", "iterations"]),
        ),
        lambda a: Promise(a["base_val"], low=min(a["base_val"], a["max_val"]), high=max(a["base_val"], a["max_val"])),
        ("step_size_up", "step_size_down"),
    ),
    Row(
        "OneCycle",
        (
            dict(initial_val=0.01, max_val=0.1, total_steps=61),
            dict(initial_val=0.01, max_val=0.1, total_steps=50, anneal_strategy="linear"),
            dict(initial_val=0.02, max_val=0.2, total_steps=60, pct_start=0.4, three_phase=True),
            dict(
                **dict(initial_val=0.02, max_val=0.2, total_steps=55, pct_start=0.25, final_div_factor=10.0),
                **dict(three_phase=True, anneal_strategy="linear"),
            ),
            dict(initial_val=0.05, max_val=0.5, total_steps=20, final_div_factor=100.0),
            dict(initial_val=0.05, max_val=0.5, total_steps=20, pct_start=0.05),
        ),
        drawn(
            **dict(initial_val=VALUES, max_val=VALUES, total_steps=st.integers(1, 60)),
            **dict(pct_start=st.sampled_from([0.0, 0.05, 0.1, 0.25, 0.4, 0.5])),
            **dict(final_div_factor=st.sampled_from([0.5, 10.0, 1e4]), three_phase=FLAGS),
            anneal_strategy=st.sampled_from(["cos", "linear"]),
        ),
        one_cycle,
        ("total_steps",),
    ),
    Row(
        "Multiplicative",
        (dict(initial_val=0.1, coefficient=0.9), dict(initial_val=0.01, coefficient=1.05)),
        drawn(initial_val=VALUES, coefficient=SHARES),
        falling,
    ),
    Row(
        "Lambda",
        (
            dict(initial_val=0.1),
            dict(initial_val=0.1, functions=(lambda t: 0.9 ** double(t),)),
            dict(initial_val=0.5, functions=(lambda t: 1 / (1 + double(t)), lambda t: 1 + 0.1 * double(t))),
        ),
        drawn(initial_val=VALUES),
    ),
    Row(
        "Chained",
        (dict(schedulers=[HALVING, STEPS]), dict(schedulers=[COSINE, WARMUP, STEPS]), dict(schedulers=[COSINE])),
        drawn(schedulers=st.lists(NESTED, min_size=1, max_size=3)),
    ),
    Row(
        "ScalePerParam",
        (dict(scheduler=COSINE), dict(scheduler=Nested("Chained", dict(schedulers=[HALVING, STEPS])))),
        drawn(scheduler=NESTED),
    ),
)
BY_STEM = {row.stem: row for row in ROWS}
CASES = [(row, arguments) for row in ROWS for arguments in row.examples]
IDS = [f"{row.stem}{i}" for row in ROWS for i in range(len(row.examples))]
