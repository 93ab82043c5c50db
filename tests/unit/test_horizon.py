"""Horizon: conversion, the ratio, and what it refuses."""

import math
import pickle
import types
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from timesched import (
    CosineAnnealingWarmRestartsScheduler,
    CyclicScheduler,
    HalfLife,
    Horizon,
    InverseSquareRootWithWarmupScheduler,
    LinearScheduler,
    StepScheduler,
    Time,
    Timestamp,
    TimeUnit,
)
from timesched.testing.runs import COUNTED, RATIOS, runs
from timesched.time.units import EpochCounter


@given(runs(), st.integers(0, 10**9), st.data())
def test_conversion_is_exact_and_turns_back(run, batches, data):
    there, back = data.draw(st.sampled_from(COUNTED)), data.draw(st.sampled_from(COUNTED))
    horizon = run.horizon()
    count = batches * run.per_batch(there)
    assert horizon.change(count, there, back) == batches * run.per_batch(back)
    assert horizon.change(horizon.change(count, there, back), back, there) == count


@given(runs(), RATIOS | st.fractions(Fraction(1, 10**9), 10**9))
def test_the_ratio_is_exact(run, sigma):
    horizon = Horizon(run.time(run.batches, run.unit), batches_per_epoch=1 / sigma, tokens_per_sample=sigma, ssr=sigma)
    assert horizon.max_duration.exact == run.horizon().max_duration.exact * sigma
    assert eval(repr(horizon), {"Horizon": Horizon, "Fraction": Fraction}) == horizon


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_float_ratio_is_the_quotient_that_it_rounds(p, q):
    """The new length over the old one, as people write it: the run has exactly the new length."""
    assert Horizon(f"{q}ba", ssr=p / q).max_duration == f"{p}ba"
    assert Horizon.of(Horizon(f"{q}ba", ssr=Fraction(p, q)), p / q).ssr == p / q


@given(st.decimals("0.001", 1000, places=9))
@example(Decimal("1.6666667"))
@example(Decimal("123456.1234567"))
@example(Decimal("1e-300"))
def test_any_other_float_ratio_is_its_decimal(ratio):
    simple = Fraction(ratio).limit_denominator()
    expected = simple if float(simple) == float(ratio) and simple.numerator <= 10**6 else Fraction(ratio)
    assert Horizon("1ba", ssr=float(ratio)).max_duration.exact == expected


def test_a_scaled_length_may_be_half_a_batch():
    run = Horizon("3ba", ssr=0.5)
    assert (run.max_duration.exact, str(run.max_duration)) == (Fraction(3, 2), "1.5ba")
    assert Time(1, "ba") < run.max_duration <= Time(2, "ba")
    assert Horizon("3ba", ssr=0.1).max_duration.exact == Fraction(3, 10)


def test_convert():
    run = Horizon("10ep", batches_per_epoch=50, samples_per_batch=32, tokens_per_sample=0.5)
    assert [run.convert("2ep", unit) for unit in COUNTED] == ["2ep", "100ba", "3200sp", "1600tok"]
    assert run.convert("1600tok", "ep") == "2ep" and run.convert("0.2dur", "sp") == "3200sp"
    assert run.convert("16tok", "ep") == Time(Fraction(1, 50), "ep") and run.convert("250ba", "dur") == "0.5dur"
    assert run.convert("3iter", "iter") == "3iter" and run.convert("0ba", "tok") == "0tok"
    with pytest.raises(ValueError, match="0.0625ba is not a whole count"):
        run.convert("1tok", "ba")
    with pytest.raises(ValueError, match="1ba .* to sec: no conversion factor"):
        run.convert("1ba", "sec")
    with pytest.raises(ValueError, match="max_duration: 3 has no unit"):
        Horizon(3)


def test_the_missing_conversion_factor_is_named():
    for time, unit, missing in (("1ep", "ba", "batches_per_epoch"), ("1tok", "sp", "tokens_per_sample")):
        with pytest.raises(ValueError, match=rf"{time} .* without {missing}.* {missing}="):
            Horizon("1iter").convert(time, unit)
    with pytest.raises(ValueError, match="1tok cannot be converted to ep") as error:
        Horizon("1iter").convert("1tok", "ep")
    names = "batches_per_epoch (the state's dataloader_len) and samples_per_batch and tokens_per_sample"
    assert f"without {names}. Pass " in str(error.value)


def test_an_epoch_is_counted_in_batches_only_if_its_length_is_known():
    assert Horizon("2ep").place(Time(0.5, "ep")) == (Fraction(1, 2), TimeUnit.EPOCH)
    assert Horizon("2ep", batches_per_epoch=10).place(Time(0.5, "dur")) == (10, EpochCounter(10))


@pytest.mark.parametrize(
    ("argument", "bad"),
    [
        *(("max_duration", bad) for bad in ("0ba", "-1ba", "1dur", "ten")),
        *(("ssr", bad) for bad in (0, float("inf"), "0.5")),
        *(("batches_per_epoch", 0), ("samples_per_batch", -1), ("tokens_per_sample", True)),
        ("tokens_per_sample", float("nan")),
    ],
)
def test_bad_horizons(argument, bad):
    with pytest.raises(ValueError, match=f"^{argument}(=|: ){bad!r}"):
        Horizon(**{"max_duration": "1ba", argument: bad})


def test_a_horizon_without_a_length_and_one_that_is_made():
    for call in (lambda: Horizon(None).place(Time(0.5, "dur")), lambda: Horizon(None).convert("1ba", "dur")):
        with pytest.raises(ValueError, match="max_duration"):
            call()
    with pytest.raises(AttributeError):
        Horizon("1ba").ssr = 2.0


def a_state(max_duration="10ba", **more):
    return types.SimpleNamespace(timestamp=Timestamp(), max_duration=max_duration, dataloader_len=None, **more)


RUN = Horizon("10ba", ssr=0.5)


@pytest.mark.parametrize(
    ("state", "ssr", "words"),
    [
        (a_state(ssr=0.5, horizon=Horizon("10ba")), None, "ssr=0.5: it contradicts .* 1.0"),
        (a_state(ssr=1.0, horizon=RUN), None, "ssr=1.0: it contradicts .* 0.5"),
        (a_state(horizon=Horizon("10ba")), 0.5, "ssr=0.5: it contradicts .* 1.0"),
        (a_state(ssr=0.5), 1.0, "ssr=1.0: it contradicts .* 0.5"),
        (RUN, 1.0, "ssr=1.0: it contradicts .* 0.5"),
        *((a_state(ssr=bad), 1.0, "ssr=") for bad in (0, -1, math.nan, math.inf, True, "1", [1])),
        (a_state(ssr=1.0), 0, "ssr=0"),
        (a_state(horizon=Horizon("1ba")), math.nan, "ssr=nan"),
        (a_state("-1ba"), None, "max_duration='-1ba'"),
        (a_state("-0.5ep"), None, "max_duration='-0.5ep'"),
    ],
    ids=str,
)
def test_states_of_no_ratio_or_length(state, ssr, words):
    with pytest.raises(ValueError, match=words):
        Horizon.of(state, ssr)
    if not isinstance(state, Horizon):
        with pytest.raises(ValueError, match=words):
            LinearScheduler()(state, ssr)


def test_ratios_that_agree():
    for state, ssr in ((a_state(ssr=0.5, horizon=RUN), None), (a_state(horizon=RUN), 0.5), (RUN, 0.5)):
        assert Horizon.of(state, ssr) is RUN
    assert Horizon.of(a_state(ssr=0.5), 0.5) == Horizon("20ba", ssr=0.5) == Horizon.of(a_state(), 0.5)


def test_the_repr_of_a_state_that_is_scaled_already():
    run = Horizon.of(a_state(ssr=0.5))
    assert run.max_duration == "10ba" and repr(run) == "Horizon('20ba', ssr=0.5)" and eval(repr(run)) == run
    longer = run.with_epochs(5)
    assert longer.max_duration == "10ba" and eval(repr(longer)) == longer == pickle.loads(pickle.dumps(longer))


@pytest.mark.parametrize("length", ["0ba", "0ep", Time(0, "tok"), 0])
def test_a_state_stopped_at_once_has_length_0(length):
    """Composer's stop_training() sets max_duration to where the run is: before the first batch, that is 0."""
    state = a_state(length)
    assert Horizon.of(state).max_duration == 0 and Horizon.of(state).progress(state.timestamp) == 1
    assert LinearScheduler()(state) == 0.0 and StepScheduler("1ba")(state) == 1.0


@pytest.mark.parametrize("batch", [0, 3])
def test_a_period_of_a_run_of_length_0_has_length_1(batch):
    state = types.SimpleNamespace(timestamp=Timestamp(batch=batch), max_duration="0ba", dataloader_len=None)
    schedules = [
        (StepScheduler, {}),
        (CyclicScheduler, {}),
        (CyclicScheduler, {"t_down": "2ba"}),
        (CosineAnnealingWarmRestartsScheduler, {}),
        (CosineAnnealingWarmRestartsScheduler, {"t_mult": 2.0}),
    ]
    for schedule, arguments in schedules:
        assert schedule("0.1dur", **arguments)(state) == schedule("1ba", **arguments)(state)
    assert CyclicScheduler("2ba", "0.1dur")(state) == pytest.approx((0.1, 0.55)[batch % 2])
    roots = [InverseSquareRootWithWarmupScheduler("10ba", t_scale, "0ba") for t_scale in ("0.1dur", "1ba")]
    assert roots[0](state) == roots[1](state)
    assert HalfLife("0.1dur").at(state.timestamp, state) == HalfLife("1ba").at(state.timestamp, state) == 0.5
