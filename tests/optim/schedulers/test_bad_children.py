"""What cannot be a child of another scheduler: named by its place, and nothing has been taken."""

import pytest
import torch

import timesched
from optim import lr_scheduler
from tests.optim.schedulers.building import class_of, make, optimizer
from tests.optim.schedulers.parts import Nested
from tests.optim.schedulers.rows import COSINE, WARMUP


@pytest.mark.parametrize("last_epoch", [-2, 1.5, "3", None, True, float("nan"), torch.tensor(3)])
def test_last_epoch(last_epoch):
    on = optimizer()
    with pytest.raises((TypeError, ValueError), match="last_epoch"):
        lr_scheduler.SequentialLR(on, [make(*WARMUP, on)], [], last_epoch=last_epoch)


@pytest.mark.parametrize("stem", ["Sequential", "Chained"])
@pytest.mark.parametrize("wrong", ["none", "one", "text", "number", "torch", "formula", "other", "key", "stepped"])
def test_schedulers(stem, wrong):
    """What cannot be a child: named by its place, and who owns the key stays as it was."""
    on = optimizer()
    good = make(*WARMUP, on)
    bad = {
        "none": lambda: None,
        "one": lambda: [],
        "text": lambda: "LinearLR",
        "number": lambda: 0.1,
        "torch": lambda: torch.optim.lr_scheduler.StepLR(optimizer(), 3),
        "formula": lambda: timesched.LinearScheduler(),
        "other": lambda: make(*COSINE, optimizer()),
        "key": lambda: make(*COSINE, on, "wd"),
        "stepped": lambda: stepped_one(on),
    }[wrong]()
    schedulers = [good, bad]
    owner = good.refusal
    rate = on.param_groups[0]["lr"]
    with pytest.raises((TypeError, ValueError), match=r"schedulers\[1\]"):
        class_of(stem)(*([on, schedulers, [5]] if stem == "Sequential" else [schedulers]))
    assert on.param_groups[0]["lr"] == rate
    assert good.refusal == owner


def stepped_one(on):
    one = make(*COSINE, on)
    one.last_epoch = 3
    return one


@pytest.mark.parametrize("schedulers", [[], None, 5, "LinearLR", COSINE])
def test_no_list_of_schedulers(schedulers):
    on = optimizer()
    for call in (
        lambda: lr_scheduler.SequentialLR(on, schedulers, []),
        lambda: lr_scheduler.ChainedLR(schedulers),
    ):
        with pytest.raises(TypeError, match="schedulers"):
            call()


def test_a_chain_cannot_go_on_from_zero():
    on = optimizer()
    ramp = Nested("Linear", {"initial_val": 0.0, "end_val": 0.1, "total_iters": 5})
    with pytest.raises(ValueError, match="0"):
        make("Chained", {"schedulers": [COSINE, ramp]}, on)
    assert make("Chained", {"schedulers": [ramp, COSINE]}, optimizer()).values(1) == [0.0]


@pytest.mark.parametrize("scheduler_", [None, "LinearLR", 0.1, timesched.LinearScheduler()])
def test_scale_per_param_wants_a_scheduler(scheduler_):
    with pytest.raises(TypeError, match="scheduler"):
        lr_scheduler.ScalePerParamLR(optimizer(), scheduler_)
