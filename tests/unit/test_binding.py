"""bind: what is written where, in loops as users write them."""

import copy
import gc
import json
import linecache
import math
import pickle
import re
import warnings
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

from optim.lr_scheduler import LinearLR
from timesched import (
    Clock,
    ConstantScheduler,
    ExponentialScheduler,
    LinearScheduler,
    MultiStepScheduler,
    Timestamp,
    bind,
    compile_composer_scheduler,
)


def parameters(n=1):
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(3)) for _ in range(n)]


def groups(*keys):
    return [{"params": parameters(), **key} for key in keys]


def test_batch_k_uses_the_value_at_k():
    optimizer, clock = torch.optim.SGD(parameters(), lr=0.5), Clock("8ba")
    scheduler = bind(LinearScheduler(), optimizer, clock)
    used = []
    while not clock.done:
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        clock.tick()
        scheduler.step()
    assert used == [0.5 * (1 - k / 8) for k in range(8)] and scheduler.get_last_lr() == [0.0]
    assert isinstance(scheduler, LambdaLR) and scheduler.last_epoch == 8 and scheduler.base_lrs == [0.5]
    assert scheduler.get_lr() == [0.0] == [f(3) for f in scheduler.lr_lambdas]


@pytest.mark.parametrize("tensor", [False, True])
def test_groups_tags_and_tensors(tensor):
    lrs = [torch.tensor(lr) if tensor else lr for lr in (1.0, 0.5, 0.25)]
    tags = [{"tags": {"a"}}, {"tags": ["a", "b"]}, {}]
    optimizer = torch.optim.AdamW(groups(*({"lr": lr, **tag} for lr, tag in zip(lrs, tags))), lr=lrs[0])
    clock = Clock("4ba")
    bind_a = bind(LinearScheduler(), optimizer, clock, tags="a")
    rest = bind(ConstantScheduler(0.5), optimizer, clock, tags=[None])
    decay = bind(LinearScheduler(), optimizer, clock, key="weight_decay", tags=["b", "c"])
    clock.tick()
    for scheduler in (bind_a, rest, decay):
        scheduler.step()
    now = [group["lr"] for group in optimizer.param_groups]
    assert [float(lr) for lr in now] == [0.75, 0.375, 0.125]
    assert not tensor or all(lr is old for lr, old in zip(now, lrs))
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.0075, 0.01]
    assert [float(lr) for lr in bind_a.get_last_lr()] == [0.75, 0.375, 0.125]  # of all groups, as loggers want them
    assert decay.get_last_value() == [0.01, 0.0075, 0.01] and [float(lr) for lr in rest.base_lrs] == [0.75, 0.375, 0.25]
    assert [float(lr) for lr in rest.get_lr()] == [0.75, 0.375, 0.125] and [f(0) for f in rest.lr_lambdas] == [
        1,
        1,
        0.5,
    ]
    assert not isinstance(decay, LambdaLR) and not any(
        lr is old for lr, old in zip(bind_a.get_last_lr(), lrs) if tensor
    )


def test_elements_of_betas_and_momentum():
    optimizer, clock = torch.optim.AdamW(parameters(), lr=1.0, betas=(0.8, 0.9)), Clock("2ba")
    first = bind(LinearScheduler(), optimizer, clock, key="betas[0]")
    second = bind(ConstantScheduler(0.5), optimizer, clock, key=("betas", 1))
    clock.tick()
    first.step(), second.step()
    assert optimizer.param_groups[0]["betas"] == (0.4, 0.45) and first.key == "betas[0]"
    sgd = torch.optim.SGD(parameters(), lr=1, momentum=0.9)
    bind([lambda state: 0.5, lambda state, ssr: ssr], sgd, Clock("2ba", ssr=1.0), key="momentum")
    assert sgd.param_groups[0]["momentum"] == 0.45
    bind(ConstantScheduler(0.5), sgd, Clock("2ba"))
    assert sgd.param_groups[0]["lr"] == 0.5


def test_a_list_multiplies():
    optimizer, clock = torch.optim.SGD(groups({"tags": "x"}, {}), lr=1.0), Clock("4ba")
    scheduler = bind([LinearScheduler(), ConstantScheduler(0.5)], optimizer, clock)
    clock.tick()
    scheduler.step()
    assert scheduler.get_last_lr() == [0.375, 0.375]


def test_the_scheduler_made_last_owns_the_key():
    """Also where they share a single group; the earlier one writes nothing more, and names the owner."""
    optimizer, clock = torch.optim.SGD(groups({"tags": "x"}, {}), lr=1.0, momentum=0.5), Clock("4ba")
    first = bind(ConstantScheduler(0.5), optimizer, clock)
    other = bind(ConstantScheduler(0.5), optimizer, clock, key="momentum")
    state = first.state_dict()
    second = bind(LinearScheduler(), optimizer, clock, tags="x")
    clock.tick()
    for call in (first.step, first.refresh, lambda: first.load_state_dict(state)):
        with pytest.raises(ValueError, match=r"ConstantScheduler.* of 'lr' was superseded by LinearScheduler"):
            call()
    clock.load_state_dict(clock.state_dict())  # which the first does not follow any more
    assert [group["lr"] for group in optimizer.param_groups] == [0.75, 0.5] and first.last_epoch == 0
    second.step(), other.step()
    second.unbind()
    with pytest.raises(ValueError, match="superseded by LinearScheduler"):  # it does not get the key back
        first.step()
    assert bind(ConstantScheduler(0.25), optimizer, clock).get_last_lr() == [0.25, 0.25]


def test_a_scheduler_that_cannot_be_made_owns_nothing():
    optimizer, clock = torch.optim.SGD(groups({}), lr=1.0), Clock("4ba")
    first = bind(LinearScheduler(), optimizer, clock)
    for wrong in ({"tags": "y"}, {"scheduler": lambda state: math.nan}, {"scheduler": lambda state: 1e400}):
        with pytest.raises(ValueError):
            bind(**{"scheduler": ConstantScheduler(0.5), "optimizer": optimizer, "clock": clock, **wrong})
    clock.tick()
    first.step()
    assert first.get_last_lr() == [0.75]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda all_: pickle.loads(pickle.dumps(all_))])
def test_copies_keep_who_was_superseded(copied):
    optimizer, clock = torch.optim.SGD(parameters(), lr=1.0), Clock("4ba")
    both = [bind(schedule, optimizer, clock) for schedule in (LinearScheduler(), ConstantScheduler(0.5))]
    for order in ((0, 1), (1, 0)):
        _, timer, *schedulers = copied([optimizer, clock, *(both[i] for i in order)])
        timer.tick()
        first, second = (schedulers[order.index(i)] for i in (0, 1))
        second.step()
        with pytest.raises(ValueError, match="superseded by ConstantScheduler"):
            first.step()
        assert second.get_last_lr() == [0.5]


def test_schedulers_and_optimizers_die_without_the_garbage_collector():
    gc.collect()
    gc.disable()
    try:
        optimizer, clock = torch.optim.SGD(parameters(), lr=1.0), Clock("4ba")
        first, second = (bind(LinearScheduler(), optimizer, clock) for _ in range(2))
        refs = [weakref.ref(x) for x in (first, second, optimizer)]
        second.step()
        del first, second, optimizer
        assert [ref() for ref in refs] == [None] * 3
    finally:
        gc.enable()


def test_a_group_added_later_is_scheduled_too():
    optimizer, clock = torch.optim.SGD(groups({"tags": "x"}), lr=1.0), Clock("4ba")
    scheduler = bind(LinearScheduler(), optimizer, clock, tags="x")
    optimizer.add_param_group({"params": parameters(), "lr": 0.5, "tags": "x"})
    optimizer.add_param_group({"params": parameters(), "lr": 0.5})
    clock.tick()
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.75, 0.375, 0.5]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"key": "momentun"}, r"no 'momentun' to schedule: its keys are .*momentum"),
        ({"key": "betas[0]"}, "no 'betas'"),
        ({"key": "lr[0]"}, "no element 0"),
        ({"key": "nesterov"}, "only a finite number"),
        ({"key": "l r"}, "name a key"),
        ({"key": 3}, "name a key"),
        ({"tags": "y"}, "No parameter group carries the tag 'y': the tags are 'x'"),
        ({"scheduler": []}, "empty"),
        ({"scheduler": lambda state: 0.5, "clock": Clock("1ba", ssr=0.5)}, "takes the state alone"),
        ({"clock": SimpleNamespace(timestamp=None, max_duration=None, dataloader_len=None)}, "length of the run"),
    ],
)
def test_refused_before_anything_changes(arguments, words):
    optimizer = torch.optim.SGD(groups({"tags": "x"}), lr=0.7)
    before = copy.deepcopy(optimizer.state_dict())
    given = {"scheduler": LinearScheduler(0.5), "optimizer": optimizer, "clock": Clock("4ba"), **arguments}
    with pytest.raises(ValueError, match=words):
        bind(**given)
    assert optimizer.state_dict() == before
    for wrong in ({"scheduler": "cosine"}, {"optimizer": optimizer.param_groups}):
        with pytest.raises(TypeError):
            bind(**(given | {"key": "lr", "tags": None, "clock": Clock("4ba"), "scheduler": LinearScheduler()} | wrong))
    assert optimizer.state_dict() == before


@pytest.mark.parametrize("when", ["before", "after"])
def test_nothing_is_patched_onto_step(when):
    """The optimizer's step is untouched, so compiling it before or after binding works, and warns of nothing."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))
    clock = Clock("6ba")
    scheduler = bind(LinearScheduler(), optimizer, clock) if when == "after" else None
    own = optimizer.step.__func__
    step = torch.compile(optimizer.step, backend="eager")
    scheduler = scheduler or bind(LinearScheduler(), optimizer, clock)
    assert optimizer.step.__func__ is own
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        lrs = []
        while not clock.done:
            model(torch.ones(1, 4)).sum().backward()
            step()
            optimizer.zero_grad()
            clock.tick()
            scheduler.step()
            lrs.append(round(float(optimizer.param_groups[0]["lr"]), 6))
    assert lrs == [round(0.1 * (1 - k / 6), 6) for k in range(1, 7)]


def test_two_optimizers_on_one_clock():
    clock = Clock("4ba")
    generator, critic = (torch.optim.SGD(parameters(), lr=lr) for lr in (1.0, 0.1))
    schedule = MultiStepScheduler(["0.5dur"], gamma=0.5)
    both = bind(schedule, generator, clock), bind(schedule, critic, clock)
    for _ in range(2):
        clock.tick()
        for scheduler in both:
            scheduler.step()
    assert [s.get_last_lr() for s in both] == [[0.5], [0.05]]


def test_compile_composer_scheduler_wants_one_optimizer():
    clock = Clock("4ba")
    clock.optimizers = [torch.optim.SGD(parameters(), lr=1.0)] * 2
    with pytest.raises(NotImplementedError, match="2 optimizers"):
        compile_composer_scheduler(LinearScheduler(), clock)
    clock.optimizers = clock.optimizers[:1]
    scheduler = compile_composer_scheduler(LinearScheduler(), clock)
    clock.tick()
    scheduler.step()
    assert isinstance(scheduler, LambdaLR) and scheduler.get_last_lr() == [0.75]


def test_the_ratio_of_a_state_that_has_none():
    state = SimpleNamespace(timestamp=Timestamp(batch=4), max_duration="8ba", dataloader_len=None)
    optimizer = torch.optim.SGD(parameters(), lr=1.0)
    assert bind(LinearScheduler(t_max="16ba"), optimizer, state, ssr=0.5).get_last_lr() == [0.5]
    with pytest.raises(ValueError, match="contradicts"):
        bind(LinearScheduler(), optimizer, Clock("8ba"), key="momentum", ssr=0.5)


def test_a_group_added_later_that_two_select_is_an_error_for_both():
    optimizer, clock = torch.optim.SGD(groups({"tags": "x"}, {"tags": "y"}), lr=1.0), Clock("4ba")
    one, two = (bind(LinearScheduler(), optimizer, clock, tags=tag) for tag in "xy")
    optimizer.add_param_group({"params": parameters(), "tags": ["x", "y"]})
    for each in (one, two):
        with pytest.raises(ValueError, match="parameter group 2, which was added, is for two schedulers"):
            each.step()
    two.unbind()
    clock.tick()
    one.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.75, 1.0, 0.75]


def test_a_trainer_compiles_again_for_a_second_fit():
    clock = Clock("4ba")
    clock.optimizers = [torch.optim.SGD(parameters(), lr=1.0)]
    first = compile_composer_scheduler(LinearScheduler(), clock)
    second = compile_composer_scheduler(ConstantScheduler(0.5), clock)
    with pytest.raises(ValueError, match="superseded"):
        first.step()
    assert second.get_last_lr() == [0.5]
    with pytest.raises(ValueError, match="takes the state alone"):  # and a third that cannot be made changes nothing
        compile_composer_scheduler(lambda state: 0.5, clock, ssr=0.5)
    second.step()


def test_an_unbound_schedule_writes_no_more():
    optimizer, clock = torch.optim.SGD(parameters(), lr=1.0), Clock("4ba")
    first = bind(LinearScheduler(), optimizer, clock)
    first.unbind()
    second = bind(ConstantScheduler(0.5), optimizer, clock)
    clock.load_state_dict(clock.state_dict())
    assert second.get_last_lr() == [0.5]


def test_a_tensor_that_groups_share_is_not_scheduled_for_one_of_them():
    shared = torch.tensor(1.0)
    optimizer = torch.optim.SGD(groups({"tags": "x"}, {}), lr=shared)
    if optimizer.param_groups[0]["lr"] is optimizer.param_groups[1]["lr"]:
        with pytest.raises(ValueError, match="groups 0 and 1 share one tensor as 'lr'"):
            bind(LinearScheduler(0.5), optimizer, Clock("4ba"), tags="x")
    bind(LinearScheduler(0.5), optimizer, Clock("4ba"))
    assert [float(group["lr"]) for group in optimizer.param_groups] == [0.5, 0.5]
    whole = torch.optim.SGD(parameters(), lr=torch.tensor(1))
    with pytest.raises(ValueError, match="a tensor of floats"):
        bind(LinearScheduler(), whole, Clock("4ba"))


@pytest.mark.parametrize("value", [None, "1", float("nan"), 1j, True, torch.tensor(1.0)])
def test_what_is_no_multiplier_is_refused(value):
    optimizer = torch.optim.SGD(parameters(), lr=1.0)
    with pytest.raises(ValueError, match="a schedule returns a finite number"):
        bind(lambda state: value, optimizer, Clock("4ba"))
    assert "initial_lr" not in optimizer.param_groups[0] and optimizer.param_groups[0]["lr"] == 1.0


@pytest.mark.parametrize(
    "function", [lambda s, *, ssr=1.0: 0.5, lambda s, **k: 0.5, lambda *a: 0.5, lambda s, ssr=1.0, k=3: 0.5]
)
def test_functions_of_every_signature(function):
    assert bind(function, torch.optim.SGD(parameters(), lr=1.0), Clock("4ba")).get_last_lr() == [0.5]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"tags": 5}, ValueError),
        ({"key": ("betas", -1)}, ValueError),
        ({"clock": None}, TypeError),
        ({"clock": "4ba"}, TypeError),
    ],
)
def test_more_that_is_refused(wrong, error):
    optimizer = torch.optim.AdamW(parameters(), lr=1.0)
    with pytest.raises(error, match="pass|name"):
        bind(**({"scheduler": LinearScheduler(), "optimizer": optimizer, "clock": Clock("4ba")} | wrong))


# Values that are no numbers


def held(optimizer, key):
    """The groups without their parameters, as plain values."""
    return [{k: float(v) if k == key else v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]


HUGE = ExponentialScheduler(2.0, "1ba")
NOUGHT = MultiStepScheduler(["1024ba"], gamma=0.0)


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("key", ["lr", "weight_decay", "betas[0]"])
@pytest.mark.parametrize(
    ("schedule", "value"),
    [(HUGE, "inf"), ([HUGE, NOUGHT], "nan"), ([NOUGHT, HUGE], "nan")],
    ids=["one", "0inf", "inf0"],
)
def test_an_infinite_value_is_refused_before_it_is_written(schedule, value, key, tensor):
    rates = torch.tensor(0.25, dtype=torch.float64) if tensor and key != "betas[0]" else 0.25
    changes = {key: rates} if key != "betas[0]" else {"betas": (rates, 0.9)}
    optimizer, clock = torch.optim.AdamW(groups(changes, {}), lr=0.5), Clock("2000ba")
    scheduler = bind(schedule, optimizer, clock, key=key)
    clock.timestamp = Timestamp(batch=1023)
    scheduler.step()
    before = copy.deepcopy(held(optimizer, key))
    assert scheduler.last_epoch == 1
    if value == "inf":
        assert scheduler.get_last_value()[0] == 0.25 * 2.0**1023
    clock.tick()
    named = (
        rf"ExponentialScheduler\(.*\)\]? would set '{re.escape(key)}' to {value}, .* finite number; end the schedule"
    )
    for call in (scheduler.step, scheduler.refresh):
        with pytest.raises(ValueError, match=named):
            call()
    assert held(optimizer, key) == before and scheduler.last_epoch == 1


def test_a_product_that_overflows_though_its_factors_do_not():
    """The multiplier is finite, and the value is not: for the largest group alone, of which the others wait."""
    optimizer, clock = torch.optim.SGD(groups({"lr": 1e-3}, {"lr": -1e300}, {"lr": 0.0}), lr=1.0), Clock("4ba")
    scheduler = bind(lambda state: 10.0 ** (100 * int(state.timestamp.batch)), optimizer, clock)
    clock.tick()
    with pytest.raises(ValueError, match=r"set 'lr' to -inf, 1e\+100 times the initial -1e\+300"):
        scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [1e-3, -1e300, 0.0]


def test_an_infinite_first_value_changes_nothing():
    """Neither at construction nor for a group that is added later; and the number is free for another."""
    optimizer, clock = torch.optim.SGD(groups({"lr": 0.5}), lr=0.5), Clock("2000ba")
    clock.timestamp = Timestamp(batch=1024)
    with pytest.raises(ValueError, match="to inf"):
        bind(HUGE, optimizer, clock)
    assert "initial_lr" not in optimizer.param_groups[0] and optimizer.param_groups[0]["lr"] == 0.5
    scheduler = bind(lambda state: 1e10, optimizer, clock)
    optimizer.add_param_group({"params": parameters(), "lr": 1e300})
    for _ in range(2):
        with pytest.raises(ValueError, match=r"1e\+300"):
            scheduler.step()
    assert "initial_lr" not in optimizer.param_groups[1] and scheduler.base_lrs == [0.5, 1e300]
    assert [group["lr"] for group in optimizer.param_groups] == [5e9, 1e300]


@pytest.mark.parametrize("first", [10**400, float("inf"), float("nan"), "1", torch.tensor(float("nan"))])
def test_an_initial_value_that_is_no_number(first):
    optimizer = torch.optim.SGD(groups({"initial_lr": first}), lr=0.5)
    with pytest.raises(ValueError, match="initial_lr"):
        bind(LinearScheduler(), optimizer, Clock("4ba"))
    assert optimizer.param_groups[0]["lr"] == 0.5 and optimizer.param_groups[0]["initial_lr"] is first


# States


@pytest.mark.parametrize(
    "wrong", [10**400, -(10**400), float("inf"), float("nan"), None, "1", [], 1j, True, torch.ones(2)]
)
def test_initial_values_that_are_no_numbers(wrong):
    optimizer, clock = torch.optim.SGD(groups({"lr": 0.5}, {}), lr=1.0), Clock("4ba")
    scheduler = bind(LinearScheduler(), optimizer, clock)
    clock.tick()
    before = scheduler.state_dict()
    with pytest.raises(ValueError, match="initial lr"):
        scheduler.load_state_dict({**before, "base": [0.25, wrong], "last_epoch": 3})
    assert scheduler.state_dict() == before and scheduler.base_lrs == [0.5, 1.0]
    scheduler.step()  # and it still goes by its own
    assert scheduler.get_last_lr() == [0.375, 0.75]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(("last_epoch", count) for count in (-1, 2.5, 1.0, True, None, "3", float("nan"), 10**400, 2**63 - 1, [3])),
        *(("base", base) for base in (None, 5, "12", {0.5: 1, 1.0: 2}, [0.5], [0.5, 1.0, 2.0], torch.ones(2))),
        *(("key", key) for key in (None, 5, "momentum", ["lr"], torch.ones(2))),
    ],
)
def test_states_that_are_refused_change_nothing(name, wrong):
    optimizer, clock = torch.optim.SGD(groups({"lr": 0.5}, {}), lr=1.0), Clock("4ba")
    scheduler = bind(LinearScheduler(), optimizer, clock)
    clock.tick()
    before = scheduler.state_dict()
    words = {"last_epoch": "counts steps", "base": "parameter groups are selected|the initial", "key": "schedule: key"}
    with pytest.raises(ValueError, match=words[name]):
        scheduler.load_state_dict({**before, "base": [0.25, 2.0], "last_epoch": 3, name: wrong})
    assert scheduler.state_dict() == before and [group["lr"] for group in optimizer.param_groups] == [0.5, 1.0]
    for state in (None, 5, [], "state"):
        with pytest.raises(ValueError, match=r"not a state|lacks"):
            scheduler.load_state_dict(state)


def test_initial_values_whose_product_is_infinite():
    optimizer, clock = torch.optim.SGD(groups({"lr": 0.5}, {}), lr=1.0), Clock("4ba")
    scheduler = bind(lambda state: 1e10, optimizer, clock)
    before = scheduler.state_dict()
    with pytest.raises(ValueError, match=r"set 'lr' to inf, 10000000000.0 times the initial 1e\+300"):
        scheduler.load_state_dict({**before, "base": [0.25, 1e300], "last_epoch": 3})
    assert scheduler.state_dict() == before and scheduler.get_last_lr() == [5e9, 1e10]
    scheduler.step()
    assert scheduler.get_last_lr() == [5e9, 1e10] and scheduler.last_epoch == 1


# Unbound


@pytest.mark.parametrize("key", ["lr", "momentum"])
def test_an_unbound_schedule_is_out_of_use(key):
    optimizer, clock = torch.optim.SGD(parameters(), lr=1.0, momentum=0.5), Clock("4ba")
    scheduler = bind(LinearScheduler(), optimizer, clock, key=key)
    state = scheduler.state_dict()
    scheduler.unbind()
    clock.tick()
    before = copy.deepcopy(held(optimizer, key))
    for call in (scheduler.step, scheduler.refresh, lambda: scheduler.load_state_dict({**state, "last_epoch": 3})):
        with pytest.raises(ValueError, match=rf"of '{key}' was unbound: make another one"):
            call()
    clock.load_state_dict(clock.state_dict())
    now = scheduler.state_dict()
    assert held(optimizer, key) == before and scheduler.last_epoch == 0
    assert {**now, "clock": None} == {**state, "clock": None}
    scheduler.unbind()  # a second time is nothing
    assert bind(LinearScheduler(), optimizer, clock, key=key).get_last_value() == [0.75 * before[0][key]]


def test_a_copy_of_an_unbound_schedule_stays_unbound():
    """Copying registers what is bound, and nothing else: another may have the number, and the clock writes nothing."""
    optimizer, clock = torch.optim.SGD(parameters(), lr=1.0), Clock("4ba")
    unbound = bind(LinearScheduler(), optimizer, clock)
    unbound.unbind()
    for on, copied, timer in (copy.deepcopy((optimizer, unbound, clock)), pickled((optimizer, unbound, clock))):
        timer.tick()
        timer.load_state_dict(timer.state_dict())
        assert copied.optimizer is on and on.param_groups[0]["lr"] == 1.0
        with pytest.raises(ValueError, match="unbound"):
            copied.step()
        assert bind(ConstantScheduler(0.5), on, timer).get_last_lr() == [0.5]


def pickled(objects):
    return pickle.loads(pickle.dumps(objects))


# Rates that require a gradient


def test_a_rate_that_requires_a_gradient():
    rate = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    optimizer, clock = torch.optim.SGD(parameters(), lr=rate), Clock("4ba")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler = bind(LinearScheduler(), optimizer, clock)
        clock.tick()
        scheduler.step()
        (last,) = scheduler.get_last_lr()
    group = optimizer.param_groups[0]
    assert group["lr"] is rate and rate.requires_grad and rate.is_leaf and rate.item() == 0.375
    assert last.item() == 0.375 and not last.requires_grad and not group["initial_lr"].requires_grad
    on, copied = copy.deepcopy((optimizer, scheduler))  # of a tensor with a history there is no copy
    assert on.param_groups[0]["lr"].item() == 0.375 and copied.base_lrs == [0.5]


# The clock in the state


def run(steps, clock, optimizer, scheduler):
    values = []
    for _ in range(steps):
        optimizer.step()
        clock.tick()
        scheduler.step()
        values.append(optimizer.param_groups[0]["lr"])
    return values


def bound(schedule=None, **rates):
    optimizer, clock = torch.optim.SGD(parameters(), lr=0.8), Clock("10ba", **rates)
    return clock, optimizer, bind(schedule or LinearScheduler(), optimizer, clock)


def test_the_state_of_a_scheduler_alone_goes_on_where_it_was():
    """As trainers save it: without the clock."""
    whole, part, after = bound(), bound(), bound()
    expected = run(7, *whole)
    first = run(4, *part)
    state = json.loads(json.dumps(part[2].state_dict()))
    after[2].load_state_dict(state)
    assert after[0].timestamp.batch == 4 and after[2].get_last_lr() == [first[-1]]
    assert first + run(3, *after) == expected and after[2].last_epoch == 7


def test_of_several_schedulers_on_one_clock_the_last_load_wins():
    clock, optimizer, rates = bound()
    decays = bind(LinearScheduler(0.5), optimizer, clock, key="weight_decay")
    earlier, later = rates.state_dict(), None
    clock.tick()
    later = decays.state_dict()
    rates.load_state_dict(earlier)
    assert clock.timestamp.batch == 0 and rates.get_last_lr() == [0.8]
    decays.load_state_dict(later)
    assert clock.timestamp.batch == 1 and rates.get_last_lr() == [pytest.approx(0.72, abs=1e-15)]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (LinearScheduler(alpha_f=0.5), r"schedule\.arguments\.alpha_f is 0\.0 in the state, and 0\.5 here"),
        (ConstantScheduler(), r"schedule\.class is 'LinearScheduler' in the state, and 'ConstantScheduler' here"),
        ([LinearScheduler()], "schedule is"),
        (lambda state: 1.0, "schedule is .*lambda"),
    ],
)
def test_the_state_of_another_schedule_is_refused(other, words):
    saved, (clock, _, scheduler) = bound(), bound(other)
    run(2, *saved)
    with pytest.raises(ValueError, match=words):
        scheduler.load_state_dict(saved[2].state_dict())
    assert clock.timestamp.batch == 0 and scheduler.last_epoch == 0


def test_a_load_that_another_scheduler_cannot_follow_changes_nothing():
    """All that follow a clock are written by its load; where one cannot be, none is."""
    saved, (clock, first, scheduler) = bound(), bound()
    run(4, *saved)
    others = [torch.optim.SGD(parameters(), lr=0.8) for _ in range(6)]
    followers = [bind(LinearScheduler(), other, clock) for other in others]
    broken = others[3].param_groups.pop()
    for load, state in (
        (scheduler.load_state_dict, saved[2].state_dict()),
        (clock.load_state_dict, saved[0].state_dict()),
    ):
        with pytest.raises(ValueError, match="has 0 parameter groups"):
            load({**state, "base": [0.4]})
        assert clock.timestamp.batch == 0 and scheduler.last_epoch == 0 and scheduler.base_lrs == [0.8]
        rates = [group["lr"] for each in (first, *others) for group in each.param_groups]
        assert rates == [0.8] * 6
    others[3].param_groups.append(broken)
    clock.load_state_dict(saved[0].state_dict())
    assert [each.get_last_lr() for each in (scheduler, *followers)] == [saved[2].get_last_lr()] * 7


def test_tags_are_compared():
    optimizer, clock = torch.optim.SGD(groups({"tags": "x"}, {"tags": "x"}), lr=1.0), Clock("4ba")
    state = bind(LinearScheduler(), optimizer, clock, tags="x").state_dict()
    scheduler = bind(LinearScheduler(), optimizer, clock, tags=["x", None])
    with pytest.raises(ValueError, match="another schedule: tags"):
        scheduler.load_state_dict(state)


def test_functions_are_compared_by_name():
    saved, (clock, _, scheduler) = bound(halved), bound(halved)
    run(2, *saved)
    scheduler.load_state_dict(saved[2].state_dict())
    assert clock.timestamp.batch == 2
    assert saved[2].state_dict()["schedule"] == "halved"


def halved(state):
    return 0.5


def test_another_horizon_is_loaded_with_a_warning_that_shows_both():
    saved, (clock, _, scheduler) = bound(samples_per_batch=8), bound(samples_per_batch=16)
    run(2, *saved)
    with pytest.warns(UserWarning, match=r"samples_per_batch=8\), and goes on with .*samples_per_batch=16\)"):
        scheduler.load_state_dict(saved[2].state_dict())
    assert clock.timestamp.batch == 2


def test_a_state_without_a_clock_loads():
    """As the version before saved it; the clock has then been loaded by itself, or the warning says so."""
    old = {"key": "lr", "base": [0.8], "last_epoch": 3}
    clock, _, scheduler = bound()
    with pytest.warns(UserWarning, match="did not save the clock, which stands at 0"):
        scheduler.load_state_dict(old)
    assert scheduler.last_epoch == 3
    clock.timestamp = Timestamp(batch=3)
    scheduler.load_state_dict(old)
    assert scheduler.get_last_lr() == [pytest.approx(0.56, abs=1e-15)]


def test_a_foreign_state_is_not_saved():
    state = SimpleNamespace(timestamp=Timestamp(batch=2), max_duration="10ba", dataloader_len=None)
    optimizer = torch.optim.SGD(parameters(), lr=1.0)
    saved = bind(LinearScheduler(), optimizer, state).state_dict()
    assert saved.keys() == {"key", "schedule", "last_epoch", "tags", "base"}
    scheduler = bind(LinearScheduler(), optimizer, state)
    optimizer.param_groups[0]["lr"] = 0.3  # as a checkpoint's, which may be loaded before the state or after it
    scheduler.load_state_dict(saved)
    assert scheduler.get_last_lr() == [0.3] and state.timestamp.batch == 2
    scheduler.refresh()
    assert scheduler.get_last_lr() == [0.8]


def test_a_clock_in_a_state_that_lacks_a_counter():
    clock, _, scheduler = bound()
    state = scheduler.state_dict()
    del state["clock"]["token"]
    with pytest.raises(ValueError, match=r"the clock in the state lacks .*token"):
        scheduler.load_state_dict({**state, "last_epoch": 3})
    assert clock.timestamp.batch == 0 and scheduler.last_epoch == 0 and scheduler.get_last_lr() == [0.8]


def test_steps_that_somebody_else_counts_say_nothing_about_the_clock():
    for one in (bound()[2], LinearLR(torch.optim.SGD(parameters(), lr=1.0), 1.0, 0.0, 10, clock=Clock("10ba"))):
        one.last_epoch = 7
        one.step()  # the first one: no warning, which would be an error here


def test_a_clock_that_is_never_ticked_is_said_once():
    _, _, scheduler = bound()
    scheduler.step()
    with pytest.warns(UserWarning, match=r"has not moved in two steps: call clock\.tick\(\)") as warned:
        scheduler.step()
    assert warned[0].filename == __file__ and "scheduler.step()" in linecache.getline(__file__, warned[0].lineno)
    scheduler.step()
    for late in (False, True):  # no warning, which would be an error here
        clock, _, scheduler = bound()
        for _ in range(3):
            for call in (scheduler.step, clock.tick) if late else (clock.tick, scheduler.step):
                call()


def test_torchs_own_composites_are_refused_or_work():
    optimizer, clock = torch.optim.SGD(parameters(), lr=1.0), Clock("10ba")
    first = bind(LinearScheduler(), optimizer, clock)
    constant = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    for several in ([first, constant], [constant, first]):
        with pytest.raises(ValueError, match=r"SequenceScheduler\(\["):
            torch.optim.lr_scheduler.SequentialLR(optimizer, several, milestones=[2])
    assert first.last_epoch == 0 and first._step_count == 1
