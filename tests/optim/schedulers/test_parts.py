"""Schedulers of schedulers: the groups of the parts and of the whole, and the factor of a group."""

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
def test_parts_take_the_tags_of_the_whole(kind):
    on = optimizer(kind, *GROUPS)
    parts = [make(*WARMUP, on), make(*COSINE, on)]
    whole = lr_scheduler.SequentialLR(on, parts, [5], param_group_tags="a")
    assert rates(on)[1:3] == whole.values(1) * 2
    assert whole.get_last_lr()[0] is None and whole.get_last_lr()[3] is None
    constant(on, 0.3, ["c", None]).step()  # the parts are in nobody's way
    whole.step()
    assert rates(on) == [0.3, whole.values(2)[1], whole.values(2)[1], 0.3]


@KIND
def test_the_whole_takes_the_tags_of_its_parts(kind):
    on = optimizer(kind, *GROUPS)
    whole = lr_scheduler.ChainedLR([make(*WARMUP, on, param_group_tags="c"), make(*STEPS, on, param_group_tags=["c"])])
    whole.step()
    assert rates(on)[:3] == [0.5] * 3 and rates(on)[3] == whole.values(2)[1]
    assert whole.get_last_lr()[:3] == [None] * 3


@pytest.mark.parametrize(
    ("own", "first", "second"),
    [("a", "c", "c"), ("a", None, "c"), (None, "a", "c"), (None, "a", None), ("a", "b", "b")],
)
def test_parts_with_other_tags(own, first, second):
    """Refused, naming the tags; no part is taken."""
    on = optimizer("numbers", *GROUPS)
    parts = [make(*WARMUP, on, param_group_tags=first), make(*COSINE, on, param_group_tags=second)]
    with pytest.raises(ValueError, match="tags"):
        lr_scheduler.SequentialLR(on, parts, [5], param_group_tags=own)
    parts[1].unbind()
    parts[0].step()
    assert int(parts[0].last_epoch) == 1


def test_a_part_is_not_stepped_or_taken_twice():
    on = optimizer("numbers", *GROUPS)
    first, second = make(*WARMUP, on), make(*COSINE, on)
    whole = lr_scheduler.SequentialLR(on, [first, second], [5])
    for part in (first, second):
        with pytest.raises(ValueError, match="part of a SequentialLR"):
            part.step()
        with pytest.raises(ValueError, match="SequentialLR"):
            lr_scheduler.ChainedLR([part])
    assert rates(on) == whole.values(1) * 4 and int(whole.last_epoch) == 0
    whole.step()
    assert int(whole.last_epoch) == 1 and int(first.last_epoch) in (0, 1)


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
