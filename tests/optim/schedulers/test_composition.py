"""Schedulers of schedulers: their children, the groups of parent and children, who owns the key, factors of groups."""

import pytest
import torch

import optim
import timesched
from optim import lr_scheduler
from tests.optim.schedulers.building import GROUPS, KIND, class_of, constant, make, one_group, optimizer, rates, value
from tests.optim.schedulers.rows import COSINE, STEPS, WARMUP, Nested
from timesched import Clock

# What cannot be a child


def stepped_once(on):
    one = make(*COSINE, on)
    one.step()
    return one


NO_CHILDREN = {
    "none": lambda on: None,
    "one": lambda on: [],
    "text": lambda on: "LinearLR",
    "number": lambda on: 0.1,
    "torch": lambda on: torch.optim.lr_scheduler.StepLR(optimizer(), 3),
    "formula": lambda on: timesched.LinearScheduler(),
    "other": lambda on: make(*COSINE, optimizer()),
    "key": lambda on: make(*COSINE, on, "wd"),
    "stepped": stepped_once,
}


@pytest.mark.parametrize("stem", ["Sequential", "Chained"])
@pytest.mark.parametrize("wrong", NO_CHILDREN.values(), ids=NO_CHILDREN)
def test_what_is_no_child(stem, wrong):
    """Named by its place, and who owns the key stays as it was."""
    on = optimizer()
    good = make(*WARMUP, on)
    schedulers = [good, wrong(on)]
    refusal, before = good.refusal, rates(on)
    with pytest.raises((TypeError, ValueError), match=r"schedulers\[1\]"):
        class_of(stem)(*([on, schedulers, [5]] if stem == "Sequential" else [schedulers]))
    assert rates(on) == before and good.refusal == refusal


@pytest.mark.parametrize("schedulers", [[], None, 5, "LinearLR", COSINE])
def test_no_list_of_schedulers(schedulers):
    with pytest.raises(TypeError, match="schedulers"):
        lr_scheduler.SequentialLR(optimizer(), schedulers, [])
    with pytest.raises(TypeError, match="schedulers"):
        lr_scheduler.ChainedLR(schedulers)


def test_a_scheduler_of_torchs_as_a_child():
    on = optimizer()
    theirs = torch.optim.lr_scheduler.ConstantLR(on)
    with pytest.raises(TypeError, match=r"schedulers\[0\] is a torch.optim.lr_scheduler.ConstantLR: pass .* of optim"):
        lr_scheduler.SequentialLR(on, [theirs], [])


def test_a_child_with_methods_of_its_own():
    """Its methods would not be called: a parent takes the schedule of a child alone."""

    class PerGroup(lr_scheduler.ConstantLR):
        def get_lr(self):
            return [i * value for i, value in enumerate(super().get_lr(), 1)]

    on = optimizer()
    child = PerGroup(on, 0.1)
    before = rates(on)
    for parent in (lambda: lr_scheduler.SequentialLR(on, [child], []), lambda: lr_scheduler.ScalePerParamLR(on, child)):
        with pytest.raises(
            ValueError, match=r"schedulers\[0\] is a PerGroup, whose get_lr\(\) is not called in a (Sequential|Scale)"
        ):
            parent()
    assert rates(on) == before and child.refusal is None


def test_a_chain_cannot_go_on_from_zero():
    ramp = Nested("Linear", {"initial_val": 0.0, "end_val": 0.1, "total_iters": 5})
    with pytest.raises(ValueError, match=r"one of them starts at 0\.0: put that one first"):
        make("Chained", {"schedulers": [COSINE, ramp]}, optimizer())
    assert make("Chained", {"schedulers": [ramp, COSINE]}, optimizer()).values(1) == [0.0]


@pytest.mark.parametrize("child", [None, "LinearLR", 0.1, timesched.LinearScheduler()])
def test_scale_per_param_wants_a_scheduler(child):
    with pytest.raises(TypeError, match="scheduler"):
        lr_scheduler.ScalePerParamLR(optimizer(), child)


def test_children_of_other_clocks():
    on, clocks = optimizer(), (Clock("10ba"), Clock("10ba"))
    children = [lr_scheduler.LinearLR(on, 1.0, 0.0, "1dur", clock=clock) for clock in clocks]
    with pytest.raises(ValueError, match="clock"):
        lr_scheduler.SequentialLR(on, children, [5], clock=clocks[0])


# The groups of parent and children


@KIND
@pytest.mark.parametrize("own", ["a", None])
def test_children_with_the_tags_of_the_parent(kind, own):
    """A parent without tags takes those of its children."""
    on = optimizer(kind, *GROUPS)
    children = [make(*WARMUP, on, param_group_tags=tags) for tags in ("a", ["a"])]
    parent = lr_scheduler.SequentialLR(on, children, [5], param_group_tags=own)
    assert rates(on) == [0.5, *(parent.values(1) * 2), 0.5] and parent.tags == "a" == parent.param_group_tags
    constant(on, 0.3, ["c", None]).step()
    parent.step()
    assert rates(on) == [0.3, *(parent.values(2)[1:] * 2), 0.3]


@pytest.mark.parametrize(
    ("own", "first", "second"),
    [("a", "c", "c"), ("a", None, "c"), ("a", None, None), (None, "a", "c"), (None, "a", None), ("a", "b", "b")],
)
def test_children_with_other_tags(own, first, second):
    """Refused, naming the tags; who owns what stays as it was."""
    on = optimizer("numbers", *GROUPS)
    children = [make(*WARMUP, on, param_group_tags=first), make(*COSINE, on, param_group_tags=second)]
    refusals = [child.refusal for child in children]
    with pytest.raises(ValueError, match="tags"):
        lr_scheduler.SequentialLR(on, children, [5], param_group_tags=own)
    assert [child.refusal for child in children] == refusals and children[1].refusal is None
    children[1].step()


# Who owns the key


def test_children_own_nothing():
    """They raise when they are stepped, and their schedules may be used again."""
    on = optimizer("numbers", *GROUPS)
    before, first, second = make(*STEPS, on), make(*WARMUP, on), make(*COSINE, on)
    parent = lr_scheduler.SequentialLR(on, [first, second], [5])
    for each in (before, first, second):
        state = each.state_dict()
        for call in (each.step, each.refresh, lambda s=state, c=each: c.load_state_dict({**s, "last_epoch": 7})):
            with pytest.raises(ValueError, match="was superseded by SequentialLR, which was made later"):
                call()
    assert rates(on) == parent.values(1) * 4 and int(parent.last_epoch) == 0
    parent.step()
    assert int(parent.last_epoch) == 1 and int(first.last_epoch) == int(second.last_epoch) == 0
    again = lr_scheduler.ChainedLR([second])
    with pytest.raises(ValueError, match="SequentialLR of 'lr' was superseded by ChainedLR"):
        parent.step()
    again.step()
    assert rates(on) == second.values(2)[1:] * 4


def test_a_parent_that_cannot_be_made_changes_no_owner():
    on = optimizer("numbers", *GROUPS)
    decay = constant(on, 0.3, "c")
    children = [make(*WARMUP, on, param_group_tags="a"), make(*COSINE, on, param_group_tags="a")]
    with pytest.raises(ValueError, match="milestones"):
        lr_scheduler.SequentialLR(on, children, [4, 8])
    children[1].step()
    decay.step()
    lr_scheduler.SequentialLR(on, children[:1] * 2, [3]).step()  # the same schedule twice is two schedules
    assert rates(on)[3] == 0.3


# Factors of groups


@KIND
@pytest.mark.parametrize("family", ["lr", "wd", "generic"])
def test_the_factor_of_a_group(kind, family):
    """adjust_learning_rate, else adjust_val, else 1; and it may change."""
    groups = ({}, {"adjust_learning_rate": 0.5}, {"adjust_val": 0.25}, {"adjust_learning_rate": 2.0, "adjust_val": 9.0})
    on = optimizer(kind, *groups)
    one = make("ScalePerParam", {"scheduler": COSINE}, on, family)
    for t in range(3):
        assert [value(one, i) for i in range(4)] == [factor * one.values(4)[t] for factor in (1.0, 0.5, 0.25, 2.0)]
        one.step()
    on.param_groups[1]["adjust_learning_rate"] = 0.125
    one.step()
    assert value(one, 1) == 0.125 * one.values(5)[4]


@KIND
@pytest.mark.parametrize("inside", [False, True])
def test_factors_inside_and_outside_of_others(kind, inside):
    """Scaling each child of a sequence scales it once, as scaling the sequence does."""
    on = optimizer(kind, {}, {"adjust_learning_rate": 0.5})
    children = [make(*child, on) for child in (WARMUP, COSINE)]
    if inside:
        children = [lr_scheduler.ScalePerParamLR(on, child) for child in children]
    one = lr_scheduler.SequentialLR(on, children, [5])
    if not inside:
        one = lr_scheduler.ScalePerParamLR(on, one)
    for t in range(8):
        assert rates(on) == [factor * one.values(9)[t] for factor in (1.0, 0.5)]
        one.step()


def test_children_of_which_some_are_scaled():
    on = optimizer("numbers", {}, {"adjust_learning_rate": 0.5})
    children = [make(*WARMUP, on), lr_scheduler.ScalePerParamLR(on, make(*COSINE, on))]
    with pytest.raises(ValueError, match="some schedulers are scaled per group and some are not"):
        lr_scheduler.SequentialLR(on, children, [5])


@pytest.mark.parametrize("module", [torch.optim, optim])
def test_factors_of_groups_that_share_a_tensor(module):
    """As `SGD(groups, lr=tensor)` leaves them: one tensor cannot hold two values."""
    on = module.SGD([one_group(), one_group(adjust_val=0.5)], lr=torch.tensor(0.1, dtype=torch.float64))
    if on.param_groups[0]["lr"] is not on.param_groups[1]["lr"]:  # ours gives each group its own
        lr_scheduler.ScalePerParamLR(on, constant(on, 0.4))
        assert rates(on) == [0.4, 0.2]
        return
    with pytest.raises(ValueError, match="share one tensor"):
        lr_scheduler.ScalePerParamLR(on, constant(on, 0.4))


@KIND
@pytest.mark.parametrize("factor", ["x", float("nan"), float("inf"), True, [1.0]])
def test_what_is_no_factor(kind, factor):
    on = optimizer(kind, {}, {"adjust_learning_rate": factor})
    child = make(*COSINE, on)
    before = rates(on)
    with pytest.raises(ValueError, match="adjust_learning_rate"):
        lr_scheduler.ScalePerParamLR(on, child)
    assert rates(on) == before
    child.step()
