"""Resuming: at every step, with the group's value right at once; in any order of loads; copies and pickles."""

import copy
import pickle

import pytest
import torch
from torch import Tensor

from optim import lr_scheduler
from tests.optim.schedulers.building import (
    KIND,
    LENGTH,
    TENSORS,
    clock_of,
    count,
    in_unit,
    make,
    optimizer,
    rates,
    stepped,
    ticked,
    value,
)
from tests.optim.schedulers.rows import CASES, COSINE, IDS, TWO_DEEP, WARMUP

CASE = pytest.mark.parametrize(("row", "arguments"), CASES, ids=IDS)
STEPS = 33
COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda pair: pickle.loads(pickle.dumps(pair))}
COPIED = pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)


def through_a_file(state, path):
    torch.save(state, path)
    return torch.load(path, weights_only=True)


@CASE
def test_every_step_through_a_file(row, arguments, tmp_path):
    """Each resumed run goes on bit for bit, from a new optimizer whose groups hold something else."""
    one = make(row.stem, arguments, optimizer())
    values = one.values(STEPS + 4)
    states = []
    for _ in range(STEPS):
        states.append(one.state_dict())
        one.step()
    resumed = make(row.stem, arguments, optimizer(lr=3.0))
    for t, state in enumerate(through_a_file(states, tmp_path / "state.pt")):
        resumed.optimizer.param_groups[0]["lr"] = 123.0
        resumed.load_state_dict(state)
        assert value(resumed) == values[t] and count(resumed) == t
        assert resumed.get_last_lr() == [values[t]]
        assert stepped(resumed, 4) == values[t : t + 4]


@CASE
def test_the_value_depends_on_the_step_alone(row, arguments):
    """Whichever way the step was come to, and whatever stood in the group."""
    one = make(row.stem, arguments, optimizer())
    values = one.values(60)
    for t in (17, 3, 59, 0, 31):
        one.last_epoch = t
        one.refresh()
        assert value(one) == values[t]
    one.optimizer.param_groups[0]["lr"] = 9.0
    one.step()
    assert value(one) == values[32]


@KIND
@pytest.mark.parametrize("order", [("optimizer", "scheduler"), ("scheduler", "optimizer")])
def test_with_the_optimizers_checkpoint_in_either_order(kind, order, tmp_path):
    """The value, and that the tensor in the group is the one there was, where the optimizer keeps it."""

    def new():
        on = optimizer(kind, {"tags": "a"}, {})
        return {"optimizer": on, "scheduler": make(*COSINE, on)}

    run = new()
    stepped(run["scheduler"], 8)
    saved = through_a_file({name: each.state_dict() for name, each in run.items()}, tmp_path / "both.pt")
    again = new()
    on, resumed = again.values()
    held = [group["lr"] for group in on.param_groups]
    for name in order:
        again[name].load_state_dict(saved[name])
    assert rates(on) == resumed.values(8)[7:] * 2
    if kind == "our tensors":
        assert all(group["lr"] is tensor for group, tensor in zip(on.param_groups, held))
    assert stepped(resumed, 5) == resumed.values(12)[7:]


@KIND
def test_training_goes_on_bit_for_bit(kind, tmp_path):
    """Parameters too, of an optimizer with momentum, learning rate and weight decay on schedules."""

    def new():
        on = optimizer(kind)
        with torch.no_grad():
            on.param_groups[0]["params"][0].copy_(torch.tensor([1.0, -2.0, 3.0]))
        return on, [make(*TWO_DEEP, on), make("Step", {"initial_val": 0.1, "step_size": 3, "gamma": 0.5}, on, "wd")]

    def train(on, schedulers, first, last):
        p = on.param_groups[0]["params"][0]
        for step in range(first, last):
            p.grad = torch.sin(torch.arange(3) + step) + p.detach()
            on.step()
            for scheduler in schedulers:
                scheduler.step()
        return p.detach().clone()

    expected = train(*new(), 0, 30)
    on, schedulers = new()
    p = train(on, schedulers, 0, 11)
    state = {"optimizer": on.state_dict(), "schedulers": [one.state_dict() for one in schedulers], "p": p}
    state = through_a_file(state, tmp_path / "all.pt")
    again, resumed = new()
    with torch.no_grad():
        again.param_groups[0]["params"][0].copy_(state["p"])
    again.load_state_dict(state["optimizer"])
    for one, saved in zip(resumed, state["schedulers"]):
        one.load_state_dict(saved)
    assert torch.equal(train(again, resumed, 11, 30), expected)


@KIND
def test_the_groups_tensor_stays_the_same(kind):
    """Over steps and loads: what a graph has captured is what is written."""
    on = optimizer(kind)
    one = make(*TWO_DEEP, on)
    held, state = on.param_groups[0]["lr"], one.state_dict()
    stepped(one, 3)
    one.load_state_dict(state)
    if kind in TENSORS:
        assert on.param_groups[0]["lr"] is held and not held.requires_grad
        assert held.dtype == torch.float64 and held.dim() == 0
    assert isinstance(on.param_groups[0]["lr"], Tensor) == isinstance(held, Tensor)


# Copies


@KIND
@COPIED
def test_copies_go_on_by_themselves(kind, copied):
    on = optimizer(kind)
    one = make(*TWO_DEEP, on)
    stepped(one, 4)
    other, copy_ = copied((on, one))
    assert copy_.optimizer is other and other is not on
    values = one.values(30)
    assert stepped(copy_, 20) == values[3:23]
    assert (value(one), count(one)) == (values[3], 3)
    assert stepped(one, 5) == values[3:8] and value(copy_) == values[22]
    assert copy_.state_dict()["last_epoch"] == 22


def test_a_copy_of_the_scheduler_alone_has_an_optimizer_of_its_own():
    one = make(*TWO_DEEP, optimizer("tensors"))
    copied = copy.deepcopy(one)
    copied.step()
    assert copied.optimizer is not one.optimizer and count(one) == 0 and value(one) == one.values(1)[0]


# With a clock


@KIND
@pytest.mark.parametrize("order", [("clock", "scheduler"), ("scheduler", "clock"), ("clock",)])
def test_resuming_with_a_clock_in_any_order(kind, order, tmp_path):
    """The value is that of the clock's moment as soon as the clock is there, whichever comes last."""

    def new():
        clock = clock_of()
        on = optimizer(kind)
        children = [make(*in_unit(each, "tok"), on, clock=clock) for each in (WARMUP, COSINE)]
        return {"clock": clock, "scheduler": lr_scheduler.SequentialLR(on, children, ["0.125dur"], clock=clock)}

    run = new()
    values = run["scheduler"].values(30)
    assert ticked(run["scheduler"], run["clock"], 12) == values[:13]
    saved = through_a_file({name: each.state_dict() for name, each in run.items()}, tmp_path / "state.pt")
    again = new()
    for name in order:
        again[name].load_state_dict(saved[name])
    assert value(again["scheduler"]) == values[12]
    assert ticked(again["scheduler"], again["clock"], 10) == values[12:23]


@COPIED
def test_a_copy_follows_the_clock_that_is_copied_with_it(copied):
    clock = clock_of()
    one = lr_scheduler.LinearLR(optimizer(), 0.1, 0.0, "1dur", clock=clock)
    timer, copy_ = copied((clock, one))
    timer.tick()
    copy_.step()
    assert value(copy_) == 0.1 * (1 - 1 / LENGTH) and value(one) == 0.1
    timer.load_state_dict(clock.state_dict())
    assert value(copy_) == 0.1
