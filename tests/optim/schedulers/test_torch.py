"""Beside torch: its class of the same name as another oracle in float64, and its schedulers next to ours."""

import math
import warnings

import pytest
from torch.optim import lr_scheduler as theirs

from optim import lr_scheduler as ours
from tests.optim.schedulers.building import KIND, make, optimizer, rates, stepped, value
from tests.optim.schedulers.rows import CASES, COSINE, IDS, WARMUP, Nested

BOUND = 1e-12  # of the largest value; torch multiplies its way along, which costs a rounding each step


def polynomial(a):
    given = a["total_iters"], a.get("power", 1.0)
    return a["end_val"] == 0 and not a.get("cycle") and (a["initial_val"], lambda on: theirs.PolynomialLR(on, *given))


def linear(a):
    """torch's multiplies its way up, and so starts above 0."""
    start, end, total = a["initial_val"], a["end_val"], a["total_iters"]
    base = max(start, end)
    return start and not a.get("cycle") and (base, lambda on: theirs.LinearLR(on, start / base, end / base, total))


def exponential(a):
    gamma = a["decay_rate"] ** (1 / a["total_iters"])
    return not a.get("staircase") and (a["initial_val"], lambda on: theirs.ExponentialLR(on, gamma))


def warm_restarts(a):
    growth, low = a.get("T_mult", 1), a.get("eta_min", 0.0)
    make = lambda on: theirs.CosineAnnealingWarmRestarts(on, a["T_0"], growth, low)  # noqa: E731
    return type(growth) is int and (a["initial_val"], make)


def cyclic(a):
    """torch counts what each mode does, whatever `scale_mode` says, and so does ours."""
    given = {key: a[key] for key in ("mode", "step_size_up", "step_size_down", "gamma") if key in a}
    return a["base_val"], lambda on: theirs.CyclicLR(on, a["base_val"], a["max_val"], cycle_momentum=False, **given)


def one_cycle(a):
    first, top = a["initial_val"], a["max_val"]
    keys = ("total_steps", "pct_start", "final_div_factor", "three_phase", "anneal_strategy")
    given = {key: a[key] for key in keys if key in a} | {"div_factor": top / first, "cycle_momentum": False}
    return first, lambda on: theirs.OneCycleLR(on, top, **given)


def functions(a):
    several = a.get("functions", (lambda t: t / 30, lambda t: 0.95**t))
    return a["initial_val"], lambda on: theirs.LambdaLR(on, lambda t: math.prod(each(t) for each in several))


def children(a):
    """Those that torch has, where they start from one rate: it begins with that one at each milestone."""
    found = [each.stem in ("Linear", "Exponential", "Step") and IN_TORCH[each.stem](each.arguments) for each in a]
    return found if all(found) and len({base for base, _ in found}) == 1 else None


def sequential(a):
    found = children(a["schedulers"])
    make = lambda on: theirs.SequentialLR(on, [new(on) for _, new in found], a["milestones"])  # noqa: E731
    return found and (found[0][0], make)


# The rate of the optimizer and torch's scheduler for the arguments of each class; False for another formula.
IN_TORCH = {
    "Constant": lambda a: (a["val"], lambda on: theirs.ConstantLR(on, factor=1.0, total_iters=5)),
    "Polynomial": polynomial,
    "Linear": linear,
    "Exponential": exponential,
    "MultiStep": lambda a: (
        0 not in a["milestones"] and (a["initial_val"], lambda on: theirs.MultiStepLR(on, a["milestones"], a["gamma"]))
    ),
    "Step": lambda a: (a["initial_val"], lambda on: theirs.StepLR(on, a["step_size"], a["gamma"])),
    "CosineAnnealing": lambda a: (
        a["initial_val"],
        lambda on: theirs.CosineAnnealingLR(on, a["T_max"], a.get("eta_min", 0.0)),
    ),
    "CosineAnnealingWarmRestarts": warm_restarts,
    "Cyclic": cyclic,
    "OneCycle": one_cycle,
    "Multiplicative": lambda a: (a["initial_val"], lambda on: theirs.MultiplicativeLR(on, lambda t: a["coefficient"])),
    "Lambda": functions,
    "Sequential": sequential,
    "Chained": lambda a: (
        children(a["schedulers"][:1])
        and all(each.stem in ("Exponential", "Step") for each in a["schedulers"])
        and (
            children(a["schedulers"][:1])[0][0],
            lambda on: theirs.ChainedScheduler([IN_TORCH[stem](given)[1](on) for stem, given in a["schedulers"]]),
        )
    ),
}
RISING = Nested("Exponential", dict(initial_val=0.1, total_iters=10, decay_rate=0.5))
EXAMPLES = {name: case for name, case in zip(IDS, CASES) if case[0] in IN_TORCH and IN_TORCH[case[0]](case[1])}
EXAMPLES["Sequential"] = "Sequential", dict(schedulers=[WARMUP, RISING], milestones=[5])


@pytest.mark.parametrize(("stem", "arguments"), EXAMPLES.values(), ids=EXAMPLES)
def test_the_values_of_torch(stem, arguments):
    """CosineAnnealingLR by its closed form: step by step, its rounding errors grow past T_max."""
    base, new = IN_TORCH[stem](arguments)
    on = optimizer(lr=base)
    steps = arguments.get("total_steps", 300)
    with warnings.catch_warnings():
        # torch's SequentialLR steps with an epoch, and warns its users of it
        warnings.filterwarnings("ignore", message="The epoch parameter in `scheduler.step")
        scheduler = new(on)
        other = rates(on)
        while len(other) < steps:
            on.step()
            scheduler.step()
            closed = stem == "CosineAnnealing"
            other.append(scheduler._get_closed_form_lr()[0] if closed else on.param_groups[0]["lr"])
    mine = stepped(make(stem, arguments, optimizer()), steps)
    assert mine == pytest.approx(other, rel=0, abs=BOUND * max(map(abs, other)))


def test_every_class_that_torch_has_is_compared():
    assert {stem for stem, _ in EXAMPLES.values()} == set(IN_TORCH)


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
