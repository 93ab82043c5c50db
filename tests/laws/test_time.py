"""Times are exact, and what is no time is refused. What Composer has, too, is in tests/parity."""

import copy
import datetime
import operator
import pickle
import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesched import Horizon, MultiStepScheduler, Time, TimeError, Timestamp, TimeUnit, ensure_time
from timesched.testing import horizons, times, timestamps

COUNTS = [unit for unit in TimeUnit if unit.value not in ("ep", "dur", "sec")]


@given(times())
def test_text_reads_back(time):
    assert Time.from_timestring(str(time)) == time
    assert Time.from_timestring(str(time).upper()) == time
    assert eval(repr(time)) == time
    assert str(Time.from_timestring(str(time))) == str(time)


TEXTS = {
    **{"iter": {"+7iter": 7}, "ba": {"-7ba": -7}, "sp": {"3_0e10SP": 30 * 10**10, "030.0sp": 30, "3T sp": 3 * 10**12}},
    **{"tok": {"1e12tok": 10**12, "9007199254740993tok": 2**53 + 1, "1.5Ktok": 1500, "2Btok": 2 * 10**9}},
    **{"ep": {"2.50e1ep": 25, ".5ep": Fraction(1, 2)}, "dur": {"0.29dur": 0.29, "1/4dur": 0.25}},
    "sec": {"90s": 90, "500m": 30000, "100H": 360000, "1H20M": 4800, "1.5h": 5400}
    | {"1/3sec": Fraction(1, 3), "1m0.25s": Fraction(241, 4)},
}


def test_text():
    for unit, values in TEXTS.items():
        for text, value in values.items():
            time = Time.from_timestring(text)
            assert (time.value, time.unit, type(time.value)) == (value, TimeUnit(unit), type(value))


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_decimals_are_exact(share, batches):
    """A milestone of k millionths of n batches is reached at the first batch at or past it, never one early or late."""
    milestone = Time.from_timestring(f"{share / 10**6!r}dur")
    assert milestone.exact == Fraction(share, 10**6)
    first = -(-share * batches // 10**6)
    schedule, run = MultiStepScheduler([milestone], gamma=0.5), Horizon(Time(batches, "ba"))
    assert schedule.at(Time(first, "ba"), run) == 0.5
    assert schedule.at(Time(first - 1, "ba"), run) == 1.0 if first else True


def test_numbers_and_texts_stand_for_times_of_the_same_unit():
    assert Time(0.29, "dur") * Time(100, "ba") == "29ba" and Time(0.1, "dur") * Time(30, "ba") == Time(3, "ba")
    assert Time(2**53 + 1, "tok") - Time(2**53, "tok") == 1 and Time(0.1, "dur") + Time(0.2, "dur") == Time(0.3, "dur")
    assert Time(0.5, "dur") * "4ep" == "2ep" == "4ep" * Time(0.5, "dur") and 10 - Time(3, "ba") == "7ba"
    assert Time(1, "ep") / 2 == Time(0.5, "ep") and Time(1, "ep") / "3ep" == Time.from_timestring("1/3dur")
    assert 2 <= Time(2, "ba") < Time(3, "ba") < 3.5
    assert [Time(count, "ba") == other for count, other in ((3, [3]), (1, True))] == [False, False]
    assert (int(Time(29, "ba") / Time(10, "ba")), int(Time(-0.5, "ep"))) == (2, 0) and Time[int]
    assert ensure_time(5, "ba") == Time(5, "ba") and ensure_time("120sec", "ba") == Time.from_timedelta("2m") == "120s"


@given(times(), st.data())
def test_arithmetic_is_that_of_the_numbers(a, data):
    b = data.draw(times(a.unit))
    x, y = a.exact, b.exact
    assert (a + b).exact == x + y and (a - b).exact == x - y and (-a).exact == -x
    assert (a < b, a <= b, a == b, a != b) == (x < y, x <= y, x == y, x != y)
    assert a - b == -(b - a) and +a is a
    if y and abs(Fraction(x) / y) < 10**308:  # beyond it a ratio has no float value, and is refused
        assert (a / b).exact == Fraction(x) / y and (a % b).exact == x % y


@given(times())
def test_equal_times_hash_equal(time):
    same = [Time.from_timestring(str(time)), pickle.loads(pickle.dumps(time)), copy.deepcopy(time), copy.copy(time)]
    for other in same:
        assert other == time and hash(other) == hash(time) and str(other) == str(time)
    whole = Time(Decimal(3), "ep"), Time(3.0, "ep"), Time(Fraction(3), "ep"), Time(np.int64(3), "ep")
    assert len({*whole, Time(3, "ep")}) == 1 and all(type(each.value) is int for each in whole)


@pytest.mark.parametrize(
    ("value", "unit"),
    [
        *[(value, "ba") for value in (float("nan"), float("inf"), True, None, "3", [3], 1j, np.bool_(True), 0.5)],
        *[(Fraction(1, 3), unit) for unit in COUNTS],
        (10**400, "dur"),
        (Decimal("1e-99999999"), "dur"),
        (Decimal("sNaN"), "ba"),
        (3, "to\u212a"),
        (3, "batches"),
        (3, None),
    ],
)
def test_bad_values(value, unit):
    with pytest.raises(TimeError) as error:
        Time(value, unit)
    assert len(str(error.value)) > 20


BAD_TEXTS = [
    *("", "3", "ba", "nanba", "infdur", "3 ba", " 3ba", "3ba ", "3ba\n", "٣ba", "3ＢＡ", "1__0ba", "_1ba", "1_ba"),
    *("5to\u212a", "90\u017f", "0e99999999999999999999ba", "3x", "1e400tok", "1e-400dur", "1e999999999tok", "1/0dur"),
    *("h", "m5s", "20m1h", "0x10ba", "3.5.1ba", "--3ba", "500mtok"),
]


@pytest.mark.parametrize("text", [*BAD_TEXTS, "1.1iter", "2.1ba", "3.2sp", "3.4tok", "1/3ba", "1.0001Ktok"])
def test_bad_texts(text):
    with pytest.raises(TimeError) as error:
        Time.from_timestring(text)
    assert repr(text[:10])[1:-1] in str(error.value) or "count" in str(error.value)


OPERATIONS = ("==", "!=", "<", "<=", ">", ">=", "+", "-", "%", "/", "*")


@pytest.mark.parametrize(
    "bad",
    [
        *(f"Time(1, 'ep') {operation} Time(1, 'ba')" for operation in OPERATIONS),
        *(f"Time(3, 'ba') {rest}" for rest in ("* 0.5", "/ 2", "+ 0.5", "* nan", "< nan", "+ True", "* [1]")),
        *("Time.from_timedelta('3ba')", "Time.from_timedelta('3600sec')", "Time.from_timestring(3)"),
        *("Time.from_input(1)", "Time.from_input(None)"),
        *(f"Timestamp({which})" for which in ("epoch='3ba'", "batch=-1", "epoch=0.5", "total_wct=3")),
        *(f"Timestamp().{call}" for call in ("get('dur')", "get('weeks')", "to_next_batch(-1)", "copy(batches=1)")),
        *("Timestamp() < 3", "Timestamp() < '3'"),
    ],
)
def test_refused(bad):
    """Units never mix silently; and one error is there for every habit of catching."""
    with pytest.raises(TypeError) as error:
        eval(bad, {"Time": Time, "Timestamp": Timestamp, "nan": float("nan")})
    if bad.startswith(("Time(1, 'ep')", "Time.from_input")):
        assert isinstance(error.value, ValueError) and isinstance(error.value, RuntimeError)
        assert re.search("epochs|units differ|'dur'|None: a NoneType|1 has no unit", str(error.value))


@pytest.mark.parametrize(("number", "text"), [(1, "1ba"), (12, "12ba"), (0.5, "0.5dur")])
def test_a_number_without_unit_is_shown_with_one(number, text):
    with pytest.raises(TimeError, match=rf"^{number} has no unit\. .*, such as '{text}'\.$"):
        Time.from_input(number)


def test_seconds_may_be_fractional():
    """Exactly as epochs, with all that a time does; from a timedelta to the microsecond."""
    time = Time(0.05, "sec")
    assert (time.value, str(time), repr(time)) == (Fraction(1, 20), "0.05sec", "Time(0.05, TimeUnit.SECOND)")
    assert Time.from_timedelta(datetime.timedelta(microseconds=50_001)) == Time(Fraction(50_001, 10**6), "sec")
    assert Time.from_timedelta(datetime.timedelta(milliseconds=50)) == time == Time(1, "sec") * 0.05 == "0.05s"
    assert (time + 1, time / 2, float(time), int(time), time < 1) == ("1.05sec", Time(0.025, "sec"), 0.05, 0, True)
    assert hash(Time(2.0, "sec")) == hash(Time(2, "sec")) and type(Time(2.0, "sec").value) is int
    stamp = Timestamp(total_wct=datetime.timedelta(milliseconds=1050))
    assert stamp.get("sec") == 1 and stamp == "1.05sec" and Time(1.05, "sec") == stamp
    assert stamp > "1sec" and stamp >= "1.05sec" and stamp < "1.06sec" and Time(1, "sec") < stamp


def test_division_by_nothing():
    for nothing in (0, Time(0, "ba")):
        for operation in (operator.truediv, operator.mod):
            with pytest.raises(ZeroDivisionError, match="1ba"):
                operation(Time(1, "ba"), nothing)


def test_a_time_never_changes():
    time = Time(1, "ba")
    for name in ("value", "_exact", "_unit"):
        with pytest.raises(AttributeError):
            setattr(time, name, 2)
    assert time == 1


@given(timestamps())
def test_a_timestamp_survives(stamp):
    other = Timestamp()
    other.load_state_dict(stamp.state_dict())
    for same in (other, eval(repr(stamp)), pickle.loads(pickle.dumps(stamp)), stamp.copy()):
        assert same == stamp and repr(same) == repr(stamp)
    for unit in TimeUnit:
        assert pickle.loads(pickle.dumps(unit)) is copy.deepcopy(unit) is unit and f"{unit}" == str(unit)
        if unit is not TimeUnit.DURATION:
            assert stamp == stamp.get(unit) == stamp.get(unit.value) and stamp.get(unit) <= stamp
    with pytest.raises(TypeError, match="'batches' is not a field"):
        stamp.copy(batches=1)


@given(horizons())
def test_a_horizon_survives(horizon):
    assert isinstance(horizon, Horizon) and pickle.loads(pickle.dumps(horizon)) == horizon
