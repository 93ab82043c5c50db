"""Warnings of a loop that forgets a call, or that writes a scheduled value itself; and loops that get none.

A warning that a test does not expect is an error here.
"""

import copy
import linecache
import pickle
import sys
import warnings
from contextlib import contextmanager
from types import ModuleType

import pytest
import torch

import optim
from optim.lr_scheduler import LinearLR
from tests.building import sgd, tick, update
from timesched import *  # noqa: F403  # these are tests of all that is public

LINEAR = LinearScheduler()


def make(schedule=LINEAR, optimizer=None, **factors):
    optimizer, clock = optimizer or sgd(), Clock("9999ba", **factors)
    return optimizer, clock, bind(schedule, optimizer, clock)


@contextmanager
def warns_once(words):
    """One warning, at the line of this file that calls `step` or `tick`."""
    with pytest.warns(UserWarning, match=words) as caught:
        yield
    line = linecache.getline(__file__, caught[0].lineno)
    assert len(caught) == 1 and caught[0].filename == __file__ and (".step()" in line or ".tick()" in line)


# The clock does not tick


@pytest.mark.parametrize("loads", [False, True])
def test_a_clock_that_does_not_move(loads):
    _, clock, scheduler = make()
    if loads:
        tick(clock, 3, scheduler)
        scheduler.load_state_dict(scheduler.state_dict())
    scheduler.step()
    with warns_once("has not moved in two steps. Call clock.tick"):
        scheduler.step()
    scheduler.step()


def test_a_retry_after_the_warning_works(recwarn):
    _, clock, scheduler = make()
    scheduler.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="has not moved"):
            scheduler.step()
        clock.tick(), scheduler.step()
    assert scheduler.last_epoch == 2 and not recwarn.list


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("transformers", "use timesched.integrations.transformers in place of bind"),
        ("lightning", "use timesched.integrations.lightning in place of bind"),
        (None, r"before scheduler.step\(\). See docs"),
    ],
)
def test_the_adapter_of_a_trainer_is_named(module, words, monkeypatch):
    for name in ("transformers", "lightning"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    if module:
        monkeypatch.setitem(sys.modules, module, ModuleType(module))
    _, _, scheduler = make()
    scheduler.step()
    with warns_once(words):
        scheduler.step()


@pytest.mark.parametrize("calls", ["st st st", "ts ts ts", "s ts ts ts", "tss tss", "tts tts", "stt stt"])
def test_loops_that_tick(calls):
    optimizer, clock, scheduler = make()
    for call in calls.replace(" ", ""):
        update(optimizer)
        {"t": clock.tick, "s": scheduler.step}[call]()


def test_steps_that_the_caller_counts():
    for scheduler in (make()[2], LinearLR(sgd(), 1.0, 0.0, 10, clock=Clock("10ba"))):
        scheduler.last_epoch = 7
        scheduler.step(), scheduler.step()


# Other code writes the value


def set_value(group, value):
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(value)
    else:
        group["lr"] = value


OPTIMIZERS = [
    sgd,
    lambda: sgd(lr=torch.tensor(0.1)),
    lambda: sgd(kind=optim.SGD),
    lambda: sgd({}, {"lr": 0.5}),
    lambda: sgd(kind=optim.AdamW, lr=torch.tensor(0.1, dtype=torch.bfloat16)),
]


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS)
def test_a_line_that_sets_the_value_in_each_batch(make_optimizer):
    optimizer, clock, scheduler = make(optimizer=make_optimizer())
    clock.tick(), scheduler.step()
    set_value(optimizer.param_groups[-1], 0.25)
    clock.tick()
    last = len(optimizer.param_groups) - 1
    with warns_once(rf"key='lr': LinearScheduler.* into parameter group {last}, and other code has changed it to 0.25"):
        scheduler.step()
    set_value(optimizer.param_groups[-1], 0.25)
    clock.tick(), scheduler.step()


def test_a_scheduler_of_torch_that_was_left_in_the_loop():
    optimizer, clock, scheduler = make(ConstantScheduler())
    other = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    optimizer.step(), clock.tick(), scheduler.step(), other.step()
    optimizer.step(), clock.tick()
    with warns_once("other code has changed it"):
        scheduler.step()


def test_a_scheduler_without_a_clock():
    optimizer = sgd()
    scheduler = LinearLR(optimizer, 1.0, 0.0, 10)
    scheduler.step()
    optimizer.param_groups[0]["lr"] = 0.5
    with warns_once("other code has changed it"):
        scheduler.step()


def test_an_element_of_a_tuple():
    optimizer, clock = sgd(kind=torch.optim.Adam), Clock("10ba")
    scheduler = bind(LINEAR, optimizer, clock, key="betas[0]")
    tick(clock, 1, scheduler)
    optimizer.param_groups[0]["betas"] = (0.5, 0.999)
    clock.tick()
    with warns_once(r"key='betas\[0\]'"):
        scheduler.step()


@pytest.mark.parametrize("act", ["refresh", "load", "extend", "go_to"])
def test_a_write_that_is_no_step_renews_the_record(act):
    _, clock, scheduler = make()
    tick(clock, 1, scheduler)
    {
        "refresh": scheduler.refresh,
        "load": lambda: scheduler.load_state_dict({**scheduler.state_dict(), "value": [0.9]}),
        "extend": lambda: clock.extend("99999ba"),
        "go_to": lambda: clock.go_to(Timestamp(batch=500)),
    }[act]()
    tick(clock, 3, scheduler)


@pytest.mark.parametrize("kind", [torch.optim.SGD, optim.SGD])
@pytest.mark.parametrize("order", ["optimizer first", "scheduler first"])
def test_a_load_of_the_optimizer_drops_the_record(kind, order):
    """The state has another learning rate. torch makes new groups, and optim keeps its own."""
    optimizer, clock, scheduler = make(optimizer=sgd(kind=kind))
    saved = copy.deepcopy(optimizer.state_dict())
    saved["param_groups"][0]["lr"] = 0.5
    tick(clock, 1, scheduler)
    loads = [lambda: optimizer.load_state_dict(saved), lambda: scheduler.load_state_dict(scheduler.state_dict())]
    for load in loads if order == "optimizer first" else reversed(loads):
        load()
    tick(clock, 3, scheduler)


def test_a_group_that_was_added_is_not_compared():
    optimizer, clock, scheduler = make()
    tick(clock, 1, scheduler)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 0.5})
    tick(clock, 3, scheduler)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_are_watched_alone(duplicate):
    optimizer, clock, scheduler = make()
    tick(clock, 1, scheduler)
    copied_optimizer, copied_clock, copied = duplicate((optimizer, clock, scheduler))
    tick(copied_clock, 3, copied if duplicate is not copy.copy else scheduler)
    assert copied_optimizer.param_groups[0]["lr"] == 1 - 4 / 9999


# A learning rate that may have decayed


def trained(kind=torch.optim.AdamW, lr=0.25, **group):
    optimizer = sgd(group, kind=kind, lr=lr)
    update(optimizer)
    return optimizer


PRESUMED = (
    r"the optimizer has made steps, and parameter group 0 has no 'initial_lr'. .* rate, 0.25, is taken for the peak"
)
JUMPS = {
    "a clock that has moved": None,
    "go_to": lambda clock: clock.go_to(Timestamp(batch=50)),
    "load": lambda clock: clock.load_state_dict(make(batches_per_epoch=None)[1].state_dict() | {"batch": 50}),
}


@pytest.mark.parametrize("kind", [torch.optim.AdamW, optim.AdamW])
@pytest.mark.parametrize("jump", JUMPS.values(), ids=JUMPS)
def test_a_learning_rate_that_is_presumed_to_be_the_peak(kind, jump):
    clock = Clock("9999ba")
    if jump is None:
        tick(clock, 50)
    optimizer = trained(kind)
    scheduler = bind(LINEAR, optimizer, clock)
    if jump is not None:
        jump(clock)
    update(optimizer), clock.tick()
    with warns_once(PRESUMED):
        scheduler.step()
    tick(clock, 2, scheduler)


def test_the_cure():
    optimizer, clock = trained(initial_lr=0.5), Clock("100ba")
    scheduler = bind(LINEAR, optimizer, clock)
    clock.go_to(Timestamp(batch=50))
    tick(clock, 2, scheduler)
    assert optimizer.param_groups[0]["lr"] == 0.24


@pytest.mark.parametrize(
    ("make_optimizer", "key"), [(lambda: sgd(kind=torch.optim.AdamW), "lr"), (trained, "weight_decay"), (sgd, "lr")]
)
def test_a_new_optimizer_and_other_keys_are_not_concerned(make_optimizer, key):
    clock = Clock("100ba")
    scheduler = bind(LINEAR, make_optimizer() if key == "lr" else trained(weight_decay=0.1), clock, key=key)
    clock.go_to(Timestamp(batch=50))
    tick(clock, 2, scheduler)


def test_ticks_and_a_load_of_the_scheduler_are_no_jump():
    clock = Clock("100ba")
    tick(clock, 3, bind(LINEAR, trained(), clock))
    state = make()[2].state_dict()
    scheduler = bind(LINEAR, trained(), clock, on_change="new")
    scheduler.load_state_dict(state)
    tick(clock, 2, scheduler)


# No step


@pytest.mark.parametrize(
    ("factors", "ticks"), [({"batches_per_epoch": 20}, 100), ({"batches_per_epoch": 70}, 140), ({}, 1000)]
)
def test_a_scheduler_that_is_never_stepped(factors, ticks):
    _, clock, scheduler = make(**factors)
    follower = bind(ConstantScheduler(), sgd(), clock)
    for _ in range(2):
        tick(clock, ticks)
        with warns_once(
            rf"The clock is at {clock.timestamp.batch.value + 1}ba, and Constant.* and Linear.* was not stepped"
        ):
            clock.tick()
        tick(clock, 2 * ticks)  # once
        scheduler.load_state_dict(scheduler.state_dict())
        follower.load_state_dict(follower.state_dict())


def test_one_of_two_schedulers_is_never_stepped():
    _, clock, scheduler = make(batches_per_epoch=10)
    bound = bind(ConstantScheduler(), sgd(), clock)
    tick(clock, 100, scheduler)
    with warns_once("ba, and ConstantScheduler.* was not stepped"):
        clock.tick()
    tick(clock, 300, scheduler)
    bound.step()


def test_a_load_of_the_clock_begins_the_count_again():
    _, clock, _scheduler = make(batches_per_epoch=10)
    tick(clock, 90)
    clock.load_state_dict(clock.state_dict())
    tick(clock, 100)
    with warns_once("was not stepped"):
        clock.tick()


@pytest.mark.parametrize("end", [lambda one: one.unbind(), lambda one: bind(LINEAR, one.optimizer, Clock("4ba"))])
def test_a_scheduler_that_may_not_write_is_not_missed(end):
    """Nor a scheduler that a later one on another clock has replaced."""
    _, clock, scheduler = make(batches_per_epoch=10)
    tick(clock, 1)
    replacement = end(scheduler)
    tick(clock, 300)
    del replacement


def test_one_step_per_epoch_is_enough():
    _, clock, scheduler = make(batches_per_epoch=120)
    for _ in range(3):
        tick(clock, 120)
        scheduler.step()


def test_a_clock_without_schedulers_and_a_copy_say_nothing():
    _, clock, _scheduler = make(batches_per_epoch=10)
    tick(Clock("99ba", batches_per_epoch=10), 300)
    tick(copy.deepcopy(clock), 300)
