"""Bad arguments: the error names the scheduler, the argument and the value, and nothing has been changed."""

import pytest
import torch

import timesched
from optim import lr_scheduler, scheduler, weight_decay_scheduler
from tests.optim.schedulers.building import KEYS, RATES, class_of, make, optimizer
from tests.optim.schedulers.rows import BY_STEM, COSINE, ROWS, STEPS, WARMUP
from tests.optim.schedulers.signatures import WD

nan, inf = float("nan"), float("inf")
NOT_NUMBERS = [nan, inf, -inf, None, "fast", "0.1dur", [0.1], 1j, True, torch.tensor(nan), {}]
NOT_COUNTS = [-1, -2.0, 2.5, nan, inf, "ten", "0.1dur", "-5ba", "1e3.5tok", [3], 1j, {}]
NUMBERS = (
    "val",
    "initial_val",
    "end_val",
    "base_val",
    "max_val",
    "eta_min",
    "power",
    "decay_rate",
    "gamma",
    "scale",
    "step_exponent",
    "coefficient",
    "T_mult",
    "pct_start",
    "final_div_factor",
)
POSITIVE = {"total_iters", "warmup_steps", "step_size", "T_max", "T_0", "step_size_up", "step_size_down", "total_steps"}
OPTIONAL = {("Constant", "total_iters"), ("Cyclic", "step_size_down")}
EMPTY = {("Constant", "total_iters"), *((stem, "total_iters") for stem in ("Polynomial", "Linear", "CosineDecay"))}


def base(stem):
    return {key: value for key, value in BY_STEM[stem].examples[-1].items() if key != "functions"}


def refused(stem, family="lr", error=(TypeError, ValueError), match=None, **wrong):
    """The scheduler with other arguments than good ones; the groups stay as they were, and free."""
    on = optimizer("numbers", {}, {})
    arguments = {**base(stem), **wrong}
    with pytest.raises(error) as caught:
        make(stem, arguments, on, family)
    message = str(caught.value)
    for name in wrong if match is None else ():
        assert RATES.get(name, name) in message if family == "lr" else name in message
        shown = wrong[name]
        assert any(text in message for text in (str(shown), repr(shown), type(shown).__name__)), message
    if match is not None:
        assert match in message
    if stem == "Sequential":  # its parts were made before it, and wrote their values
        return
    assert [group["lr"] for group in on.param_groups] == [0.5, 0.5]
    assert [group["weight_decay"] for group in on.param_groups] == [0.02, 0.02]
    lr_scheduler.ConstantLR(on, 0.1).step()


CASES = [
    *((stem, name, value) for stem, takes in WD.items() for name in takes if name in NUMBERS for value in NOT_NUMBERS),
    *((stem, name, value) for stem, takes in WD.items() for name in takes if name in POSITIVE for value in NOT_COUNTS),
    *(
        (stem, name, value)
        for stem, takes in WD.items()
        for name in takes
        if name in POSITIVE
        for value in (0, None)
        if (stem, name) not in (EMPTY if value == 0 else OPTIONAL)
    ),
]


@pytest.mark.parametrize("stem", WD)
def test_numbers_and_counts(stem):
    """Each argument of each class with what it cannot be; learning rates in their own words."""
    for own, name, value in CASES:
        if own == stem and not (value is True and name in POSITIVE):
            refused(stem, **{name: value})
            if value in (-1, "fast"):
                refused(stem, "wd", **{name: value})


@pytest.mark.parametrize(
    ("stem", "wrong"),
    [
        ("Polynomial", {"power": -1.0}),
        ("Exponential", {"decay_rate": -0.5}),
        ("InverseExponentialTimeDecay", {"decay_rate": -0.5}),
        ("InverseExponentialTimeDecay", {"step_exponent": -1}),
        ("CosineAnnealingWarmRestarts", {"T_mult": 0}),
        ("CosineAnnealingWarmRestarts", {"T_mult": -2}),
        ("CosineAnnealingWarmRestarts", {"T_mult": 1.001}),
        ("OneCycle", {"pct_start": 1.5}),
        ("OneCycle", {"pct_start": -0.1}),
        ("OneCycle", {"final_div_factor": 0}),
        ("OneCycle", {"final_div_factor": -10.0}),
        ("OneCycle", {"anneal_strategy": "cosine"}),
        ("OneCycle", {"anneal_strategy": None}),
        ("OneCycle", {"three_phase": "yes"}),
        ("Cyclic", {"mode": "square"}),
        ("Cyclic", {"scale_mode": "steps"}),
        ("Cyclic", {"gamma": -0.5}),
        ("Polynomial", {"cycle": 1}),
        ("Linear", {"cycle": "no"}),
        ("Exponential", {"staircase": None}),
        ("WarmupStableDecay", {"warmup": "sqrt"}),
        ("WarmupStableDecay", {"decay": "square"}),
        ("WarmupStableDecay", {"decay_rate": 0}),
        ("WarmupStableDecay", {"warmup_iters": 100}),
    ],
    ids=str,
)
def test_ranges_and_choices(stem, wrong):
    refused(stem, **wrong)
    refused(stem, "wd", **wrong)


def test_a_decay_by_a_ratio_to_zero():
    refused("WarmupStableDecay", decay="harmonic", end_val=0.0, match="a harmonic decay goes from 0.1 to 0.0")


@pytest.mark.parametrize("stem", ["MultiStep", "PiecewiseConstant", "Sequential"])
@pytest.mark.parametrize(
    "milestones", [[30, 10], [-1, 5], [2.5, 5], [nan, 5], ["x", 5], [None, 5], "10", 10, None, [[1], 2], {}]
)
def test_milestones(stem, milestones):
    arguments = {
        "MultiStep": {"milestones": milestones},
        "PiecewiseConstant": {"vals": [0.1, 0.2, 0.3], "milestones": milestones},
        "Sequential": {"schedulers": [WARMUP, COSINE, STEPS], "milestones": milestones},
    }[stem]
    if (stem, milestones) == ("MultiStep", {}):
        return  # no milestones, in an odd container
    refused(stem, match="milestones", **arguments)


@pytest.mark.parametrize("milestones", [[], [5, 10], [5, 10, 15]])
def test_as_many_milestones_as_belong_between(milestones):
    refused("PiecewiseConstant", match="are 2", vals=[0.1, 0.2], milestones=milestones)
    refused("Sequential", match=f"are {len(milestones)}", schedulers=[WARMUP, COSINE], milestones=milestones)


@pytest.mark.parametrize("vals", [[0.1, nan], [0.1, "x"], [0.1, None], "0.1", 0.1, None, [0.1, [0.2]]])
def test_values(vals):
    refused("PiecewiseConstant", match="learning_rates", vals=vals, milestones=[3])


def test_a_message_shows_the_value_as_it_was_given():
    """Also where it reads like the name of an argument or of a class."""
    with pytest.raises(ValueError, match=r"^'val' is a str, and ConstantLR\.learning_rate is"):
        lr_scheduler.ConstantLR(optimizer(), "val")
    with pytest.raises(ValueError, match=r"^CyclicLR\.mode='Cyclic base_val'"):
        lr_scheduler.CyclicLR(optimizer(), 0.1, 0.2, mode="Cyclic base_val")

    class Mine(lr_scheduler.PiecewiseConstantLR):
        pass

    with pytest.raises(ValueError, match=r"^'vals' is a str, and Mine\.learning_rates\[0\] is"):
        Mine(optimizer(), ["vals"], [])
    with pytest.raises(ValueError, match=r"^Mine: 0 milestones part 1 values"):
        Mine(optimizer(), [], [])


@pytest.mark.parametrize("family", ["lr", "wd"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.stem)
def test_an_unknown_argument_suggests_the_nearest(row, family):
    cls = class_of(row.stem, family)
    on = optimizer()
    known = next(iter(WD[row.stem]))
    known = RATES.get(known, known) if family == "lr" else known
    first = () if row.stem == "Chained" else (on,)
    with pytest.raises(TypeError, match=rf"{cls.__name__} has no argument '{known[:-1]}x'.*{known!r}"):
        cls(*first, **{known[:-1] + "x": 3})
    with pytest.raises(TypeError, match=rf"{cls.__name__}.*param_group_tags"):
        cls(*first, param_group_tag="a")
    with pytest.raises(TypeError, match=rf"{cls.__name__} has no argument 'zzz'"):
        cls(*first, zzz=1)
    assert on.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.stem)
def test_a_missing_argument_and_one_too_many(row):
    cls = class_of(row.stem)
    first = () if row.stem == "Chained" else (optimizer(),)
    required = [name for name, default in WD[row.stem].items() if not default]
    if required:
        with pytest.raises(TypeError, match=cls.__name__):
            cls(*first)
    with pytest.raises(TypeError, match=cls.__name__):
        cls(*first, *[0.1] * 12)


@pytest.mark.parametrize(
    "wrong", [None, "sgd", [torch.nn.Parameter(torch.zeros(1))], torch.nn.Linear(1, 1), {"lr": 0.1}, 3]
)
@pytest.mark.parametrize("family", KEYS)
def test_no_optimizer(wrong, family):
    for stem in ("Constant", "Cyclic", "Multiplicative"):
        with pytest.raises(TypeError, match="optimizer"):
            class_of(stem, family)(wrong, **translated(stem, family))
    part = make(*COSINE, optimizer(), family)
    for cls, arguments in (
        (class_of("Sequential", family), ([part], [])),
        (class_of("ScalePerParam", family), (part,)),
    ):
        with pytest.raises((TypeError, ValueError), match="optimizer"):
            cls(wrong, *arguments)


def translated(stem, family):
    return {RATES.get(key, key) if family == "lr" else key: value for key, value in base(stem).items()}


def test_a_group_without_the_key():
    on = torch.optim.Adagrad([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    del on.param_groups[0]["weight_decay"]
    with pytest.raises(ValueError, match=r"no 'weight_decay' to schedule: its keys are .*lr"):
        weight_decay_scheduler.ConstantWD(on, 0.1)

    class Momentum(scheduler.ConstantScheduler):
        param_group_key = "momentum"

    class Third(scheduler.ConstantScheduler):
        param_group_key = "betas[2]"

    class Broken(scheduler.ConstantScheduler):
        param_group_key = "betas[x"

    with pytest.raises(ValueError, match="'momentum'"):
        Momentum(on, 0.1)
    adam = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    with pytest.raises(ValueError, match="no element 2"):
        Third(adam, 0.1)
    with pytest.raises(ValueError, match="betas"):
        Broken(adam, 0.1)
    assert on.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize("value", [None, "0.1", True, torch.tensor([0.1, 0.2]), torch.tensor(1), nan])
def test_a_group_that_holds_no_number(value):
    on = optimizer("numbers", {}, {})
    on.param_groups[1]["lr"] = value
    with pytest.raises(ValueError, match="group 1"):
        lr_scheduler.ConstantLR(on, 0.1)
    assert on.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize("clock", ["4ba", 5, object(), timesched.LinearScheduler()])
def test_no_clock(clock):
    on = optimizer()
    with pytest.raises(TypeError, match="clock"):
        lr_scheduler.ConstantLR(on, 0.1, clock=clock)
    assert on.param_groups[0]["lr"] == 0.5
