"""Schedulers of schedulers: their children, the groups of parent and children, who owns the key, factors of groups."""

import pytest
import torch

import optim
import timesched
from optim import lr_scheduler
from tests.optim.schedulers.building import GROUPS, KIND, constant, make, one_group, optimizer, rates, ticked, value
from tests.optim.schedulers.rows import COSINE, WARMUP
from timesched import Clock


def stepped_once(on):
    one = make(*COSINE, on)
    one.step()
    return one


NO_CHILDREN = {
    "torch": lambda on: torch.optim.lr_scheduler.StepLR(optimizer(), 3),
    "formula": lambda on: timesched.LinearScheduler(),
    "other": lambda on: make(*COSINE, optimizer()),
    "key": lambda on: make(*COSINE, on, "wd"),
    "stepped": stepped_once,
}


def test_a_parent_takes_the_clock_of_its_children():
    on, clock = optimizer(), Clock("40ba")
    first = lr_scheduler.LinearLR(on, 1.0, 0.0, "0.5dur", clock=clock)
    one = lr_scheduler.SequentialLR(on, [first, constant(on, 0.25)], ["0.25dur"])
    assert one.clock is clock and ticked(one, clock, 11) == [*(1 - batch / 20 for batch in range(10)), 0.25, 0.25]
    with pytest.raises(ValueError, match="clock"):
        lr_scheduler.SequentialLR(on, [first], [], clock=Clock("40ba"))


@KIND
@pytest.mark.parametrize("own", ["a", None])
def test_children_with_the_tags_of_the_parent(kind, own):
    """A parent without tags takes those of its children."""
    on = optimizer(kind, *GROUPS)
    children = [make(*WARMUP, on, param_group_tags=tags) for tags in ("a", ["a"])]
    parent = lr_scheduler.SequentialLR(on, children, [5], param_group_tags=own)
    assert rates(on) == [0.5, *(parent.values(1) * 2), 0.5] and parent.tags == "a"
    constant(on, 0.3, ["c", None]).step()
    parent.step()
    assert rates(on) == [0.3, *(parent.values(2)[1:] * 2), 0.3]


@pytest.mark.parametrize(
    ("own", "first", "second"),
    [("a", "c", "c"), ("a", None, "c"), ("a", None, None), (None, "a", "c"), (None, "a", None)],
)
def test_children_with_other_tags(own, first, second):
    on = optimizer("numbers", *GROUPS)
    children = [make(*WARMUP, on, param_group_tags=first), make(*COSINE, on, param_group_tags=second)]
    refusals = [child.refusal for child in children]
    with pytest.raises(ValueError, match="tags"):
        lr_scheduler.SequentialLR(on, children, [5], param_group_tags=own)
    assert [child.refusal for child in children] == refusals and children[1].refusal is None
    children[1].step()


def test_children_own_nothing():
    """They raise when they are stepped, and their schedules may be used again."""
    on = optimizer("numbers", *GROUPS)
    first, second = make(*WARMUP, on), make(*COSINE, on)
    parent = lr_scheduler.SequentialLR(on, [first, second], [5])
    for each in (first, second):
        state = each.state_dict()
        for call in (each.step, each.refresh, lambda s=state, c=each: c.load_state_dict(s)):
            with pytest.raises(ValueError, match="since SequentialLR.* was created later"):
                call()
    parent.step()
    assert rates(on) == parent.values(2)[1:] * 4 and int(first.last_epoch) == int(second.last_epoch) == 0
    again = lr_scheduler.ChainedLR([second])
    with pytest.raises(ValueError, match="since ChainedLR.* was created later"):
        parent.step()
    with pytest.raises(ValueError, match="milestones"):
        lr_scheduler.SequentialLR(on, [first, second], [4, 8])  # what cannot be made changes no owner
    again.step()
    assert rates(on) == second.values(2)[1:] * 4
    lr_scheduler.SequentialLR(on, [second] * 2, [3]).step()  # the same schedule twice is two schedules


# Factors of groups


@KIND
@pytest.mark.parametrize("family", ["lr", "wd"])
def test_the_factor_of_a_group(kind, family):
    """adjust_learning_rate, else adjust_val, else 1."""
    groups = ({}, {"adjust_learning_rate": 0.5}, {"adjust_val": 0.25}, {"adjust_learning_rate": 2.0, "adjust_val": 9.0})
    one = make("ScalePerParam", {"scheduler": COSINE}, optimizer(kind, *groups), family)
    for t in range(3):
        assert [value(one, i) for i in range(4)] == [factor * one.values(4)[t] for factor in (1.0, 0.5, 0.25, 2.0)]
        one.step()


@KIND
def test_factors_inside_and_outside_of_others(kind):
    """Scaling each child of a sequence scales it once, as scaling the sequence does; some of them is an error."""

    def scaled(*children, inside):
        on = optimizer(kind, {}, {"adjust_learning_rate": 0.5})
        several = [make(*child, on) for child in children]
        several = [lr_scheduler.ScalePerParamLR(on, one) if its else one for one, its in zip(several, inside)]
        one = lr_scheduler.SequentialLR(on, several, [5])
        return one if any(inside) else lr_scheduler.ScalePerParamLR(on, one)

    for one in (scaled(WARMUP, COSINE, inside=(True, True)), scaled(WARMUP, COSINE, inside=(False, False))):
        for t in range(8):
            assert rates(one.optimizer) == [factor * one.values(9)[t] for factor in (1.0, 0.5)]
            one.step()
    with pytest.raises(ValueError, match="some are scaled per group"):
        scaled(WARMUP, COSINE, inside=(False, True))


@pytest.mark.parametrize("module", [torch.optim, optim])
def test_factors_of_groups_that_share_a_tensor(module):
    """As `SGD(groups, lr=tensor)` leaves them: one tensor cannot hold two values."""
    on = module.SGD([one_group(), one_group(adjust_val=0.5)], lr=torch.tensor(0.1, dtype=torch.float64))
    with pytest.raises(ValueError, match="share one tensor"):
        lr_scheduler.ScalePerParamLR(on, constant(on, 0.4))


@KIND
@pytest.mark.parametrize("factor", ["x", float("nan"), True, [1.0]])
def test_what_is_no_factor(kind, factor):
    """Also of a group that is added later."""
    on = optimizer(kind, {}, {"adjust_learning_rate": factor})
    child = make(*COSINE, on)
    before = rates(on)
    with pytest.raises(ValueError, match="adjust_learning_rate"):
        lr_scheduler.ScalePerParamLR(on, child)
    assert rates(on) == before and "created later" not in str(child.refusal)
    on.param_groups[1]["adjust_learning_rate"] = 1.0
    one = lr_scheduler.ScalePerParamLR(on, child)
    on.add_param_group(one_group(adjust_learning_rate=factor))
    with pytest.raises(ValueError, match="adjust_learning_rate=.* group 2"):
        one.step()
