"""Beside torch: its class of the same name as a second oracle in float64, and its schedulers next to ours."""

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch.optim import lr_scheduler as theirs

from optim import lr_scheduler as ours
from tests.optim.schedulers.building import KIND, make, optimizer, rates, stepped, value
from tests.optim.schedulers.rows import BY_STEM, CASES, COSINE, IDS, SOME, WARMUP, Nested

BOUND = 1e-12  # of the largest value; torch multiplies its way along, which costs a rounding each step


class InTorch(NamedTuple):
    """`base`: the optimizer's rate; `steps`: how many values agree; `closed`: those of its closed form are meant."""

    base: float
    make: Callable[[Any], Any]
    steps: int = 300
    closed: bool = False


# A function of the arguments for each schedule; None where torch has another formula for these arguments.


def polynomial(a):
    if a["end_val"] or a.get("cycle") or not a["total_iters"]:
        return None
    return InTorch(a["initial_val"], lambda on: theirs.PolynomialLR(on, a["total_iters"], a.get("power", 1.0)))


def linear(a):
    start, end, total = a["initial_val"], a["end_val"], a["total_iters"]
    base = max(start, end)
    if a.get("cycle") or not total or start <= 1e-3 * base:  # torch starts above 0, and multiplies its way up
        return None
    return InTorch(base, lambda on: theirs.LinearLR(on, start / base, end / base, total))


def exponential(a):
    gamma = a["decay_rate"] ** (1 / a["total_iters"])
    return None if a.get("staircase") else InTorch(a["initial_val"], lambda on: theirs.ExponentialLR(on, gamma))


def multi_step(a):
    if 0 in a["milestones"]:
        return None
    return InTorch(a["initial_val"], lambda on: theirs.MultiStepLR(on, a["milestones"], a["gamma"]))


def cosine_annealing(a):
    """By the closed form: step by step, torch's rounding errors grow past T_max."""
    low = a.get("eta_min", 0.0)
    return InTorch(a["initial_val"], lambda on: theirs.CosineAnnealingLR(on, a["T_max"], low), closed=True)


def warm_restarts(a):
    growth, low = a.get("T_mult", 1), a.get("eta_min", 0.0)
    if type(growth) is not int:
        return None
    return InTorch(a["initial_val"], lambda on: theirs.CosineAnnealingWarmRestarts(on, a["T_0"], growth, low))


def cyclic(a):
    """torch takes its own scale_mode for each mode."""
    mode = a.get("mode", "triangular")
    own = "iterations" if mode == "exp_range" else "cycle"
    if a.get("scale_mode", own) != own:
        return None
    given = {key: a[key] for key in ("step_size_up", "step_size_down", "gamma") if key in a}
    ends = a["base_val"], a["max_val"]
    return InTorch(ends[0], lambda on: theirs.CyclicLR(on, *ends, mode=mode, cycle_momentum=False, **given))


def one_cycle(a):
    first, top = a["initial_val"], a["max_val"]
    if not first or not top or a.get("pct_start", 0.3) * a["total_steps"] <= 1:
        return None
    keys = ("total_steps", "pct_start", "final_div_factor", "three_phase", "anneal_strategy")
    given = {key: a[key] for key in keys if key in a} | {"div_factor": top / first, "cycle_momentum": False}
    return InTorch(first, lambda on: theirs.OneCycleLR(on, top, **given), steps=a["total_steps"])


def lambdas(a):
    functions = a.get("functions", (lambda t: t / 30, lambda t: 0.95**t))
    return InTorch(a["initial_val"], lambda on: theirs.LambdaLR(on, lambda t: math.prod(f(t) for f in functions)))


def children(a, stems):
    """Those of each child, where they start from one rate; else None."""
    found = [IN_TORCH[stem](arguments) if stem in stems else None for stem, arguments in a["schedulers"]]
    return found if all(found) else None


def sequential(a):
    """torch's restart the one rate they have at each milestone: here, where ours do the same."""
    found = children(a, ("Linear", "Exponential", "Step", "MultiStep"))
    if not found or len({each.base for each in found}) > 1 or 0 in a["milestones"]:
        return None
    return InTorch(
        found[0].base, lambda on: theirs.SequentialLR(on, [each.make(on) for each in found], a["milestones"])
    )


def chained(a):
    """torch multiplies by the ratio of one step to the last: the same, where no value is 0 on the way."""
    found = children(a, ("Exponential", "Step", "MultiStep"))
    return found and InTorch(found[0].base, lambda on: theirs.ChainedScheduler([each.make(on) for each in found]))


IN_TORCH = {
    "Constant": lambda a: InTorch(a["val"], lambda on: theirs.ConstantLR(on, factor=1.0, total_iters=5)),
    "Polynomial": polynomial,
    "Linear": linear,
    "Exponential": exponential,
    "MultiStep": multi_step,
    "Step": lambda a: InTorch(a["initial_val"], lambda on: theirs.StepLR(on, a["step_size"], a["gamma"])),
    "CosineAnnealing": cosine_annealing,
    "CosineAnnealingWarmRestarts": warm_restarts,
    "Cyclic": cyclic,
    "OneCycle": one_cycle,
    "Multiplicative": lambda a: InTorch(
        a["initial_val"], lambda on: theirs.MultiplicativeLR(on, lambda t: a["coefficient"])
    ),
    "Lambda": lambdas,
    "Sequential": sequential,
    "Chained": chained,
}


def values_of(in_torch, steps):
    """The values of torch's scheduler in force at the steps from 0 on."""
    on = optimizer(lr=in_torch.base)
    with warnings.catch_warnings():
        # torch's SequentialLR steps with an epoch, and warns its users of it
        warnings.filterwarnings("ignore", message="The epoch parameter in `scheduler.step")
        scheduler = in_torch.make(on)
        seen = rates(on)
        while len(seen) < steps:
            on.step()
            scheduler.step()
            seen.append(scheduler._get_closed_form_lr()[0] if in_torch.closed else on.param_groups[0]["lr"])
    return seen


def assert_equal(stem, arguments, in_torch, steps):
    steps = min(steps, in_torch.steps)
    mine, other = stepped(make(stem, arguments, optimizer()), steps), values_of(in_torch, steps)
    largest = max(map(abs, other))
    worst = max(range(steps), key=lambda t: abs(mine[t] - other[t]))
    assert abs(mine[worst] - other[worst]) <= BOUND * largest, (worst, mine[worst], other[worst])


# Sequences in which ours restart the rate, as torch's do, beside those of the table.
SEQUENCES = {
    "Sequence1": dict(schedulers=[WARMUP], milestones=[]),
    "Sequence2": dict(
        schedulers=[WARMUP, Nested("Exponential", dict(initial_val=0.1, total_iters=10, decay_rate=0.5))],
        milestones=[5],
    ),
    "Sequence3": dict(
        schedulers=[
            Nested("Step", dict(initial_val=0.1, step_size=3, gamma=0.5)),
            Nested("MultiStep", dict(initial_val=0.1, milestones=[4, 9], gamma=0.1)),
            Nested("Exponential", dict(initial_val=0.1, total_iters=1, decay_rate=0.9)),
        ],
        milestones=[10, 30],
    ),
}
EXAMPLES = {
    **{name: (row.stem, arguments) for name, (row, arguments) in zip(IDS, CASES) if row.stem in IN_TORCH},
    **{name: ("Sequential", arguments) for name, arguments in SEQUENCES.items()},
}
COMPARED = {name: case for name, case in EXAMPLES.items() if IN_TORCH[case[0]](case[1])}


@pytest.mark.parametrize(("stem", "arguments"), COMPARED.values(), ids=COMPARED)
def test_examples(stem, arguments):
    assert_equal(stem, arguments, IN_TORCH[stem](arguments), 300)


def test_every_class_that_torch_has_is_compared():
    assert {stem for stem, _ in COMPARED.values()} == set(IN_TORCH) and set(SEQUENCES) <= set(COMPARED)


@pytest.mark.parametrize("stem", [stem for stem in IN_TORCH if stem != "Sequential"])
@settings(max_examples=SOME // 2, suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data())
def test_any_arguments(stem, data):
    arguments = data.draw(BY_STEM[stem].drawn)
    in_torch = IN_TORCH[stem](arguments)
    assume(in_torch and in_torch.base > 0)
    assert_equal(stem, arguments, in_torch, 150)


def test_torchs_own_schedulers_beside_ours():
    """On another key; torch's wraps the optimizer's step, and its warning still works for its own order."""
    on = optimizer("ours")
    one, other = make(*COSINE, on, "wd"), theirs.StepLR(on, 2, 0.5)
    for t in range(4):
        assert value(one) == one.values(5)[t] and rates(on) == [0.5 * 0.5 ** (t // 2)]
        on.step()
        one.step()
        other.step()
    assert not isinstance(other, ours.LRScheduler)


@KIND
def test_inside_of_torchs_sequence(kind):
    """It sets its schedulers back to -1, from where these cannot begin."""
    on = optimizer(kind)
    of_torch, first = theirs.ConstantLR(on, 1.0), make(*WARMUP, on)
    with pytest.raises(ValueError, match=r"write optim\.lr_scheduler\.SequentialLR\(optimizer, \[first, second\]"):
        theirs.SequentialLR(on, [of_torch, first], milestones=[2])
    assert int(first.last_epoch) == 0
