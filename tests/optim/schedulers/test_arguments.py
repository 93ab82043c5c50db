"""Arguments that are refused: the error names scheduler, argument and value, and nothing has been changed."""

import pytest
import torch

import timesched
from optim import lr_scheduler, scheduler, weight_decay_scheduler
from tests.optim.schedulers.building import KEYS, RATES, class_of, make, optimizer, rates
from tests.optim.schedulers.rows import BY_STEM, COSINE, ROWS, STEPS, WARMUP
from tests.optim.schedulers.signatures import WD

nan, inf = float("nan"), float("inf")
NOT_NUMBERS = [nan, inf, -inf, None, "fast", "0.1dur", [0.1], 1j, True, torch.tensor(nan), {}]
NOT_COUNTS = [-1, -2.0, 2.5, nan, inf, "ten", "0.1dur", "-5ba", "1e3.5tok", [3], 1j, {}]
NUMBERS = {"val", "initial_val", "end_val", "base_val", "max_val", "eta_min", "power", "decay_rate", "gamma", "scale"}
NUMBERS |= {"step_exponent", "coefficient", "T_mult", "pct_start", "final_div_factor"}
POSITIVE = {"total_iters", "warmup_steps", "step_size", "T_max", "T_0", "step_size_up", "step_size_down", "total_steps"}
OPTIONAL = {("Constant", "total_iters"), ("Cyclic", "step_size_down")}
EMPTY = {(stem, "total_iters") for stem in ("Constant", "Polynomial", "Linear", "CosineDecay")}
FAMILY = pytest.mark.parametrize("family", KEYS)
ROW = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.stem)


def good(stem):
    return {key: value for key, value in BY_STEM[stem].examples[-1].items() if key != "functions"}


def public(name, family):
    return RATES.get(name, name) if family == "lr" else name


def refused(stem, family="lr", match=None, **wrong):
    """The scheduler with other arguments than good ones; the groups stay as they were, and free."""
    on = optimizer("numbers", {}, {})
    with pytest.raises((TypeError, ValueError)) as caught:
        make(stem, {**good(stem), **wrong}, on, family)
    message = str(caught.value)
    for name, shown in wrong.items() if match is None else ():
        assert public(name, family) in message
        assert any(text in message for text in (str(shown), repr(shown), type(shown).__name__)), message
    assert match is None or match in message
    if stem == "Sequential":  # its children were made before it, and wrote their values
        return
    assert rates(on) == [0.5, 0.5] and rates(on, "weight_decay") == [0.02, 0.02]
    lr_scheduler.ConstantLR(on, 0.1).step()


@pytest.mark.parametrize("stem", WD)
def test_numbers_and_counts(stem):
    """Each argument of each class with what it cannot be; learning rates in their own words."""
    for name in WD[stem]:
        wrong = NOT_NUMBERS if name in NUMBERS else NOT_COUNTS if name in POSITIVE else []
        zeros = [0] if name in POSITIVE and (stem, name) not in EMPTY else []
        nothing = [None] if name in POSITIVE and (stem, name) not in OPTIONAL else []
        for value in (*wrong, *zeros, *nothing):
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
        *(("CosineAnnealingWarmRestarts", {"T_mult": growth}) for growth in (0, -2, 1.001)),
        *(("OneCycle", {"pct_start": share}) for share in (1.5, -0.1)),
        *(("OneCycle", {"final_div_factor": factor}) for factor in (0, -10.0)),
        *(("OneCycle", {"anneal_strategy": name}) for name in ("cosine", None)),
        ("OneCycle", {"three_phase": "yes"}),
        ("Cyclic", {"mode": "square"}),
        ("Cyclic", {"scale_mode": "steps"}),
        ("Cyclic", {"gamma": -0.5}),
        ("Polynomial", {"cycle": 1}),
        ("Linear", {"cycle": "no"}),
        ("Exponential", {"staircase": None}),
        ("WarmupStableDecay", {"warmup": "sqrt"}),
        *(("WarmupStableDecay", {"decay": name}) for name in ("square", None)),
        ("WarmupStableDecay", {"decay_rate": 0}),
        ("WarmupStableDecay", {"warmup_iters": 100}),
    ],
    ids=str,
)
def test_ranges_and_choices(stem, wrong):
    refused(stem, **wrong)
    refused(stem, "wd", **wrong)


@pytest.mark.parametrize("stem", ["Linear", "Polynomial"])
def test_a_cycle_without_a_length(stem):
    refused(stem, match=f"{stem}LR: total_iters=0 is no length of a cycle", total_iters=0, cycle=True)


def test_a_decay_by_a_ratio_to_zero():
    refused("WarmupStableDecay", decay="harmonic", end_val=0.0, match="a harmonic decay goes from 0.1 to 0.0")


OTHERS = {
    "MultiStep": {},
    "PiecewiseConstant": {"vals": [0.1, 0.2, 0.3]},
    "Sequential": {"schedulers": [WARMUP, COSINE, STEPS]},
}
FALLING = [[30, 10], [-1, 5], [2.5, 5], [nan, 5], ["x", 5], [None, 5], [[1], 2]]


@pytest.mark.parametrize(
    ("stem", "milestones"),
    [
        *((stem, wrong) for stem in OTHERS for wrong in (*FALLING, "10", 10, None, {10}, {10: 1})),
        ("PiecewiseConstant", {}),
        ("Sequential", {}),
    ],
)
def test_milestones(stem, milestones):
    refused(stem, match="milestones", **OTHERS[stem], milestones=milestones)


@pytest.mark.parametrize("milestones", [["0.5dur", "0.1dur"], [8, "0.1dur"], ["4ba", "0.3dur"]])
@pytest.mark.parametrize("stem", ["MultiStep", "PiecewiseConstant"])
def test_milestones_that_fall_on_a_clock(stem, milestones):
    arguments = {**good(stem), **OTHERS[stem], "milestones": milestones}
    with pytest.raises(ValueError, match="put them in order"):
        make(stem, arguments, optimizer(), clock=timesched.Clock("10ba"))


@pytest.mark.parametrize("milestones", [[], [5, 10], [5, 10, 15]])
def test_as_many_milestones_as_belong_between(milestones):
    refused("PiecewiseConstant", match="are 2", vals=[0.1, 0.2], milestones=milestones)
    words = (
        f"2 schedulers need 1 milestones, one at the beginning of each but the first, and there are {len(milestones)}"
    )
    refused("Sequential", match=words, schedulers=[WARMUP, COSINE], milestones=milestones)


@pytest.mark.parametrize(
    "vals", [[0.1, nan], [0.1, "x"], [0.1, None], "0.1", 0.1, None, [0.1, [0.2]], {0.1, 0.2}, {0.1: 1, 0.2: 2}]
)
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
    with pytest.raises(ValueError, match=r"^Mine: 0 milestones separate 1 values"):
        Mine(optimizer(), [], [])


@pytest.mark.parametrize("family", ["lr", "wd"])
@ROW
def test_unknown_missing_and_surplus_arguments(row, family):
    cls = class_of(row.stem, family)
    on = optimizer()
    known = public(next(iter(WD[row.stem])), family)
    first = () if row.stem == "Chained" else (on,)
    for wrong, words in (
        ({known[:-1] + "x": 3}, rf"{cls.__name__} has no argument '{known[:-1]}x'.*{known!r}"),
        ({"param_group_tag": "a"}, rf"{cls.__name__}.*param_group_tags"),
        ({"zzz": 1}, rf"{cls.__name__} has no argument 'zzz'"),
    ):
        with pytest.raises(TypeError, match=words):
            cls(*first, **wrong)
    required = [name for name, default in WD[row.stem].items() if not default]
    for wrong in ([], [0.1] * 12) if required else ([0.1] * 12,):
        with pytest.raises(TypeError, match=cls.__name__):
            cls(*first, *wrong)
    assert rates(on) == [0.5]


@pytest.mark.parametrize(
    "wrong", [None, "sgd", [torch.nn.Parameter(torch.zeros(1))], torch.nn.Linear(1, 1), {"lr": 0.1}, 3]
)
@FAMILY
def test_no_optimizer(wrong, family):
    for stem in ("Constant", "Cyclic", "Multiplicative"):
        with pytest.raises(TypeError, match="optimizer"):
            class_of(stem, family)(wrong, **{public(key, family): value for key, value in good(stem).items()})
    child = make(*COSINE, optimizer(), family)
    for stem, arguments in (("Sequential", ([child], [])), ("ScalePerParam", (child,))):
        with pytest.raises((TypeError, ValueError), match="optimizer"):
            class_of(stem, family)(wrong, *arguments)


@pytest.mark.parametrize(
    ("key", "words"), [("momentum", "'momentum'"), ("betas[2]", "no element 2"), ("betas[x", "betas")]
)
def test_a_group_without_the_key(key, words):
    class Constant(scheduler.ConstantScheduler):
        param_group_key = key

    on = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    with pytest.raises(ValueError, match=words):
        Constant(on, 0.1)
    del on.param_groups[0]["weight_decay"]
    with pytest.raises(ValueError, match=r"no 'weight_decay' to schedule: its keys are .*lr"):
        weight_decay_scheduler.ConstantWD(on, 0.1)
    assert rates(on) == [0.5]


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
    assert rates(on) == [0.5]
