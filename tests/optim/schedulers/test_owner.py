"""Of the schedulers on one key of a group, the one made last owns it: bound schedules and closed forms alike."""

import copy
import gc
import itertools
import math
import pickle
import weakref

import pytest
import torch

import timesched
from optim import lr_scheduler, scheduler
from tests.optim.schedulers.building import (
    EACH_MAKER,
    GROUPS,
    KIND,
    MAKERS,
    constant,
    make,
    one_group,
    optimizer,
    rates,
)
from timesched import Clock, LinearScheduler, bind

COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda several: pickle.loads(pickle.dumps(several))}
COPIED = pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)


@pytest.mark.parametrize(("first", "second"), list(itertools.product(["bind", "closed", "clock"], repeat=2)))
@pytest.mark.parametrize("tags", [(None, None), ("a", None), (None, [None]), ("a", "b"), (["a", "c"], ["c"])], ids=str)
def test_the_scheduler_made_last_owns_the_key(first, second, tags):
    """Also where they share a single group: the earlier one names it, and writes nothing more."""
    on, clock = optimizer("numbers", *GROUPS), Clock("10ba")
    one = MAKERS[first](on, clock, tags[0])
    other = bind(LinearScheduler(), on, clock, key="momentum")
    state = one.state_dict()
    two = MAKERS[second](on, clock, tags[1])
    clock.load_state_dict(clock.state_dict())  # which the first does not follow any more
    before, name = rates(on), {"bind": "LinearScheduler"}
    how = "bind the list of both" if first == second == "bind" else "make one SequentialLR or ChainedLR"
    words = f"{name.get(first, 'LinearLR')}.* of 'lr' was superseded by {name.get(second, 'LinearLR')}.*{how}.*'a', 'b'"
    for call in (one.step, one.refresh, one.check, lambda: one.load_state_dict({**state, "last_epoch": 1})):
        with pytest.raises(ValueError, match=words):
            call()
        assert rates(on) == before and int(one.last_epoch) == 0
    clock.tick()
    two.step(), other.step()
    two.unbind()
    with pytest.raises(ValueError, match="superseded"):  # it does not get the key back
        one.step()
    MAKERS[first](on, clock, tags[0]).step()


@KIND
def test_side_by_side(kind):
    """Other groups, or other keys of the same: each is alone with its numbers."""
    on, clock = optimizer(kind, *GROUPS), Clock("4ba")
    several = [
        bind(LinearScheduler(), on, clock, tags="a"),
        constant(on, 0.2, ["c", None]),
        make("Constant", {"val": 0.03}, on, "wd"),
        make("Constant", {"val": 0.7}, on, "generic", param_group_tags="c"),
    ]
    for _ in range(2):
        on.step()
        clock.tick()
        for one in several:
            one.step()
    assert rates(on) == [0.2, 0.25, 0.25, 0.2]
    assert rates(on, "weight_decay") == [0.03] * 4 and rates(on, "momentum") == [0.9, 0.9, 0.9, 0.7]


@EACH_MAKER
def test_a_group_added_later_that_two_select_is_an_error_for_both(new):
    on, clock = optimizer("numbers", {"tags": "a"}, {"tags": "b"}), Clock("10ba")
    one, two = new(on, clock, "a"), new(on, clock, "b")
    before = rates(on)
    on.add_param_group(one_group(["a", "b"], lr=0.5))
    for each in (one, two):
        with pytest.raises(ValueError, match="parameter group 2, which was added, is for two schedulers"):
            each.step()
    assert rates(on) == [*before, 0.5]
    two.unbind()
    clock.tick()
    one.step()
    assert rates(on)[0] == rates(on)[2] != before[0] and rates(on)[1] == before[1]


class Once(scheduler.Scheduler):
    """Fails at the second value, with which the first is written."""

    param_group_key = "lr"

    def _get_closed_form(self):
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls > 1:
            raise ArithmeticError("a second time")
        return torch.tensor(0.25)


def bound_once(on):
    calls = []
    bind(lambda state: calls.append(state) or 1.0 / (len(calls) < 2), on, Clock("4ba"))


@KIND
@pytest.mark.parametrize(
    "wrong",
    [
        Once,
        bound_once,
        lambda on: bind(lambda state: math.nan, on, Clock("4ba")),
        lambda on: bind(LinearScheduler(), on, Clock("4ba"), tags="y"),
        lambda on: lr_scheduler.SequentialLR(on, [], [3]),
    ],
    ids=["late", "bound late", "nan", "tags", "no schedulers"],
)
def test_a_scheduler_that_cannot_be_made_changes_nothing(kind, wrong):
    on = optimizer(kind, {}, {})
    owner = constant(on, 0.1)
    before = [dict(group) for group in on.param_groups]
    with pytest.raises((ArithmeticError, ValueError, TypeError)):
        wrong(on)
    for group, was in zip(on.param_groups, before):
        assert group.keys() == was.keys() and all(group[key] is was[key] for key in was)
    assert rates(on) == [0.1] * 2
    owner.step()


@EACH_MAKER
def test_an_unbound_scheduler_is_out_of_use(new):
    on, clock = optimizer(), Clock("10ba")
    one = new(on, clock)
    state = one.state_dict()
    one.unbind()
    one.unbind()  # a second time is nothing
    on.param_groups[0]["lr"] = 0.3
    clock.tick()
    more = [lambda: one.update_groups([0.7])] if hasattr(one, "update_groups") else []
    for call in (one.step, one.refresh, lambda: one.load_state_dict({**state, "last_epoch": 3}), *more):
        with pytest.raises(ValueError, match="of 'lr' was unbound: make another one"):
            call()
    clock.load_state_dict(clock.state_dict())  # which it does not follow any more
    assert rates(on) == [0.3] and int(one.last_epoch) == 0
    assert {**one.state_dict(), "clock": None} == {**state, "clock": None}
    constant(on, 0.2).step()
    assert rates(on) == [0.2]


@EACH_MAKER
@COPIED
def test_copies_of_an_unbound_scheduler_stay_unbound(new, copied):
    """Another may have the number, and the clock writes nothing."""
    on, clock = optimizer(), Clock("10ba")
    one = new(on, clock)
    one.unbind()
    before = rates(on)
    other, twice, timer = copied((on, one, clock))
    timer.tick()
    timer.load_state_dict(timer.state_dict())
    assert twice.optimizer is other and rates(other) == before
    with pytest.raises(ValueError, match="unbound"):
        twice.step()
    constant(other, 0.25).step()
    assert rates(other) == [0.25] and rates(on) == before


@EACH_MAKER
@COPIED
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_copies_keep_who_was_superseded(new, copied, order):
    """And own the key of their own optimizer alone."""
    on, clock = optimizer(), Clock("10ba")
    both = new(on, clock), new(on, clock)
    other, timer, *found = copied([on, clock, *(both[i] for i in order)])
    timer.tick()
    first, second = (found[order.index(i)] for i in (0, 1))
    second.step()
    with pytest.raises(ValueError, match="superseded by"):
        first.step()
    constant(other, 0.25).step()
    with pytest.raises(ValueError, match="superseded by ConstantLR"):
        second.step()
    clock.tick()
    both[1].step()
    assert rates(other) == [0.25]


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
