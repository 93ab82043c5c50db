"""Our Time, TimeUnit and Timestamp beside Composer's: the same constructors, steps, texts, operators and states."""

from __future__ import annotations

import datetime
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import composer.optim
import pytest
from composer.core import Time as ComposerTime
from composer.core import Timestamp as ComposerTimestamp
from composer.core import TimeUnit as ComposerTimeUnit
from composer.core import ensure_time as composer_ensure_time
from hypothesis import assume, given
from hypothesis import strategies as st

import timesched
from tests.parity.rows import at, state_of
from timesched import Clock, Horizon, Time, TimeError, Timestamp, TimeUnit, ensure_time

COUNTED = ["iter", "ep", "ba", "sp", "tok", "sec"]
EQUALITY, ORDER = [operator.eq, operator.ne], [operator.lt, operator.le, operator.gt, operator.ge]
ARITHMETIC, COMPARISONS = [operator.add, operator.sub, operator.mod, operator.truediv], [*EQUALITY, *ORDER]
VALUES = pytest.mark.parametrize(("a", "b"), [(3, 4), (4, 4), (5, 4)])
FLOATS = [0.0, 0.1, 0.29, 0.5, 1 / 3, 1.0, 2.0, 1e-5, 123456.75, 1e16, 1e22, 1.5e300, 5e-324]

STAMPS = (Timestamp, ComposerTimestamp)


def same(ours: Any, theirs: Any) -> bool:
    """Whether two results stand for the same: times by value, unit, texts and hash; anything else as it is."""
    if not isinstance(theirs, ComposerTime):
        return type(ours) is type(theirs) and bool(ours == theirs)
    assert isinstance(ours, Time) and type(ours.value) is type(theirs.value)
    texts = [(each.value, each.unit.value, str(each), repr(each), each.to_timestring()) for each in (ours, theirs)]
    return texts[0] == texts[1] and hash(ours) == hash(theirs)


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result, or the error."""
    try:
        return function(*arguments)
    except Exception as error:
        return error


def check(function: Callable[..., Any], ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> None:
    """The same result from ours as from theirs; or an error from both, ours of their kind as well."""
    mine, other = outcome(function, *ours), outcome(function, *theirs)
    alike = isinstance(mine, type(other)) if isinstance(other, Exception) else same(mine, other)
    assert alike, (function, ours, mine, other)


def check_class(function: Callable[[Any], Any]) -> None:
    check(function, (Time,), (ComposerTime,))


def check_quotient(ours: tuple[Any, Any], theirs: tuple[Any, Any]) -> None:
    """The same float, in dur; ours holds and writes the exact ratio where the float is not it."""
    mine, other = outcome(operator.truediv, *ours), outcome(operator.truediv, *theirs)
    if isinstance(other, Exception):
        assert isinstance(mine, type(other))
        return
    assert (mine.value, mine.unit, hash(mine)) == (other.value, TimeUnit.DURATION, hash(other))
    assert (mine == other) is (mine.exact == Fraction(str(other.value)))


# Time


@pytest.mark.parametrize("unit", COUNTED)
@pytest.mark.parametrize("value", [0, 1, 7, -3, 10**9, 2**53 + 1, 10**30])
def test_counts(value: int, unit: str) -> None:
    theirs, their_unit = ComposerTime(value, unit), ComposerTimeUnit(unit)
    for mine in (Time(value, unit), Time(value, TimeUnit(unit)), Time(value, their_unit), Time.from_input(theirs)):
        assert same(mine, theirs)
    assert same(ensure_time(value, unit), composer_ensure_time(value, unit))
    assert same(Time.from_input(value, unit), theirs)
    for function in (operator.neg, operator.pos, int, float, str, repr, hash, bool):
        check(function, (Time(value, unit),), (theirs,))
    for name in ("iteration", "epoch", "batch", "sample", "token"):
        check_class(operator.methodcaller(f"from_{name}", value))


@pytest.mark.parametrize("value", FLOATS)
def test_durations(value: float) -> None:
    theirs = ComposerTime(value, "dur")
    assert same(Time(value, "dur"), theirs) and same(Time.from_duration(value), theirs)
    for function in (operator.neg, operator.pos, float, str, repr, hash):
        if function is not operator.neg or value:  # there is no negative zero among exact numbers
            check(function, (Time(value, "dur"),), (theirs,))


TEXTS = "5ep 3e4tok 0.5dur 1e12tok 100ba 0ba -3ba 7iter 12SP 1E3Tok 2.0ba .5dur 1h 1h20m40s 0h30m 59s 10m 0.29dur"
MORE = "1dur 2DUR 1_000ba 3sec 0s +2ba h tok 5days 1.5ba ba5 1h2h 1m1h"  # some of which are refused


@pytest.mark.parametrize("text", [*f"{TEXTS} {MORE}".split(), "1h 20m", "one ba"])
def test_texts(text: str) -> None:
    for name in ("from_timestring", "from_input", "from_timedelta"):
        check_class(operator.methodcaller(name, text))


counts = st.integers(-(10**18), 10**18)
FORMS: list[Callable[..., tuple[Any, Any]]] = [
    lambda cls, a, b, unit: (cls(a, unit), cls(b, unit)),
    lambda cls, a, b, unit: (cls(a, unit), b),
    lambda cls, a, b, unit: (a, cls(b, unit)),
    lambda cls, a, b, unit: (cls(a, unit), f"{b >> 10}{unit}"),  # Composer reads a text as a float
    lambda cls, a, b, unit: (f"{a >> 10}{unit}", cls(b, unit)),
]


@given(a=counts, b=counts, unit=st.sampled_from(COUNTED))
def test_operators_on_counts(a: int, b: int, unit: str) -> None:
    for i, form in enumerate(FORMS):
        ours, theirs = form(Time, a, b, unit), form(ComposerTime, a, b, unit)
        for function in (operator.add, operator.sub, operator.mul, operator.mod, *COMPARISONS):
            check(function, ours, theirs)
        if i in (0, 3):
            check_quotient(ours, theirs)
        elif i in (2, 4):
            check(operator.truediv, ours, theirs)


@given(count=st.integers(-(2**40), 2**40), eighths=st.integers(0, 80), unit=st.sampled_from(COUNTED))
def test_scaling_to_a_whole_count(count: int, eighths: int, unit: str) -> None:
    """By a number or a dur, on either side, where the result is whole; otherwise Composer drops the rest."""
    factor = eighths / 8
    assume(float(count * factor).is_integer())
    ours, theirs = Time(count, unit), ComposerTime(count, unit)
    for function in (operator.mul, lambda a, b: b * a):
        check(function, (ours, factor), (theirs, factor))
        check(function, (ours, Time(factor, "dur")), (theirs, ComposerTime(factor, "dur")))
        check(function, (ours, f"{factor}dur"), (theirs, f"{factor}dur"))
    if factor and (count / factor).is_integer():
        check(operator.truediv, (ours, factor), (theirs, factor))


@pytest.mark.parametrize("function", [*ARITHMETIC, *COMPARISONS])
def test_unlike_units_and_what_is_no_time(function: Callable[..., Any]) -> None:
    for other in (lambda cls: cls(1, "ep"), lambda cls: "1dur"):
        check_class(lambda cls, other=other: function(cls(1, "ba"), other(cls)))
    for value in (None, [], object(), {}, 1 + 2j):
        check_class(lambda cls, value=value: cls.from_input(value))
        for compare in (operator.eq, operator.lt):
            check_class(lambda cls, value=value, compare=compare: compare(cls(1, "ba"), value))
    for arguments in ((2.5, "ba"), (1, "parsec")):
        check_class(lambda cls, arguments=arguments: cls(*arguments))
    check_class(lambda cls: cls(1, "ba") * cls(1, "ba"))
    check_class(lambda cls: cls.from_input(3))


@pytest.mark.parametrize(
    ("text", "theirs"),
    [
        ("9007199254740993tok", "9007199254740992tok"),  # by way of a float
        *((" 3 ba", "3ba"), ("\u0663ba", "3ba"), ("5", "50sec"), ("", "0sec")),  # in which we see a mistake
        *(("1H", ValueError), ("24h", ValueError), ("0.5h", ValueError), ("1e400tok", OverflowError)),
    ],
)
def test_texts_that_are_read_otherwise(text: str, theirs: Any) -> None:
    """What ours does with them is for tests/laws."""
    mine, other = outcome(Time.from_timestring, text), outcome(ComposerTime.from_timestring, text)
    assert type(other) is theirs if isinstance(theirs, type) else str(other) == theirs
    assert isinstance(mine, TimeError) or str(mine) != str(other)


@pytest.mark.filterwarnings("ignore:Detected comparison between a string")
def test_units() -> None:
    """The same members in the same order, found by the same names; equal both ways, and each made of the other."""
    assert [(unit.name, unit.value) for unit in TimeUnit] == [(unit.name, unit.value) for unit in ComposerTimeUnit]
    for text in ("ba", "BA", "batch", "Batch", "TOKEN", "dur", "sec"):
        assert TimeUnit(text).name == ComposerTimeUnit(text).name
    for wrong in ("days", "", None, 3):
        assert isinstance(outcome(TimeUnit, wrong), type(outcome(ComposerTimeUnit, wrong)))
    for unit in TimeUnit:
        theirs = ComposerTimeUnit(unit.value)
        assert (str(unit), repr(unit), hash(unit)) == (str(theirs), repr(theirs), hash(theirs))
        assert TimeUnit(theirs) is unit and ComposerTimeUnit(unit) is theirs
        assert {unit: 1}[theirs] == {theirs: 1}[unit] == 1
        for text in (unit.value, unit.name, unit.value.upper(), "days"):
            assert (unit == text, unit != text) == (theirs == text, theirs != text)
        for other in ComposerTimeUnit:
            assert (unit == other) is (other == unit) is (unit.value == other.value)
            assert (unit != other) is (other != unit) is (unit.value != other.value)


# Timestamp

COUNTERS = {"iteration": "iter", "epoch": "ep", "batch": "ba", "sample": "sp", "token": "tok"}
WITHIN = ["epoch_in_iteration", "token_in_iteration", "batch_in_epoch", "sample_in_epoch", "token_in_epoch"]
CLOCKS = ["total_wct", "iteration_wct", "epoch_wct", "batch_wct"]

durations = st.timedeltas(datetime.timedelta(0), datetime.timedelta(days=100))
fields = st.fixed_dictionaries(
    {**{name: st.integers(0, 10**12) for name in [*COUNTERS, *WITHIN]}, **dict.fromkeys(CLOCKS, durations)}
)


def equal(ours: Timestamp, theirs: ComposerTimestamp) -> bool:
    """Alike in every field, and in the texts and dicts that they are written as."""
    assert all(same(getattr(ours, name), getattr(theirs, name)) for name in [*COUNTERS, *WITHIN])
    return (ours.state_dict(), repr(ours)) == (theirs.state_dict(), repr(theirs))


@given(fields=fields)
def test_fields_and_state_dicts_both_ways(fields: dict[str, Any]) -> None:
    ours, theirs, loaded, back = Timestamp(**fields), ComposerTimestamp(**fields), Timestamp(), ComposerTimestamp()
    assert equal(ours, theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    loaded.load_state_dict(theirs.state_dict())
    back.load_state_dict(ours.state_dict())
    assert equal(loaded, back) and loaded == ours and back == theirs
    for unit in (*COUNTED, "BATCH", "token"):
        assert same(ours.get(unit), theirs.get(unit))


steps = st.one_of(
    st.tuples(st.just("to_next_batch"), st.integers(0, 999), st.integers(0, 99999), durations),
    st.tuples(st.sampled_from(["to_next_epoch", "to_next_iteration"]), durations),
    st.sampled_from([("to_next_batch",), ("to_next_epoch",), ("to_next_iteration",)]),
)


@given(several=st.lists(steps, max_size=30))
def test_steps(several: list[tuple[Any, ...]]) -> None:
    ours, theirs = Timestamp(), ComposerTimestamp()
    for name, *arguments in several:
        before = ours.state_dict()
        after = getattr(ours, name)(*arguments)
        assert ours.state_dict() == before
        ours, theirs = after, getattr(theirs, name)(*arguments)
        assert equal(ours, theirs)


@pytest.mark.parametrize("other", [3, 2.5, None, [], "a lot", "0.5dur", "3ba", "0tok"])
def test_comparisons_with_texts_and_anything_else(other: Any) -> None:
    for function in COMPARISONS:
        check(function, (Timestamp(), other), (ComposerTimestamp(), other))
        check(function, (other, Timestamp()), (other, ComposerTimestamp()))


REFUSED: list[Callable[[Any], Any]] = [
    *(hash, lambda stamp: stamp.get("dur"), lambda stamp: stamp.get("days")),
    *(lambda stamp: setattr(stamp, "batch", 4), lambda stamp: setattr(stamp, "epoch_in_iteration", "4ba")),
    *(lambda stamp, name=name: type(stamp)(**{name: "3sec"}) for name in [*COUNTERS, *WITHIN]),
]


@pytest.mark.parametrize("call", REFUSED)
def test_what_a_timestamp_refuses(call: Callable[[Any], Any]) -> None:
    assert isinstance(outcome(call, Timestamp()), Exception)
    check(call, (Timestamp(),), (ComposerTimestamp(),))


def test_old_and_broken_state_dicts() -> None:
    """Fields that older versions did not write keep their value; what was always there is asked for."""
    newer = ["iteration", "epoch_in_iteration", "token_in_iteration", *CLOCKS]
    full = ComposerTimestamp(iteration=1, epoch=2, batch=3, sample=4, token=5).state_dict()
    old = {name: value for name, value in full.items() if name not in newer}
    ours, theirs = (cls(iteration=9) for cls in STAMPS)
    ours.load_state_dict(old)
    theirs.load_state_dict(old)
    assert equal(ours, theirs) and ours.iteration == 9
    for name in old:
        broken = {key: value for key, value in full.items() if key != name}
        for cls in STAMPS:
            assert isinstance(outcome(cls().load_state_dict, broken), KeyError)


# Composer's own objects in the place of ours, and on either side of an operator. Python asks the left one first:
# Composer's Time answers False or raises without leaving the question to ours, its TimeUnit and Timestamp leave it.


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
@pytest.mark.parametrize("unit", COUNTED)
def test_timestamps_and_times(unit: str, a: int, b: int) -> None:
    """Each on the counter of its unit. Composer's Time knows no Timestamp, not even its own."""
    names = {unit: name for name, unit in COUNTERS.items()}
    field: Any = {names[unit]: a} if unit in names else {"total_wct": datetime.timedelta(seconds=a)}
    ours, theirs = (stamp(**field) for stamp in STAMPS)
    time, their_time = Time(b, unit), ComposerTime(b, unit)
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
    """Wherever a time, a unit, a timestamp or a state is taken."""
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
    state = at(state_of("8ba"), batch=2)
    assert isinstance(state, timesched.State) and Horizon.of(state).max_duration == "8ba"
    assert Horizon.of(state, 0.5) == Horizon("16ba", batches_per_epoch=8, ssr=0.5)
    assert timesched.LinearScheduler().at(state.timestamp, state) == 0.75


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


def test_fractions_of_seconds() -> None:
    """Timestamps of both are read to the microsecond, though `get` gives whole seconds; a time may be fractional."""
    passed = datetime.timedelta(milliseconds=1500)
    ours, theirs = Timestamp(total_wct=passed), ComposerTimestamp(total_wct=passed)
    assert ours.get("sec") == theirs.get("sec") == 1
    assert Time(1.5, "sec") == ours > Time(1.25, "sec") < theirs
    assert Horizon("2sec").progress(ours) == Horizon("2sec").progress(theirs) == 0.75
    state = state_of("2sec")
    for state.timestamp in (ours, theirs, ComposerTimestamp().to_next_batch(duration=passed)):
        assert timesched.LinearScheduler(t_max="2.5sec")(state) == 0.4
