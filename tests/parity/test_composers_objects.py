"""Composer's own objects in the place of ours, and next to them on either side of an operator.

Python asks the left operand first. Composer's Time raises or answers False on a stranger by itself, without leaving
the question to ours; its TimeUnit and Timestamp leave it. These tests hold what happens on each side.
"""

from __future__ import annotations

import datetime
import operator
from collections.abc import Callable
from typing import Any

import composer.optim
import pytest
from composer.core import Time as ComposerTime
from composer.core import Timestamp as ComposerTimestamp
from composer.core import TimeUnit as ComposerTimeUnit

import timesched
from tests.parity.rows import at, state_of
from timesched import Clock, Horizon, Time, Timestamp

EQUALITY = [operator.eq, operator.ne]
ORDER = [operator.lt, operator.le, operator.gt, operator.ge]
ARITHMETIC = [operator.add, operator.sub, operator.mod, operator.truediv]
VALUES = pytest.mark.parametrize(("a", "b"), [(3, 4), (4, 4), (5, 4)])


def refused(functions: list[Callable[..., Any]], left: Any, right: Any, error: type[Exception], said: str = "") -> None:
    for function in functions:
        with pytest.raises(error, match=said or None):
            function(left, right)


@VALUES
def test_two_times(a: int, b: int) -> None:
    """With ours on the left everything works. With theirs nothing does, and ours is never asked."""
    ours, theirs = Time(a, "ba"), ComposerTime(b, "ba")
    for function in (*EQUALITY, *ORDER):
        assert function(ours, theirs) is function(a, b)
    for function in ARITHMETIC:
        result = function(ours, theirs)
        assert isinstance(result, Time) and result == function(ours, Time(b, "ba"))
    assert ours * ComposerTime(2.0, "dur") == 2 * a
    assert Time(0.5, "dur") * ComposerTime(4, "tok") == "2tok"
    refused([*EQUALITY, *ORDER, *ARITHMETIC], ours, ComposerTime(b, "sp"), RuntimeError)
    assert (theirs == ours, theirs != ours) == (False, True)
    refused(ORDER, theirs, ours, TypeError, "NotImplementedType")
    refused([*ARITHMETIC, operator.mul], theirs, ours, RuntimeError, "Cannot convert type")


@VALUES
@pytest.mark.parametrize("unit", ["iter", "ep", "ba", "sp", "tok", "sec"])
def test_timestamps_and_times(unit: str, a: int, b: int) -> None:
    """Each on the counter of its unit. Composer's Time knows no Timestamp, not even its own."""
    names = {"iter": "iteration", "ep": "epoch", "ba": "batch", "sp": "sample", "tok": "token"}
    field: Any = {names[unit]: a} if unit in names else {"total_wct": datetime.timedelta(seconds=a)}
    ours, theirs, time, their_time = (
        Timestamp(**field),
        ComposerTimestamp(**field),
        Time(b, unit),
        ComposerTime(b, unit),
    )
    for function in (*EQUALITY, *ORDER):
        for stamp, other in ((ours, time), (ours, their_time), (theirs, time), (ours, f"{b}{unit}")):
            assert function(stamp, other) is function(a, b)
        for stamp in (ours, theirs):
            assert function(time, stamp) is function(b, a)
        assert function(f"{b}{unit}", ours) is function(b, a)
    for stamp in (ours, theirs):
        refused(ORDER, their_time, stamp, TypeError)
        assert (their_time == stamp, their_time != stamp) == (False, True)


def test_two_timestamps() -> None:
    ours, theirs = Timestamp(batch=3, token=7), ComposerTimestamp(batch=3, token=7)
    other = theirs.to_next_batch(4)
    assert (ours == theirs) is (theirs == ours) is True
    assert (ours != theirs) is (theirs != ours) is False
    assert (ours == other) is (other == ours) is False
    for pair in ((ours, theirs), (theirs, ours), (ours, ours), (theirs, theirs)):
        refused(ORDER, *pair, TypeError)


def test_composers_times_as_arguments_of_ours() -> None:
    """Wherever a time, a unit or a timestamp is taken."""
    theirs = ComposerTime(4, "ba")
    assert Time.from_input(theirs) == timesched.ensure_time(theirs, "ep") == "4ba"
    assert Time(4, ComposerTimeUnit.BATCH) == Time.from_input(4, ComposerTimeUnit.BATCH) == theirs
    assert Timestamp(batch=theirs) == Timestamp(batch=4) == Timestamp().copy(batch=theirs)
    assert Timestamp().to_next_batch(samples=ComposerTime(8, "sp")).sample == 8
    assert Timestamp(batch=4).get(ComposerTimeUnit.BATCH) == 4
    horizon = Horizon(ComposerTime(8, "ba"), samples_per_batch=2)
    assert horizon == Horizon("8ba", samples_per_batch=2)
    assert horizon.convert(theirs, ComposerTimeUnit.SAMPLE) == "8sp"
    assert horizon.falls_short(theirs)
    clock = Clock(ComposerTime(8, "ba"))
    clock.tick(samples=ComposerTime(2, "sp"), tokens=ComposerTime(64, "tok"))
    assert clock.timestamp == clock.timestamp.copy(batch=1, sample=2, token=64)
    schedule = timesched.LinearScheduler(t_max=theirs)
    assert schedule == timesched.LinearScheduler(t_max="4ba")
    assert schedule.at(ComposerTime(1, "ba"), horizon) == schedule.at(ComposerTimestamp(batch=1), horizon) == 0.75
    assert schedule.curve(horizon, ComposerTimeUnit.SAMPLE)(2) == 0.75


def test_ours_as_arguments_of_composers() -> None:
    """Composer reads only its own times: pass it the text. Its State and its schedules take ours."""
    ours = Time(4, "ba")
    for function in (ComposerTime.from_input, lambda time: ComposerTimestamp(batch=time), ComposerTimestamp().copy):
        with pytest.raises((RuntimeError, TypeError)):
            function(ours)
    assert ComposerTime.from_input(str(ours)) == 4
    state = state_of(None)
    state.max_duration = ours
    assert at(state, batch=3).timestamp < state.max_duration
    assert timesched.LinearScheduler()(state) == 0.25
    clock = Clock("8ba")
    clock.tick()
    clock.tick()
    assert composer.optim.LinearScheduler()(clock) == 0.75
    assert composer.optim.LinearScheduler(t_max=Time(8, "ba"))(at(state_of("8ba"), batch=2)) == 0.75
    assert composer.optim.MultiStepScheduler(["1ba", "0.9dur"])(clock, 1.0) == 0.1


def test_composers_state_as_ours() -> None:
    """A schedule and a horizon read it as they do a clock."""
    state = at(state_of("8ba"), batch=2)
    assert isinstance(state, timesched.State)
    assert Horizon.of(state).max_duration == "8ba"
    assert Horizon.of(state, 0.5) == Horizon("16ba", batches_per_epoch=8, ssr=0.5)
    schedule = timesched.LinearScheduler()
    assert schedule(state) == schedule(state, 1.0) == schedule.at("2ba", state) == 0.75
    assert schedule.at(state.timestamp, state) == 0.75


def test_fractions_of_seconds() -> None:
    """Composer's timestamp counts whole seconds, ours is read to the microsecond; a time may be fractional for both."""
    passed = datetime.timedelta(milliseconds=1500)
    ours, theirs = Timestamp(total_wct=passed), ComposerTimestamp(total_wct=passed)
    assert ours.get("sec") == theirs.get("sec") == 1
    assert Time(1.5, "sec") == ours > Time(1.25, "sec") > theirs
    assert (Horizon("2sec").progress(ours), Horizon("2sec").progress(theirs)) == (0.75, 0.5)
    state = state_of("2sec")
    for state.timestamp, value in ((ours, 0.4), (theirs, 0.6)):
        assert timesched.LinearScheduler(t_max="2.5sec")(state) == value
