"""Which groups a scheduler owns: tags, later and changed groups; of several on one key the one made last owns it.

Bound schedules and closed forms alike.
"""

import copy
import gc
import itertools
import pickle
import weakref

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
    MAKERS,
    constant,
    count,
    floats,
    make,
    one_group,
    optimizer,
    rates,
    stepped,
)
from tests.optim.schedulers.rows import COSINE
from timesched import Clock, LinearScheduler, bind

COPIED = pytest.mark.parametrize("copied", [copy.deepcopy, lambda several: pickle.loads(pickle.dumps(several))])

# Tags


@KIND
@pytest.mark.parametrize(
    ("tags", "chosen"),
    [
        (None, {0, 1, 2, 3}),
        ("a", {1, 2}),
        (("b", "c"), {2, 3}),
        ({"b"}, {2}),
        ([None], {0}),
        (["b", None], {0, 2}),
        (["a", "nobody"], {1, 2}),
        ("!a", {0, 3}),
        (["!b", "!c"], {0, 1}),
        (["a", "!b"], {1}),
        ([None, "c", "!b"], {0, 3}),
        (["!b", None], {0}),
    ],
)
def test_which_groups(kind, tags, chosen):
    """One entry a group in what is returned: its present value where a group is left alone."""
    on = optimizer(kind, *GROUPS)
    one = make(*COSINE, on, param_group_tags=tags)
    for t in range(3):
        expected = one.values(5)[t]
        assert rates(on) == [expected if i in chosen else 0.5 for i in range(4)]
        assert floats(one.get_last_lr()) == rates(on) == floats(one.get_lr())
        assert floats(one.base_lrs) == [one.values(1)[0] if i in chosen else 0.5 for i in range(4)]
        one.step()


@pytest.mark.parametrize(
    ("tags", "groups", "words"),
    [
        *((tags, GROUPS, "'a', 'b', 'c'") for tags in (["d", "e"], [])),
        ("d", ({},), "no group has any"),
        ([None], ({"tags": "a"},), "'a'"),  # every group has a tag
        ("!a", ({"tags": "a"},), "no parameter group has such a tag"),
        (["a", "!d"], GROUPS, "no parameter group has the excluded tag 'd', and the tags are 'a', 'b', 'c'"),
        ("!", GROUPS, "no parameter group has the excluded tag ''"),
        ("!a", ({},), "no group has any"),
        *((tags, GROUPS, "tag") for tags in (5, ["a", 5], [["a"]], b"a")),
        ("a", ({"tags": 3},), "tags=3"),
    ],
)
def test_what_are_no_tags(tags, groups, words):
    on = optimizer("numbers", *groups)
    with pytest.raises((ValueError, TypeError), match=words):
        constant(on, tags=tags)
    assert rates(on) == [0.5] * len(groups)


def test_a_tag_of_a_group_that_begins_with_the_mark():
    with pytest.raises(ValueError, match="group 0: tags='!a': the tag of a group must not begin with '!'"):
        optim.SGD([{"params": one_weight(), "tags": ["b", "!a"]}], lr=0.5)
    on = torch.optim.SGD([{"params": one_weight(), "tags": "!a"}], lr=0.5)
    for tags in (None, "b", "!a", "!b", [None]):
        with pytest.raises(ValueError, match="must not begin with '!'"):
            bind(LinearScheduler(), on, Clock("4ba"), tags=tags)
    with pytest.raises(ValueError, match="must not begin with '!'"):
        optim.configure_param_groups(torch.nn.Linear(1, 1), [{"params": "bias", "tags": "!a"}])


def one_weight():
    return [Parameter(torch.zeros(1))]


def test_an_excluded_group_that_comes_later():
    on, clock = torch.optim.SGD([{"params": one_weight()}], lr=0.5), Clock("4ba")
    for tag in ("a", "b"):
        on.add_param_group({"params": one_weight(), "tags": tag})
    scheduler = bind(LinearScheduler(), on, clock, tags="!a")
    for tag in ("a", "b"):
        on.add_param_group({"params": one_weight(), "tags": tag})
    clock.tick()
    scheduler.step()
    assert [group["lr"] for group in on.param_groups] == [0.375, 0.5, 0.375, 0.5, 0.375]
    again = bind(LinearScheduler(), on, Clock("4ba"), tags="!a")
    again.load_state_dict(scheduler.state_dict())
    assert again.indices == [0, 2, 4]


# Groups that come later


@KIND
def test_a_group_that_comes_later(kind):
    """It is scheduled from the next step on, if it carries the tag, which may have come from a generator."""
    on, clock = optimizer(kind, {"tags": "a"}), Clock("4ba")
    one = make(*COSINE, on, param_group_tags=(tag for tag in "a"))
    multiplier = bind(LinearScheduler(), on, clock, "weight_decay", "a")
    one.step()
    on.add_param_group(one_group("a", lr=0.7, weight_decay=0.4))
    on.add_param_group(one_group(lr=0.7, weight_decay=0.4))
    clock.tick()
    one.step(), multiplier.step()
    expected = one.values(5)
    assert rates(on) == [expected[2], expected[2], 0.7] == floats(one.get_last_lr())
    assert rates(on, "weight_decay") == [0.75 * 0.02, 0.75 * 0.4, 0.4]  # of its own initial value
    assert stepped(one, 3) == expected[2:] and one.state_dict()["tags"] == ["a"]


# Tensors


@EACH_MAKER
def test_a_tensor_that_groups_share_is_not_scheduled_for_one_of_them(new):
    shared = torch.tensor(0.5, dtype=torch.float64)
    on = optimizer("numbers", {"lr": shared, "tags": "x"}, {"lr": shared})
    with pytest.raises(ValueError, match="key='lr': parameter groups 0 and 1 share"):
        new(on, tags="x")
    one = new(on)
    assert on.param_groups[0]["lr"] is on.param_groups[1]["lr"] is shared and rates(on) == floats(one.get_last_lr())
    later = optimizer("numbers", {"tags": "x"}, lr=shared)  # torch gives every group the same tensor
    one = new(later, tags="x")
    later.add_param_group(one_group("b"))
    with pytest.raises(ValueError, match="share one tensor"):
        one.step()
    assert int(one.last_epoch) == 0


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


def test_numbers_beside_a_tensor():
    """The count is a tensor where one of the groups holds one."""
    on = optimizer("numbers", {}, {"lr": torch.tensor(0.1)})
    one = lr_scheduler.LinearLR(on, 0.1, 0.5, 4)
    one.step()
    assert count(one) == 1 and rates(on) == pytest.approx([0.2, 0.2])
    with pytest.raises(ValueError, match="tensor with one float"):
        bind(LinearScheduler(), optimizer(lr=torch.tensor(1)), Clock("4ba"))


# Groups that are changed behind a scheduler


def replace(groups):
    groups[1] = {**optimizer().param_groups[0], "tags": "b", "lr": 0.7}


def swap(groups):
    groups[0], groups[1] = groups[1], groups[0]


def remove_and_add(groups):
    del groups[0]
    groups.append({**optimizer().param_groups[0], "tags": "c", "lr": 0.7})


def remove(groups):
    del groups[1]


MOVED = r"key='lr': parameter group [01] was replaced"


@EACH_MAKER
@pytest.mark.parametrize("kind", ["numbers", "ours"])
@pytest.mark.parametrize(
    ("change", "words"),
    [(replace, MOVED), (swap, MOVED), (remove_and_add, MOVED), (remove, "has 1 parameter groups, and had 2")],
)
def test_groups_that_were_replaced_moved_or_removed(new, change, words, kind):
    on = optimizer(kind, {"tags": "a"}, {"tags": "b"})
    one = new(on)
    kept = list(on.param_groups)
    change(on.param_groups)
    for i, group in enumerate(on.param_groups):
        group["lr"] = 5.0 + i
    before, state = rates(on), one.state_dict()
    for call in (one.step, one.refresh, lambda: one.load_state_dict(state), one.get_last_lr):
        with pytest.raises(ValueError, match=words):
            call()
    assert rates(on) == before and one.state_dict() == state
    on.param_groups[:] = kept  # as it was
    one.step()
    assert one.state_dict()["last_epoch"] == 1 and rates(on) == floats(one.get_last_lr())


@EACH_MAKER
@pytest.mark.parametrize("kind", ["numbers", "ours"])
def test_what_is_no_replaced_group(new, kind):
    """An optimizer's load makes new dicts (torch's does), and what wraps parameters makes new lists or tensors."""
    on, other, clock = optimizer(kind, {}, {}), optimizer("numbers", {}, {}), Clock("10ba")
    one, reference = new(on, clock), new(other, clock)
    for change in (
        lambda: on.load_state_dict(copy.deepcopy(on.state_dict())),
        lambda: on.param_groups[0]["params"].__setitem__(0, Parameter(torch.ones(1))),
        lambda: on.param_groups[1].update(params=[Parameter(torch.ones(1))]),
        lambda: on.add_param_group(one_group()),
    ):
        change()
        clock.tick()
        one.step(), reference.step()
        assert rates(on)[:2] == rates(other)
    tagged = optimizer("numbers", {"tags": "a"}, {"tags": "b"})
    one = new(tagged, tags="a")
    replace(tagged.param_groups)  # the group that is not its own
    one.step()
    assert rates(tagged)[1] == 0.7


# The owner


@pytest.mark.parametrize(("first", "second"), list(itertools.product(["bind", "closed", "clock"], repeat=2)))
@pytest.mark.parametrize("tags", [(None, None), (None, [None]), ("a", "b"), (["a", "c"], ["c"])], ids=str)
def test_the_scheduler_made_last_owns_the_key(first, second, tags):
    """Also where they share a single group: the earlier one names it, and writes nothing more."""
    on, clock = optimizer("numbers", *GROUPS), Clock("10ba")
    one = MAKERS[first](on, clock, tags[0])
    other = bind(LinearScheduler(), on, clock, key="momentum")
    state = one.state_dict()
    two = MAKERS[second](on, clock, tags[1])
    clock.load_state_dict(clock.state_dict())  # which the first does not follow any more
    before, name = rates(on), {"bind": "LinearScheduler"}
    words = f"key='lr': {name.get(first, 'LinearLR')}.* since {name.get(second, 'LinearLR')}"
    for call in (one.step, one.refresh, one.catch_up, lambda: one.load_state_dict({**state, "last_epoch": 1})):
        with pytest.raises(ValueError, match=words):
            call()
        assert rates(on) == before and int(one.last_epoch) == 0
    clock.tick()
    two.step(), other.step()
    two.unbind()
    with pytest.raises(ValueError, match="created later"):  # it does not get the key back
        one.step()
    MAKERS[first](on, clock, tags[0]).step()


@EACH_MAKER
def test_a_group_added_later_that_two_select_is_an_error_for_both(new):
    on, clock = optimizer("numbers", {"tags": "a"}, {"tags": "b"}), Clock("10ba")
    one, two = new(on, clock, "a"), new(on, clock, "b")
    before = rates(on)
    on.add_param_group(one_group(["a", "b"], lr=0.5))
    for each in (one, two):
        with pytest.raises(ValueError, match="key='lr': the new parameter group 2 has"):
            each.step()
    assert rates(on) == [*before, 0.5]
    two.unbind()
    clock.tick()
    one.step()
    assert rates(on)[0] == rates(on)[2] != before[0] and rates(on)[1] == before[1]


@KIND
def test_a_scheduler_that_cannot_be_made_changes_nothing(kind):
    on = optimizer(kind, {}, {})
    owner = constant(on, 0.1)
    before = [dict(group) for group in on.param_groups]
    for wrong in (
        lambda: bind(lambda state: {}[1], on, Clock("4ba")),
        lambda: bind(LinearScheduler(), on, Clock("4ba"), tags="y"),
        lambda: lr_scheduler.SequentialLR(on, [], [3]),
    ):
        with pytest.raises((KeyError, ValueError, TypeError)):
            wrong()
        for group, was in zip(on.param_groups, before):
            assert group.keys() == was.keys() and all(group[key] is was[key] for key in was)
    owner.step()


@EACH_MAKER
@COPIED
def test_an_unbound_scheduler_is_out_of_use(new, copied):
    """And so are its copies: another may have the number, and the clock writes nothing."""
    on, clock = optimizer(), Clock("10ba")
    one = new(on, clock)
    state = one.state_dict()
    one.unbind()
    one.unbind()  # a second time is nothing
    on.param_groups[0]["lr"] = 0.3
    clock.tick()
    other, twice, timer = copied((on, one, clock))
    for each, its_clock in ((one, clock), (twice, timer)):
        for call in (each.step, each.refresh, lambda each=each: each.load_state_dict({**state, "last_epoch": 3})):
            with pytest.raises(ValueError, match=r"key='lr': .* was unbound\."):
                call()
        its_clock.load_state_dict(its_clock.state_dict())  # which it does not follow any more
        assert rates(each.optimizer) == [0.3] and int(each.last_epoch) == 0
    constant(other, 0.2).step()
    assert twice.optimizer is other and rates(other) == [0.2] and rates(on) == [0.3]


@EACH_MAKER
@COPIED
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_copies_keep_who_was_superseded(new, copied, order):
    """And own the key of their own optimizer alone, and know its groups."""
    on, clock = optimizer("numbers", {}, {}), Clock("10ba")
    both = new(on, clock), new(on, clock)
    other, timer, *found = copied([on, clock, *(both[i] for i in order)])
    timer.tick()
    first, second = (found[order.index(i)] for i in (0, 1))
    second.step()
    with pytest.raises(ValueError, match="created later"):
        first.step()
    constant(other, 0.25).step()
    with pytest.raises(ValueError, match="since ConstantLR.* was created later"):
        second.step()
    clock.tick()
    both[1].step()
    assert rates(other) == [0.25] * 2
    swap(on.param_groups)
    with pytest.raises(ValueError, match="parameter group 0 was replaced"):
        both[1].step()


def test_nothing_is_kept_alive():
    """Optimizer, schedulers and clock go with their last name, without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        for name, new in MAKERS.items():
            on, clock = optimizer(), Clock("10ba")
            one, two = new(on, clock), new(on, clock)
            two.step()
            refs = [weakref.ref(each) for each in (on, one, two, clock, on.param_groups[0]["params"][0])]
            del on, one, two, clock
            assert [ref() for ref in refs] == [None] * 5, name
        on = optimizer()
        for new in MAKERS.values():
            new(on).step()  # one that nobody holds any more
        bind(LinearScheduler(), on, timesched.Clock("4ba"))
    finally:
        gc.enable()
