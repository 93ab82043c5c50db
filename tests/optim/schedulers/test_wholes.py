"""What is easy to get wrong about schedulers of schedulers: whose groups are whose, and wholes that cannot be made."""

import contextlib
import copy

import pytest
import torch
from torch.nn import Parameter

import optim
from optim import lr_scheduler as lr
from tests.optim.schedulers.edges import rates, sgd
from timesched import Clock, LinearScheduler, bind


def two(optimizer):
    return [lr.ConstantLR(optimizer, 0.1), lr.ConstantLR(optimizer, 0.2)]


WHOLES = [
    lambda optimizer, parts, tags: lr.SequentialLR(optimizer, parts, [2], param_group_tags=tags),
    lambda optimizer, parts, tags: lr.ChainedLR(parts, param_group_tags=tags),
    lambda optimizer, parts, tags: lr.ScalePerParamLR(optimizer, parts[0], param_group_tags=tags),
]


# Groups


@pytest.mark.parametrize("make", WHOLES, ids=["Sequential", "Chained", "ScalePerParam"])
@pytest.mark.parametrize("module", [torch.optim, optim])
def test_a_group_that_somebody_else_drives_keeps_its_value(module, make):
    """Whenever the other one was made: before the parts, between them, or after them."""
    for turn in range(3):
        groups = [{"params": [Parameter(torch.zeros(1))], **more} for more in ({"tags": "x"}, {}, {"tags": "y"})]
        optimizer, parts = module.SGD(groups, lr=7.0), []
        for i in range(3):
            if i == turn:
                other = lr.LinearLR(optimizer, 3.0, 0.0, 4, param_group_tags=[None])
            elif make is not WHOLES[2] or not parts:
                parts.append(lr.ConstantLR(optimizer, 0.1))
        whole = make(optimizer, parts, "x")
        assert rates(optimizer)[1:] == [3.0, 7.0]
        whole.step()
        other.step()
        assert rates(optimizer)[1:] == [2.25, 7.0]
        outer = lr.SequentialLR(optimizer, [lr.ConstantLR(optimizer, 0.5)], [], param_group_tags="y")
        assert rates(optimizer)[1:] == [2.25, 0.5] and outer.param_group_tags == "y"


def test_a_bound_schedule_keeps_its_value():
    optimizer, clock = sgd({"tags": "x"}, {"lr": 8.0}), Clock("4ba")
    bind(LinearScheduler(0.5, 0.0), optimizer, clock, tags=[None])
    wholes = lr.SequentialLR(optimizer, [lr.ConstantLR(optimizer, 0.1, param_group_tags="x")], [])
    assert rates(optimizer) == [0.1, 4.0] and wholes.param_group_tags == "x"


def test_the_tags_of_a_whole_from_a_generator():
    for make in WHOLES:
        optimizer = sgd({"tags": "a"}, {"tags": "b"})
        assert make(optimizer, two(optimizer), (tag for tag in "a")).param_group_tags == ["a"]


# Wholes that cannot be made


def failing(optimizer, parts):
    """As in a session where the last error, and with it each variable of the functions in it, is kept."""
    with pytest.raises(ValueError) as kept:
        lr.SequentialLR(optimizer, parts, milestones=[4, 8])
    return kept


def test_parts_of_a_whole_that_could_not_be_made_are_in_nobodys_way():
    optimizer = sgd()
    kept = failing(optimizer, [lr.LinearLR(optimizer, 0.0, 0.1, 4), lr.CosineDecayLR(optimizer, 0.1, 0.0, 4)])
    lr.SequentialLR(optimizer, two(optimizer), milestones=[4]).step()
    lr.LinearLR(optimizer, 0.0, 0.1, 4).step()
    assert kept.value is not None


def test_parts_of_a_whole_that_could_not_be_made_may_be_used_again():
    optimizer, clock = sgd(), Clock("10ba")
    parts = [lr.LinearLR(optimizer, 0.0, 0.1, 4), lr.CosineDecayLR(optimizer, 0.1, 0.0, "0.4dur", clock=clock)]
    failing(optimizer, parts)
    whole = lr.SequentialLR(optimizer, parts, milestones=[4])
    whole.refresh()
    assert rates(optimizer) == [0.0]
    for use in (lambda one: one.step(), lambda one: one.load_state_dict({**one.state_dict(), "last_epoch": 1})):
        optimizer = sgd()
        first, second = lr.LinearLR(optimizer, 0.0, 0.1, 4), lr.ConstantLR(optimizer, 0.3)
        failing(optimizer, [first, second])
        use(first)
        assert rates(optimizer) == [0.025]
        with pytest.raises(ValueError, match="bound already"):
            second.step()


def test_a_part_that_was_set_aside_leaves_the_groups_of_others_alone():
    for again in (lambda one: None, lambda one: one.step()):
        optimizer = sgd({"tags": "a"}, {"tags": "b", "lr": 0.25})
        other = lr.LinearLR(optimizer, 1.0, 0.0, 4, param_group_tags="b")
        part = lr.ConstantLR(optimizer, 0.5)
        failing(optimizer, [part])
        other.step()
        with contextlib.suppress(ValueError):  # two for "b": it does not come back for that
            again(part)
        other.step()
        assert rates(optimizer) == [0.5, 0.5]
        whole = lr.SequentialLR(optimizer, [part], [], param_group_tags="a")
        whole.step()
        assert rates(optimizer) == [0.5, 0.5]
        other.step()
        assert rates(optimizer) == [0.5, 0.25]


def test_copies_in_another_order():
    optimizer = sgd({"tags": "a"}, {"tags": "b"})
    other, part = lr.ConstantLR(optimizer, 0.5, param_group_tags="b"), lr.ConstantLR(optimizer, 0.25)
    part, other, optimizer = copy.deepcopy((part, other, optimizer))
    whole = lr.SequentialLR(optimizer, [part], [], param_group_tags="a")
    assert rates(optimizer) == [0.25, 0.5] and whole.optimizer is other.optimizer


def test_a_part_that_was_set_aside_comes_back_to_its_clock():
    optimizer, clock = sgd(), Clock("10ba")
    one = lr.LinearLR(optimizer, 0.0, 1.0, 10, clock=clock)
    failing(optimizer, [one])
    clock.tick()
    for copied in (False, True):
        one, optimizer, clock = copy.deepcopy((one, optimizer, clock)) if copied else (one, optimizer, clock)
        if copied:
            failing(optimizer, [one])
        one.refresh()
        assert rates(optimizer) == [0.1]
        state = clock.state_dict()
        clock.tick()
        one.step()
        clock.load_state_dict(state)
        assert rates(optimizer) == [0.1]


def test_a_group_that_comes_between_two_parts():
    optimizer = sgd()
    parts = [lr.LinearLR(optimizer, 0.0, 1.0, 10)]
    optimizer.add_param_group({"params": [Parameter(torch.zeros(1))]})
    whole = lr.SequentialLR(optimizer, [*parts, lr.ConstantLR(optimizer, 0.5)], [1])
    assert rates(optimizer) == [0.0, 0.0]
    whole.step()
    assert rates(optimizer) == [0.5, 0.5]


def test_parts_that_were_used_again_and_failed_again():
    optimizer = sgd({"tags": "x"}, {})
    parts = two(optimizer)
    failing(optimizer, parts)
    failing(optimizer, parts)
    lr.SequentialLR(optimizer, parts, [3], param_group_tags="x")
    assert rates(optimizer) == [0.1, 1.0]
