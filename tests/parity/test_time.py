"""Our Time and TimeUnit next to Composer's: the same constructors, texts, operators, comparisons and hashes."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from composer.core import Time as ComposerTime
from composer.core import TimeUnit as ComposerTimeUnit
from composer.core import ensure_time as composer_ensure_time
from hypothesis import assume, given
from hypothesis import strategies as st

from timesched import Time, TimeError, TimeUnit, ensure_time

COUNTED = ["iter", "ep", "ba", "sp", "tok", "sec"]
FLOATS = [0.0, 0.1, 0.29, 0.5, 1 / 3, 1.0, 2.0, 1e-5, 123456.75, 1e16, 1e22, 1.5e300, 5e-324]
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


def same(ours: Any, theirs: Any) -> bool:
    """Whether two results stand for the same: times by value, unit, texts and hash; anything else as it is."""
    if not isinstance(theirs, ComposerTime):
        return type(ours) is type(theirs) and bool(ours == theirs)
    assert isinstance(ours, Time)
    assert type(ours.value) is type(theirs.value)
    parts = [
        (each.value, each.unit.value, str(each), repr(each), each.to_timestring(), hash(each))
        for each in (ours, theirs)
    ]
    return parts[0] == parts[1]


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result, or the error."""
    try:
        return function(*arguments)
    except Exception as error:
        return error


def check_quotient(ours: tuple[Any, Any], theirs: tuple[Any, Any]) -> None:
    """The same float, in dur; ours holds and writes the exact ratio where the float is not it."""
    mine, other = outcome(operator.truediv, *ours), outcome(operator.truediv, *theirs)
    if isinstance(other, Exception):
        assert isinstance(mine, type(other))
        return
    assert (mine.value, mine.unit) == (other.value, TimeUnit.DURATION)
    assert hash(mine) == hash(other)
    assert (mine == other) is (mine.exact == Fraction(str(other.value)))


def check(function: Callable[..., Any], ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> None:
    """The same result from ours as from theirs; or an error from both, ours of their kind as well."""
    mine, other = outcome(function, *ours), outcome(function, *theirs)
    if isinstance(other, Exception):
        assert isinstance(mine, type(other)), (function, ours, mine, other)
    else:
        assert same(mine, other), (function, ours, mine, other)


@pytest.mark.parametrize("unit", COUNTED)
@pytest.mark.parametrize("value", [0, 1, 7, -3, 10**9, 2**53 + 1, 10**30])
def test_counts(value: int, unit: str) -> None:
    theirs = ComposerTime(value, unit)
    for mine in (
        Time(value, unit),
        Time(value, TimeUnit(unit)),
        Time(value, ComposerTimeUnit(unit)),  # type: ignore[arg-type]
        Time.from_input(value, unit),
        Time.from_input(theirs),
        ensure_time(value, unit),
    ):
        assert same(mine, theirs)
    assert same(ensure_time(value, unit), composer_ensure_time(value, unit))
    for function in (operator.neg, operator.pos, int, float, str, repr, hash, bool):
        check(function, (Time(value, unit),), (theirs,))


@pytest.mark.parametrize("value", FLOATS)
def test_durations(value: float) -> None:
    theirs = ComposerTime(value, "dur")
    assert same(Time(value, "dur"), theirs)
    assert same(Time.from_duration(value), ComposerTime.from_duration(value))
    for function in (operator.neg, operator.pos, float, str, repr, hash):
        if function is not operator.neg or value:  # there is no negative zero among exact numbers
            check(function, (Time(value, "dur"),), (theirs,))


@pytest.mark.parametrize("name", ["iteration", "epoch", "batch", "sample", "token"])
def test_constructors_by_name(name: str) -> None:
    assert same(getattr(Time, f"from_{name}")(12), getattr(ComposerTime, f"from_{name}")(12))


TEXTS = "5ep 3e4tok 0.5dur 1e12tok 100ba 0ba -3ba 7iter 12SP 1E3Tok 2.0ba .5dur 1h 1h20m40s 0h30m 59s 10m 0.29dur"
MORE_TEXTS = "1dur 2DUR 1_000ba 3sec 0s +2ba"


@pytest.mark.parametrize("text", f"{TEXTS} {MORE_TEXTS}".split())
@pytest.mark.parametrize("name", ["from_timestring", "from_input", "from_timedelta"])
def test_texts(text: str, name: str) -> None:
    check(lambda cls: getattr(cls, name)(text), (Time,), (ComposerTime,))


@pytest.mark.parametrize("text", ["h", "1h 20m", "tok", "5days", "1.5ba", "ba5", "1h2h", "1m1h", "one ba"])
def test_texts_that_are_refused(text: str) -> None:
    check(lambda cls: cls.from_timestring(text), (Time,), (ComposerTime,))
    check(lambda cls: cls.from_timedelta(text), (Time,), (ComposerTime,))


@pytest.mark.parametrize(("text", "seconds"), [("24h", 86400), ("90s", 90), ("1h90m", 9000), ("0.5h", 1800)])
def test_more_than_a_clock_face_shows(text: str, seconds: int) -> None:
    """Composer reads the hour, minute and second of a day."""
    assert Time.from_timestring(text) == Time.from_timedelta(text) == Time(seconds, "sec")
    for name in ("from_timestring", "from_timedelta"):
        assert isinstance(outcome(getattr(ComposerTime, name), text), ValueError)


@pytest.mark.parametrize("value", [None, [], object(), {}, 1 + 2j])
def test_what_is_no_time(value: Any) -> None:
    for function in (lambda cls: cls.from_input(value), lambda cls: cls.from_input(3)):
        check(function, (Time,), (ComposerTime,))
    check(lambda cls: cls(2.5, "ba"), (Time,), (ComposerTime,))
    check(lambda cls: cls(1, "ba") == value, (Time,), (ComposerTime,))
    check(lambda cls: cls(1, "ba") < value, (Time,), (ComposerTime,))
    check(lambda cls: cls(1, "parsec"), (Time,), (ComposerTime,))


whole = st.integers(-(10**18), 10**18)


@given(a=whole, b=whole, unit=st.sampled_from(COUNTED))
def test_operators_on_counts(a: int, b: int, unit: str) -> None:
    """Time and time, time and number, number and time, time and text."""
    for function in (operator.add, operator.sub, operator.mod, *COMPARISONS):
        check(function, (Time(a, unit), Time(b, unit)), (ComposerTime(a, unit), ComposerTime(b, unit)))
        check(function, (Time(a, unit), b), (ComposerTime(a, unit), b))
    for function in (operator.add, operator.sub, operator.mul, *COMPARISONS):
        check(function, (a, Time(b, unit)), (a, ComposerTime(b, unit)))
    check(operator.mul, (Time(a, unit), b), (ComposerTime(a, unit), b))
    check_quotient((Time(a, unit), Time(b, unit)), (ComposerTime(a, unit), ComposerTime(b, unit)))
    check(operator.truediv, (a, Time(b, unit)), (a, ComposerTime(b, unit)))


@given(a=st.integers(-(2**52), 2**52), b=st.integers(-(2**52), 2**52), unit=st.sampled_from(["ep", "ba", "tok"]))
def test_operators_with_texts(a: int, b: int, unit: str) -> None:
    """Texts on either side; Composer reads them as floats, so counts stay below 2**53."""
    text = f"{b}{unit}"
    for function in (operator.add, operator.sub, *COMPARISONS):
        check(function, (Time(a, unit), text), (ComposerTime(a, unit), text))
        check(function, (text, Time(a, unit)), (text, ComposerTime(a, unit)))
    check(operator.mod, (Time(a, unit), text), (ComposerTime(a, unit), text))
    check_quotient((Time(a, unit), text), (ComposerTime(a, unit), text))
    check(operator.truediv, (text, Time(a, unit)), (text, ComposerTime(a, unit)))


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


@pytest.mark.parametrize("function", [operator.add, operator.sub, operator.mod, operator.truediv, *COMPARISONS])
def test_unlike_units(function: Callable[..., Any]) -> None:
    check(function, (Time(1, "ba"), Time(1, "ep")), (ComposerTime(1, "ba"), ComposerTime(1, "ep")))
    check(function, (Time(1, "ba"), "1dur"), (ComposerTime(1, "ba"), "1dur"))
    check(operator.mul, (Time(1, "ba"), Time(1, "ba")), (ComposerTime(1, "ba"), ComposerTime(1, "ba")))


@pytest.mark.parametrize(
    ("function", "ours", "theirs"),
    [
        # Composer goes through a float, or drops what is left over
        (lambda cls: cls.from_timestring("9007199254740993tok").value, 9007199254740993, 9007199254740992),
        (lambda cls: (cls(0.29, "dur") * cls(100, "ba")).value, 29, 28),
        (lambda cls: (cls(100, "ba") * "0.57dur").value, 57, 56),
        (lambda cls: (cls(3, "ep") * 0.5).value, Fraction(3, 2), 1),
        (lambda cls: (cls(3, "ba") * 0.5).value, TimeError, 1),
        (lambda cls: (cls(3, "ba") / 2).value, TimeError, 1),
        (lambda cls: (cls(29, "ba") * cls(0.5, "dur")).value, TimeError, 14),
        # It takes what is no number of batches, or no number
        (lambda cls: cls(True, "ba").value, TimeError, True),
        (lambda cls: str(cls(float("nan"), "dur")), TimeError, "nandur"),
        (lambda cls: str(cls(float("inf"), "dur")), TimeError, "infdur"),
        # It reads texts in which we see a mistake, and does not read some that are plain
        (lambda cls: cls.from_timestring(" 3 ba").value, TimeError, 3),
        (lambda cls: cls.from_timestring("\u0663ba").value, TimeError, 3),  # an Arabic three
        (lambda cls: str(cls.from_timestring("5")), TimeError, "50sec"),  # a 0s is put behind it
        (lambda cls: str(cls.from_timestring("")), TimeError, "0sec"),
        (lambda cls: str(cls.from_timestring("1H")), "3600sec", ValueError),
        (lambda cls: cls(1.5, "ep").value, Fraction(3, 2), TypeError),
        (lambda cls: cls.from_timestring("1e400tok"), TimeError, OverflowError),
    ],
)
def test_differences(function: Callable[[Any], Any], ours: Any, theirs: Any) -> None:
    """Ours is exact, or says what is wrong."""
    for cls, expected in ((Time, ours), (ComposerTime, theirs)):
        result = outcome(function, cls)
        assert type(result) is expected if isinstance(expected, type) else result == expected


def test_units() -> None:
    """The same members in the same order, found by the same names."""
    assert [(unit.name, unit.value) for unit in TimeUnit] == [(unit.name, unit.value) for unit in ComposerTimeUnit]
    for text in ("ba", "BA", "batch", "Batch", "TOKEN", "dur", "sec"):
        assert TimeUnit(text).name == ComposerTimeUnit(text).name
    for wrong in ("days", "", None, 3):
        mine, theirs = outcome(TimeUnit, wrong), outcome(ComposerTimeUnit, wrong)
        assert isinstance(mine, type(theirs))
    for unit in TimeUnit:
        theirs = ComposerTimeUnit(unit.value)
        assert (str(unit), repr(unit), hash(unit)) == (str(theirs), repr(theirs), hash(theirs))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected comparison between a string")
            for text in (unit.value, unit.name, unit.value.upper(), "days"):
                assert (unit == text) is (theirs == text)
                assert (unit != text) is (theirs != text)
