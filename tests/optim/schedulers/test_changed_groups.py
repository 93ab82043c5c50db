"""Groups that are changed behind a scheduler: what it follows, and what it refuses before it writes anything."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch.nn import Parameter

import optim
import timesched
from optim import lr_scheduler as lr
from tests.optim.compiling import by_hand, fresh, graphs
from tests.optim.schedulers.edges import Ramp, rates, sgd
from timesched import Clock


def composed(optimizer, tags, clock):
    return lr.ScalePerParamLR(optimizer, lr.LinearLR(optimizer, 1.0, 0.0, 10, param_group_tags=tags))


MAKERS = {
    "bind": lambda on, tags, clock: timesched.bind(timesched.LinearScheduler(), on, clock, tags=tags),
    "closed": lambda on, tags, clock: lr.LinearLR(on, 1.0, 0.0, 10, param_group_tags=tags),
    "clock": lambda on, tags, clock: lr.LinearLR(on, 1.0, 0.0, 10, param_group_tags=tags, clock=clock),
    "custom": lambda on, tags, clock: Ramp(on, param_group_tags=tags),
    "composed": composed,
}
MAKE = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def new_group(**values):
    return {**sgd(values).param_groups[0]}


def replace(groups):
    groups[1] = new_group(tags="b", lr=0.7)


def replace_first(groups):
    groups[0] = {**groups[0], "params": list(groups[0]["params"])}


def swap(groups):
    groups[0], groups[1] = groups[1], groups[0]


def remove_and_add(groups):
    del groups[0]
    groups.append(new_group(tags="c", lr=0.7))


@MAKE
@pytest.mark.parametrize("cls", [torch.optim.SGD, optim.SGD])
@pytest.mark.parametrize("change", [replace, replace_first, swap, remove_and_add])
def test_groups_that_were_replaced_or_moved(make, change, cls):
    groups = [{"params": [Parameter(torch.zeros(1))], "tags": tag} for tag in "ab"]
    optimizer = cls(groups, lr=1.0, momentum=0.9, weight_decay=0.1)
    one = make(optimizer, None, Clock("10ba"))
    kept = list(optimizer.param_groups)
    change(optimizer.param_groups)
    for i, group in enumerate(optimizer.param_groups):
        group["lr"] = 5.0 + i
    state = one.state_dict()
    for call in (one.step, one.refresh, lambda: one.load_state_dict(state), one.get_last_lr):
        with pytest.raises(
            ValueError, match=r"group [01] is not the one whose 'lr' was scheduled.*unbind\(\) the scheduler"
        ):
            call()
    assert [group["lr"] for group in optimizer.param_groups] == [5.0, 6.0] and one.state_dict() == state
    assert all(type(group["lr"]) is float for group in optimizer.param_groups)  # nor is it turned into a tensor
    optimizer.param_groups[:] = kept  # as it was
    one.step()
    assert one.state_dict()["last_epoch"] == 1 and rates(optimizer) == [float(rate) for rate in one.get_last_lr()]


@MAKE
def test_only_its_own_groups_matter(make):
    optimizer = sgd({"tags": "a"}, {"tags": "b"}, {"tags": "a"})
    one = make(optimizer, "a", Clock("10ba"))
    optimizer.param_groups[1] = new_group(tags="b", lr=0.7)
    one.step()
    assert rates(optimizer)[1] == 0.7 and rates(optimizer)[0] == rates(optimizer)[2]
    swap(optimizer.param_groups)
    before = rates(optimizer)
    with pytest.raises(ValueError, match="group 0 is not the one"):
        one.step()
    assert rates(optimizer) == before


@MAKE
@pytest.mark.parametrize("cls", [torch.optim.SGD, optim.SGD])
def test_what_is_no_replaced_group(make, cls):
    """An optimizer's load makes new dicts (torch's does), and what wraps parameters makes new lists or tensors."""
    optimizer = cls([{"params": [Parameter(torch.zeros(1))]}, {"params": [Parameter(torch.zeros(1))]}], lr=1.0)
    clock, other = Clock("10ba"), sgd({}, {})
    one, reference = make(optimizer, None, clock), make(other, None, clock)

    def step():
        clock.tick()
        one.step()
        reference.step()
        assert rates(optimizer) == rates(other)

    step()
    dicts = list(optimizer.param_groups)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert (optimizer.param_groups[0] is dicts[0]) is (cls is optim.SGD)
    step()
    for _ in range(2):
        optimizer.load_state_dict(optimizer.state_dict())
    step()
    optimizer.param_groups[0]["params"][0] = Parameter(torch.ones(1))
    optimizer.param_groups[1]["params"] = [Parameter(torch.ones(1))]
    step()
    for on in (optimizer, other):
        on.add_param_group({"params": [Parameter(torch.zeros(1))]})
    step()


def tick(scheduler):
    if scheduler.clock is not None:
        scheduler.clock.tick()
    return scheduler


@MAKE
def test_copies_know_their_own_groups(make):
    optimizer = sgd({"tags": "a"}, {"tags": "b"})
    one = make(optimizer, None, Clock("10ba"))
    tick(one).step()
    pairs = [copy.deepcopy((optimizer, one)), copy.deepcopy((one, optimizer))[::-1]]
    if make is not MAKERS["composed"]:
        pairs.append(pickle.loads(pickle.dumps((optimizer, one))))
    tick(one).step()
    expected = rates(optimizer)
    for on, copied in pairs:
        tick(copied).step()
        assert copied.optimizer is on and rates(on) == expected
        swap(on.param_groups)
        with pytest.raises(ValueError, match="group 0 is not the one"):
            copied.step()
    tick(one).step()


@MAKE
def test_knowing_the_groups_keeps_nothing_alive(make):
    gc.collect()
    gc.disable()
    try:
        optimizer = sgd({"tags": "a"}, {"tags": "b"})
        one = make(optimizer, None, Clock("10ba"))
        one.step()
        seen = weakref.ref(one), weakref.ref(optimizer), weakref.ref(optimizer.param_groups[0]["params"][0])
        del optimizer, one
        assert [ref() for ref in seen] == [None, None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("cls", [torch.optim.SGD, optim.SGD])
def test_a_load_between_steps_in_a_graph(cls):
    with fresh():
        optimizer = cls([Parameter(torch.zeros(1))], lr=torch.tensor(0.1, dtype=torch.float64))
        one = lr.LinearLR(optimizer, 0.0, 1.0, 10)
        take = by_hand(one.step)
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        take()
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        take()
        assert rates(optimizer) == [pytest.approx(0.2, rel=1e-15)] and int(one.last_epoch) == 2 and graphs() == 1


def test_groups_that_were_replaced_in_a_graph():
    """Older versions of torch cannot look in a graph: there, it is the next eager call that refuses."""
    with fresh():
        optimizer = sgd({}, {}, lr=torch.tensor(0.1, dtype=torch.float64))
        one = lr.LinearLR(optimizer, 0.0, 1.0, 10)
        take = by_hand(one.step)
        take()
        optimizer.param_groups[0] = new_group(lr=torch.tensor(0.7, dtype=torch.float64))
        if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13):
            with pytest.raises(torch._dynamo.exc.Unsupported, match="Observed exception"):
                take()
            assert rates(optimizer)[0] == 0.7 and int(one.last_epoch) == 1
        with pytest.raises(ValueError, match="group 0 is not the one"):
            one.step()


def test_a_rate_that_requires_a_gradient():
    """Written in place, eagerly and in a graph; what is read of it has no history."""
    for compiled in (False, True):
        with fresh():
            rate = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
            optimizer = sgd(lr=rate)
            one = lr.LinearLR(optimizer, 1.0, 0.0, 10)
            take = by_hand(one.step) if compiled else one.step
            for step in range(3):
                assert rate.item() == pytest.approx(1.0 - 0.1 * step, rel=1e-15)
                take()
            (last,) = one.get_last_lr()
            assert optimizer.param_groups[0]["lr"] is rate and rate.requires_grad and rate.is_leaf
            assert last.item() == rate.item() and not last.requires_grad
            on, copied = copy.deepcopy((optimizer, one))
            copied.step()
            assert on.param_groups[0]["lr"].item() == pytest.approx(0.6, rel=1e-15)
