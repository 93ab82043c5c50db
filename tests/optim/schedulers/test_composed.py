"""Schedulers of schedulers: the groups of parent and children, who owns the key, and the factor of a group."""

import pytest
import torch
from torch.nn import Parameter

import optim
from optim import lr_scheduler
from tests.optim.schedulers.building import KINDS, make, optimizer, value
from tests.optim.schedulers.rows import COSINE, STEPS, WARMUP
from tests.optim.schedulers.test_tags import GROUPS, constant, rates

KIND = pytest.mark.parametrize("kind", KINDS)


@KIND
def test_children_with_the_tags_of_the_parent(kind):
    on = optimizer(kind, *GROUPS)
    children = [make(*WARMUP, on, param_group_tags=tags) for tags in ("a", ["a"])]
    parent = lr_scheduler.SequentialLR(on, children, [5], param_group_tags="a")
    assert rates(on) == [0.5, *(parent.values(1) * 2), 0.5]
    constant(on, 0.3, ["c", None]).step()
    parent.step()
    assert rates(on) == [0.3, parent.values(2)[1], parent.values(2)[1], 0.3]


@KIND
def test_a_parent_without_tags_takes_those_of_its_children(kind):
    on = optimizer(kind, *GROUPS)
    whole = lr_scheduler.ChainedLR([make(*WARMUP, on, param_group_tags="c"), make(*STEPS, on, param_group_tags=["c"])])
    whole.step()
    assert rates(on)[:3] == [0.5] * 3 and rates(on)[3] == whole.values(2)[1]
    assert whole.get_last_lr()[:3] == [0.5] * 3 and whole.tags == "c" == whole.param_group_tags


@pytest.mark.parametrize(
    ("own", "first", "second"),
    [("a", "c", "c"), ("a", None, "c"), ("a", None, None), (None, "a", "c"), (None, "a", None), ("a", "b", "b")],
)
def test_children_with_other_tags(own, first, second):
    """Refused, naming the tags; who owns what stays as it was."""
    on = optimizer("numbers", *GROUPS)
    children = [make(*WARMUP, on, param_group_tags=first), make(*COSINE, on, param_group_tags=second)]
    owners = [child.refusal for child in children]
    with pytest.raises(ValueError, match="tags"):
        lr_scheduler.SequentialLR(on, children, [5], param_group_tags=own)
    assert [child.refusal for child in children] == owners and children[1].refusal is None
    children[1].step()


def test_children_own_nothing():
    """They raise when they are stepped, and their schedules may be used again."""
    on = optimizer("numbers", *GROUPS)
    first, second = make(*WARMUP, on), make(*COSINE, on)
    parent = lr_scheduler.SequentialLR(on, [first, second], [5])
    for child in (first, second):
        state = child.state_dict()
        for call in (child.step, child.refresh, lambda s=state, c=child: c.load_state_dict({**s, "last_epoch": 7})):
            with pytest.raises(ValueError, match="was superseded by"):
                call()
    assert rates(on) == parent.values(1) * 4 and int(parent.last_epoch) == 0
    parent.step()
    assert int(parent.last_epoch) == 1 and int(first.last_epoch) == int(second.last_epoch) == 0
    again = lr_scheduler.ChainedLR([second])
    with pytest.raises(ValueError, match="SequentialLR of 'lr' was superseded by ChainedLR"):
        parent.step()
    again.step()
    assert rates(on) == second.values(2)[1:] * 4


def test_what_was_superseded_by_a_child_names_the_parent():
    on = optimizer("numbers")
    first = make(*STEPS, on)
    lr_scheduler.SequentialLR(on, [make(*WARMUP, on), make(*COSINE, on)], [5])
    with pytest.raises(ValueError, match="was superseded by SequentialLR, which was made later"):
        first.step()


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


@pytest.mark.parametrize("module", [torch.optim, optim])
def test_factors_of_groups_that_share_a_tensor(module):
    """As `SGD(groups, lr=tensor)` leaves them: one tensor cannot hold two values."""
    groups = [{"params": [Parameter(torch.zeros(1))]}, {"params": [Parameter(torch.zeros(1))], "adjust_val": 0.5}]
    on = module.SGD(groups, lr=torch.tensor(0.1, dtype=torch.float64))
    try:
        lr_scheduler.ScalePerParamLR(on, constant(on, 0.4))
    except ValueError as error:
        assert "share one tensor" in str(error)
    else:
        assert rates(on) == [0.4, 0.2]


@KIND
@pytest.mark.parametrize("factor", ["x", float("nan"), float("inf"), True, [1.0]])
def test_what_is_no_factor(kind, factor):
    on = optimizer(kind, {}, {})
    on.param_groups[1]["adjust_learning_rate"] = factor
    inner = make(*COSINE, on)
    before = rates(on)
    with pytest.raises(ValueError, match="adjust_learning_rate"):
        lr_scheduler.ScalePerParamLR(on, inner)
    assert rates(on) == before
    inner.step()


@KIND
def test_factors_inside_and_outside_of_others(kind):
    """Scaling the parts of a chain or sequence scales the whole once."""
    factors = (1.0, 0.5)
    for build in (
        lambda on: lr_scheduler.ScalePerParamLR(
            on, lr_scheduler.SequentialLR(on, [make(*WARMUP, on), make(*COSINE, on)], [5])
        ),
        lambda on: lr_scheduler.SequentialLR(
            on, [lr_scheduler.ScalePerParamLR(on, make(*part, on)) for part in (WARMUP, COSINE)], [5]
        ),
    ):
        on = optimizer(kind, {}, {"adjust_learning_rate": 0.5})
        one = build(on)
        for t in range(8):
            assert rates(on) == [factor * one.values(9)[t] for factor in factors]
            one.step()


def test_inside_of_torchs_sequence():
    """It sets its schedulers back to -1, from where these cannot begin."""
    for kind in KINDS:
        on = optimizer(kind)
        of_torch, first = torch.optim.lr_scheduler.ConstantLR(on, 1.0), make(*WARMUP, on)
        with pytest.raises(ValueError, match=r"write optim\.lr_scheduler\.SequentialLR\(optimizer, \[first, second\]"):
            torch.optim.lr_scheduler.SequentialLR(on, [of_torch, first], milestones=[2])
        assert int(first.last_epoch) == 0
