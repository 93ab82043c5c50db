"""Our Timestamp next to Composer's: the same steps, comparisons, texts, and each other's state dicts."""

from __future__ import annotations

import copy
import datetime
import operator
import pickle
from typing import Any

import pytest
from composer.core import Time as ComposerTime
from composer.core import Timestamp as ComposerTimestamp
from hypothesis import given
from hypothesis import strategies as st

from tests.parity.test_time import outcome, same
from timesched import Time, Timestamp

COUNTERS = [
    "iteration",
    "epoch",
    "batch",
    "sample",
    "token",
    "epoch_in_iteration",
    "token_in_iteration",
    "batch_in_epoch",
    "sample_in_epoch",
    "token_in_epoch",
]
CLOCKS = ["total_wct", "iteration_wct", "epoch_wct", "batch_wct"]
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]

counts = st.fixed_dictionaries({name: st.integers(0, 10**12) for name in COUNTERS})
durations = st.timedeltas(datetime.timedelta(0), datetime.timedelta(days=100))
clocks = st.fixed_dictionaries({name: durations for name in CLOCKS})


def equal(ours: Timestamp, theirs: ComposerTimestamp) -> bool:
    """Alike in every field, and in the texts and dicts that they are written as."""
    for name in COUNTERS:
        assert same(getattr(ours, name), getattr(theirs, name))
    return (ours.state_dict(), repr(ours)) == (theirs.state_dict(), repr(theirs))


@given(counts=counts, clocks=clocks)
def test_fields_and_state_dicts_both_ways(counts: dict[str, int], clocks: dict[str, Any]) -> None:
    ours, theirs = Timestamp(**counts, **clocks), ComposerTimestamp(**counts, **clocks)
    assert equal(ours, theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    loaded, back = Timestamp(), ComposerTimestamp()
    loaded.load_state_dict(theirs.state_dict())
    back.load_state_dict(ours.state_dict())
    assert equal(loaded, back)
    assert loaded == ours
    assert back == theirs
    for unit in ("iter", "ep", "ba", "sp", "tok", "sec", "BATCH", "token"):
        assert same(ours.get(unit), theirs.get(unit))


steps = st.lists(
    st.one_of(
        st.tuples(st.just("to_next_batch"), st.integers(0, 999), st.integers(0, 99999), durations),
        st.tuples(st.just("to_next_epoch"), durations),
        st.tuples(st.just("to_next_iteration"), durations),
        st.sampled_from([("to_next_batch",), ("to_next_epoch",), ("to_next_iteration",)]),
    ),
    max_size=30,
)


@given(steps=steps)
def test_steps(steps: list[tuple[Any, ...]]) -> None:
    """Batches, epochs and iterations in any order, with and without samples, tokens and durations."""
    ours, theirs = Timestamp(), ComposerTimestamp()
    for name, *arguments in steps:
        before = ours.state_dict()
        after = getattr(ours, name)(*arguments)
        assert ours.state_dict() == before
        ours, theirs = after, getattr(theirs, name)(*arguments)
        assert equal(ours, theirs)


@given(value=st.integers(0, 5), other=st.integers(0, 5), unit=st.sampled_from(["iter", "ep", "ba", "sp", "tok", "sec"]))
def test_comparisons(value: int, other: int, unit: str) -> None:
    """With a time and a text, on either side, on the counter of that unit."""
    names = {"iter": "iteration", "ep": "epoch", "ba": "batch", "sp": "sample", "tok": "token"}
    field = {names[unit]: value} if unit in names else {"total_wct": datetime.timedelta(seconds=value)}
    ours, theirs = Timestamp(**field), ComposerTimestamp(**field)
    for function in COMPARISONS:
        expected = function(value, other)
        assert function(ours, Time(other, unit)) is function(theirs, ComposerTime(other, unit)) is expected
        assert function(ours, f"{other}{unit}") is function(theirs, f"{other}{unit}") is expected
        flipped = function(other, value)
        assert function(Time(other, unit), ours) is flipped
        # Composer's Time does not know its own Timestamp: never equal, and no order.
        backwards = outcome(function, ComposerTime(other, unit), theirs)
        if function in (operator.eq, operator.ne):
            assert backwards is (function is operator.ne)
        else:
            assert isinstance(backwards, TypeError)
        assert function(f"{other}{unit}", ours) is function(f"{other}{unit}", theirs) is flipped


@pytest.mark.parametrize("other", [3, 2.5, None, [], "a lot", "0.5dur"])
@pytest.mark.parametrize("function", COMPARISONS)
def test_comparisons_with_anything_else(function: Any, other: Any) -> None:
    mine, theirs = outcome(function, Timestamp(), other), outcome(function, ComposerTimestamp(), other)
    if isinstance(theirs, Exception):
        assert isinstance(mine, type(theirs))
    else:
        assert mine is theirs


@pytest.mark.parametrize("function", COMPARISONS[2:])
def test_two_timestamps_have_no_order(function: Any) -> None:
    for cls in (Timestamp, ComposerTimestamp):
        assert isinstance(outcome(function, cls(), cls(batch=1)), TypeError)


def test_equality_copies_and_hash() -> None:
    for cls in (Timestamp, ComposerTimestamp):
        stamp = cls(epoch=1, batch=4)
        assert stamp == cls(epoch="1ep", batch=4) == stamp.copy() == copy.deepcopy(stamp)
        assert stamp == pickle.loads(pickle.dumps(stamp))
        assert stamp != cls(epoch=1, batch=5) == stamp.copy(batch=5)
        assert isinstance(outcome(hash, stamp), TypeError)
    assert equal(Timestamp(batch=3).copy(sample=7), ComposerTimestamp(batch=3).copy(sample=7))


def test_epoch_in_iteration_can_be_set() -> None:
    for cls in (Timestamp, ComposerTimestamp):
        stamp = cls()
        stamp.epoch_in_iteration = 4
        assert stamp.epoch_in_iteration == 4
        assert isinstance(outcome(setattr, stamp, "epoch_in_iteration", "4ba"), ValueError)
        assert isinstance(outcome(setattr, stamp, "batch", 4), AttributeError)


@pytest.mark.parametrize("name", COUNTERS)
def test_a_counter_in_another_unit_is_refused(name: str) -> None:
    for cls in (Timestamp, ComposerTimestamp):
        assert isinstance(outcome(lambda cls=cls: cls(**{name: "3sec"})), ValueError)


def test_dur_has_no_counter() -> None:
    for cls in (Timestamp, ComposerTimestamp):
        assert isinstance(outcome(cls().get, "dur"), ValueError)
        assert isinstance(outcome(cls().get, "days"), ValueError)


def test_old_and_broken_state_dicts() -> None:
    """Fields that older versions did not write keep their value; what was always there is asked for."""
    newer = ["iteration", "epoch_in_iteration", "token_in_iteration", *CLOCKS]
    full = ComposerTimestamp(iteration=1, epoch=2, batch=3, sample=4, token=5).state_dict()
    old = {name: value for name, value in full.items() if name not in newer}
    ours, theirs = Timestamp(iteration=9), ComposerTimestamp(iteration=9)
    ours.load_state_dict(old)
    theirs.load_state_dict(old)
    assert equal(ours, theirs)
    assert ours.iteration == 9
    for name in old:
        broken = {key: value for key, value in full.items() if key != name}
        for stamp in (Timestamp(), ComposerTimestamp()):
            assert isinstance(outcome(stamp.load_state_dict, broken), KeyError)


def test_negative_counters_are_refused() -> None:
    """Composer takes them."""
    assert ComposerTimestamp(batch=-1).batch.value == -1
    assert isinstance(outcome(lambda: Timestamp(batch=-1)), ValueError)
    assert isinstance(outcome(lambda: Timestamp(batch=1).to_next_batch(samples=-1)), ValueError)
