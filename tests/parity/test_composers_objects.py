"""Composer's own objects in the place of ours, and next to them on either side of an operator.

Python asks the left operand first. Composer's Time raises or answers False on a stranger by itself, without leaving
the question to ours; its TimeUnit and Timestamp leave it. These tests hold what happens on each side.
"""

from __future__ import annotations

import datetime
import operator
import subprocess
import sys

import composer.optim
import pytest
import torch
from composer.core import Time as ComposerTime
from composer.core import Timestamp as ComposerTimestamp
from composer.core import TimeUnit as ComposerTimeUnit

import timesched
from tests.parity.states import at, state_of
from timesched import Clock, Horizon, Time, Timestamp, TimeUnit

EQUALITY = [operator.eq, operator.ne]
ORDER = [operator.lt, operator.le, operator.gt, operator.ge]
ARITHMETIC = [operator.add, operator.sub, operator.mod, operator.truediv]
VALUES = [(3, 4), (4, 4), (5, 4)]


@pytest.mark.parametrize(("a", "b"), VALUES)
def test_our_time_on_the_left(a: int, b: int) -> None:
    """Everything works."""
    ours, theirs = Time(a, "ba"), ComposerTime(b, "ba")
    for function in (*EQUALITY, *ORDER):
        assert function(ours, theirs) is function(a, b)
    for function in ARITHMETIC:
        result = function(ours, theirs)
        assert isinstance(result, Time)
        assert result == function(ours, Time(b, "ba"))
    assert ours * ComposerTime(2.0, "dur") == 2 * a
    assert Time(0.5, "dur") * ComposerTime(4, "tok") == "2tok"
    for function in (*EQUALITY, *ORDER, *ARITHMETIC):
        with pytest.raises(RuntimeError):
            function(ours, ComposerTime(b, "sp"))


@pytest.mark.parametrize(("a", "b"), VALUES)
def test_composers_time_on_the_left(a: int, b: int) -> None:
    """Nothing works, and ours is never asked: equal is False, an order a TypeError, arithmetic a RuntimeError."""
    theirs, ours = ComposerTime(a, "ba"), Time(b, "ba")
    assert operator.eq(theirs, ours) is False
    assert operator.ne(theirs, ours) is True
    for function in ORDER:
        with pytest.raises(TypeError, match="NotImplementedType"):
            function(theirs, ours)
    for function in (*ARITHMETIC, operator.mul):
        with pytest.raises(RuntimeError, match="Cannot convert type"):
            function(theirs, ours)


def test_hashes_and_dictionaries() -> None:
    """Equal times hash equal; a dictionary asks its own key first, so only ours is found with theirs."""
    for value, unit in ((5, "ep"), (2**60 + 1, "tok"), (0.5, "dur")):
        assert hash(Time(value, unit)) == hash(ComposerTime(value, unit))
        assert {Time(value, unit): "found"}[ComposerTime(value, unit)] == "found"
        assert Time(value, unit) not in {ComposerTime(value, unit): "not found"}


@pytest.mark.filterwarnings("ignore:Detected comparison between a string")
def test_units_on_either_side() -> None:
    """Equal both ways, one key of a dictionary, and each made of the other."""
    for ours in TimeUnit:
        for theirs in ComposerTimeUnit:
            equal = ours.value == theirs.value
            assert (ours == theirs) is (theirs == ours) is equal
            assert (ours != theirs) is (theirs != ours) is not equal
        theirs = ComposerTimeUnit(ours.value)
        assert TimeUnit(theirs) is ours
        assert {ours: 1}[theirs] == {theirs: 1}[ours] == 1
        assert hash(ours) == hash(theirs)
        assert ComposerTimeUnit(ours) is theirs
        assert ComposerTime(1, ours) == ComposerTime(1, theirs)
        assert ComposerTimestamp(batch=4).get(ours) == ComposerTimestamp(batch=4).get(theirs) if ours != "dur" else True


@pytest.mark.parametrize(("a", "b"), VALUES)
@pytest.mark.parametrize("unit", ["iter", "ep", "ba", "sp", "tok", "sec"])
def test_timestamps_and_times(unit: str, a: int, b: int) -> None:
    """Our Time on either side of Composer's Timestamp, and our Timestamp on the left of Composer's Time."""
    names = {"iter": "iteration", "ep": "epoch", "ba": "batch", "sp": "sample", "tok": "token"}
    field = {names[unit]: a} if unit in names else {"total_wct": datetime.timedelta(seconds=a)}
    ours, theirs = Timestamp(**field), ComposerTimestamp(**field)
    for function in (*EQUALITY, *ORDER):
        assert function(ours, ComposerTime(b, unit)) is function(a, b)
        assert function(theirs, Time(b, unit)) is function(a, b)
        assert function(Time(b, unit), theirs) is function(b, a)
    for function in ORDER:
        with pytest.raises(TypeError, match="NotImplementedType"):
            function(ComposerTime(b, unit), ours)
    assert operator.eq(ComposerTime(b, unit), ours) is False
    assert operator.ne(ComposerTime(b, unit), ours) is True


def test_two_timestamps() -> None:
    ours, theirs = Timestamp(batch=3, token=7), ComposerTimestamp(batch=3, token=7)
    assert (ours == theirs) is (theirs == ours) is True
    assert (ours != theirs) is (theirs != ours) is False
    other = theirs.to_next_batch(4)
    assert (ours == other) is (other == ours) is False
    for function in ORDER:
        for left, right in ((ours, theirs), (theirs, ours)):
            with pytest.raises(TypeError):
                function(left, right)


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
    """Composer reads only its own times: pass it the text. Its State takes ours as a max_duration."""
    ours = Time(4, "ba")
    for refused in (
        lambda: ComposerTime.from_input(ours),
        lambda: ComposerTimestamp(batch=ours),
        lambda: ComposerTimestamp().to_next_batch(samples=Time(4, "sp")),
    ):
        with pytest.raises(RuntimeError):
            refused()
    assert ComposerTime.from_input(str(ours)) == 4
    state = state_of(None)
    state.max_duration = ours
    state.timestamp = ComposerTimestamp(batch=3)
    assert state.timestamp < state.max_duration
    assert timesched.LinearScheduler()(state) == 0.25


def test_composers_state_as_ours() -> None:
    """A schedule, a horizon, a compiled scheduler and a binding read it as they do a clock."""
    state = at(state_of("8ba"), batch=2)
    assert isinstance(state, timesched.State)
    assert Horizon.of(state).max_duration == "8ba"
    assert Horizon.of(state, 0.5) == Horizon("16ba", batches_per_epoch=8, ssr=0.5)
    schedule = timesched.LinearScheduler()
    assert schedule(state) == schedule(state, 1.0) == schedule.at("2ba", state) == 0.75
    assert schedule.at(state.timestamp, state) == 0.75
    optimizer = torch.optim.SGD(state.model.parameters(), lr=0.5, weight_decay=0.25)
    state._optimizers = [optimizer]
    scheduler = timesched.compile_composer_scheduler(schedule, state)
    bound = timesched.bind(timesched.StepScheduler("3ba", 0.5), optimizer, state, key="weight_decay")
    assert scheduler.get_last_lr() == [0.375]
    at(state, batch=4)
    scheduler.step()
    bound.step()
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert optimizer.param_groups[0]["weight_decay"] == 0.125


def test_composers_schedules_take_our_clock_and_times() -> None:
    """They make a unit of their own from the one of max_duration or of a time."""
    clock = Clock("8ba")
    clock.tick()
    clock.tick()
    assert composer.optim.LinearScheduler()(clock) == 0.75
    assert composer.optim.LinearScheduler(t_max=Time(8, "ba"))(at(state_of("8ba"), batch=2)) == 0.75
    assert composer.optim.MultiStepScheduler(["1ba", "0.9dur"])(clock, 1.0) == 0.1


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


def test_nothing_of_ours_imports_composer() -> None:
    program = """
import importlib, pkgutil, sys
import timesched
for module in pkgutil.walk_packages(timesched.__path__, "timesched."):
    if ".integrations" not in module.name:
        importlib.import_module(module.name)
assert not [name for name in sys.modules if name.split(".")[0] == "composer"]
print("free")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "free\n", done.stderr
