"""Which groups are scheduled: tags, groups that come later, and groups that are changed behind a scheduler."""

import copy
import pickle

import pytest
import torch
from torch.nn import Parameter

import optim
import timesched
from optim import lr_scheduler
from tests.optim.schedulers.building import (
    EACH_MAKER,
    GROUPS,
    KIND,
    constant,
    floats,
    make,
    one_group,
    optimizer,
    rates,
    stepped,
)
from tests.optim.schedulers.rows import COSINE
from timesched import Clock

TWO_KINDS = pytest.mark.parametrize("kind", ["numbers", "ours"])


# Tags


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
        assert floats(one.get_last_lr()) == rates(on) == floats(one.get_lr())
        assert floats(one.base_lrs) == [one.values(1)[0] if i in chosen else 0.5 for i in range(4)]
        one.step()
    with pytest.raises(ValueError, match="4 parameter groups"):
        one.update_groups([0.1])


@pytest.mark.parametrize("tags", ["d", ["d", "e"], []])
def test_no_match(tags):
    on = optimizer("numbers", *GROUPS)
    with pytest.raises(ValueError, match=r"'a', 'b', 'c'"):
        constant(on, tags=tags)
    assert rates(on) == [0.5] * 4
    with pytest.raises(ValueError, match="none"):
        constant(optimizer(), tags=tags)
    with pytest.raises(ValueError, match="'a'"):  # every group has a tag
        constant(optimizer("numbers", {"tags": "a"}), tags=[None])


@pytest.mark.parametrize("tags", [["a", "a"], ["a", "b", "a"], [None, None], 5, ["a", 5], [["a"]], True, b"a"])
def test_what_are_no_tags(tags):
    on = optimizer("numbers", *GROUPS)
    with pytest.raises((ValueError, TypeError), match="tag"):
        constant(on, tags=tags)
    assert rates(on) == [0.5] * 4


def test_the_tags_of_a_group_are_names():
    with pytest.raises(ValueError, match="tags=3"):
        constant(optimizer("numbers", {"tags": 3}), tags="a")
    on = optimizer("ours", {"tags": ["b", "a"]})  # which keeps them as sets
    assert on.param_groups[0]["tags"] == {"a", "b"} and floats(constant(on, 0.2, "b").get_last_lr()) == [0.2]


def test_tags_from_a_generator():
    on = optimizer("numbers", {"tags": "a"}, {"tags": "b"})
    one = lr_scheduler.LinearLR(on, 0.1, 0.5, 4, param_group_tags=(tag for tag in "a"))
    on.add_param_group(one_group("a"))
    one.step()
    assert rates(on) == [0.2, 0.5, 0.2] and one.state_dict()["schedule"]["param_group_tags"] == ["a"]


# Groups that come later


@KIND
def test_a_group_that_comes_later(kind):
    """It is scheduled from the next step on, if it carries the tag."""
    on = optimizer(kind, {"tags": "a"})
    one = make(*COSINE, on, param_group_tags="a")
    one.step()
    on.add_param_group(one_group("a", lr=0.7))
    on.add_param_group(one_group(lr=0.7))
    one.step()
    expected = one.values(5)
    assert rates(on) == [expected[2], expected[2], 0.7] == floats(one.get_last_lr())
    assert stepped(one, 3) == expected[2:]


def test_a_later_group_of_a_multiplier_has_its_own_initial_value():
    on, clock = optimizer("numbers", {"tags": "x"}, lr=1.0), Clock("4ba")
    one = timesched.bind(timesched.LinearScheduler(), on, clock, tags="x")
    on.add_param_group(one_group("x", lr=0.5))
    on.add_param_group(one_group(lr=0.5))
    clock.tick()
    one.step()
    assert rates(on) == [0.75, 0.375, 0.5]


def test_a_later_group_with_a_bad_factor():
    on = optimizer()
    one = lr_scheduler.ScalePerParamLR(on, constant(on, 0.2))
    on.add_param_group(one_group(adjust_learning_rate="x"))
    with pytest.raises(ValueError, match="adjust_learning_rate='x'"):
        one.step()


# Tensors that groups share


@EACH_MAKER
def test_a_tensor_that_groups_share_is_not_scheduled_for_one_of_them(new):
    shared = torch.tensor(0.5, dtype=torch.float64)
    on = optimizer("numbers", {"lr": shared, "tags": "x"}, {"lr": shared})
    with pytest.raises(ValueError, match="groups 0 and 1 share one tensor as 'lr'"):
        new(on, tags="x")
    one = new(on)
    assert on.param_groups[0]["lr"] is on.param_groups[1]["lr"] is shared and rates(on) == floats(one.get_last_lr())


def test_a_later_group_that_shares_the_tensor():
    on = optimizer("numbers", {"tags": "a"}, lr=torch.tensor(0.1))  # torch gives every group the same tensor
    one = lr_scheduler.LinearLR(on, 0.1, 0.5, 4, param_group_tags="a")
    on.add_param_group(one_group("b"))
    with pytest.raises(ValueError, match="share one tensor"):
        one.step()
    assert int(one.last_epoch) == 0 and rates(on) == [pytest.approx(0.1)] * 2


def test_numbers_beside_a_tensor():
    """The count is a tensor where one of the groups holds one."""
    on = optimizer("numbers", {}, {"lr": torch.tensor(0.1)})
    one = lr_scheduler.LinearLR(on, 0.1, 0.5, 4)
    assert isinstance(one._count, torch.Tensor)
    one.step()
    assert rates(on) == pytest.approx([0.2, 0.2])


@EACH_MAKER
def test_a_rate_that_requires_a_gradient(new):
    """Written in place; what is read of it has no history."""
    rate = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    on, clock = optimizer(lr=rate), Clock("10ba")
    one = new(on, clock)
    clock.tick()
    one.step()
    (last,) = one.get_last_lr()
    assert on.param_groups[0]["lr"] is rate and rate.requires_grad and rate.is_leaf
    assert last.item() == rate.item() and not last.requires_grad
    other, copied = copy.deepcopy((on, one))  # of a tensor with a history there is no copy
    assert other.param_groups[0]["lr"].item() == rate.item() == floats(copied.get_last_lr())[0]
    assert not getattr(on.param_groups[0].get("initial_lr"), "requires_grad", False)


def test_a_tensor_of_integers():
    with pytest.raises(ValueError, match="a tensor of floats"):
        timesched.bind(timesched.LinearScheduler(), optimizer(lr=torch.tensor(1)), Clock("4ba"))


# Groups that are changed behind a scheduler


def replace(groups):
    groups[1] = {**optimizer().param_groups[0], "tags": "b", "lr": 0.7}


def replace_first(groups):
    groups[0] = {**groups[0], "params": list(groups[0]["params"])}


def swap(groups):
    groups[0], groups[1] = groups[1], groups[0]


def remove_and_add(groups):
    del groups[0]
    groups.append({**optimizer().param_groups[0], "tags": "c", "lr": 0.7})


@EACH_MAKER
@TWO_KINDS
@pytest.mark.parametrize("change", [replace, replace_first, swap, remove_and_add])
def test_groups_that_were_replaced_or_moved(new, change, kind):
    on = optimizer(kind, {"tags": "a"}, {"tags": "b"})
    one = new(on)
    kept = list(on.param_groups)
    change(on.param_groups)
    for i, group in enumerate(on.param_groups):
        group["lr"] = 5.0 + i
    state = one.state_dict()
    for call in (one.step, one.refresh, lambda: one.load_state_dict(state), one.get_last_lr):
        with pytest.raises(ValueError, match=r"group [01] is not the one whose 'lr' was scheduled.*unbind\(\) the sch"):
            call()
    assert rates(on) == [5.0, 6.0] and one.state_dict() == state
    on.param_groups[:] = kept  # as it was
    one.step()
    assert one.state_dict()["last_epoch"] == 1 and rates(on) == floats(one.get_last_lr())


@EACH_MAKER
def test_groups_that_were_removed(new):
    on = optimizer("numbers", {}, {"lr": 0.25})
    one = new(on)
    before = rates(on)[:1]
    del on.param_groups[1]
    more = [lambda: one.update_groups([0.1])] if hasattr(one, "update_groups") else []
    for call in (one.step, one.refresh, one.get_last_lr, *more):
        with pytest.raises(ValueError, match="has 1 parameter groups, and had 2"):
            call()
    assert int(one.last_epoch) == 0 and rates(on) == before


@EACH_MAKER
def test_only_its_own_groups_matter(new):
    on = optimizer("numbers", {"tags": "a"}, {"tags": "b"}, {"tags": "a"})
    one = new(on, tags="a")
    replace(on.param_groups)
    one.step()
    assert rates(on)[1] == 0.7 and rates(on)[0] == rates(on)[2]
    swap(on.param_groups)
    before = rates(on)
    with pytest.raises(ValueError, match="group 0 is not the one"):
        one.step()
    assert rates(on) == before


@EACH_MAKER
@TWO_KINDS
def test_what_is_no_replaced_group(new, kind):
    """An optimizer's load makes new dicts (torch's does), and what wraps parameters makes new lists or tensors."""
    on, other, clock = optimizer(kind, {}, {}), optimizer("numbers", {}, {}), Clock("10ba")
    one, reference = new(on, clock), new(other, clock)

    def step():
        clock.tick()
        one.step()
        reference.step()
        assert rates(on) == rates(other)

    step()
    dicts = list(on.param_groups)
    on.load_state_dict(copy.deepcopy(on.state_dict()))
    assert (on.param_groups[0] is dicts[0]) is isinstance(on, optim.SGD)
    step()
    for _ in range(2):
        on.load_state_dict(on.state_dict())
    step()
    on.param_groups[0]["params"][0] = Parameter(torch.ones(1))
    on.param_groups[1]["params"] = [Parameter(torch.ones(1))]
    step()
    for each in (on, other):
        each.add_param_group(one_group())
    step()


def tick(one):
    if one.clock is not None:
        one.clock.tick()
    return one


@EACH_MAKER
def test_copies_know_their_own_groups(new):
    on = optimizer("numbers", {"tags": "a"}, {"tags": "b"})
    one = new(on)
    tick(one).step()
    pairs = [copy.deepcopy((on, one)), copy.deepcopy((one, on))[::-1], pickle.loads(pickle.dumps((on, one)))]
    tick(one).step()
    expected = rates(on)
    for other, copied in pairs:
        tick(copied).step()
        assert copied.optimizer is other and rates(other) == expected
        swap(other.param_groups)
        with pytest.raises(ValueError, match="group 0 is not the one"):
            copied.step()
    tick(one).step()
