"""Clock: counting a hand-written loop."""

import copy
import datetime
import json
import math
import pickle
import re
import warnings
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.distributed_c10d import Backend, BackendConfig

import timesched.run.clock
from tests.building import sgd, tick
from timesched import (
    BatchSizeSchedule,
    Clock,
    ConstantScheduler,
    CooldownScheduler,
    Horizon,
    LinearScheduler,
    LinearWithWarmupScheduler,
    SequenceScheduler,
    State,
    Time,
    TimeError,
    Timestamp,
    WarmupStableDecayScheduler,
    bind,
)
from timesched.run.rank_counts import collective_device

WSD = WarmupStableDecayScheduler("0ba", t_decay="10ba")
SECOND = datetime.timedelta(seconds=1)


@pytest.mark.parametrize(
    ("length", "ratio", "batches"),
    [
        *(("10ba", 1, 10), ("2ep", 1, 10), ("1.5ep", 1, 8), ("33sp", 1, 9), ("100tok", 1, 13), ("6.5sec", 1, 7)),
        *(("0.1ep", 1, 1), ("10ba", 2, 20), ("5ba", 0.5, 3), ("1.5ep", 2, 15), ("33sp", 2, 17)),
        *(("100tok", 2, 25), ("0.1ep", 2, 1)),
    ],
)
def test_a_run_ends_at_the_first_batch_at_or_after_its_length(length, ratio, batches):
    clock = Clock(length, batches_per_epoch=5, samples_per_batch=4, tokens_per_sample=2, ssr=ratio)
    for batch in range(batches + 2):
        assert clock.done is (clock.fraction >= 1.0) is (batch >= batches) and clock.timestamp.batch == batch
        clock.tick(duration=SECOND)


def test_counts():
    clock = Clock("2ep", batches_per_epoch=3, samples_per_batch=3)
    clock.tick(samples=Time(5, "sp"), tokens="7tok", duration=SECOND)
    clock.tick(duration=SECOND)
    clock.tick(samples=torch.tensor(7), tokens=torch.tensor([56.0]), duration=SECOND)
    stamp = clock.timestamp
    assert (stamp.epoch, stamp.batch, stamp.sample, stamp.token, stamp.batch_in_epoch) == (1, 3, 15, 63, 0)
    assert stamp.total_wct == 3 * SECOND and stamp.get("sec") == "3sec"
    clock.tick()
    assert clock.fraction == pytest.approx(4 / 6) and not clock.done
    clock.next_epoch()  # leaves the second epoch early
    clock.next_iteration()
    stamp = clock.timestamp
    assert (clock.done, clock.fraction, stamp.iteration, stamp.epoch_in_iteration) == (True, 1.0, 1, 0)
    assert isinstance(clock, State) and clock.dataloader_len == 3
    assert clock.horizon == Horizon("2ep", batches_per_epoch=3, samples_per_batch=3)


@pytest.mark.parametrize(
    ("options", "act", "words"),
    [
        ({"max_duration": "100tok"}, lambda clock: clock.tick(samples=3), "tokens=None: .*100tok"),
        ({"max_duration": "100sp"}, lambda clock: clock.tick(), "samples=None: .* pass samples_per_batch"),
        ({"max_duration": "100tok", "tokens_per_sample": 8}, lambda clock: clock.tick(), "tokens=None: .*100tok"),
        ({"samples_per_batch": 1.5}, lambda clock: clock.tick(), "samples=None: 1.5 is not"),
        ({}, lambda clock: clock.tick(samples=-1), "sample=-1: it is not a count"),
        ({}, lambda clock: clock.tick(samples=1.5), "sample: 1.5sp is not a whole count"),
        ({}, lambda clock: clock.tick(samples=torch.tensor(1.5)), "sample: 1.5sp is not a whole count"),
        ({}, lambda clock: clock.tick(samples=torch.tensor(-1)), "sample=-1: it is not a count"),
        ({}, lambda clock: clock.tick(samples=torch.tensor([1, 2])), "Tensor"),
        ({}, lambda clock: clock.tick(samples=torch.tensor(True)), "bool"),
        ({}, lambda clock: clock.tick(tokens="3ba"), "token='3ba': it counts in ba"),
        ({}, lambda clock: clock.tick(duration=-SECOND), "duration=.*: it is not a duration"),
        ({"batches_per_epoch": 2}, lambda clock: clock.next_epoch(), "batches_per_epoch=2"),
        *(
            ({}, lambda clock, n=n: clock.extend(n), f"extend.max_duration='{n}': a run of 10ba")
            for n in ("10ba", "9ba")
        ),
        (
            {"max_duration": "1000sp", "samples_per_batch": 64},
            lambda clock: clock.extend("15ba"),
            "'15ba': a run of 1000sp",
        ),
        ({}, lambda clock: clock.extend("3ep"), "batches_per_epoch"),
        ({}, lambda clock: clock.extend("2dur"), "max_duration='2dur': .*fraction"),
        ({}, lambda clock: clock.extend(None), "None"),
        *(({}, lambda clock, n=n: clock.end_after(n), f"end_after.time='{n}'") for n in ("0ba", "-1ba", "0dur")),
        ({}, lambda clock: clock.end_after("3ep"), "batches_per_epoch"),
    ],
)
def test_a_refused_call_changes_nothing(options, act, words):
    clock = Clock(**{"max_duration": "10ba", **options})
    before, length = clock.timestamp, clock.max_duration
    with pytest.raises((ValueError, TypeError), match=words):
        act(clock)
    assert clock.timestamp is before and clock.max_duration == length


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_duration": None}, "Clock.max_duration=None"),
        ({"batches_per_epoch": 1.5}, "Clock.batches_per_epoch=1.5"),
        *(({"stop_at": stop_at}, f"Clock.stop_at='{stop_at}'") for stop_at in ("-1ba", "-0.5dur")),
        ({"process_group": True}, "Clock.process_group=True"),
    ],
)
def test_clocks_that_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Clock(**{"max_duration": "1ep", **options})


@pytest.mark.parametrize(
    ("backend", "device"),
    [
        ("gloo", "cpu"),
        ("mpi", "cpu"),
        ("nccl", "cuda"),
        ("xccl", "xpu"),
        ("cuda:nccl", "cuda"),
        ("cuda:nccl,cpu:gloo", "cpu"),
    ],
)
def test_ranks_sum_on_a_device_of_their_group(backend, device, monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_backend_config", lambda group: str(BackendConfig(Backend(backend))))
    assert collective_device(None) == device


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        *(
            (lambda state, n=n: {**state, "batch_in_epoch": n}, "batch_in_epoch")
            for n in (math.nan, -1, 0.5, True, "3")
        ),
        *((lambda state, n=n: {**state, "total_wct": n}, "total_wct") for n in (-1, 0.5, True, None, [1])),
        (lambda state: {"token": 3}, "lacks"),
        *((lambda _, n=n: n, "is not the state of a timestamp") for n in (None, 3, [1], "x", [("batch", 3)])),
    ],
)
def test_a_wrong_state_is_refused(wrong, words):
    """By the name of a number, and before anything changes."""
    clock = Clock("10ba", batches_per_epoch=3)
    scheduler = bind(LinearScheduler(), sgd(), clock)
    clock.tick(duration=SECOND)
    before, stamp = clock.state_dict(), clock.timestamp
    clock.load_state_dict(before)
    for load in (clock.load_state_dict, clock.timestamp.load_state_dict):
        with pytest.raises((TimeError, KeyError), match=words):
            load(wrong(before))
    assert clock.state_dict() == before and clock.timestamp == stamp and scheduler.get_last_lr() == [0.9]


def test_a_state_without_epochs_is_placed_by_its_batches():
    """Where nobody counted epochs; counted ones stay."""
    unknown, known = Clock("100ba"), Clock("100ba", batches_per_epoch=10)
    tick(unknown, 57)
    state = unknown.state_dict()
    known.load_state_dict(state)
    assert (known.timestamp.epoch, known.timestamp.batch_in_epoch, known.timestamp.batch) == (5, 7, 57)
    known.load_state_dict({**state, "batches_per_epoch": 10})
    assert (known.timestamp.epoch, known.timestamp.batch_in_epoch) == (0, 57)
    unknown.next_epoch(), unknown.tick()
    known.load_state_dict(unknown.state_dict())
    assert (known.timestamp.epoch, known.timestamp.batch_in_epoch, known.timestamp.batch) == (1, 1, 58)


def test_time_goes_on_from_a_load(monkeypatch):
    """The time between the last tick of the old run and the load is not counted; the time since the load is."""
    now = iter([100.0, 103.0, 200.0, 205.0])
    monkeypatch.setattr(timesched.run.clock, "monotonic", lambda: next(now))
    clock = Clock("10ba")
    clock.tick()
    clock.load_state_dict(clock.state_dict())
    clock.tick()
    assert (clock.timestamp.batch_wct, clock.timestamp.total_wct) == (5 * SECOND, 8 * SECOND)


def test_a_clock_can_be_copied_and_pickled():
    clock = Clock("10ba", samples_per_batch=4, ssr=0.5)
    bind(LinearScheduler(), sgd(), clock)
    clock.tick()
    for other in (copy.deepcopy(clock), pickle.loads(pickle.dumps(clock))):
        assert other.timestamp == clock.timestamp and other.max_duration == "5ba"
        other.tick()
        assert other.timestamp.batch == 2 and clock.timestamp.batch == 1


RATES = st.none() | st.integers(1, 5)
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("tick"), st.none() | st.integers(0, 99), st.none() | st.integers(0, 10**18)),
        st.sampled_from([("next_epoch",), ("next_iteration",)]),
    ),
    max_size=30,
)


@given(epoch=RATES, batch=RATES, sample=RATES, moves=MOVES)
def test_counts_like_steps_of_a_timestamp(epoch, batch, sample, moves):
    """Given and known numbers in any order; and a timestamp that was read once never changes."""
    clock = Clock("100iter", batches_per_epoch=epoch, samples_per_batch=batch, tokens_per_sample=sample)
    expected, seen = Timestamp(), [(clock.timestamp, clock.timestamp.state_dict())]
    for name, *numbers in moves:
        if name == "tick":
            samples = batch if numbers[0] is None else numbers[0]
            follows = None if samples is None or sample is None else samples * sample
            tokens = follows if numbers[1] is None else numbers[1]
            clock.tick(*numbers, duration=SECOND)
            expected = expected.to_next_batch(samples or 0, tokens or 0, SECOND)
            if epoch is not None and expected.batch_in_epoch >= epoch:
                expected = expected.to_next_epoch()
        elif name == "next_iteration" or epoch is None or expected.batch_in_epoch > 0:
            getattr(clock, name)()
            expected = getattr(expected, f"to_{name}")()
        assert clock.timestamp == expected and repr(clock.timestamp) == repr(expected)
        seen.append((clock.timestamp, clock.timestamp.state_dict()))
    assert all(stamp.state_dict() == state for stamp, state in seen)
    other, state = Clock("100iter", batches_per_epoch=epoch), json.loads(json.dumps(clock.state_dict()))
    other.load_state_dict(state)
    assert other.timestamp == clock.timestamp and all(type(value) is int for value in state.values())


def test_fractional_rates_count_whole_numbers_or_are_refused():
    clock = Clock("10ba", samples_per_batch=4, tokens_per_sample=Fraction(5, 4))
    clock.tick()
    clock.tick(samples=8)
    assert (clock.timestamp.sample, clock.timestamp.token) == (12, 15)
    with pytest.raises(TimeError, match=r"tokens=None: 3.75 is not"):
        clock.tick(samples=3)
    assert clock.timestamp.batch == 2
    clock.tick(samples=3, tokens=4)
    clock.tick()
    assert (clock.timestamp.sample, clock.timestamp.token) == (19, 24)


def test_the_horizon_and_the_timestamp_may_be_set():
    """The numbers of a batch follow from the horizon of now; a counter that is set in place counts on from there."""
    clock = Clock("4ba", samples_per_batch=2)
    clock.tick()
    clock.horizon = Horizon("3ba", batches_per_epoch=2, samples_per_batch=5)
    clock.tick()
    assert (clock.timestamp.sample, clock.timestamp.epoch, clock.done) == (7, 1, False)
    clock.timestamp = Timestamp(batch=8, batch_in_epoch=1, sample=40)
    clock.timestamp.epoch_in_iteration = 7
    clock.tick()
    assert (clock.timestamp.batch, clock.timestamp.sample, clock.timestamp.epoch_in_iteration) == (9, 45, 8)
    assert clock.done


# Where a run ends


@pytest.mark.parametrize("stop_at", ["0.3dur", "3ba"])
def test_stop_at_ends_the_run_and_leaves_the_schedule(stop_at):
    """The ratio stretches neither."""
    clock = Clock("20ba", ssr=0.5, stop_at=stop_at)
    scheduler = bind(LinearScheduler(), sgd(), clock)
    while not clock.done:
        clock.tick()
        scheduler.step()
    assert clock.timestamp.batch == 3 and scheduler.get_last_lr() == [0.7]


def test_extend_writes_the_value_on_the_longer_run():
    """The rates and the ratio are kept, and the new length may be in another unit."""
    clock = Clock("20ba", batches_per_epoch=10, ssr=0.5)
    scheduler = bind(LinearScheduler(), sgd(), clock)
    tick(clock, 10, scheduler)
    assert clock.done and scheduler.get_last_lr() == [0.0]
    clock.extend("4ep")
    assert not clock.done and scheduler.get_last_lr() == [0.5] and clock.fraction == 0.5
    assert clock.horizon == Horizon("4ep", batches_per_epoch=10, ssr=0.5)


def test_a_run_is_extended_whatever_its_length_converts_to():
    for clock, longer, end in (
        (Clock("3ba", ssr=0.5), "6ba", "3ba"),
        (Clock("1000sp", samples_per_batch=64), "100ba", "100ba"),
    ):
        clock.extend(longer)
        assert clock.max_duration == end


@pytest.mark.parametrize(
    ("length", "options", "time", "end", "schedule_end"),
    [
        ("40ba", {}, "8ba", "28ba", 28),
        ("40ba", {"ssr": 0.5}, "8ba", "28ba", 28),  # which the ratio does not stretch
        ("40ba", {}, "0.5dur", "40ba", 40),
        ("40ba", {}, "100ba", "120ba", 120),
        ("400sp", {"samples_per_batch": 5}, "8ba", "140sp", 28),
        ("1000tok", {"samples_per_batch": 5, "tokens_per_sample": 3}, "8ba", "420tok", 28),
        ("10ep", {"batches_per_epoch": 8}, "8ba", "3.5ep", 28),
        ("10ep", {"batches_per_epoch": 8, "ssr": 1 / 3}, "1ep", "3.5ep", 28),
        ("1000sp", {"samples_per_batch": BatchSizeSchedule({"0ba": 4, "24ba": 8})}, "8ba", "128sp", 28),
    ],
)
def test_end_after_ends_the_run_so_much_later_than_now(length, options, time, end, schedule_end):
    """Times in `dur` move with the end, and what follows the clock is written."""
    clock = Clock(length, **options)
    schedule = LinearScheduler()
    follower, other = (bind(each, sgd(), clock) for each in (schedule, LinearScheduler(t_max="1000ba")))
    tick(clock, 20, follower, other)
    rates, unmoved = clock.horizon.conversion_factors, other.get_last_lr()
    clock.end_after(time)
    assert clock.max_duration == Time.from_input(end) and (clock.horizon.conversion_factors, clock.timestamp.batch) == (
        rates,
        20,
    )
    assert follower.get_last_lr() == [schedule(clock)] and other.get_last_lr() == unmoved
    batches = 20
    while not clock.done:
        batches += 1
        clock.tick()
        follower.step()
    assert batches == schedule_end and follower.get_last_lr() == [0.0]
    again = Clock(length, **options)
    again.horizon = eval(
        repr(clock.horizon), {"Horizon": Horizon, "BatchSizeSchedule": BatchSizeSchedule, "Fraction": Fraction}
    )
    assert again.max_duration == clock.max_duration


# A decay that is taken back


def assert_warned_of_a_new_length(length, schedule, batches, lengthen, words):
    """There is a warning if the length of the run changes after so many batches; without `words`, there is none."""
    clock = Clock(length)
    scheduler = bind(schedule, sgd(), clock)
    tick(clock, batches, scheduler)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lengthen(clock)
    assert len(caught) == (words is not None)
    assert all(re.search(words, str(each.message)) and each.filename == __file__ for each in caught)


@pytest.mark.parametrize(
    ("schedule", "batches", "words"),
    [
        (WSD, 40, None),
        (WSD, 41, None),  # where it begins
        (WSD, 43, r"WarmupStableDecay.* 'lr' goes back from 0.8 to 1\. Continue from a checkpoint"),
        ([WSD, ConstantScheduler(0.5)], 43, "goes back from 0.4 to 0.5"),
        (CooldownScheduler(ConstantScheduler(), "10ba"), 43, "goes back from 0.8 to 1"),
        (CooldownScheduler(ConstantScheduler(), "5ba", t_start="20ba"), 43, None),  # which no length moves
        (WSD, 51, r"goes back from 0 to 1\."),  # after the end of the run
        (LinearScheduler(), 43, None),  # a decay of all of the run
    ],
)
@pytest.mark.parametrize("lengthen", [lambda clock: clock.extend("100ba"), lambda clock: clock.end_after("60ba")])
def test_a_decay_that_is_taken_back_is_said(schedule, batches, words, lengthen):
    assert_warned_of_a_new_length("51ba", schedule, batches, lengthen, words)


def test_a_decay_that_is_taken_back_is_said_in_a_scaled_run():
    clock = Clock("51ba", ssr=2)
    scheduler = bind(WSD, sgd(), clock)
    tick(clock, 86, scheduler)  # the decay takes the last 20 of 102 batches
    with pytest.warns(UserWarning, match=r"goes back from 0\.8 to 1"):
        clock.extend("200ba")


def test_a_decay_that_is_taken_back_in_the_second_group_alone():
    clock = Clock("50ba")
    scheduler = bind(WSD, sgd({}, {"tags": "head", "lr": 0.5}), clock, tags="head")
    tick(clock, 43, scheduler)
    with pytest.warns(UserWarning, match=r"'lr' goes back from 0\.35 to 0\.5"):
        clock.extend("100ba")


WITH_WARMUP = LinearWithWarmupScheduler("0.04dur")


@pytest.mark.parametrize(
    ("schedule", "batches", "words"),
    [
        (
            WITH_WARMUP,
            3,
            r"The warmup of LinearWithWarmup.* is not over: in a run of 200ba 'lr' goes from 0.75 to 0.375",
        ),
        ([ConstantScheduler(0.5), WITH_WARMUP], 3, "goes from 0.375 to 0.1875. Change the length of the run between"),
        (WarmupStableDecayScheduler("0.04dur", t_decay="10ba"), 3, "goes from 0.75 to 0.375"),
        (WITH_WARMUP, 0, None),  # before the first batch
        (WITH_WARMUP, 4, None),
        (WITH_WARMUP, 50, None),
        (LinearWithWarmupScheduler("4ba"), 3, None),  # which no length moves
        (SequenceScheduler([LinearScheduler(t_max="0.1dur"), WITH_WARMUP], ["0.1dur"]), 3, None),  # a later one
        (SequenceScheduler([ConstantScheduler(), WITH_WARMUP], ["2ba"]), 5, "goes from 0.75 to 0.37"),
    ],
)
@pytest.mark.parametrize("lengthen", [lambda clock: clock.extend("200ba"), lambda clock: clock.end_after("197ba")])
def test_a_warmup_that_is_moved_is_said(schedule, batches, words, lengthen):
    assert_warned_of_a_new_length("100ba", schedule, batches, lengthen, words)


def test_extend_changes_nothing_where_a_scheduler_cannot_follow():
    def ten_batches(state):
        if state.max_duration != "10ba":
            raise ValueError("ten batches, no more")
        return 1.0

    clock, schedules = Clock("10ba"), (LinearScheduler(), ten_batches)
    first, _second = [bind(schedule, sgd(), clock) for schedule in schedules]
    with pytest.raises(ValueError, match="no more"):
        clock.extend("20ba")
    assert str(clock.max_duration) == "10ba" and first.get_last_lr() == [1.0]
