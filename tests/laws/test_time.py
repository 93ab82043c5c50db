"""Laws 1 to 3: times are exact, and what is no time is refused."""

import copy
import datetime
import pickle
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.rows import schedules
from timesched import Horizon, MultiStepScheduler, Schedule, Time, TimeError, Timestamp, TimeUnit, ensure_time
from timesched.testing import horizons, times, timestamps

COUNTS = [unit for unit in TimeUnit if unit.value not in ("ep", "dur", "sec")]


@given(times())
def test_text_reads_back(time):
    assert Time.from_timestring(str(time)) == time
    assert Time.from_timestring(str(time).upper()) == time
    assert eval(repr(time)) == time
    assert str(Time.from_timestring(str(time))) == str(time)


@pytest.mark.parametrize(
    ("unit", "values"),
    [
        ("tok", {"1e12tok": 10**12, "9007199254740993tok": 2**53 + 1}),
        ("ba", {"1_000ba": 1000, "-7ba": -7}),
        ("sp", {"3_0e10SP": 30 * 10**10, "030.0sp": 30}),
        ("iter", {"+7iter": 7}),
        ("ep", {"2.50e1ep": 25, ".5ep": Fraction(1, 2)}),
        ("dur", {"0.29dur": 0.29, "1/4dur": 0.25}),
        ("sec", {"1h20m40s": 4840, "90s": 90, "60m": 3600, "24h": 86400, "100H": 360000, "1.5h": 5400, "5sec": 5}),
        ("sec", {"0.05sec": Fraction(1, 20), "1/3sec": Fraction(1, 3), "1m0.25s": Fraction(241, 4)}),
    ],
)
def test_text(unit, values):
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


def test_the_named_truncations():
    assert Time.from_timestring("0.29dur") * Time(100, "ba") == Time(29, "ba")
    assert Time.from_timestring("0.1dur") * Time(30, "ba") == Time(3, "ba")
    assert Time(2**53 + 1, "tok") - Time(2**53, "tok") == Time(1, "tok")
    assert Time(0.1, "dur") + Time(0.2, "dur") == Time(0.3, "dur")


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


def test_numbers_stand_for_times_of_the_same_unit():
    assert Time(3, "ba") + 4 == 7 and 10 - Time(3, "ba") == "7ba" and Time(3, "ba") < 3.5 and Time(2, "ba") >= 2
    assert 0.5 * Time(4, "ba") == Time(2, "ba") == Time(4, "ba") / 2 and "1ba" + Time(2, "ba") == 3
    assert Time(0.5, "dur") * "4ep" == "2ep" and "4ep" * Time(0.5, "dur") == "2ep"
    assert Time(1, "ep") / 2 == Time(0.5, "ep") and Time(1, "ep") / "3ep" == Time.from_timestring("1/3dur")
    assert (Time(3, "ba") == None, Time(3, "ba") == [3], Time(1, "ba") == True) == (False, False, False)  # noqa: E711, E712


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
    *("h", "m5s", "20m1h", "0x10ba", "3.5.1ba", "--3ba"),
]


@pytest.mark.parametrize("text", [*BAD_TEXTS, "1.1iter", "2.1ba", "3.2sp", "3.4tok", "1/3ba"])
def test_bad_texts(text):
    with pytest.raises(TimeError) as error:
        Time.from_timestring(text)
    assert repr(text[:10])[1:-1] in str(error.value) or "count" in str(error.value)


@pytest.mark.parametrize("kind", [ValueError, TypeError, RuntimeError])
@pytest.mark.parametrize("bad", ["Time(1, 'ep') < Time(1, 'ba')", "Time.from_input(None)", "Time.from_input(1)"])
def test_one_error_for_every_habit_of_catching(kind, bad):
    with pytest.raises(kind):
        eval(bad)


@pytest.mark.parametrize("operation", ["==", "!=", "<", "<=", ">", ">=", "+", "-", "%", "/", "*"])
def test_units_never_mix_silently(operation):
    with pytest.raises(TimeError, match="epochs|units differ|'dur'"):
        eval(f"Time(1, 'ep') {operation} Time(1, 'ba')")


@pytest.mark.parametrize(
    "bad",
    [
        *(f"Time(3, 'ba') {rest}" for rest in ("* 0.5", "/ 2", "+ 0.5", "* nan", "< nan", "+ True", "* [1]")),
        *("Time.from_timedelta('3ba')", "Time.from_timedelta('3600sec')", "Time.from_timestring(3)"),
        *(f"Timestamp({which})" for which in ("epoch='3ba'", "batch=-1", "epoch=0.5", "total_wct=3")),
        *(f"Timestamp().{call}" for call in ("get('dur')", "get('weeks')", "to_next_batch(-1)", "copy(batches=1)")),
        *("Timestamp() < 3", "Timestamp() < '3'"),
    ],
)
def test_refused(bad):
    with pytest.raises(TypeError):
        eval(bad, {"Time": Time, "Timestamp": Timestamp, "nan": float("nan")})


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


@pytest.mark.parametrize("operation", ["/ 0", "/ Time(0, 'ba')", "% Time(0, 'ba')"])
def test_division_by_nothing(operation):
    with pytest.raises(ZeroDivisionError, match="1ba"):
        eval(f"Time(1, 'ba') {operation}")


def test_a_time_never_changes():
    time = Time(1, "ba")
    for name in ("value", "_exact", "_unit"):
        with pytest.raises(AttributeError):
            setattr(time, name, 2)
        with pytest.raises(AttributeError):
            delattr(time, name)
    assert time == 1


def test_constructors_and_conversions():
    made = [getattr(Time, f"from_{unit.name.lower()}")(2) for unit in TimeUnit if unit is not TimeUnit.SECOND]
    assert [(time.value, time.unit) for time in made] == [(2, u) for u in TimeUnit if u is not TimeUnit.SECOND]
    assert Time.from_timedelta(datetime.timedelta(minutes=2)) == "2m" == ensure_time("120sec", "ba")
    assert Time.from_timedelta("2m") == Time.from_timedelta("120s") == Time(120, "sec")
    assert ensure_time(5, "ba") == Time(5, "ba") and float(Time(0.5, "dur")) == 0.5 and int(Time(7, "ba")) == 7
    assert (int(Time(29, "ba") / Time(10, "ba")), int(Time(-0.5, "ep"))) == (2, 0)
    assert Time[int] and repr(Time(3, "tok")) == "Time(3, TimeUnit.TOKEN)"


@pytest.mark.parametrize("name", ["ep", "EP", "epoch", "Epoch", TimeUnit.EPOCH])
def test_units(name):
    unit = TimeUnit(name)
    assert unit is TimeUnit.EPOCH and unit == name and hash(unit) == hash(TimeUnit.EPOCH)
    assert (unit != "ba", unit != 3, unit != "EP", unit == TimeUnit.BATCH) == (True, True, False, False)
    assert (repr(unit), str(unit), f"{unit}", f"{unit:>15}") == (
        *("<TimeUnit.EPOCH: 'ep'>", "TimeUnit.EPOCH", "TimeUnit.EPOCH", " TimeUnit.EPOCH"),
    )
    assert pickle.loads(pickle.dumps(unit)) is copy.deepcopy(unit) is unit and unit.value == "ep"


@given(timestamps())
def test_a_timestamp_survives(stamp):
    other = Timestamp()
    other.load_state_dict(stamp.state_dict())
    for same in (other, eval(repr(stamp)), pickle.loads(pickle.dumps(stamp)), stamp.copy()):
        assert same == stamp and repr(same) == repr(stamp)
    for unit in TimeUnit:
        if unit is not TimeUnit.DURATION:
            assert stamp == stamp.get(unit) == stamp.get(unit.value) and stamp.get(unit) <= stamp


@given(timestamps(), st.integers(0, 10**6), st.integers(0, 10**6), st.timedeltas(datetime.timedelta(0)))
def test_a_timestamp_counts(stamp, samples, tokens, took):
    took, none = min(took, datetime.timedelta(days=1)), datetime.timedelta(0)
    after = stamp.to_next_batch(samples, Time(tokens, "tok"), took)
    assert after.batch - stamp.batch == 1 == after.batch_in_epoch - stamp.batch_in_epoch
    assert after.sample - stamp.sample == samples == after.sample_in_epoch - stamp.sample_in_epoch
    assert after.token - stamp.token == tokens == after.token_in_iteration - stamp.token_in_iteration
    assert (after.epoch, after.iteration, after.batch_wct) == (stamp.epoch, stamp.iteration, took)
    assert stamp.to_next_batch() == stamp.to_next_batch(0, 0, none)
    epoch, inner = after.to_next_epoch(took), ("batch_in_epoch", "sample_in_epoch", "token_in_epoch")
    assert [getattr(epoch, name).value for name in inner] == [0, 0, 0]
    assert epoch.epoch_in_iteration == after.epoch_in_iteration + 1
    assert epoch.iteration_wct == after.iteration_wct + took
    later = epoch.to_next_iteration(took)
    assert later.total_wct == stamp.total_wct + 3 * took and later.batch == after.batch
    assert later.epoch == stamp.epoch + 1 and later.iteration == stamp.iteration + 1
    assert epoch.epoch_wct == epoch.batch_wct == later.iteration_wct == later.epoch_wct == later.batch_wct == none
    assert [getattr(later, name).value for name in (*inner, "epoch_in_iteration", "token_in_iteration")] == [0] * 5


def test_a_timestamp_is_loaded_whole_or_not_at_all():
    stamp = Timestamp(batch=3, epoch=1)
    for state in ({**stamp.state_dict(), "token": -1}, {**stamp.state_dict(), "batch_wct": 3}, {"batch": 5}):
        with pytest.raises((TypeError, KeyError)):
            stamp.load_state_dict(state)
        assert stamp == Timestamp(batch=3, epoch=1)
    with pytest.raises(AttributeError, match=r"copy\(batch"):
        stamp.batch = 4
    stamp.epoch_in_iteration = 2
    assert stamp.epoch_in_iteration == Time(2, "ep")


@given(horizons(), schedules())
def test_hypothesis_knows_our_types(horizon, schedule):
    assert isinstance(horizon, Horizon) and isinstance(schedule, Schedule)
    assert pickle.loads(pickle.dumps(horizon)) == horizon and hash(pickle.loads(pickle.dumps(horizon))) == hash(horizon)
