"""Which groups are scheduled: tags, groups that come later, and that no two schedulers write to the same number."""

import pytest
import torch
from torch.nn import Parameter

import optim
import timesched
from optim import lr_scheduler
from tests.optim.schedulers.building import KINDS, make, optimizer, stepped
from tests.optim.schedulers.rows import COSINE

KIND = pytest.mark.parametrize("kind", KINDS)
GROUPS = ({}, {"tags": "a"}, {"tags": ["a", "b"]}, {"tags": ["c"]})


def constant(on, rate=0.1, tags=None):
    return lr_scheduler.ConstantLR(on, rate, param_group_tags=tags)


def rates(on):
    return [float(group["lr"]) for group in on.param_groups]


def bare(last):
    return [float(each) for each in last]


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
    """One entry a group in what is returned: its present value where a group is left alone."""
    on = optimizer(kind, *GROUPS)
    one = make(*COSINE, on, param_group_tags=tags)
    for t in range(4):
        expected = one.values(5)[t]
        assert rates(on) == [expected if i in chosen else 0.5 for i in range(4)]
        assert bare(one.get_last_lr()) == rates(on) == bare(one.get_lr())
        assert bare(one.base_lrs) == [one.values(1)[0] if i in chosen else 0.5 for i in range(4)]
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
    """The one that was made last owns it; the earlier one names it, and writes nothing."""
    on = optimizer(kind, *GROUPS)
    one, two = constant(on, 0.1, first), constant(on, 0.2, second)
    before, state = rates(on), one.state_dict()
    for call in (one.step, one.refresh, one.check, lambda: one.load_state_dict({**state, "last_epoch": 1})):
        with pytest.raises(ValueError, match=r"ConstantLR of 'lr' was superseded by ConstantLR.*'a', 'b', 'c'"):
            call()
        assert rates(on) == before and int(one.last_epoch) == 0
    two.step()
    two.unbind()
    with pytest.raises(ValueError, match="superseded"):
        one.step()
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
    for _ in range(2):
        on.step()
        for one in several:
            one.step()
    assert rates(on) == [0.2, 0.1, 0.1, 0.2]
    assert [float(group["weight_decay"]) for group in on.param_groups] == [0.03] * 4
    assert [float(group["momentum"]) for group in on.param_groups] == [0.9, 0.9, 0.9, 0.7]


@KIND
def test_beside_a_bound_schedule(kind):
    """Both halves know of each other, whichever comes first."""
    clock = timesched.Clock("4ba")
    on = optimizer(kind, *GROUPS)
    bound = timesched.bind(timesched.LinearScheduler(), on, clock, tags="a")
    other = constant(on, 0.1, "c")
    other.step()
    clock.tick()
    bound.step()
    assert rates(on) == [0.5, 0.375, 0.375, 0.1]
    second = optimizer(kind, *GROUPS)
    constant_one = constant(second, 0.1, "a")
    constant_one.step()
    timesched.bind(timesched.LinearScheduler(), second, clock, tags="c")
    assert rates(second) == [0.5, 0.1, 0.1, 0.375]
    constant_one.step()
    timesched.bind(timesched.LinearScheduler(), second, clock, tags="b")
    with pytest.raises(ValueError, match="superseded by LinearScheduler"):
        constant_one.step()


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
    assert bare(one.get_last_lr()) == [expected[2], expected[2], 0.7]
    assert stepped(one, 3) == expected[2:]


def test_a_later_group_that_two_would_take():
    on = optimizer("numbers", {"tags": "a"}, {"tags": "b"})
    one, two = constant(on, 0.1, "a"), constant(on, 0.2, "b")
    one.step()
    two.step()
    on.add_param_group({"params": [Parameter(torch.zeros(2))], "lr": 0.7, "tags": ["a", "b"]})
    for each in (one, two):
        with pytest.raises(ValueError, match="parameter group 2, which was added, is for two schedulers"):
            each.step()
    assert rates(on) == [0.1, 0.2, 0.7]


def test_a_later_group_without_the_key_or_with_a_bad_factor():
    on = optimizer("numbers")
    whole = lr_scheduler.ScalePerParamLR(on, constant(on, 0.2))
    on.add_param_group({"params": [Parameter(torch.zeros(2))], "adjust_learning_rate": "x"})
    with pytest.raises(ValueError, match="adjust_learning_rate='x'"):
        whole.step()


def test_an_optimizer_of_the_suite_keeps_tags_as_sets():
    on = optim.SGD([{"params": [Parameter(torch.zeros(1))], "tags": ["b", "a"]}], lr=0.1)
    assert on.param_groups[0]["tags"] == {"a", "b"}
    assert constant(on, 0.2, "b").get_last_lr()[0] == 0.2
