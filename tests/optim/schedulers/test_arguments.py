"""Arguments that are refused: the error names scheduler, argument and value, and nothing has been changed."""

import re
import warnings

import pytest
import torch

import timesched
from optim import lr_scheduler, scheduler, weight_decay_scheduler
from tests.optim.schedulers.building import RATES, class_of, constant, make, name_of, optimizer, rates
from tests.optim.schedulers.rows import (
    COSINE,
    COUNTS,
    EXAMPLES,
    LEAST_IS_1,
    NUMBERS,
    STEPS,
    WARMUP,
    Nested,
)
from tests.optim.schedulers.test_composition import NO_CHILDREN

nan, inf = float("nan"), float("inf")
NO_NUMBERS = (nan, inf, None, "fast", "0.1dur", [0.1], 1j, True, torch.tensor(nan))
NO_COUNTS = (-1, 2.5, nan, inf, "ten", "-5ba", "1e3.5tok", [3], 1j)  # times: test_runs.py
EACH_ARGUMENT = [
    (stem, name, wrong)
    for stem, examples in EXAMPLES.items()
    for name, good in examples[-1].items()
    for wrong in (
        *(NO_NUMBERS if name in NUMBERS.split() else NO_COUNTS if name in COUNTS.split() else ()),
        *([0] if name in COUNTS.split() and stem in LEAST_IS_1.split() else ()),
    )
]
RANGES = [
    ("Polynomial", "power", -1.0),
    ("Exponential", "decay_rate", -0.5),
    ("InverseExponentialTimeDecay", "decay_rate", -0.5),
    ("InverseExponentialTimeDecay", "step_exponent", -1),
    *(("CosineAnnealingWarmRestarts", "T_mult", growth) for growth in (0, -2, 1.001)),
    *(("OneCycle", "pct_start", share) for share in (1.5, -0.1)),
    *(("OneCycle", "final_div_factor", factor) for factor in (0, -10.0)),
    *(("OneCycle", "anneal_strategy", name) for name in ("cosine", None)),
    ("OneCycle", "three_phase", "yes"),
    ("Cyclic", "mode", "square"),
    ("Cyclic", "scale_mode", "steps"),
    ("Cyclic", "gamma", -0.5),
    ("Polynomial", "cycle", 1),
    ("Exponential", "staircase", None),
    ("WarmupStableDecay", "warmup", "sqrt"),
    ("WarmupStableDecay", "decay", None),
    ("WarmupStableDecay", "decay_rate", 0),
]


def good(stem):
    return {key: value for key, value in EXAMPLES[stem][-1].items() if key != "functions"}


def refused(stem, arguments, words, family="lr"):
    """The error of a scheduler with such arguments; the groups stay as they were, and free."""
    on = optimizer("numbers", {}, {})
    with pytest.raises((TypeError, ValueError), match=words) as caught:
        make(stem, arguments, on, family)
    if "schedulers" not in arguments:  # which were made before it, and wrote their values
        assert rates(on) == [0.5, 0.5] and rates(on, "weight_decay") == [0.02, 0.02]
    constant(on).step()
    return str(caught.value)


@pytest.mark.parametrize(("stem", "name", "wrong"), [*EACH_ARGUMENT, *RANGES], ids=str)
def test_numbers_counts_and_choices(stem, name, wrong):
    for family in ("lr", "wd"):
        public = RATES.get(name, name) if family == "lr" else name
        message = refused(stem, {**good(stem), name: wrong}, rf"{name_of(stem, family)}\.{public}\b", family)
        assert any(text in message for text in (str(wrong), repr(wrong), type(wrong).__name__))


WITH_MILESTONES = {
    "MultiStep": good("MultiStep"),
    "PiecewiseConstant": {"vals": [0.1, 0.2, 0.3]},
    "Sequential": {"schedulers": [WARMUP, COSINE, STEPS]},
}
FROM_0 = Nested("Linear", {**WARMUP.arguments, "initial_val": 0.0})
STABLE = good("WarmupStableDecay")


@pytest.mark.parametrize(
    ("stem", "arguments", "words"),
    [
        ("Linear", {**WARMUP.arguments, "total_iters": 0, "cycle": True}, "^LinearLR.total_iters=0: "),
        ("Polynomial", {**WARMUP.arguments, "total_iters": 0, "cycle": True}, "^PolynomialLR.total_iters=0: "),
        ("WarmupStableDecay", {**STABLE, "warmup_iters": 100}, "take longer than"),
        ("WarmupStableDecay", {**STABLE, "decay": "harmonic", "end_val": 0.0}, "no harmonic decay from 0.1 to 0.0"),
        *(
            (stem, {**given, "milestones": wrong}, rf"^({stem}LR\.)?milestones(\[\d\])?[:=]")
            for stem, given in WITH_MILESTONES.items()
            for wrong in ([30, 10], [-1, 5], [2.5, 5], [nan, 5], ["x", 5], [None, 5], [[1], 2], "10", 10, None, {10})
        ),
        *(
            ("PiecewiseConstant", {"vals": [0.1, 0.2], "milestones": wrong}, rf"{len(wrong)} milestones .* are 2")
            for wrong in ([], [5, 10])
        ),
        *(
            (
                "Sequential",
                {"schedulers": [WARMUP, COSINE], "milestones": wrong},
                rf"milestones={re.escape(repr(wrong))}: the number of",
            )
            for wrong in ([], [5, 10])
        ),
        *(
            ("PiecewiseConstant", {"vals": wrong, "milestones": [3]}, r"^PiecewiseConstantLR\.learning_rates(\[1\])?=")
            for wrong in ([0.1, nan], [0.1, "x"], [0.1, None], "0.1", 0.1, None, [0.1, [0.2]], {0.1, 0.2})
        ),
        *(
            (stem, {"schedulers": wrong, **milestones}, rf"^{stem}LR\.schedulers(\[0\]: |=)")
            for stem, milestones in (("Sequential", {"milestones": []}), ("Chained", {}))
            for wrong in ([], [None], ["LinearLR"], [0.1], [timesched.LinearScheduler()])
        ),
        ("Chained", {"schedulers": [COSINE, FROM_0]}, r"schedulers\[1\]: it starts at 0.0"),
        *(
            ("ScalePerParam", {"scheduler": wrong}, rf"^ScalePerParamLR\.scheduler: .*{type(wrong).__name__}")
            for wrong in (None, "LinearLR", 0.1)
        ),
    ],
    ids=str,
)
def test_arguments_that_contradict_each_other(stem, arguments, words):
    refused(stem, arguments, words)


@pytest.mark.parametrize("stem", ["Sequential", "Chained"])
@pytest.mark.parametrize("wrong", NO_CHILDREN.values(), ids=NO_CHILDREN)
def test_what_is_no_child(stem, wrong):
    on = optimizer()
    first = make(*WARMUP, on)
    schedulers = [first, wrong(on)]
    refusal, before = first.refusal, rates(on)
    with pytest.raises((TypeError, ValueError), match=r"schedulers\[1\]"):
        class_of(stem)(*([on, schedulers, [5]] if stem == "Sequential" else [schedulers]))
    assert rates(on) == before and first.refusal == refusal


NO_OPTIMIZERS = [None, "sgd", [torch.nn.Parameter(torch.zeros(1))], torch.nn.Linear(1, 1), {"lr": 0.1}]


class Mine(lr_scheduler.PiecewiseConstantLR):
    pass


@pytest.mark.parametrize(
    ("call", "words"),
    [
        # milestones that fall on the clock
        *(
            (lambda on, m=m: lr_scheduler.MultiStepLR(on, 0.1, 0.5, m, clock=timesched.Clock("10ba")), "in order")
            for m in (["0.5dur", "0.1dur"], [8, "0.1dur"], ["4ba", "0.3dur"])
        ),
        # rates that are missing: a one-cycle schedule ends one step before its total, so the two have to go together
        *(
            (lambda on, t=t: lr_scheduler.OneCycleLR(on, 0.1, 1.0, t, clock=timesched.Clock("10ba")), words)
            for t, words in (("100tok", "samples_per_batch|tokens_per_sample"), ("2ep", "batches_per_epoch"))
        ),
        (lambda on: lr_scheduler.ConstantLR(on, 0.1, clock="4ba"), "^ConstantLR.clock='4ba': "),
        (lambda on: lr_scheduler.ConstantLR(on, 0.1, clock=timesched.LinearScheduler()), "^ConstantLR.clock=LinearSch"),
        # the name of a user's class
        (lambda on: Mine(on, ["vals"], []), r"^Mine\.learning_rates\[0\]='vals': "),
        (lambda on: Mine(on, [], []), r"^Mine: 0 milestones separate 1 values"),
        # what it is to write, and where
        *(
            (
                lambda on, wrong=wrong: lr_scheduler.ConstantLR(wrong, 0.1),
                f"^ConstantLR.optimizer: it is of the class {type(wrong).__name__}, not a",
            )
            for wrong in NO_OPTIMIZERS
        ),
        (lambda on: weight_decay_scheduler.ConstantWD("sgd", 0.1), "^ConstantWD.optimizer: it is of the class str, "),
        (lambda on: lr_scheduler.SequentialLR(None, [make(*COSINE, optimizer())], []), "optimizer"),
        (lambda on: lr_scheduler.ScalePerParamLR(None, make(*COSINE, optimizer())), "optimizer"),
        (lambda on: scheduler.Scheduler(on), "^Scheduler._get_closed_form: the class does not define"),
        *(
            (
                lambda on, value=value: on.param_groups[1].update(lr=value) or lr_scheduler.ConstantLR(on, 0.1),
                f"^key='lr': parameter group 1 has {re.escape(repr(value))}",
            )
            for value in (None, "0.1", True, torch.tensor([0.1, 0.2]), torch.tensor(1), nan)
        ),
    ],
)
def test_other_calls(call, words):
    on = optimizer("numbers", {}, {})
    with pytest.raises((TypeError, ValueError), match=words):
        call(on)
    assert on.param_groups[0]["lr"] == 0.5


ORDER = r"reaches {:g}, and the optimizer has 0.5. Pass the arguments by name"


@pytest.mark.parametrize(
    ("call", "rate"),
    [
        (lambda on: lr_scheduler.OneCycleLR(on, 0.1, 1000), 1000),
        (lambda on: lr_scheduler.OneCycleLR(on, 0.1, 20, clock=timesched.Clock("90sp", samples_per_batch=3)), 20),
        (lambda on: lr_scheduler.CosineAnnealingWarmRestarts(on, 10, 2), 10),
        (lambda on: lr_scheduler.OneCycleLR(on, initial_learning_rate=0.1, max_lr=1000), None),
        (lambda on: lr_scheduler.OneCycleLR(on, 0.1, 5.0), 5),  # ten times that of the optimizer
        (lambda on: lr_scheduler.OneCycleLR(on, 0.1, 4.0), None),
        (lambda on: lr_scheduler.LinearLR(on, 0.1, 5.0, 8), 5),
        (lambda on: lr_scheduler.OneCycleLR(on, 0.1, 7.5), None),  # no count
        (lambda on: lr_scheduler.CosineDecayLR(on, 10, 2, 10), None),  # which torch does not have
        (lambda on: weight_decay_scheduler.OneCycleWD(on, 0.1, 1000), None),
    ],
)
def test_arguments_in_the_order_of_torch_are_a_warning(call, rate):
    on = optimizer("numbers", {}, {"lr": 50.0})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(on)
    assert len(caught) == (rate is not None)
    assert all(re.search(ORDER.format(rate), str(each.message)) and each.filename == __file__ for each in caught)
