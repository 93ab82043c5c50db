"""Values: the formula in the docstring, step by step, on numbers and on tensors; exact ends; no rounding of counts.

The laws that a closed form keeps as any schedule does are tested in tests/laws.
"""

import inspect
import math
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from torch.optim import lr_scheduler as theirs

import optim
import timesched
from optim import lr_scheduler as lr
from tests.laws.rows import CLOSED_FORMS
from tests.optim.schedulers.building import KIND, class_of, count, make, moved, optimizer, rates, stepped, value
from tests.optim.schedulers.rows import CASES, COSINE, IDS, WARMUP, Nested
from timesched.testing.runs import Run
from timesched.time.units import TimeUnit

CASE = pytest.mark.parametrize(("stem", "arguments"), CASES, ids=IDS)
HUGE = (2**24 + 1, 2**53 - 1, 2**53 + 1, 2**60 + 7)
KNOWN = {"max": max, "min": min, "sum": sum, "range": range}
KNOWN |= {name: getattr(math, name) for name in ("ceil", "cos", "floor", "pi", "prod", "sqrt")}


@cache
def code_of(cls):
    lines = inspect.getdoc(cls).split("Formula:\n")[1].split("\n\n")[0]
    return compile(inspect.cleandoc("\n" + lines), cls.__name__, "exec")


def formula(cls, names, t):
    """The value at step `t` by the formula in a docstring, whose symbols are `names`, as it is printed."""
    symbols = {"__builtins__": {}, **KNOWN, **names, "t": t}
    exec(code_of(cls), symbols)
    return symbols["lr"]


def names_of(stem, arguments, one, steps):
    """What the symbols in the docstring of a scheduler stand for."""
    names = {name: getattr(one, name, None) for name in inspect.signature(class_of(stem)).parameters}
    if stem in ("Sequential", "Chained"):
        names["schedulers"] = [each.values(steps).__getitem__ for each in one.schedulers]
    if stem == "ScalePerParam":
        names |= {"scheduler": one.scheduler.values(steps).__getitem__, "factor": 1.0}
    if stem == "Lambda":
        names["functions"] = arguments.get("functions", (lambda t: t / 30, lambda t: 0.95**t))
    return names


def closed_form(one):
    """What a graph computes, from the step tensor."""
    found = one._get_closed_form()
    assert isinstance(found, torch.Tensor) and found.dim() == 0 and found.dtype == torch.float64
    return float(found)


@CASE
@KIND
def test_the_formula_in_the_docstring(stem, arguments, kind):
    """At every step, whoever holds the value; `values` foretell them; weight decays have the same."""
    one = make(stem, arguments, optimizer(kind))
    names = names_of(stem, arguments, one, 80)
    expected = [formula(class_of(stem), names, t) for t in range(80)]
    values = one.values(80)
    assert values == pytest.approx(expected, rel=1e-13, abs=1e-17) and all(type(each) is float for each in values)
    assert stepped(one, 80) == pytest.approx(expected, rel=1e-13, abs=1e-17)
    assert count(one) == 79 and one.values(80) == values
    if kind == "numbers":
        assert stepped(make(stem, arguments, optimizer(), "wd"), 80) == values


@pytest.mark.parametrize("row", CLOSED_FORMS, ids=lambda row: row.name)
def test_the_formula_of_any_arguments(row):
    """As the rows of the laws draw them. 1e-12 of the largest: a power of a rounded argument errs more than its curve.

    What divides by zero is a phase of no length, of which the formula says nothing.
    """
    cls = class_of(row.name)
    names = list(inspect.signature(cls).parameters)[1:]

    @settings(max_examples=settings.default.max_examples // 4)
    @given(st.data())
    def holds(data):
        schedule = data.draw(row.schedules(Run(30), [TimeUnit.BATCH]))
        symbols = dict(zip(names, vars(schedule).values()))
        values = [schedule.at(f"{t}ba", timesched.Horizon("30ba")) for t in range(70)]
        try:
            expected = [formula(cls, symbols, t) for t in range(70)]
        except ZeroDivisionError:
            reject()
        scale = max(map(abs, expected))
        assert all(abs(one - other) <= 1e-12 * scale for one, other in zip(values, expected)), symbols

    holds()


@CASE
def test_the_value_depends_on_the_step_alone(stem, arguments):
    """Whichever way the step was come to, whatever stood in the group, and by the closed form too."""
    one = make(stem, arguments, optimizer())
    values = one.values(60)
    for t in (17, 3, 59, 0, 31):
        assert value(moved(one, t)) == values[t]
        assert abs(closed_form(one) - values[t]) <= 1e-15 * max(1.0, *values)
    one.optimizer.param_groups[0]["lr"] = 9.0
    one.step()
    assert value(one) == values[32]


@KIND
@pytest.mark.parametrize("t", HUGE)
def test_a_huge_boundary_is_met_to_the_step(t, kind):
    """Nothing is one step early or late where float64 has no more odd numbers; a period is exact there, too."""
    first, second = (Nested("Constant", {"val": each}) for each in (1.0, 2.0))
    for stem, arguments in {
        "PiecewiseConstant": {"vals": [1.0, 2.0], "milestones": [t]},
        "MultiStep": {"initial_val": 1.0, "gamma": 2.0, "milestones": [t]},
        "Sequential": {"schedulers": [first, second], "milestones": [t]},
        "Step": {"initial_val": 1.0, "gamma": 2.0, "step_size": t},
        "OneCycle": {"initial_val": 1.0, "max_val": 3.0, "total_steps": t, "final_div_factor": 0.5},
    }.items():
        one = make(stem, arguments, optimizer(kind))
        for step in (t - 1, t, t + 1):
            expected = 2.0 if step >= t or stem == "OneCycle" else 1.0
            assert value(moved(one, step)) == expected == closed_form(one), (stem, step - t)
    for stem, arguments, period in (
        ("CosineAnnealing", dict(initial_val=0.1, T_max=15, eta_min=0.01), 30),
        ("CosineAnnealingWarmRestarts", dict(initial_val=0.1, T_0=7), 7),
        ("Cyclic", dict(base_val=0.01, max_val=0.1, step_size_up=5, step_size_down=10), 15),
    ):
        one = make(stem, arguments, optimizer(kind))
        expected = one.values(period)[t % period]
        assert value(moved(one, t)) == expected and closed_form(one) == pytest.approx(expected, rel=1e-14)


@KIND
def test_a_cycle_reaches_its_ends(kind):
    """Exactly the highest value at the top, exactly the lowest at the bottom, for any pair of values."""
    for low, high in ((0.1, 0.7), (0.3, 1.1), (2.0, 0.28343563906947217), (1e-3, 1 / 3)):
        one = make("Cyclic", {"base_val": low, "max_val": high, "step_size_up": 3}, optimizer(kind))
        assert [value(moved(one, t)) for t in (0, 3, 6, 9)] == [low, high, low, high]


@KIND
@pytest.mark.parametrize("three_phase", [False, True])
def test_a_one_cycle_whose_way_up_is_its_first_step(three_phase, kind):
    """torch divides by zero there."""
    one = lr.OneCycleLR(optimizer(kind), 0.1, 1.0, 4, 0.25, 10.0, three_phase, "linear")
    down = [0.1, 0.07, 0.04, 0.01] if three_phase else [0.1, 0.67, 0.34, 0.01]
    assert one.values(5) == stepped(one, 5) == pytest.approx([*down, 0.01], abs=1e-15)


def test_a_one_cycle_may_rise_for_all_its_steps_or_half_of_three_phases():
    """The largest shares that are taken. With any larger share a phase would have a length below 0."""
    one = lr.OneCycleLR(optimizer(), 0.1, 1.0, 5, 1.0, 10.0, False, "linear")
    assert one.values(4) == pytest.approx([0.1, 0.325, 0.55, 0.775], abs=1e-15)
    one = lr.OneCycleLR(optimizer(), 0.1, 1.0, 7, 0.5, 10.0, True, "linear")
    assert one.values(8) == pytest.approx([0.1, 0.46, 0.82, 0.82, 0.46, 0.1, 0.01, 0.01], abs=1e-15)
    for share, three_phase in ((1.001, False), (0.501, True)):
        with pytest.raises(timesched.TimeError, match=f"OneCycleLR.pct_start={share}: it is too large"):
            lr.OneCycleLR(optimizer(), 0.1, 1.0, 7, share, 10.0, three_phase, "linear")


def test_a_function_gets_whole_steps_also_between_two_steps():
    class Halves(lr.LambdaLR):
        def set_lr_lambda(self):
            return lambda t: 0.5 ** t.double()

    curve = Halves(optimizer(), 1.0).schedule.curve(timesched.Horizon("10ba"), "ba")
    assert [float(curve(torch.tensor(t, dtype=torch.float64))) for t in (2.0, 2.5, 3.0)] == [0.25, 0.25, 0.125]


def test_numbers_of_numpy():
    """As arrays and configurations have them; a power that no float holds is its limit."""
    line = lr.LinearLR(optimizer(), np.float64(0.1), np.float32(0.0), np.int64(4))
    steps = lr.PiecewiseConstantLR(optimizer(), np.array([0.5, 0.25]), np.array([3]))
    assert line.values(5) == lr.LinearLR(optimizer(), 0.1, 0.0, 4).values(5)
    assert steps.values(5) == [0.5, 0.5, 0.5, 0.25, 0.25]
    tiny = moved(lr.InverseExponentialTimeDecayLR(optimizer(), np.float64(0.1), 20.0, 5, 0.5), 2**62)
    assert value(tiny) == closed_form(tiny) == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_tensors_of_other_dtypes(dtype):
    """The group's tensor keeps its dtype, and holds the value rounded once."""
    on = optimizer(lr=torch.tensor(0.5, dtype=dtype))
    held = on.param_groups[0]["lr"]
    one = make("CosineDecay", {"initial_val": 0.1, "end_val": 0.0, "total_iters": 9}, on)
    for expected in one.values(9):
        assert on.param_groups[0]["lr"] is held and held.dtype == dtype
        assert held == torch.tensor(expected, dtype=torch.float64).to(dtype)
        one.step()


class Next(lr.LambdaLR):
    def set_lr_lambda(self):
        return lambda t: t + 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_another_default_dtype(dtype):
    """It has no say in the values; nor has what a function returns: products are in double precision."""

    def values():
        return [closed_form(moved(make(*each, optimizer("ours")), t)) for each in CASES for t in (1, 8)]

    before, expected = torch.get_default_dtype(), values()
    torch.set_default_dtype(dtype)
    try:
        assert values() == expected and Next(optimizer(), 0.1).values(3) == [0.1, 0.2, 0.1 * 3]
        assert closed_form(moved(Next(optimizer(), 1.0), 2**24 + 2)) == 2**24 + 3
    finally:
        torch.set_default_dtype(before)


CONSTANTS = [Nested("Constant", {"val": val}) for val in (4.0, 3.0, 2.0)]


@KIND
@pytest.mark.parametrize(
    ("stem", "arguments", "expected"),
    [
        ("PiecewiseConstant", dict(vals=[4.0, 3.0, 2.0], milestones=[1, 1]), [4.0, 2.0, 2.0]),
        ("MultiStep", dict(initial_val=4.0, gamma=0.5, milestones=[1, 1, 2]), [4.0, 1.0, 0.5]),
        ("Sequential", dict(schedulers=CONSTANTS, milestones=[1, 1]), [4.0, 2.0, 2.0]),
        ("Sequential", dict(schedulers=CONSTANTS, milestones=[0, 2]), [3.0, 3.0, 2.0]),
    ],
)
def test_phases_of_no_length(stem, arguments, expected, kind):
    """They begin with their last value; of milestones at one step, all are reached there."""
    assert stepped(make(stem, arguments, optimizer(kind)), 3) == expected


def test_a_model_on_the_meta_device():
    with torch.device("meta"):
        on = optim.AdamW(torch.nn.Linear(3, 3).parameters(), lr=1.0)
        children = [lr.LinearLR(on, 0.0, 0.5, 2), lr.CosineDecayLR(on, 0.5, 0.0, 3)]
        one = lr.SequentialLR(on, children, [2])
        one.step()
        one.load_state_dict(one.state_dict())
    assert rates(on) == [0.25] and one.state_dict()["last_epoch"] == 1
    with pytest.raises(ValueError, match="device='meta'.*not a finite number"):
        lr.ConstantLR(optimizer("numbers", {"lr": torch.ones((), device="meta")}), 1.0)


# Beside torch

# Ours and torch's, where no golden number binds; of all classes tests/docs compares the calls in coming_from/torch.md.
# torch counts what each mode of a cycle does, whatever `scale_mode` says.
STILL = {"cycle_momentum": False}
UP, RATE = {"base_lr": 0.1, "max_lr": 1.0}, {"initial_learning_rate": 0.1}
PAIRS = [  # the class, the arguments of both, ours, and torch's
    ("CosineAnnealingWarmRestarts", {"T_0": 5, "T_mult": 2, "eta_min": 0.02}, RATE, {}),
    ("CyclicLR", {**UP, "step_size_up": 6, "mode": "triangular2"}, {"scale_mode": "iterations"}, STILL),
    ("CyclicLR", {**UP, "step_size_up": 7, "step_size_down": 4, "mode": "exp_range", "gamma": 0.97}, {}, STILL),
    ("OneCycleLR", {"max_lr": 1.0, "total_steps": 60, "three_phase": True}, RATE, {"div_factor": 10, **STILL}),
]


@pytest.mark.parametrize(("name", "both", "mine", "more"), PAIRS)
def test_the_values_of_torch(name, both, mine, more):
    on = optimizer(lr=0.1)
    other = getattr(theirs, name)(on, **both, **more)
    expected = rates(on)
    while len(expected) < 60:
        on.step()
        other.step()
        expected += rates(on)
    # torch multiplies its way along, which costs a rounding each step
    assert stepped(getattr(lr, name)(optimizer(), **both, **mine), 60) == pytest.approx(expected, rel=0, abs=1e-12)


def test_torchs_own_schedulers_beside_ours():
    """On another key; torch's wraps the optimizer's step, and its warning still works for its own order.

    Its sequence sets its schedulers back to -1, from where these cannot begin.
    """
    on = optimizer("ours")
    one, other = make(*COSINE, on, "wd"), theirs.StepLR(on, 2, 0.5)
    for t in range(4):
        assert value(one) == one.values(5)[t] and rates(on) == [0.5 * 0.5 ** (t // 2)]
        on.step()
        one.step()
        other.step()
    first = make(*WARMUP, on)
    with pytest.raises(ValueError, match="last_epoch=-1: torch's SequentialLR"):
        theirs.SequentialLR(on, [theirs.ConstantLR(on, 1.0), first], milestones=[2])
    assert int(first.last_epoch) == 0
