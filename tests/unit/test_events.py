"""`Clock.passed`, `every` and `before`: each moment of a run once, exactly, in the unit that it is written in."""

import copy
import pickle
import re
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.building import counts, sgd
from timesched import BatchSizeSchedule, Clock, LinearScheduler, Time, WarmupStableDecayScheduler, bind

EPOCH, SIZE, TOKENS = 5, 4, 8  # batches, samples, tokens
UNITS = ("ba", "sp", "tok", "ep", "dur")
RUNS = {
    "length": st.sampled_from(["40ba", "300sp", "1500tok", "7ep"]),
    "sizes": st.lists(st.integers(1, 9), min_size=1),
}


def run(length: str) -> Clock:
    return Clock(length, batches_per_epoch=EPOCH, samples_per_batch=SIZE, tokens_per_sample=TOKENS)


def position(clock: Clock, unit: str) -> Fraction:
    return counts(clock, EPOCH)[unit]


def time_of(share: Fraction, unit: str) -> str:
    """A time that a unit can write."""
    return f"{share}{unit}" if unit in ("ep", "dur") else f"{int(share)}{unit}"


def reach(clock: Clock, unit: str) -> Fraction:
    """A time within the run, for shares of it."""
    whole = {"ba": 40, "sp": 300, "tok": 1500, "ep": 7, "dur": 1}[unit]
    return Fraction(whole)


@given(
    **RUNS,
    unit=st.sampled_from(UNITS),
    share=st.fractions(0, 1, max_denominator=60),
    loaded=st.sets(st.integers(0, 60)),
)
def test_passed_once(length, sizes, unit, share, loaded):
    """Against the counters before and after; a load at any step loses nothing and reports nothing twice."""
    clock = run(length)
    time = time_of(share * reach(clock, unit), unit)
    at = Fraction(time.removesuffix(unit))
    times = []
    for i in range(60):
        if i in loaded:
            other = run(length)
            other.load_state_dict(clock.state_dict())
            clock = other
            assert not clock.passed(time) and not clock.every("1ba")
        before = position(clock, unit)
        clock.tick(samples=sizes[i % len(sizes)])
        after = position(clock, unit)
        assert clock.passed(time) is (before < at <= after)
        assert clock.passed(time) is clock.passed(time)  # as often as one asks
        times += [i] * clock.passed(time)
    assert len(times) == (0 < at <= position(clock, unit))


@given(
    **RUNS,
    unit=st.sampled_from(UNITS),
    share=st.fractions(Fraction(1, 60), 1, max_denominator=60),
    start=st.none() | st.fractions(0, 1, max_denominator=60),
)
def test_every(length, sizes, unit, share, start):
    """Against the multiples, one by one."""
    clock = run(length)
    period = time_of(max(share * reach(clock, unit), Fraction(1, 60) if unit in ("ep", "dur") else Fraction(1)), unit)
    step = Fraction(period.removesuffix(unit))
    begin = None if start is None else time_of(start * reach(clock, unit), unit)
    first = Fraction(0) if begin is None else Fraction(begin.removesuffix(unit))
    for i in range(60):
        before = position(clock, unit)
        clock.tick(samples=sizes[i % len(sizes)])
        after = position(clock, unit)
        n, due = (0 if first > 0 else 1), False
        while first + n * step <= after:
            due, n = due or before < first + n * step, n + 1
        assert clock.every(period, begin) is due


def test_once_for_several_and_at_the_start():
    clock = Clock("100ba", samples_per_batch=10)
    clock.tick()
    assert clock.every("3sp") is True
    found = []
    for i in range(2, 11):
        clock.tick()
        found += [i] * clock.every("3ba", start="2ba")
    assert found == [2, 5, 8]
    assert not Clock("10ba").every("1ba", start="0ba")


def test_epochs_and_iterations_that_the_loop_counts():
    clock = Clock("3ep")
    clock.tick()
    assert not clock.passed("1ep")
    clock.next_epoch()
    assert clock.passed("1ep") and clock.every("1ep") and not clock.passed("1ba")
    clock.tick()
    assert not clock.passed("1ep") and clock.passed("2ba")
    clock.next_iteration()
    assert clock.passed("1iter")


def test_a_trainer_sets_its_epochs():
    """An epoch that ends before its last batch is passed with the next batch."""
    clock = Clock("3ep", batches_per_epoch=4)
    for _ in range(3):
        clock.tick()
    clock._set_epochs(4, clock.timestamp.to_next_epoch())
    assert not clock.passed("1ep")
    clock.tick()
    assert clock.passed("1ep")
    clock.tick()
    assert not clock.passed("1ep")


def test_the_length_that_the_run_has_now():
    clock = Clock("10ba", ssr=0.5)
    for _ in range(3):
        clock.tick()
    assert clock.passed("0.6dur") and clock.passed("3ba")  # the ratio stretches the run, and no time
    clock.extend("20ba")
    assert clock.passed("0.3dur") and not clock.passed("0.6dur")


def test_the_marks_of_a_schedule():
    clock = Clock("20ba", ssr=0.5)
    schedule = WarmupStableDecayScheduler("2ba", t_decay="4ba")
    marks = dict(schedule.marks(clock))
    found = []
    while not clock.done:
        clock.tick()
        found += [clock.timestamp.batch.value] * clock.passed(marks["decay"])
    assert found == [8]  # 4ba are 2, half as long a run


@pytest.mark.parametrize("other", [copy.copy, copy.deepcopy, lambda clock: pickle.loads(pickle.dumps(clock))])
def test_copies_begin_anew(other):
    clock = Clock("10ba")
    clock.tick()
    assert clock.passed("1ba")
    copied = other(clock)
    assert not copied.passed("1ba")
    copied.tick()
    assert copied.passed("2ba") and clock.passed("1ba")


def test_a_load_of_a_scheduler_is_one_of_its_clock():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    clock = Clock("10ba")
    scheduler = bind(LinearScheduler(), optimizer, clock)
    clock.tick()
    scheduler.step()
    scheduler.load_state_dict(scheduler.state_dict())
    assert not clock.passed("1ba")


# `before`


@given(
    length=RUNS["length"],
    unit=st.sampled_from(UNITS),
    share=st.fractions(0, 1, max_denominator=60),
    sizes=st.sampled_from([SIZE, BatchSizeSchedule({"0sp": SIZE, "50sp": 2 * SIZE, "90sp": 3})]),
    loaded=st.sets(st.integers(0, 120)),
)
def test_before_is_the_last_boundary(length, unit, share, sizes, loaded):
    """Of boundaries after the first batch; a load at any boundary loses nothing and reports nothing twice."""

    def new():
        return Clock(length, batches_per_epoch=EPOCH, samples_per_batch=sizes, tokens_per_sample=TOKENS)

    clock = new()
    time = time_of(share * reach(clock, unit), unit)
    at = Fraction(time.removesuffix(unit))
    boundaries, reported = [], []
    for i in range(120):  # beyond all times
        if i in loaded:
            other = new()
            other.load_state_dict(clock.state_dict())
            clock = other
        assert i not in loaded or not clock.before(time)
        clock.tick()
        boundaries.append(position(clock, unit))
        assert clock.before(time) is clock.before(time)  # as often as one asks
        reported += [boundaries[-1]] * clock.before(time)
    assert reported == [boundary for boundary in boundaries if boundary <= at][-1:]


@given(sizes=RUNS["sizes"], time=st.integers(10, 200), loaded=st.sets(st.integers(0, 60)))
def test_passed_of_a_time_that_is_earlier_by_the_longest_batch(sizes, time, loaded):
    """Where tokens are measured: at the first boundary from there on, which is before the time."""
    clock, boundaries, reported = Clock("1000tok"), [], []
    earlier = Time(time, "tok") - Time(max(sizes), "tok")
    for i in range(60):
        if i in loaded:
            other = Clock("1000tok")
            other.load_state_dict(clock.state_dict())
            clock = other
        clock.tick(tokens=sizes[i % len(sizes)])
        boundaries.append(clock.timestamp.token.value)
        reported += [boundaries[-1]] * clock.passed(earlier)
    assert reported == [count for count in boundaries if time - max(sizes) <= count < time][:1]


def test_a_state_from_before_the_decay_loads_into_a_longer_run():
    """Where the mark is between two batches; the state of the boundary after it does not load."""
    saved = {}
    for length in ("1000sp", "2000sp"):
        clock, optimizer = Clock(length, samples_per_batch=64), sgd(lr=1.0)
        schedule = WarmupStableDecayScheduler("0.1dur", t_decay="0.2dur")
        scheduler = bind(schedule, optimizer, clock)
        decay = dict(schedule.marks(clock))["decay"]
        if length == "2000sp":
            with pytest.raises(ValueError, match="a different schedule"):
                scheduler.load_state_dict(saved.pop("after"))
            scheduler.load_state_dict(saved.pop("before"))
            assert (clock.timestamp.sample, optimizer.param_groups[0]["lr"]) == (768, 1.0)
        while not clock.done:
            clock.tick()
            scheduler.step()
            for when, is_due in (("before", clock.before(decay)), ("after", clock.passed(decay))):
                if is_due:
                    saved[when] = scheduler.state_dict()
    assert {when: state["clock"]["sample"] for when, state in saved.items()} == {"before": 1600, "after": 1600}


ERRORS = [
    (lambda clock: clock.passed("-1ba"), "Clock.passed.time='-1ba'"),
    (lambda clock: clock.every("0ba"), "Clock.every.period='0ba'"),
    (lambda clock: clock.every("-2ba"), "Clock.every.period='-2ba'"),
    (lambda clock: clock.every("2ba", start="-1ba"), "Clock.every.start='-1ba'"),
    (lambda clock: clock.every("2ba", start="1ep"), "batches_per_epoch"),
    (lambda clock: clock.passed("5tok"), "timestamp.token=0: the run is at batch 1, and nobody has counted its tokens"),
    (lambda clock: clock.every("5sp"), "timestamp.sample=0: the run is at batch 1, and nobody has counted its samples"),
    (lambda clock: clock.before("-1ba"), "Clock.before.time='-1ba'"),
    (lambda clock: clock.before("5tok"), "timestamp.token=0: the run is at batch 1, and nobody has counted its tokens"),
    (lambda clock: clock.before("5sec"), "Clock.before.time='5sec': no conversion factor gives the seconds of"),
    (lambda clock: clock.before("5iter"), "Clock.before.time='5iter': no conversion factor gives the iterations of"),
    (lambda clock: clock.before("5ep"), "Clock.before.time='5ep': no conversion factor gives the epochs of"),
    (lambda clock: clock.passed(3), "3 has no unit"),
    (lambda clock: clock.timestamp >= "0.6dur", "Timestamp.get.unit='dur'"),
]


@pytest.mark.parametrize(("call", "message"), ERRORS)
def test_errors(call, message):
    clock = Clock("10ba")
    clock.tick()
    with pytest.raises(ValueError, match=re.escape(message)):
        call(clock)


def test_before_tokens_that_no_factor_gives():
    clock = Clock("1000tok", samples_per_batch=8)
    clock.tick(tokens=50)
    with pytest.raises(ValueError, match="no conversion factor gives the tokens") as caught:
        clock.before("500tok")
    assert "tokens_per_sample" in str(caught.value.__cause__)
