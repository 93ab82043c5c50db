"""Which groups are scheduled: tags, groups that come later, and that no two schedulers write to the same number."""

import gc

import pytest
import torch
from torch.nn import Parameter

import optim
import timesched
from optim import lr_scheduler
from optim.closed_form import settle
from tests.optim.schedulers.building import KINDS, make, optimizer, stepped, value
from tests.optim.schedulers.rows import COSINE, STEPS, WARMUP

KIND = pytest.mark.parametrize("kind", KINDS)
GROUPS = ({}, {"tags": "a"}, {"tags": ["a", "b"]}, {"tags": ["c"]})


def constant(on, rate=0.1, tags=None):
    return lr_scheduler.ConstantLR(on, rate, param_group_tags=tags)


def rates(on):
    return [float(group["lr"]) for group in on.param_groups]


def bare(last):
    return [each if each is None else float(each) for each in last]


@KIND
@pytest.mark.parametrize(
    ("tags", "chosen"),
    [
        (None, {0, 1, 2, 3}),
        ("a", {1, 2}),
        (["a"], {1, 2}),
        (("b", "c"), {2, 3}),
        ({"b"}, {2}),
        ([None], {0}),
        (["b", None], {0, 2}),
        (["a", "nobody"], {1, 2}),
    ],
)
def test_which_groups(kind, tags, chosen):
    """One entry a group in what is returned: None for those that are left alone."""
    on = optimizer(kind, *GROUPS)
    one = make(*COSINE, on, param_group_tags=tags)
    for t in range(4):
        expected = one.values(5)[t]
        assert rates(on) == [expected if i in chosen else 0.5 for i in range(4)]
        assert bare(one.get_last_lr()) == [expected if i in chosen else None for i in range(4)] == bare(one.get_lr())
        one.step()
    with pytest.raises(ValueError, match="4 parameter groups"):
        one.update_groups([0.1])


@KIND
@pytest.mark.parametrize("tags", ["d", ["d", "e"], []])
def test_no_match(kind, tags):
    on = optimizer(kind, *GROUPS)
    with pytest.raises(ValueError, match=r"'a', 'b', 'c'"):
        constant(on, tags=tags)
    assert rates(on) == [0.5] * 4
    untagged = optimizer(kind)
    with pytest.raises(ValueError, match="none"):
        constant(untagged, tags=tags)
    with pytest.raises(ValueError, match="'a'"):  # every group has a tag
        constant(optimizer(kind, {"tags": "a"}), tags=[None])


@pytest.mark.parametrize("tags", [["a", "a"], ["a", "b", "a"], [None, None], 5, ["a", 5], [["a"]], True, b"a"])
def test_what_are_no_tags(tags):
    on = optimizer("numbers", *GROUPS)
    with pytest.raises((ValueError, TypeError), match="tag"):
        constant(on, tags=tags)
    assert rates(on) == [0.5] * 4


@KIND
@pytest.mark.parametrize(
    ("first", "second"), [(None, None), ("a", None), (None, [None]), ("a", "b"), (["a", "c"], ["c"])]
)
def test_two_on_one_key_of_a_group(kind, first, second):
    """Refused at the first step of either, or when asked; both may be there until then, to become parts of one."""
    on = optimizer(kind, *GROUPS)
    one, two = constant(on, 0.1, first), constant(on, 0.2, second)
    for each in (one, two):
        before = rates(on), int(each.last_epoch)
        with pytest.raises(ValueError, match=r"'lr' of parameter group \d.*'a', 'b', 'c'"):
            each.step()
        assert (rates(on), int(each.last_epoch)) == before
        with pytest.raises(ValueError, match="'a', 'b', 'c'"):
            settle([each])
    one.unbind()
    two.step()
    settle([two])
    with pytest.raises(ValueError, match="bound already"):
        constant(on, 0.3, first).step()


@KIND
def test_side_by_side(kind):
    """Other groups, or other keys of the same: each is alone with its numbers."""
    on = optimizer(kind, *GROUPS)
    several = [
        constant(on, 0.1, "a"),
        constant(on, 0.2, ["c", None]),
        make("Constant", {"val": 0.03}, on, "wd"),
        make("Constant", {"val": 0.7}, on, "generic", param_group_tags="c"),
    ]
    settle(several)
    for _ in range(2):
        on.step()
        for one in several:
            one.step()
    assert rates(on) == [0.2, 0.1, 0.1, 0.2]
    assert [float(group["weight_decay"]) for group in on.param_groups] == [0.03] * 4
    assert [float(group["momentum"]) for group in on.param_groups] == [0.9, 0.9, 0.9, 0.7]


def test_a_scheduler_that_is_gone_is_in_nobodys_way():
    on = optimizer("numbers", *GROUPS)
    constant(on, 0.1)
    gc.collect()
    one = constant(on, 0.2)
    one.step()
    del one
    gc.collect()
    constant(on, 0.3).step()
    assert rates(on) == [0.3] * 4


@KIND
def test_beside_a_bound_schedule(kind):
    """Both halves know of each other, whichever comes first."""
    clock = timesched.Clock("4ba")
    on = optimizer(kind, *GROUPS)
    bound = timesched.bind(timesched.LinearScheduler(), on, clock, tags="a")
    with pytest.raises(ValueError, match="'a', 'b', 'c'"):
        constant(on, 0.1, "b").step()
    gc.collect()
    other = constant(on, 0.1, "c")
    other.step()
    clock.tick()
    bound.step()
    assert rates(on) == [0.5, 0.375, 0.375, 0.1]
    second = optimizer(kind, *GROUPS)
    constant_one = constant(second, 0.1, "a")
    constant_one.step()
    with pytest.raises(ValueError, match="bound already"):
        timesched.bind(timesched.LinearScheduler(), second, clock, tags="b")
    timesched.bind(timesched.LinearScheduler(), second, clock, tags="c")
    assert rates(second) == [0.5, 0.1, 0.1, 0.375]


@KIND
def test_a_group_that_comes_later(kind):
    """It is scheduled from the next step on, if it carries the tag; and what is written it too is its tensor."""
    on = optimizer(kind, {"tags": "a"})
    one = make(*COSINE, on, param_group_tags="a")
    one.step()
    on.add_param_group({"params": [Parameter(torch.zeros(2))], "lr": 0.7, "tags": "a"})
    on.add_param_group({"params": [Parameter(torch.zeros(2))], "lr": 0.7})
    one.step()
    expected = one.values(5)
    assert rates(on) == [expected[2], expected[2], 0.7]
    assert bare(one.get_last_lr()) == [expected[2], expected[2], None]
    if kind == "ours":
        assert isinstance(on.param_groups[1]["lr"], torch.Tensor)
    assert stepped(one, 3) == expected[2:]


def test_a_later_group_that_two_would_take():
    on = optimizer("numbers", {"tags": "a"}, {"tags": "b"})
    one, two = constant(on, 0.1, "a"), constant(on, 0.2, "b")
    one.step()
    two.step()
    on.add_param_group({"params": [Parameter(torch.zeros(2))], "lr": 0.7, "tags": ["a", "b"]})
    with pytest.raises(ValueError, match="parameter group 2"):  # before both have written to it
        one.step()
        two.step()
    assert rates(on)[2] != 0.2


def test_a_later_group_without_the_key_or_with_a_bad_factor():
    on = optimizer("numbers")
    whole = lr_scheduler.ScalePerParamLR(on, constant(on, 0.2))
    on.add_param_group({"params": [Parameter(torch.zeros(2))], "adjust_learning_rate": "x"})
    with pytest.raises(ValueError, match="adjust_learning_rate='x'"):
        whole.step()


# Schedulers of schedulers


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


# The factor of a group


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


def test_an_optimizer_of_the_suite_keeps_tags_as_sets():
    on = optim.SGD([{"params": [Parameter(torch.zeros(1))], "tags": ["b", "a"]}], lr=0.1)
    assert on.param_groups[0]["tags"] == {"a", "b"}
    assert constant(on, 0.2, "b").get_last_lr()[0] == 0.2
