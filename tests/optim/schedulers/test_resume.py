"""Resuming closed forms: at every step, in any order of loads, and as copies. States in general: tests/unit."""

import copy
import json
import pickle

import pytest
import torch

from optim import lr_scheduler
from tests.optim.schedulers.building import KIND, count, make, name_of, optimizer, rates, stepped, ticked, value
from tests.optim.schedulers.rows import CASES, COSINE, IDS, TWO_DEEP
from timesched import Clock

STEPS = 33


def through_a_file(state, path):
    torch.save(state, path)
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize(("stem", "arguments"), CASES, ids=IDS)
def test_every_step_through_a_file(stem, arguments, tmp_path):
    """Each resumed run goes on bit for bit, from a new optimizer whose groups hold something else."""
    one = make(stem, arguments, optimizer())
    values, states = one.values(STEPS + 4), []
    for _ in range(STEPS):
        states.append(one.state_dict())
        one.step()
    resumed = make(stem, arguments, optimizer(lr=3.0))
    for t, state in enumerate(through_a_file(states, tmp_path / "state.pt")):
        resumed.optimizer.param_groups[0]["lr"] = 123.0
        resumed.load_state_dict(state)
        assert count(resumed) == t and resumed.get_last_lr() == [values[t]]
        assert stepped(resumed, 4) == values[t : t + 4]
        assert len(json.dumps(state)) < 1500 and name_of(stem, "lr") in state["schedule"]


@KIND
@pytest.mark.parametrize("order", [("optimizer", "scheduler"), ("scheduler", "optimizer")])
def test_with_the_optimizers_checkpoint_in_either_order(kind, order, tmp_path):
    """The value; and the tensor in the group is the one there was, where the optimizer keeps it."""

    def new():
        on = optimizer(kind, {"tags": "a"}, {})
        return {"optimizer": on, "scheduler": make(*COSINE, on)}

    run, again = new(), new()
    stepped(run["scheduler"], 8)
    saved = through_a_file({name: each.state_dict() for name, each in run.items()}, tmp_path / "both.pt")
    on, resumed = again.values()
    held = [group["lr"] for group in on.param_groups]
    for name in order:
        again[name].load_state_dict(saved[name])
    assert rates(on) == resumed.values(8)[7:] * 2
    if kind == "our tensors":
        assert all(group["lr"] is tensor for group, tensor in zip(on.param_groups, held))
    assert stepped(resumed, 5) == resumed.values(12)[7:]


@KIND
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda several: pickle.loads(pickle.dumps(several))])
def test_copies_go_on_by_themselves(kind, copied):
    on, clock = optimizer(kind), Clock("40ba")
    one, timed = make(*TWO_DEEP, on), lr_scheduler.LinearLR(optimizer(kind), 0.1, 0.0, "1dur", clock=clock)
    stepped(one, 4)
    other, copy_, timer, timed_copy = copied((on, one, clock, timed))
    assert copy_.optimizer is other and other is not on
    values = one.values(30)
    assert stepped(copy_, 20) == values[3:23] and (value(one), count(one)) == (values[3], 3)
    assert stepped(one, 5) == values[3:8] and value(copy_) == values[22]
    alone = copied(one)  # has an optimizer of its own
    alone.step()
    assert alone.optimizer is not on and value(one) == values[7]
    assert ticked(timed_copy, timer, 2) == timed.values(3) and value(timed) == 0.1


@KIND
@pytest.mark.parametrize("order", [("clock", "scheduler"), ("scheduler", "clock"), ("clock",)])
def test_resuming_with_a_clock_in_any_order(kind, order, tmp_path):
    """The value is that of the clock's moment as soon as the clock is there, whichever comes last."""

    def new():
        clock, on = Clock("40ba", samples_per_batch=8), optimizer(kind)
        children = [
            lr_scheduler.LinearLR(on, 0.0, 0.1, "40sp", clock=clock),
            lr_scheduler.CosineDecayLR(on, 0.1, 0.0, 30),
        ]
        return {"clock": clock, "scheduler": lr_scheduler.SequentialLR(on, children, ["0.125dur"])}

    run, again = new(), new()
    values = run["scheduler"].values(30)
    assert ticked(run["scheduler"], run["clock"], 12) == values[:13]
    saved = through_a_file({name: each.state_dict() for name, each in run.items()}, tmp_path / "state.pt")
    for name in order:
        again[name].load_state_dict(saved[name])
    assert value(again["scheduler"]) == values[12]
    assert ticked(again["scheduler"], again["clock"], 10) == values[12:23]
