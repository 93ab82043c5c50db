"""The states of bound schedules: saved, compared, and resumed in any order of loads, bit for bit."""

import json
import linecache
from types import SimpleNamespace

import pytest
import torch

from optim.lr_scheduler import LinearLR
from timesched import Clock, ConstantScheduler, CosineAnnealingWithWarmupScheduler, LinearScheduler, Timestamp, bind
from timesched.integrations.common import Binding, Schedulers


def parameters(n=1):
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(3)) for _ in range(n)]


def sgd(*groups, lr=0.8):
    return torch.optim.SGD([{"params": parameters(), **group} for group in groups or ({},)], lr=lr, momentum=0.5)


# Whole runs, as they are saved with parameters and optimizer


def train(optimizer, clock, scheduler, until):
    while clock.timestamp.batch < until:
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = torch.sin(p.detach() + clock.timestamp.batch.value)
        optimizer.step()
        clock.tick(samples=4, tokens=clock.timestamp.batch.value % 3 + 1)
        scheduler.step()


def adamw_run(tensor=False):
    optimizer = torch.optim.AdamW(parameters(2), lr=torch.tensor(0.1) if tensor else 0.1)
    clock = Clock("40tok")
    return optimizer, clock, bind(CosineAnnealingWithWarmupScheduler("0.2dur"), optimizer, clock)


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("order", ["ocs", "osc", "cos", "cso", "soc", "sco"])
def test_resuming_in_any_order_of_loads_is_exact(tensor, order, tmp_path):
    through, half, resumed = (adamw_run(tensor) for _ in range(3))
    train(*through, until=20)
    train(*half, until=7)
    torch.save({name: each.state_dict() for name, each in zip("ocs", half)}, tmp_path / "run.pt")
    saved = torch.load(tmp_path / "run.pt", weights_only=True)
    for p, q in zip(half[0].param_groups[0]["params"], resumed[0].param_groups[0]["params"]):
        q.data.copy_(p.data)
    for each in order:
        dict(zip("ocs", resumed))[each].load_state_dict(saved[each])
    assert resumed[0].param_groups[0]["lr"] == half[0].param_groups[0]["lr"]
    train(*resumed, until=20)
    for p, q in zip(through[0].param_groups[0]["params"], resumed[0].param_groups[0]["params"]):
        assert torch.equal(p, q)
    assert through[2].get_last_lr() == resumed[2].get_last_lr() and resumed[2].last_epoch == 20


def test_binding_after_the_optimizer_was_loaded_keeps_the_initial_rate():
    optimizer, clock, scheduler = adamw_run()
    train(optimizer, clock, scheduler, until=7)
    fresh, later = torch.optim.AdamW(parameters(2), lr=0.1), Clock("40tok")
    fresh.load_state_dict(optimizer.state_dict())
    later.load_state_dict(clock.state_dict())
    assert bind(CosineAnnealingWithWarmupScheduler("0.2dur"), fresh, later).get_last_lr() == scheduler.get_last_lr()


# The clock in the state


def bound(schedule=None, **rates):
    optimizer, clock = sgd(), Clock("10ba", **rates)
    return clock, optimizer, bind(schedule or LinearScheduler(), optimizer, clock)


def run(steps, clock, optimizer, scheduler):
    values = []
    for _ in range(steps):
        optimizer.step()
        clock.tick()
        scheduler.step()
        values.append(optimizer.param_groups[0]["lr"])
    return values


def test_the_state_of_a_scheduler_alone_goes_on_where_it_was():
    """As trainers save it: without the clock, in plain values."""
    through, half, after = bound(), bound(), bound()
    expected = run(7, *through)
    first = run(4, *half)
    state = json.loads(json.dumps(half[2].state_dict()))
    assert (state["key"], state["base"], state["last_epoch"], state["tags"]) == ("lr", [0.8], 4, None)
    assert state["schedule"]["class"] == "LinearScheduler" and state["clock"]["batch"] == 4
    after[2].load_state_dict(state)
    assert after[0].timestamp.batch == 4 and after[2].get_last_lr() == [first[-1]]
    assert first + run(3, *after) == expected and after[2].last_epoch == 7


def test_of_several_schedulers_on_one_clock_the_last_load_wins():
    clock, optimizer, rates = bound()
    decays = bind(LinearScheduler(0.5), optimizer, clock, key="weight_decay")
    earlier = rates.state_dict()
    clock.tick()
    later = decays.state_dict()
    rates.load_state_dict(earlier)
    assert clock.timestamp.batch == 0 and rates.get_last_lr() == [0.8]
    decays.load_state_dict(later)
    assert clock.timestamp.batch == 1 and rates.get_last_lr() == [pytest.approx(0.72, abs=1e-15)]


def test_a_load_that_another_scheduler_cannot_follow_changes_nothing():
    """All that follow a clock are written by its load; where one cannot be, none is."""
    saved, (clock, first, scheduler) = bound(), bound()
    run(4, *saved)
    others = [sgd() for _ in range(6)]
    followers = [bind(LinearScheduler(), other, clock) for other in others]
    broken = others[3].param_groups.pop()
    for load, state in (
        (scheduler.load_state_dict, saved[2].state_dict()),
        (clock.load_state_dict, saved[0].state_dict()),
    ):
        with pytest.raises(ValueError, match="has 0 parameter groups"):
            load({**state, "base": [0.4]})
        assert clock.timestamp.batch == 0 and scheduler.last_epoch == 0 and scheduler.base_lrs == [0.8]
        assert [group["lr"] for each in (first, *others) for group in each.param_groups] == [0.8] * 6
    others[3].param_groups.append(broken)
    clock.load_state_dict(saved[0].state_dict())
    assert [each.get_last_lr() for each in (scheduler, *followers)] == [saved[2].get_last_lr()] * 7


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


def test_a_clock_in_a_state_that_lacks_a_counter():
    clock, _, scheduler = bound()
    state = scheduler.state_dict()
    del state["clock"]["token"]
    with pytest.raises(ValueError, match="of the clock, the state of a Timestamp lacks token: is it"):
        scheduler.load_state_dict({**state, "last_epoch": 3})
    assert clock.timestamp.batch == 0 and scheduler.last_epoch == 0 and scheduler.get_last_lr() == [0.8]


def test_a_foreign_state_is_not_saved():
    state = SimpleNamespace(timestamp=Timestamp(batch=2), max_duration="10ba", dataloader_len=None)
    optimizer = sgd(lr=1.0)
    saved = bind(LinearScheduler(), optimizer, state).state_dict()
    assert saved.keys() == {"key", "schedule", "last_epoch", "tags", "base"}
    scheduler = bind(LinearScheduler(), optimizer, state)
    optimizer.param_groups[0]["lr"] = 0.3  # as a checkpoint's, which may be loaded before the state or after it
    scheduler.load_state_dict(saved)
    assert scheduler.get_last_lr() == [0.3] and state.timestamp.batch == 2
    scheduler.refresh()
    assert scheduler.get_last_lr() == [0.8]


@pytest.mark.parametrize("added_before", [False, True])
@pytest.mark.parametrize("saved_after_a_step", [False, True])
def test_a_group_that_was_added_belongs_to_the_state(added_before, saved_after_a_step):
    def started(before):
        optimizer, clock = sgd(), Clock("10ba")
        if before:
            optimizer.add_param_group({"params": parameters(), "lr": 0.5})
        scheduler = bind(LinearScheduler(), optimizer, clock)
        if not before:
            optimizer.add_param_group({"params": parameters(), "lr": 0.5})
        return clock, scheduler

    clock, scheduler = started(False)
    if saved_after_a_step:
        clock.tick()
        scheduler.step()
    state = scheduler.state_dict()
    assert state["base"] == [0.8, 0.5]
    _, other = started(added_before)
    other.load_state_dict(state)
    assert other.get_last_lr() == scheduler.get_lr() and other.base_lrs == [0.8, 0.5]


def test_a_refused_load_leaves_an_added_group_to_the_next_step():
    """Also where the load takes it, since the state holds one group more than there were."""
    optimizer, clock = sgd(), Clock("10ba")
    both = Schedulers(optimizer, clock, [LinearScheduler(), Binding(LinearScheduler(), "momentum")])
    optimizer.add_param_group({"params": parameters(), "lr": 0.5})
    before = [dict(group) for group in optimizer.param_groups]
    with pytest.raises(ValueError, match="lacks"):
        both.load_state_dict({"schedulers": [{}, {}]})
    assert optimizer.param_groups == before
    state = {**both.bound[0].state_dict(), "base": [1.0, 0.5]}
    with pytest.raises(ValueError, match="lacks"):
        both.load_state_dict({"schedulers": [state, {}]})
    for _ in range(5):
        clock.tick()
        both.step()
    assert both.get_last_lr() == [0.4, 0.25] and len(both.bound[0].get()) == 2


def test_a_state_from_before_a_group_was_added():
    """It loads as long as the group waits for its first step, and is refused afterwards."""
    clock, optimizer, scheduler = bound()
    state = scheduler.state_dict()
    optimizer.add_param_group({"params": parameters(), "lr": 0.5})
    scheduler.load_state_dict(state)
    clock.tick()
    scheduler.step()
    with pytest.raises(ValueError, match="and 2 parameter groups are selected here"):
        scheduler.load_state_dict(state)


@pytest.mark.parametrize("unit", ["tok", "sp"])
def test_a_count_that_nobody_gives_the_clock_is_said_once(unit):
    optimizer, clock = sgd(), Clock("10ba")
    scheduler = bind(LinearScheduler(t_max=f"1000{unit}"), optimizer, clock)
    clock.tick()
    scheduler.step()
    clock.tick()
    with pytest.warns(UserWarning, match=r"the clock has counted none in two steps: pass their number to clock\.tick"):
        scheduler.step()
    clock.tick(samples=100, tokens=100)
    scheduler.step()
    assert scheduler.get_last_lr() == [0.8 * 0.9]
    given = Clock("10ba", samples_per_batch=1, tokens_per_sample=1)
    other = bind(LinearScheduler(t_max=f"1000{unit}"), optimizer, given)
    empty = [ConstantScheduler(1.0, f"0{unit}"), CosineAnnealingWithWarmupScheduler(f"0{unit}")]
    third = bind(empty, optimizer, Clock("10ba"), key="momentum")  # times of 0, which no count changes
    for _ in range(3):
        given.tick(), third.clock.tick()
        other.step(), third.step()  # no warning, which would be an error here


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


def test_steps_that_somebody_else_counts_say_nothing_about_the_clock():
    for one in (bound()[2], LinearLR(sgd(), 1.0, 0.0, 10, clock=Clock("10ba"))):
        one.last_epoch = 7
        one.step()  # the first one: no warning, which would be an error here


# States that are refused


def halved(state):
    return 0.5


@pytest.mark.parametrize(
    ("schedule", "other", "words"),
    [
        (None, LinearScheduler(alpha_f=0.5), r"schedule\.arguments\.alpha_f is 0\.0 in the state, and 0\.5 here"),
        (None, ConstantScheduler(), r"schedule\.class is 'LinearScheduler' in the state, and 'ConstantScheduler' here"),
        (None, [LinearScheduler(alpha_f=0.5)], "schedule is"),
        (None, lambda state: 1.0, "schedule is .*lambda"),
        (halved, lambda state: 1.0, "schedule is 'halved' in the state, and .*lambda"),
    ],
)
def test_the_state_of_another_schedule_is_refused(schedule, other, words):
    saved, same, (clock, _, scheduler) = bound(schedule), bound(schedule), bound(other)
    run(2, *saved)
    with pytest.raises(ValueError, match=words):
        scheduler.load_state_dict(saved[2].state_dict())
    assert clock.timestamp.batch == 0 and scheduler.last_epoch == 0
    same[2].load_state_dict(saved[2].state_dict())
    assert same[0].timestamp.batch == 2


def two_groups(**more):
    optimizer, clock = sgd({"lr": 0.5, "tags": "x"}, {"tags": "x"}, lr=1.0), Clock("4ba")
    return optimizer, clock, bind(LinearScheduler(), optimizer, clock, **more)


def test_tags_are_compared():
    with pytest.raises(ValueError, match="another schedule: tags"):
        two_groups(tags=["x", None])[2].load_state_dict(two_groups(tags="x")[2].state_dict())


@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        *(
            ("last_epoch", count, "counts steps")
            for count in (-1, 2.5, 1.0, True, None, "3", float("nan"), 10**400, 2**63 - 1, [3])
        ),
        *(("base", base, "parameter groups are selected|the initial") for base in (None, 5, "12", {0.5: 1, 1.0: 2})),
        *(("base", base, "2 parameter groups are selected") for base in ([0.5], [0.5, 1.0, 2.0])),
        *(
            ("base", [0.25, base], "initial lr")
            for base in (10**400, -(10**400), float("inf"), float("nan"), None, "1", [], 1j, True, torch.ones(2))
        ),
        ("base", torch.ones(2), "parameter groups are selected|the initial"),
        *(("key", key, "schedule: key is .* in the state, and 'lr' here") for key in (None, "momentum", torch.ones(2))),
    ],
)
def test_states_that_are_refused_change_nothing(name, wrong, words):
    optimizer, clock, scheduler = two_groups()
    clock.tick()
    before = scheduler.state_dict()
    with pytest.raises(ValueError, match=words):
        scheduler.load_state_dict({**before, "base": [0.25, 2.0], "last_epoch": 3, name: wrong})
    assert scheduler.state_dict() == before and [group["lr"] for group in optimizer.param_groups] == [0.5, 1.0]
    scheduler.step()  # and it still goes by its own
    assert scheduler.get_last_lr() == [0.375, 0.75] and scheduler.base_lrs == [0.5, 1.0]


@pytest.mark.parametrize("state", [None, 5, [], "state", {"last_epoch": 3}])
def test_what_is_no_state(state):
    scheduler = bound()[2]
    before = scheduler.state_dict()
    with pytest.raises(ValueError, match=r"not a state|lacks"):
        scheduler.load_state_dict(state)
    with pytest.raises(ValueError, match="set last_epoch, or the clock"):
        scheduler.step(3)
    assert scheduler.state_dict() == before


def test_initial_values_whose_product_is_infinite():
    optimizer, clock = sgd({"lr": 0.5}, {}, lr=1.0), Clock("4ba")
    scheduler = bind(lambda state: 1e10, optimizer, clock)
    before = scheduler.state_dict()
    with pytest.raises(ValueError, match=r"set 'lr' to inf, 10000000000.0 times the initial 1e\+300"):
        scheduler.load_state_dict({**before, "base": [0.25, 1e300], "last_epoch": 3})
    assert scheduler.state_dict() == before and scheduler.get_last_lr() == [5e9, 1e10]
    clock.tick()
    scheduler.step()
    assert scheduler.get_last_lr() == [5e9, 1e10] and scheduler.last_epoch == 1
