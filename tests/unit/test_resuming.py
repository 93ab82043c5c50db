"""What a scheduler saves, and what it does with the state of the same schedule and of another one."""

import copy
import json
import warnings
from types import SimpleNamespace

import pytest
import torch

import optim
from optim import WeightAverage
from optim.lr_scheduler import CosineDecayLR, LinearLR, ScalePerParamLR, SequentialLR
from tests.building import parameters, run, sgd, tick
from timesched import *  # noqa: F403  # these are tests of all that is public
from timesched.integrations.common import (
    Binding,
    CountingSchedulers,
    Schedulers,
    add_microbatch,
    make_average,
)

COSINE, LINEAR = CosineAnnealingScheduler(), LinearScheduler()
STABLE = WarmupStableDecayScheduler("10ba", t_decay="0.1dur")


def made(schedule=LINEAR, duration="10ba", on_change="same", key="lr", tags=None, **rates):
    clock, optimizer = Clock(duration, **rates), sgd({"tags": ["a"]}, momentum=0.5)
    return clock, optimizer, bind(schedule, optimizer, clock, key, tags, on_change=on_change)


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


def test_the_state_of_a_scheduler_alone_goes_on_where_it_was():
    """As trainers save it: without the clock, in plain values."""
    through, half, after = made(), made(), made()
    expected, first = run(7, *through), run(4, *half)
    state = json.loads(json.dumps(half[2].state_dict()))
    clock = state.pop("clock")
    text = repr(LinearScheduler())
    plain = {"key": "lr", "tags": None, "last_epoch": 4, "base": [1.0], "schedule": text, "value": [0.6]}
    assert state == {**plain, "horizon": "Horizon('10ba')", "length": "10ba"} and clock["batch"] == 4
    after[2].load_state_dict({**state, "clock": clock})
    assert after[0].timestamp.batch == 4 and after[2].get_last_lr() == [first[-1]]
    assert first + run(3, *after) == expected and after[2].last_epoch == 7


def test_a_load_that_another_scheduler_cannot_follow_changes_nothing():
    """All that follow a clock are written by its load; where one cannot be, none is."""
    earlier, (clock, first, scheduler) = made(), made()
    run(4, *earlier)
    others = [sgd() for _ in range(6)]
    followers = [bind(LinearScheduler(), other, clock) for other in others]
    broken = others[3].param_groups.pop()
    for load, state in (
        (scheduler.load_state_dict, earlier[2].state_dict()),
        (clock.load_state_dict, earlier[0].state_dict()),
    ):
        with pytest.raises(ValueError, match="has 0 parameter groups"):
            load({**state, "base": [0.4]})
        assert clock.timestamp.batch == 0 and scheduler.last_epoch == 0 and scheduler.base_lrs == [1.0]
        assert [group["lr"] for each in (first, *others) for group in each.param_groups] == [1.0] * 6
    others[3].param_groups.append(broken)
    clock.load_state_dict(earlier[0].state_dict())
    assert [each.get_last_lr() for each in (scheduler, *followers)] == [earlier[2].get_last_lr()] * 7


def test_a_foreign_state_is_not_saved():
    """Nobody knows the moment of such a state: its owner loads it, maybe later."""
    state = SimpleNamespace(timestamp=Timestamp(batch=2), max_duration="10ba", dataloader_len=None)
    optimizer = sgd()
    saved = bind(LinearScheduler(), optimizer, state).state_dict()
    assert saved.keys() == {"key", "schedule", "last_epoch", "tags", "base", "value"}
    scheduler = bind(LinearScheduler(), optimizer, state)
    optimizer.param_groups[0]["lr"] = 0.3  # as a checkpoint's, which may be loaded before the state or after it
    scheduler.load_state_dict(saved)
    assert scheduler.get_last_lr() == [0.3] and state.timestamp.batch == 2
    scheduler.refresh()
    assert scheduler.get_last_lr() == [0.8]
    with pytest.raises(ValueError, match="the state is of a different"):
        bind(COSINE, sgd(), state).load_state_dict(saved)
    new = bind(COSINE, sgd(), state, on_change="new")
    new.load_state_dict({**saved, "base": [0.5]})
    assert new.get() == [COSINE.at("2ba", state)]  # times the initial value of here


@pytest.mark.parametrize("added_before", [False, True])
@pytest.mark.parametrize("saved_after_a_step", [False, True])
def test_a_group_that_was_added_belongs_to_the_state(added_before, saved_after_a_step):
    """A state from before it was added is refused, before the first step and after it."""
    clock, optimizer, scheduler = made()
    alone = scheduler.state_dict()
    optimizer.add_param_group({"params": parameters(), "lr": 0.5})
    tick(clock, saved_after_a_step, scheduler)
    with pytest.raises(ValueError, match="2 parameter groups are"):
        scheduler.load_state_dict(alone)
    state = scheduler.state_dict()
    assert state["base"] == [1.0, 0.5]
    later, added = Clock("10ba"), {"params": parameters(), "lr": 0.5}
    optimizer = sgd({}, added) if added_before else sgd()
    other = bind(LinearScheduler(), optimizer, later)
    if not added_before:
        optimizer.add_param_group(added)
    other.load_state_dict(state)
    assert other.get_last_lr() == scheduler.get_lr() and other.base_lrs == [1.0, 0.5]


def test_a_refused_load_leaves_an_added_group_to_the_next_step():
    """Also where the load takes it, since the state holds one group more than there were."""
    optimizer, clock = sgd(momentum=0.5), Clock("10ba")
    both = Schedulers(optimizer, clock, [LinearScheduler(), Binding(LinearScheduler(), "momentum")])
    optimizer.add_param_group({"params": parameters(), "lr": 0.5})
    before = [dict(group) for group in optimizer.param_groups]
    with pytest.raises(ValueError, match="lacks"):
        both.load_state_dict({"schedulers": [{}, {}]})
    assert optimizer.param_groups == before
    with pytest.raises(ValueError, match="lacks"):
        both.load_state_dict({"schedulers": [{**both.bound[0].state_dict(), "base": [0.25, 0.5]}, {}]})
    tick(clock, 5, both)
    assert both.get_last_lr() == [0.5, 0.25] and len(both.bound[0].get()) == 2


# Another initial value than that of the state


@pytest.mark.parametrize(("on_change", "peak"), [("same", 1.0), ("new", 0.1)])
def test_the_initial_value_of_a_state_is_kept_with_a_warning_or_replaced(on_change, peak):
    """Also in the note of an optimizer that was loaded before, from which a scheduler made later begins."""
    clock, optimizer, scheduler = made()
    run(4, clock, optimizer, scheduler)
    later, smaller = Clock("10ba"), sgd(lr=0.1)
    again = bind(LINEAR, smaller, later, on_change=on_change)
    smaller.load_state_dict(optimizer.state_dict())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        again.load_state_dict(scheduler.state_dict())
    told = [(str(each.message)[:62], each.filename) for each in caught]
    assert told == [("BoundLR.key='lr': the initial value was [0.1], and the state h", __file__)] * (peak == 1.0)
    assert again.get_last_lr() == again.get_lr() == [peak * 0.6] and again.base_lrs == [peak]
    assert smaller.param_groups[0]["initial_lr"] == peak
    assert bind(LINEAR, smaller, later).base_lrs == [peak]


def test_the_last_bits_of_an_initial_value_are_no_other_one():
    state = made()[2].state_dict()
    again = made()[2]
    again.load_state_dict({**state, "base": [1.0 + 5e-13]})  # no warning, which would be an error here
    assert again.base_lrs == [1.0 + 5e-13]


# The state of another schedule or of a run of another length


def saved(schedule, duration, batches, **more):
    one = made(schedule, duration, **more)
    run(batches, *one)
    return json.loads(json.dumps(one[2].state_dict()))


def assert_refused(one, state, words):
    clock, optimizer, scheduler = one
    optimizer.param_groups[0]["lr"] = 0.123  # as of a checkpoint that is loaded already
    before = clock.state_dict(), scheduler.state_dict(), copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=words) as error:
        scheduler.load_state_dict(state)
    assert (clock.state_dict(), scheduler.state_dict(), optimizer.state_dict()) == before
    return str(error.value)


def falling(state):
    return 1 / (1 + state.timestamp.batch.value)


INVERSE_ROOT = InverseSquareRootWithWarmupScheduler("10ba", t_scale="10ba", t_cooldown="0.1dur")
LONG = WarmupStableDecayScheduler("20ba", t_decay="40ba", decay="1-sqrt")  # where STABLE is flat, it is, too


@pytest.mark.parametrize(
    ("schedule", "other", "batches"),
    [
        *((STABLE, STABLE, 50), (STABLE, STABLE, 5), (STABLE, LONG, 50), (INVERSE_ROOT, INVERSE_ROOT, 50)),
        (CosineAnnealingScheduler("200ba"), CosineAnnealingScheduler("200ba"), 50),
        ([STABLE, PowerScheduler("7ba")], [STABLE, PowerScheduler("7ba")], 50),
        (falling, falling, 50),
    ],
)
def test_a_longer_run_goes_on_where_the_value_is_the_same(schedule, other, batches):
    longer, through = made(other, "200ba"), made(other, "200ba")
    longer[2].load_state_dict(saved(schedule, "100ba", batches))
    assert run(190 - batches, *longer) == run(190, *through)[batches:]


@pytest.mark.parametrize(("off", "loads"), [(5e-13, True), (2e-12, False)])
def test_the_last_bits_of_a_value_differ_between_processors(off, loads):
    """Where the texts differ, values within 1e-12 of the larger are alike; with the same text nothing is asked."""
    state = saved(COSINE, "100ba", 30)
    made(COSINE, "100ba")[2].load_state_dict({**state, "value": [0.0]})
    state.update(value=[state["value"][0] * (1 + off)], schedule="another text")
    if loads:
        made(COSINE, "100ba")[2].load_state_dict(state)
    else:
        assert_refused(made(COSINE, "100ba"), state, "saved another text")


def scaled_by(factor):
    return lambda state: factor / (1 + state.timestamp.batch.value)


@pytest.mark.parametrize("wrap", [lambda function: function, lambda function: [LINEAR, function]])
def test_a_function_with_another_value_is_refused_though_its_name_is_the_same(wrap):
    state = saved(wrap(scaled_by(0.5)), "10ba", 1)
    made(wrap(scaled_by(0.5)))[2].load_state_dict(state)
    message = assert_refused(made(wrap(scaled_by(0.75))), state, "the state is of a different schedule")
    assert "may read something that no load restores" in message and "on_change='new'" in message
    clock, _, scheduler = made(wrap(scaled_by(0.75)), on_change="new")
    scheduler.load_state_dict(state)
    assert clock.timestamp.batch == 1 and scheduler.get_last_lr()[0] > state["value"][0]


def test_a_function_on_the_state_of_a_trainer_is_not_compared():
    """The trainer loads its state later, so the saved value cannot be computed."""
    trainer = SimpleNamespace(timestamp=Timestamp(batch=3), max_duration="10ba", dataloader_len=None)
    state = bind(scaled_by(0.5), sgd(), trainer).state_dict()
    bind(scaled_by(0.75), sgd(), trainer).load_state_dict(state)


# Groups that were rebuilt, and states without the initial value


def rebuild(optimizer):
    optimizer.param_groups = [{**group, "params": list(group["params"])} for group in optimizer.param_groups]


def test_groups_that_were_rebuilt_with_the_same_parameters():
    optimizer = sgd({}, {"lr": 0.5, "params": parameters(3)})
    clock = Clock("10ba")
    scheduler = bind(LINEAR, optimizer, clock)
    rebuild(optimizer)
    tick(clock, 2, scheduler)
    assert scheduler.get_last_lr() == [0.8, 0.4]
    for group in optimizer.param_groups:
        del group["initial_lr"]
    rebuild(optimizer)
    tick(clock, 1, scheduler)
    assert [group["initial_lr"] for group in optimizer.param_groups] == [1.0, 0.5]


@pytest.mark.parametrize(
    "change", [lambda params: params[::-1], lambda params: params[:-1], lambda params: parameters(3)]
)
def test_groups_with_other_parameters_are_refused(change):
    optimizer, clock = sgd({"params": parameters(3)}), Clock("10ba")
    scheduler = bind(LINEAR, optimizer, clock)
    rebuild(optimizer)
    optimizer.param_groups[0]["params"] = change(optimizer.param_groups[0]["params"])
    clock.tick()
    with pytest.raises(ValueError, match="parameter group 0 was replaced or moved"):
        scheduler.step()


@pytest.mark.parametrize("kind", [torch.optim.SGD, optim.SGD])
@pytest.mark.parametrize("steps_before", [0, 1])
def test_a_second_scheduler_starts_from_the_initial_value_after_a_load_without_it(kind, steps_before):
    optimizer, clock = sgd(kind=kind, lr=1.0), Clock("10ba")
    scheduler = bind(LINEAR, optimizer, clock)
    saved_state = copy.deepcopy(optimizer.state_dict())
    del saved_state["param_groups"][0]["initial_lr"]
    saved_state["param_groups"][0]["lr"] = 0.3
    optimizer.load_state_dict(saved_state)
    tick(clock, steps_before, scheduler)
    assert bind(ConstantScheduler(), optimizer, clock).base_lrs == [1.0]


def test_the_error_has_both_schedules_and_both_values():
    state = saved(COSINE, "10ep", 12, batches_per_epoch=3)
    message = assert_refused(made(LinearScheduler(), "20ep", batches_per_epoch=3), state, "a different schedule")
    saved_on, now_on = (f"Horizon('{length}ep', batches_per_epoch=3)" for length in (10, 20))
    pairs = (f"saved {COSINE!r}", f"now   {LinearScheduler()!r}", f"saved {saved_on}", f"now   {now_on}")
    for words in (*pairs, "value at step 12: [0.6545084971874737] saved, [0.8] now", "on_change='new'"):
        assert words in message


@pytest.mark.parametrize(
    ("schedule", "duration", "more"),
    [
        (CosineAnnealingScheduler(alpha_f=0.5), "100ba", {}),
        (COSINE, "100ba", {"ssr": 0.5}),
        (COSINE, "101ba", {}),
        ([COSINE, COSINE], "100ba", {}),
        (lambda state: 0.25, "100ba", {}),
    ],
)
def test_another_value_is_refused_or_taken_as_new(schedule, duration, more):
    state = saved(COSINE, "100ba", 30)
    assert_refused(made(schedule, duration, **more), state, "the state is of a different schedule")
    new, through = (made(schedule, duration, "new", **more) for _ in range(2))
    new[2].load_state_dict(state)
    assert run(40, *new) == run(70, *through)[30:]


def test_keys_and_tags_are_compared_whatever_is_to_change():
    state = made(COSINE, "10ba", tags="a")[2].state_dict()
    for on_change in ("same", "new"):
        assert_refused(made(COSINE, "10ba", on_change, tags=["a", None]), state, "the state is of tags=")
        assert_refused(made(COSINE, "10ba", on_change, "momentum", "a"), state, "the state is of key='lr'")
    with pytest.raises(ValueError, match="on_change='saved'"):
        made(COSINE, "10ba", "saved")


def several(duration, on_change="same"):
    clock, optimizer = Clock(duration), sgd(momentum=0.5)
    return clock, optimizer, Schedulers(optimizer, clock, [STABLE, Binding(COSINE, "momentum")], on_change)


def test_several_on_one_clock_load_together_or_not_at_all():
    one = several("100ba")
    run(50, *one)
    state = one[2].state_dict()
    clock, optimizer, schedulers = several("200ba")  # whose first schedule has the value that was saved
    before = schedulers.state_dict(), copy.deepcopy(optimizer.state_dict())
    broken = copy.deepcopy(state)
    broken["schedulers"][1]["base"] = [None]
    for wrong, words in (
        (state, "a different schedule"),
        (broken, "initial momentum"),
        ({"schedulers": []}, "the state has 0 schedules, and here are 2"),
    ):
        with pytest.raises(ValueError, match=words):
            schedulers.load_state_dict(wrong)
        assert (schedulers.state_dict(), optimizer.state_dict()) == before and clock.timestamp.batch == 0
    clock, optimizer, schedulers = several("200ba", "new")
    schedulers.load_state_dict(state)
    assert clock.timestamp.batch == 50 and optimizer.param_groups[0]["momentum"] == 0.5 * COSINE.at("50ba", clock)


# Closed forms


def line(end=0.0, **more):
    return LinearLR(sgd(), 1.0, end, 10, **more)


def test_a_closed_form_saves_its_value_and_compares_it():
    one = line()
    for _ in range(4):
        one.step()
    state = json.loads(json.dumps(one.state_dict()))
    text = "LinearLR(initial_learning_rate=1.0, end_learning_rate=0.0, total_iters=10, cycle=False)"
    assert state == {"key": "lr", "tags": None, "last_epoch": 4, "schedule": text, "value": [0.6]}
    again = line()
    again.load_state_dict(state)
    again.step()
    assert again.get_last_lr() == [0.5]
    with pytest.raises(ValueError, match=r"\[0\.6\] saved, \[0\.8\] now"):
        line(0.5).load_state_dict(state)
    new = line(0.5, on_change="new")
    new.load_state_dict(state)
    assert new.get_last_lr() == [pytest.approx(0.8, abs=1e-15)]
    cosine = CosineDecayLR(sgd(), 1.0, 0.0, 10)
    cosine.load_state_dict({**state, "last_epoch": 5, "value": [0.5]})  # where the two curves meet
    assert cosine.get_last_lr() == [0.5]


def test_the_factor_of_a_group_is_in_the_value():
    def one(factor):
        optimizer = sgd({"adjust_learning_rate": factor})
        return ScalePerParamLR(optimizer, LinearLR(optimizer, 1.0, 0.0, 10))

    state = one(0.5).state_dict()
    one(0.25).load_state_dict(state)  # with the same text nothing is compared
    with pytest.raises(ValueError, match=r"\[0\.5\] saved, \[0\.25\] now"):
        one(0.25).load_state_dict({**state, "schedule": "another"})


def test_a_sequence_on_a_clock_is_extended_in_its_first_part():
    def one(duration):
        optimizer, clock = sgd(), Clock(duration)
        first = LinearLR(optimizer, 0.0, 1.0, 10, clock=clock)
        parts = [first, CosineDecayLR(optimizer, 1.0, 0.0, "1dur", clock=clock)]
        return clock, optimizer, SequentialLR(optimizer, parts, [10], clock=clock)

    early, late, longer = one("100ba"), one("100ba"), one("200ba")
    run(7, *early), run(30, *late)
    assert early[2].state_dict()["schedule"].startswith("SequentialLR(schedulers=[LinearLR(initial_learning_rate=0.0, ")
    longer[2].load_state_dict(early[2].state_dict())
    assert longer[2].get_last_lr() == early[2].get_last_lr()
    with pytest.raises(ValueError, match=r"value at step 30: \[0\.9"):
        longer[2].load_state_dict(late[2].state_dict())


# States that are refused


def changed(name, value):
    return lambda state: {**state, name: value}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        *((changed("last_epoch", n), "last_epoch=") for n in (-1, 2.5, True, None, "3", float("nan"), 2**63 - 1)),
        *((changed("base", base), "2 parameter groups are selected") for base in ([0.5], [0.5, 1.0, 2.0])),
        *((changed("base", [0.25, one]), "initial lr") for one in (float("inf"), float("nan"), None, "1", True)),
        (changed("base", [0.25, 1e300]), "key='lr': .* would set it to inf"),  # though both factors are finite
        (changed("key", "momentum"), "key='lr': the state is of key='momentum'"),
        (changed("clock", {"batch": 3}), "state of a Timestamp lacks epoch"),
        (lambda state: {name: state[name] for name in state if name != "clock"}, "the state has no clock"),
        *((lambda state, one=one: one, "state_dict=.* it lacks") for one in (None, 5, [], "state", {"last_epoch": 3})),
    ],
)
def test_states_that_are_refused_change_nothing(wrong, words):
    optimizer, clock = sgd({"lr": 0.5, "tags": "x"}, {"tags": "x"}), Clock("4ba")
    scheduler = bind(lambda state: 1e10 / (1 + state.timestamp.batch.value), optimizer, clock)
    clock.tick()
    scheduler.step()
    before = scheduler.state_dict()
    with pytest.raises((ValueError, KeyError), match=words):
        scheduler.load_state_dict(wrong({**before, "base": [0.25, 2.0], "last_epoch": 3}))
    assert scheduler.state_dict() == before and [group["lr"] for group in optimizer.param_groups] == [2.5e9, 5e9]
    clock.tick(), clock.tick()
    scheduler.step()  # and it still goes by its own
    assert scheduler.get_last_lr() == [1.25e9, 2.5e9] and scheduler.base_lrs == [0.5, 1.0] and scheduler.last_epoch == 2
    with pytest.raises(ValueError, match="Set last_epoch or its clock"):
        scheduler.step(3)


def test_a_run_taken_over_begins_at_the_counts_that_are_given():
    rates = {"batches_per_epoch": 7, "samples_per_batch": 4, "tokens_per_sample": 2}

    def taken(*, given, clock, entry=COSINE, on_change="new"):
        schedulers = Schedulers(sgd(), clock, [entry], on_change)
        schedulers.load_state_dict({"last_epoch": 30})  # of torch's schedulers
        schedulers.begin_at(30, **given)
        stamp = clock.timestamp
        return stamp.epoch.value, stamp.batch.value, stamp.sample.value, stamp.token.value

    assert taken(given={}, clock=Clock("100ba", **rates)) == (4, 30, 120, 240)
    assert taken(given={"sample": 118}, clock=Clock("100ba", **rates)) == (4, 30, 118, 236)
    assert taken(given={"epoch": 2}, clock=Clock("100ba")) == (2, 30, 0, 0)
    sizes = BatchSizeSchedule({"0ba": 4, "10ba": 8})
    assert taken(given={}, clock=Clock("100ba", samples_per_batch=sizes)) == (0, 30, 200, 0)
    with pytest.raises(ValueError, match="at batch 30, and nobody has counted its samples. Pass samples_per_batch"):
        taken(given={}, clock=Clock("100ba"), entry=MultiStepScheduler(["40sp"]))


def test_a_state_with_an_average_loads_without_one():
    model, clock = torch.nn.Linear(2, 1), Clock("10ba")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    saved = Schedulers(optimizer, clock, [LINEAR], average=WeightAverage(model.parameters(), clock))
    clock.tick()
    saved.step()
    resumed = Schedulers(optimizer, Clock("10ba"), [LINEAR])
    resumed.load_state_dict(saved.state_dict())
    assert resumed.clock.timestamp.batch == 1 and resumed.get_last_lr() == saved.get_last_lr()
    weights = model.weight.detach().clone()
    model.weight.data.mul_(2.0)
    with saved.averaged(model):
        assert torch.equal(model.weight, weights)
    with resumed.averaged(model):
        assert torch.equal(model.weight, 2.0 * weights)


def test_a_run_without_a_batch_has_not_ended_early():
    schedulers = CountingSchedulers(sgd(), Clock("10ba"), [LINEAR])
    schedulers.begin_at(0)
    schedulers.warn_of_early_end()  # a warning would be an error
    schedulers.tick({})
    with pytest.warns(UserWarning, match="ended the run at 1ba, and its schedules end at 10ba"):
        schedulers.warn_of_early_end()


IN_SAMPLES, IN_BATCHES = LinearScheduler(t_max="9sp"), LinearScheduler(t_max="9ba")
SHARDED = SimpleNamespace(param_groups=[{"params": [SimpleNamespace(placements=())]}])  # its parameters are DTensors


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda clock: Schedulers(sgd(), clock, []), TypeError, "entries=[]: there is no schedule"),
        (lambda clock: Schedulers(sgd(), clock, [LINEAR, LINEAR]), ValueError, "was created later"),
        (lambda clock: CountingSchedulers(sgd(), Clock("9sp"), [IN_BATCHES]).tick({}), ValueError, "samples: the run"),
        (lambda clock: make_average(SHARDED, clock, sgd), ValueError, "average: the parameters are DTensors"),
        (lambda clock: CountingSchedulers(sgd(), clock, [IN_SAMPLES]).tick({}), ValueError, "samples: the run counts"),
        (lambda clock: add_microbatch(None, dict, {"words": 3}), TypeError, "count(batch)={'words': 3}: it may have"),
    ],
)
def test_errors_of_adapters(call, kind, words):
    with pytest.raises(kind) as error:
        call(clock := Clock("10ba"))
    assert words in str(error.value) and clock.timestamp == Timestamp()


def test_other_tags_with_new_keep_the_clock_of_the_state():
    one = made(LINEAR, "100ba", tags="a")
    run(50, *one)
    clock, optimizer = Clock("100ba"), sgd()
    schedulers = Schedulers(optimizer, clock, [LINEAR], "new")
    schedulers.load_state_dict({"schedulers": [one[2].state_dict()]})
    assert clock.timestamp.batch == 50 and optimizer.param_groups[0]["lr"] == 0.5
