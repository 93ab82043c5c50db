"""The one table of the scheduler tests: a row for each schedule, with its arguments, its formula and its promises.

Arguments have their generic names, as the weight-decay classes; building.py translates them for learning rates. A
nested schedule is a `Nested`. All that is tested for every scheduler follows from its row.
"""

from __future__ import annotations

from hypothesis import strategies as st

from tests.optim.schedulers import twins
from tests.optim.schedulers.parts import (
    COUNTS,
    ENDS,
    FLAGS,
    SHARES,
    VALUES,
    Nested,
    Promise,
    Row,
    double,
    drawn,
    falling,
    from_to,
    has_cycles,
    milestones,
    no_promise,
    one_cycle,
    warmed,
    wavy,
)
from timesched import shapes

WARMUP = Nested("Linear", {"initial_val": 0.01, "end_val": 0.1, "total_iters": 5})
COSINE = Nested("CosineDecay", {"initial_val": 0.1, "end_val": 0.01, "total_iters": 30})
HALVING = Nested("Exponential", {"initial_val": 0.1, "total_iters": 10, "decay_rate": 0.5})
STEPS = Nested("Step", {"initial_val": 0.3, "step_size": 7, "gamma": 0.5})
NESTED = st.sampled_from([WARMUP, COSINE, HALVING, STEPS])

ROWS = (
    Row(
        "Constant",
        ({"val": 0.1}, {"val": 0.3, "total_iters": 10}),
        drawn(val=VALUES, total_iters=st.none() | COUNTS),
        lambda a: Promise(a["val"], a["val"], 0, a["val"], a["val"]),
        ("total_iters",),
        twin=twins.constant,
    ),
    Row(
        "Polynomial",
        (
            {"initial_val": 0.1, "end_val": 0.0, "total_iters": 40},
            {"initial_val": 0.1, "end_val": 0.01, "total_iters": 30, "power": 2.0},
            {"initial_val": 0.05, "end_val": 0.2, "total_iters": 25, "power": 0.5},
            {"initial_val": 0.1, "end_val": 0.0, "total_iters": 7, "power": 3.0, "cycle": True},
        ),
        drawn(**ENDS, power=st.sampled_from([0.5, 1.0, 2.0, 3.5]), cycle=FLAGS).filter(has_cycles),
        from_to,
        ("total_iters",),
        twin=twins.polynomial,
    ),
    Row(
        "Linear",
        (
            {"initial_val": 0.1, "end_val": 0.0, "total_iters": 40},
            {"initial_val": 0.0, "end_val": 0.1, "total_iters": 10},
            {"initial_val": 0.1, "end_val": 0.01, "total_iters": 12, "cycle": True},
        ),
        drawn(**ENDS, cycle=FLAGS).filter(has_cycles),
        from_to,
        ("total_iters",),
        twin=twins.linear,
    ),
    Row(
        "Exponential",
        (
            {"initial_val": 0.1, "total_iters": 10, "decay_rate": 0.5},
            {"initial_val": 0.1, "total_iters": 10, "decay_rate": 0.5, "staircase": True},
            {"initial_val": 0.01, "total_iters": 20, "decay_rate": 1.7},
        ),
        drawn(initial_val=VALUES, total_iters=COUNTS, decay_rate=SHARES, staircase=FLAGS),
        falling,
        ("total_iters",),
        twin=twins.exponential,
    ),
    Row(
        "InverseExponentialTimeDecay",
        (
            {"initial_val": 0.1, "step_exponent": 1, "total_iters": 10, "decay_rate": 0.5},
            {"initial_val": 0.1, "step_exponent": 2, "total_iters": 50, "decay_rate": 0.1},
            {"initial_val": 0.1, "step_exponent": 1, "total_iters": 12, "decay_rate": 0.5, "staircase": True},
        ),
        drawn(
            initial_val=VALUES,
            step_exponent=st.sampled_from([0, 1, 2]),
            total_iters=COUNTS,
            decay_rate=SHARES,
            staircase=FLAGS,
        ),
        lambda a: Promise(None if a["step_exponent"] == 0 else a["initial_val"], low=0.0, high=a["initial_val"]),
        ("total_iters",),
    ),
    Row(
        "InverseSquareRootDecay",
        ({}, {"initial_val": 0.1, "scale": 2.0, "warmup_steps": 16}),
        drawn(initial_val=VALUES, scale=VALUES, warmup_steps=COUNTS),
        lambda a: Promise(low=0.0, high=a.get("initial_val", 1.0) * a.get("scale", 1.0)),
        ("warmup_steps",),
    ),
    Row(
        "CosineDecay",
        (
            {"initial_val": 0.1, "end_val": 0.0, "total_iters": 40},
            {"initial_val": 0.01, "end_val": 0.1, "total_iters": 70},
        ),
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
            {"schedulers": [WARMUP, COSINE], "milestones": [5]},
            {"schedulers": [WARMUP, HALVING, STEPS], "milestones": [3, 20]},
            {"schedulers": [WARMUP, COSINE], "milestones": [0]},
            {
                "schedulers": [Nested("Sequential", {"schedulers": [WARMUP, COSINE], "milestones": [5]}), STEPS],
                "milestones": [25],
            },
        ),
        st.lists(NESTED, min_size=1, max_size=4).flatmap(
            lambda several: drawn(
                schedulers=st.just(several),
                milestones=st.lists(
                    st.integers(0, 60), min_size=len(several) - 1, max_size=len(several) - 1, unique=True
                ).map(sorted),
            )
        ),
        no_promise,
        ("milestones",),
        twin=twins.sequential,
    ),
    Row(
        "PiecewiseConstant",
        (
            {"vals": [0.1, 0.01, 0.001], "milestones": [10, 30]},
            {"vals": [0.3, 0.6, 0.2], "milestones": [0, 4]},
            {"vals": [0.3], "milestones": []},
        ),
        milestones(1).flatmap(
            lambda some: drawn(
                vals=st.lists(VALUES, min_size=len(some) + 1, max_size=len(some) + 1), milestones=st.just(some)
            )
        ),
        lambda a: Promise(None, a["vals"][-1], max([0, *a["milestones"]]), min(a["vals"]), max(a["vals"])),
        ("milestones",),
    ),
    Row(
        "MultiStep",
        (
            {"initial_val": 0.1, "gamma": 0.1, "milestones": [10, 30]},
            {"initial_val": 0.4, "gamma": 0.5, "milestones": [0, 1, 2, 3, 50]},
        ),
        drawn(initial_val=VALUES, gamma=SHARES, milestones=milestones()),
        falling,
        ("milestones",),
        twin=twins.multi_step,
    ),
    Row(
        "Step",
        ({"initial_val": 0.1, "step_size": 10, "gamma": 0.1}, {"initial_val": 0.5, "step_size": 3, "gamma": 0.9}),
        drawn(initial_val=VALUES, step_size=COUNTS, gamma=SHARES),
        falling,
        ("step_size",),
        twin=twins.step,
    ),
    Row(
        "CosineAnnealing",
        (
            {"initial_val": 0.1, "T_max": 20},
            {"initial_val": 0.1, "T_max": 15, "eta_min": 0.01},
            {"initial_val": 0.1, "T_max": 1, "eta_min": 0.2},
        ),
        drawn(initial_val=VALUES, T_max=COUNTS, eta_min=VALUES),
        wavy,
        ("T_max",),
        twin=twins.cosine_annealing,
    ),
    Row(
        "CosineAnnealingWarmRestarts",
        (
            {"initial_val": 0.1, "T_0": 10},
            {"initial_val": 0.1, "T_0": 5, "T_mult": 2, "eta_min": 0.02},
            {"initial_val": 0.1, "T_0": 3, "T_mult": 3},
            {"initial_val": 0.1, "T_0": 1, "T_mult": 1.5},
        ),
        drawn(initial_val=VALUES, T_0=COUNTS, T_mult=st.sampled_from([1, 2, 3, 1.5]), eta_min=VALUES),
        wavy,
        ("T_0",),
        twin=twins.warm_restarts,
    ),
    Row(
        "Cyclic",
        (
            {"base_val": 0.01, "max_val": 0.1, "step_size_up": 8},
            {"base_val": 0.01, "max_val": 0.1, "step_size_up": 5, "step_size_down": 10},
            {"base_val": 0.02, "max_val": 0.2, "step_size_up": 6, "mode": "triangular2"},
            {
                "base_val": 0.01,
                "max_val": 0.1,
                "step_size_up": 7,
                "step_size_down": 4,
                "mode": "exp_range",
                "gamma": 0.97,
            },
            {
                "base_val": 0.01,
                "max_val": 0.1,
                "step_size_up": 7,
                "mode": "exp_range",
                "gamma": 0.97,
                "scale_mode": "cycle",
            },
            {"base_val": 0.01, "max_val": 0.1},
        ),
        drawn(
            base_val=VALUES,
            max_val=VALUES,
            step_size_up=COUNTS,
            step_size_down=st.none() | COUNTS,
            mode=st.sampled_from(["triangular", "triangular2", "exp_range"]),
            gamma=SHARES,
            scale_mode=st.sampled_from(["cycle", "iterations"]),
        ),
        lambda a: Promise(a["base_val"], low=min(a["base_val"], a["max_val"]), high=max(a["base_val"], a["max_val"])),
        ("step_size_up", "step_size_down"),
        twin=twins.cyclic,
    ),
    Row(
        "OneCycle",
        (
            {"initial_val": 0.01, "max_val": 0.1, "total_steps": 61},
            {"initial_val": 0.01, "max_val": 0.1, "total_steps": 50, "anneal_strategy": "linear"},
            {"initial_val": 0.02, "max_val": 0.2, "total_steps": 60, "pct_start": 0.4, "three_phase": True},
            {
                **{"initial_val": 0.02, "max_val": 0.2, "total_steps": 55, "pct_start": 0.25, "final_div_factor": 10.0},
                **{"three_phase": True, "anneal_strategy": "linear"},
            },
            {"initial_val": 0.05, "max_val": 0.5, "total_steps": 20, "final_div_factor": 100.0},
            {"initial_val": 0.05, "max_val": 0.5, "total_steps": 20, "pct_start": 0.05},
        ),
        drawn(
            initial_val=VALUES,
            max_val=VALUES,
            total_steps=st.integers(1, 60),
            pct_start=st.sampled_from([0.0, 0.05, 0.1, 0.25, 0.4, 0.5]),
            final_div_factor=st.sampled_from([0.5, 10.0, 1e4]),
            three_phase=FLAGS,
            anneal_strategy=st.sampled_from(["cos", "linear"]),
        ),
        one_cycle,
        ("total_steps",),
        twin=twins.one_cycle,
    ),
    Row(
        "Multiplicative",
        ({"initial_val": 0.1, "coefficient": 0.9}, {"initial_val": 0.01, "coefficient": 1.05}),
        drawn(initial_val=VALUES, coefficient=SHARES),
        falling,
        twin=twins.multiplicative,
    ),
    Row(
        "Lambda",
        (
            {"initial_val": 0.1},
            {"initial_val": 0.1, "functions": (lambda t: 0.9 ** double(t),)},
            {"initial_val": 0.5, "functions": (lambda t: 1 / (1 + double(t)), lambda t: 1 + 0.1 * double(t))},
        ),
        drawn(initial_val=VALUES),
        no_promise,
        twin=twins.with_lambdas,
    ),
    Row(
        "Chained",
        ({"schedulers": [HALVING, STEPS]}, {"schedulers": [COSINE, WARMUP, STEPS]}, {"schedulers": [COSINE]}),
        drawn(schedulers=st.lists(NESTED, min_size=1, max_size=3)),
        no_promise,
        twin=twins.chained,
    ),
    Row(
        "ScalePerParam",
        ({"scheduler": COSINE}, {"scheduler": Nested("Chained", {"schedulers": [HALVING, STEPS]})}),
        drawn(scheduler=NESTED),
        no_promise,
    ),
)
BY_STEM = {row.stem: row for row in ROWS}
CASES = [(row, arguments) for row in ROWS for arguments in row.examples]
IDS = [f"{row.stem}{i}" for row in ROWS for i in range(len(row.examples))]
