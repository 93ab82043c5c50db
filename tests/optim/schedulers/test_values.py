"""Values: the formulas in plain Python, exact ends, the range; the same on numbers, on tensors and in each family."""

import copy
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import optim
import timesched
from optim import lr_scheduler as lr
from tests.optim.closed_forms import SCHEDULES
from tests.optim.schedulers.building import (
    KEYS,
    KIND,
    KINDS,
    class_of,
    count,
    make,
    moved,
    optimizer,
    rates,
    stepped,
    value,
)
from tests.optim.schedulers.rows import BY_STEM, CASES, IDS, ROWS, SOME, Nested
from tests.optim.schedulers.signatures import WD

CASE = pytest.mark.parametrize(("row", "arguments"), CASES, ids=IDS)
EACH = pytest.mark.parametrize("stem", BY_STEM)
HUGE = (2**24 + 1, 2**53 - 1, 2**53 + 1, 2**60 + 7)


def largest(row, arguments, steps=80):
    return max(map(abs, row.values(arguments, steps)))


def closed_form(one):
    """What a graph computes, from the step tensor."""
    found = one._get_closed_form()
    assert isinstance(found, torch.Tensor) and found.dim() == 0 and found.dtype == torch.float64
    return float(found)


def test_the_table_has_every_scheduler():
    assert len(ROWS) == len(BY_STEM) and set(BY_STEM) == set(WD)
    for family in KEYS:
        assert len({class_of(stem, family) for stem in BY_STEM}) == len(ROWS)
    composed = {"SequentialLR", "ChainedLR", "ScalePerParamLR"}
    assert SCHEDULES.keys() == {class_of(stem, "lr").__name__ for stem in BY_STEM} - composed


@CASE
@KIND
def test_examples_step_by_step(row, arguments, kind):
    one = make(row.stem, arguments, optimizer(kind))
    scale = largest(row, arguments)
    for t, seen in enumerate(stepped(one, 80)):
        assert seen == pytest.approx(row.formula(arguments, t), rel=0, abs=1e-13 * scale), t
    assert count(one) == 79


@EACH
@settings(max_examples=SOME)
@given(data=st.data())
def test_any_arguments(stem, data):
    """The formula; `values` that change nothing, and are those of stepping.

    1e-12: a power of a rounded argument errs more than its curve.
    """
    row = BY_STEM[stem]
    arguments = data.draw(row.drawn)
    one = make(stem, arguments, optimizer())
    before = copy.deepcopy(one.state_dict()), value(one)
    values = one.values(90)
    assert (one.state_dict(), value(one)) == before
    expected = row.values(arguments, 90)
    scale = max(map(abs, expected))
    for t, (mine, other) in enumerate(zip(values, expected)):
        assert type(mine) is float and abs(mine - other) <= 1e-12 * scale, t
    assert stepped(one, 50) == values[:50] == one.values(50)


@EACH
@settings(max_examples=SOME)
@given(data=st.data())
def test_ends_and_range(stem, data):
    """Exactly the value at the start, exactly the value at the end and after it, never outside the range."""
    row = BY_STEM[stem]
    arguments = data.draw(row.drawn)
    promise = row.promise(arguments)
    one = make(stem, arguments, optimizer())
    values = one.values(150)
    if promise.start is not None:
        assert values[0] == promise.start
    if promise.end is not None:
        assert set(values[promise.until :]) == {promise.end}
        assert value(moved(one, 2**62)) == promise.end and closed_form(one) == promise.end
    assert all(promise.low <= each <= promise.high for each in values)
    for t in data.draw(st.lists(st.integers(0, 2**40), max_size=5)):
        assert promise.low <= closed_form(moved(one, t)) <= promise.high


@EACH
@settings(max_examples=SOME)
@given(data=st.data())
def test_numbers_and_tensors_agree(stem, data):
    """One formula: to 1e-15 of the largest of 1, the value, and the arguments it is computed from."""
    row = BY_STEM[stem]
    arguments = data.draw(row.drawn | st.sampled_from(row.examples))
    one = make(stem, arguments, optimizer())
    steps = data.draw(st.lists(st.integers(0, 130) | st.integers(0, 2**62), min_size=1, max_size=20))
    for t in steps:
        try:
            number, tensor = value(moved(one, t)), closed_form(one)
        except ValueError as refused:  # what grows without end
            assert "to inf at step" in str(refused)
            continue
        if number == tensor:
            continue
        assert abs(number - tensor) <= 1e-15 * max(1.0, abs(number), largest(row, arguments, 1)), t


@CASE
def test_huge_steps(row, arguments):
    """As exact past 2**24 and 2**53 as before: the step is an integer until it is divided."""
    for t in HUGE:
        try:
            expected = [row.formula(arguments, step) for step in range(t, t + 4)]
        except OverflowError:  # it grows without end
            continue
        for kind in KINDS[1:3]:  # those with tensors and those with numbers, of either package
            one = moved(make(row.stem, arguments, optimizer(kind)), t)
            for i, other in enumerate(expected):
                assert count(one) == t + i
                assert abs(value(one) - other) <= 1e-12 * max(1.0, abs(other)), (kind, t, i)
                assert abs(closed_form(one) - other) <= 1e-12 * max(1.0, abs(other)), (kind, t, i)
                one.step()


@KIND
@pytest.mark.parametrize("stem", ["PiecewiseConstant", "MultiStep", "Sequential", "Step", "OneCycle"])
def test_a_huge_boundary_is_met_to_the_step(stem, kind):
    """Nothing is one step early or late where float64 has no more odd numbers."""
    first, second = (Nested("Constant", {"val": each}) for each in (1.0, 2.0))
    for t in HUGE:
        arguments = {
            "PiecewiseConstant": {"vals": [1.0, 2.0], "milestones": [t]},
            "MultiStep": {"initial_val": 1.0, "gamma": 2.0, "milestones": [t]},
            "Sequential": {"schedulers": [first, second], "milestones": [t]},
            "Step": {"initial_val": 1.0, "gamma": 2.0, "step_size": t},
            "OneCycle": {"initial_val": 1.0, "max_val": 3.0, "total_steps": t, "final_div_factor": 0.5},
        }[stem]
        one = make(stem, arguments, optimizer(kind))
        for step in (t - 1, t, t + 1):
            moved(one, step)
            expected = 2.0 if step >= t or stem == "OneCycle" else 1.0
            assert value(one) == expected == closed_form(one), step - t


@KIND
def test_a_cycle_reaches_its_ends(kind):
    """Exactly the highest value at the top, exactly the lowest at the bottom, for any pair of values."""
    for low, high in ((0.1, 0.7), (0.3, 1.1), (2.0, 0.28343563906947217), (1e-3, 1 / 3)):
        one = make("Cyclic", {"base_val": low, "max_val": high, "step_size_up": 3}, optimizer(kind))
        assert (value(one), value(moved(one, 3)), value(moved(one, 6)), value(moved(one, 9))) == (low, high, low, high)
    halving = {"step_size_up": 1, "mode": "triangular2", "scale_mode": "iterations"}  # its factor is 2 at step 0
    one = make("Cyclic", {"base_val": 0.5, "max_val": 0.02079385017830266, **halving}, optimizer(kind))
    assert (value(one), value(moved(one, 1)), value(moved(one, 2))) == (0.5, 0.02079385017830266, 0.5)


@KIND
@pytest.mark.parametrize("three_phase", [False, True])
def test_a_one_cycle_whose_way_up_is_its_first_step(three_phase, kind):
    """torch divides by zero there."""
    one = lr.OneCycleLR(optimizer(kind), 0.1, 1.0, 4, 0.25, 10.0, three_phase, "linear")
    down = [0.1, 0.07, 0.04, 0.01] if three_phase else [0.1, 0.67, 0.34, 0.01]
    assert one.values(5) == stepped(one, 5) == pytest.approx([*down, 0.01], abs=1e-15)


@KIND
def test_a_power_that_no_float_holds(kind):
    """The limit, as on tensors, and no OverflowError."""
    one = moved(lr.InverseExponentialTimeDecayLR(optimizer(kind), 0.1, 20.0, 5, 0.5), 2**62)
    assert value(one) == closed_form(one) == 0.0


@CASE
def test_the_families_give_the_same_numbers(row, arguments):
    """Learning rates, weight decays, and any other key, bit for bit."""
    seen = {family: stepped(make(row.stem, arguments, optimizer(), family), 70) for family in KEYS}
    assert seen["lr"] == seen["wd"] == seen["generic"]


@pytest.mark.parametrize(
    ("schedule", "stem", "arguments"),
    [
        (timesched.ConstantScheduler(1.0), "Constant", dict(val=1.0)),
        (timesched.StepScheduler("7ba", 0.3), "Step", dict(step_size=7, gamma=0.3)),
        (
            timesched.MultiStepScheduler(["3ba", "20ba", "20ba"], 0.7),
            "MultiStep",
            dict(gamma=0.7, milestones=[3, 20, 20]),
        ),
        (timesched.LinearScheduler(0.2, 0.9, "33ba"), "Linear", dict(initial_val=0.2, end_val=0.9, total_iters=33)),
        (timesched.ExponentialScheduler(0.7, "9ba"), "Exponential", dict(total_iters=9, decay_rate=0.7)),
        (timesched.CosineAnnealingScheduler("33ba", 0.1), "CosineDecay", dict(end_val=0.1, total_iters=33)),
        (
            timesched.CosineAnnealingWarmRestartsScheduler("7ba", 1.5, 0.1),
            "CosineAnnealingWarmRestarts",
            dict(T_0=7, T_mult=1.5, eta_min=0.1),
        ),
        (timesched.PolynomialScheduler(1.7, "33ba", 0.1), "Polynomial", dict(end_val=0.1, total_iters=33, power=1.7)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_multipliers_and_values_are_one_formula(schedule, stem, arguments):
    """The values that begin or end at 1 are the multipliers, bit for bit, on numbers and on tensors."""
    one = make(stem, arguments if stem == "Constant" else {"initial_val": 1.0, **arguments}, optimizer())
    horizon = timesched.Horizon("100ba")
    assert [schedule.at(f"{t}ba", horizon) for t in range(100)] == one.values(100)
    counts = torch.arange(100)
    values = one.schedule.curve(horizon, "ba")
    assert torch.equal(schedule.curve(horizon, "ba")(counts), values(counts))


def test_numbers_of_numpy():
    """As arrays and configurations have them; what is kept of them is plain."""
    line = lr.LinearLR(optimizer(), np.float64(0.1), np.float32(0.0), np.int64(4))
    steps = lr.PiecewiseConstantLR(optimizer(), np.array([0.5, 0.25]), np.array([3]))
    assert line.values(5) == lr.LinearLR(optimizer(), 0.1, 0.0, 4).values(5)
    assert steps.values(5) == [0.5, 0.5, 0.5, 0.25, 0.25]
    for one in (line, steps):
        assert json.loads(json.dumps(one.state_dict())) == one.state_dict()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_tensors_of_other_dtypes(dtype):
    """The group's tensor keeps its dtype, and holds the value rounded once."""
    on = optimizer()
    on.param_groups[0]["lr"] = torch.tensor(0.5, dtype=dtype)
    one = make("CosineDecay", {"initial_val": 0.1, "end_val": 0.0, "total_iters": 9}, on)
    for expected in one.values(9):
        held = on.param_groups[0]["lr"]
        assert held.dtype == dtype and held == torch.tensor(expected, dtype=torch.float64).to(dtype)
        one.step()


class Next(lr.LambdaLR):
    def set_lr_lambda(self):
        return lambda t: t + 1


def next_values():
    """Of each row by the closed form; the functions of a lambda schedule may say what they like of dtypes."""
    return {
        row.stem: [closed_form(moved(make(row.stem, row.examples[-1], optimizer("ours")), t)) for t in range(9)]
        for row in ROWS
        if row.stem != "Lambda"
    }


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_another_default_dtype(dtype):
    """It has no say in the values; nor has what a function returns: products are in double precision."""
    before, expected = torch.get_default_dtype(), next_values()
    torch.set_default_dtype(dtype)
    try:
        assert next_values() == expected
        assert Next(optimizer(), 0.1).values(3) == [0.1, 0.2, 0.1 * 3]
    finally:
        torch.set_default_dtype(before)


@KIND
def test_products_are_in_double_precision(kind):
    one = moved(Next(optimizer(kind), 1.0), 2**24 + 2)
    assert closed_form(one) == 2**24 + 3 and one.values(1) == [1.0]


@KIND
@pytest.mark.parametrize(
    ("stem", "arguments", "expected"),
    [
        *((stem, dict(initial_val=0.2, end_val=0.1, total_iters=0), [0.1] * 3) for stem in ("Linear", "Polynomial")),
        ("CosineDecay", dict(initial_val=0.2, end_val=0.1, total_iters=0), [0.1] * 3),
        ("PiecewiseConstant", dict(vals=[4.0, 3.0, 2.0], milestones=[1, 1]), [4.0, 2.0, 2.0]),
        ("MultiStep", dict(initial_val=4.0, gamma=0.5, milestones=[1, 1, 2]), [4.0, 1.0, 0.5]),
        ("Sequential", dict(milestones=[1, 1]), [4.0, 2.0, 2.0]),
        ("Sequential", dict(milestones=[0, 0]), [2.0] * 3),
        ("Sequential", dict(milestones=[0, 2]), [3.0, 3.0, 2.0]),
    ],
)
def test_phases_of_no_length(stem, arguments, expected, kind):
    """They begin with their last value; of milestones at one step, all are reached there."""
    if stem == "Sequential":
        arguments = {"schedulers": [Nested("Constant", {"val": val}) for val in (4.0, 3.0, 2.0)], **arguments}
    assert stepped(make(stem, arguments, optimizer(kind)), 3) == expected


def test_phases_of_no_length_in_other_units():
    clock = timesched.Clock("20ba")
    for milestones in (["10ba", "0.5dur"], ["0.5dur", 10]):
        steps = lr.PiecewiseConstantLR(optimizer(), [4.0, 3.0, 2.0], milestones, clock=clock)
        assert steps.values(11)[9:] == [4.0, 2.0]
    assert lr.CosineDecayLR(optimizer(), 0.5, 0.25, "0dur", clock=clock).values(2) == [0.25, 0.25]


def test_a_model_on_the_meta_device():
    """Its schedulers count and have values, on the host."""
    with torch.device("meta"):
        on = optim.AdamW(torch.nn.Linear(3, 3).parameters(), lr=1.0)
        children = [lr.LinearLR(on, 0.0, 0.5, 2), lr.CosineDecayLR(on, 0.5, 0.0, 3)]
        one = lr.SequentialLR(on, children, [2])
        one.step()
        one.load_state_dict(one.state_dict())
    assert rates(on) == [0.25] and one.state_dict()["last_epoch"] == 1
    with pytest.raises(ValueError, match="device='meta'.*that has one"):
        lr.ConstantLR(optimizer("numbers", {"lr": torch.ones((), device="meta")}), 1.0)
