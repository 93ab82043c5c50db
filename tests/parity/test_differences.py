"""Where we differ from Composer on purpose: our exact value or error, and proof that Composer's is another."""

from __future__ import annotations

import datetime
import math
from itertools import pairwise
from typing import Any

import composer.optim
import pytest
from composer.core import Timestamp as ComposerTimestamp

import timesched
from tests.parity.rows import at, pair, state_of


def both(name: str, given: dict[str, Any], max_duration: str, ratio: float, batches: range) -> tuple[Any, Any]:
    """The values of our schedule and of Composer's, batch by batch."""
    ours, theirs = pair(name, given)
    state, counts = state_of(max_duration), [{"batch": batch, "epoch": batch // 8} for batch in batches]
    return [ours(at(state, **c), ratio) for c in counts], [theirs(at(state, **c), ratio) for c in counts]


@pytest.mark.parametrize(
    ("milestone", "length", "ours", "theirs"),
    [
        ("0.29dur", 100, 29, 28),  # 0.29 * 100 is 28.999999999999996 in floats
        ("0.57dur", 100, 57, 56),
        ("0.29dur", 10, 3, 2),  # batch 2.9 is reached at batch 3
        ("0.999dur", 3, 3, 2),
    ],
)
def test_a_part_of_the_run_is_not_truncated(milestone: str, length: int, ours: int, theirs: int) -> None:
    """The first batch at which the milestone counts."""
    given = {"milestones": [milestone], "gamma": 0.5}
    values = both("MultiStepScheduler", given, f"{length}ba", 1.0, range(length + 1))
    assert [each.index(0.5) for each in values] == [ours, theirs]


def test_a_scaled_time_is_not_truncated() -> None:
    """Half of five batches is 2.5, half of three is 1.5."""
    ours, theirs = both("LinearScheduler", {"t_max": "5ba"}, "10ba", 0.5, range(4))
    assert ours == [1.0, 0.6, pytest.approx(0.2, abs=1e-15), 0.0]
    assert theirs == [1.0, 0.5, 0.0, 0.0]
    ours, theirs = both("StepScheduler", {"step_size": "3ba", "gamma": 0.5}, "10ba", 0.5, range(7))
    assert ours == [0.5**n for n in (0, 0, 1, 2, 2, 3, 4)]
    assert theirs == [0.5**n for n in range(7)]


def test_a_cycle_is_not_truncated() -> None:
    """Cycles of 3, 4.5 and 6.75 batches, which begin at 0, 3 and 7.5."""
    ours, theirs = both("CosineAnnealingWarmRestartsScheduler", {"t_0": "3ba", "t_mult": 1.5}, "20ba", 1.0, range(9))
    assert ours[:7] == pytest.approx(theirs[:3] + [(1 + math.cos(math.pi * n / 4.5)) / 2 for n in range(4)], abs=1e-15)
    assert ours[8] == pytest.approx((1 + math.cos(math.pi * 0.5 / 6.75)) / 2, abs=1e-15)
    assert theirs[7] == 1.0 != ours[7]  # 4.5 became 4


@pytest.mark.parametrize("name", ["Linear", "CosineAnnealing", "Polynomial", "Constant", "MultiStep"])
def test_a_scaled_warmup_ends_where_its_ramp_does(name: str) -> None:
    """At ratio 2 Composer's ramp is cut off half way up; ours goes on to the peak, twice as far along.

    At ratio 0.5 Composer's ramp is up after 2 batches and then waits for batch 4; ours goes on at once.
    """
    given = {"t_warmup": "4ba", "scale_warmup": True} | ({"milestones": ["12ba"]} if name == "MultiStep" else {})
    ours, theirs = both(f"{name}WithWarmupScheduler", given, "8ba", 0.5, range(9))
    assert ours[:3] == theirs[:3] == [0.0, 0.5, 1.0]
    if name not in ("Constant", "MultiStep"):
        assert theirs[3:5] == [1.0, 1.0]
        assert 1.0 > ours[3] > ours[4] > ours[5]
    ours, theirs = both(f"{name}WithWarmupScheduler", given, "32ba", 2.0, range(33))
    assert ours[:9] == [n / 8 for n in range(9)]
    assert theirs[:5] == [*ours[:4], 1.0]
    assert max(abs(b - a) for a, b in pairwise(ours[:12])) <= 0.125


def test_unlike_units_in_one_warmup() -> None:
    """A clock with rates converts what Composer refuses; a State has no such rates, and both refuse."""
    ours, theirs = pair("LinearWithWarmupScheduler", {"t_warmup": "4ba", "t_max": "64sp"})
    clock = timesched.Clock("64sp", samples_per_batch=4)
    clock.timestamp = timesched.Timestamp(batch=10, sample=40)
    assert ours(clock) == 0.5
    state = at(state_of("64sp"), batch=10, sample=40)
    with pytest.raises(ValueError, match="Cannot use warmup scheduler"):
        theirs(state)
    with pytest.raises(ValueError, match=r"Cannot use warmup scheduler .*samples_per_batch"):
        ours(state)


def test_seconds_are_allowed() -> None:
    ours, theirs = pair("LinearScheduler", {"t_max": "100sec"})
    state = state_of("10ba")
    state.timestamp = ComposerTimestamp(total_wct=datetime.timedelta(seconds=25.9))
    assert ours(state) == 0.75
    with pytest.raises(ValueError, match="Wall clock time"):
        theirs(state)


def test_epochs_without_a_length_are_counted() -> None:
    """Composer needs the length of an epoch for any time in epochs; ours counts the epochs that are over."""
    ours, theirs = pair("LinearScheduler", {"t_max": "4ep"})
    state = at(state_of("100ba", batches_per_epoch=None), epoch=1, batch=99)
    assert state.dataloader_len is None
    assert ours(state) == 0.75
    with pytest.raises(RuntimeError, match="dataloader_len is None"):
        theirs(state)
    assert timesched.LinearScheduler()(at(state_of("4ep", batches_per_epoch=None), epoch=1)) == 0.75
    with pytest.raises(ValueError, match="batches_per_epoch"):
        timesched.LinearWithWarmupScheduler("1ep", t_max="100ba")(state)


@pytest.mark.parametrize(
    ("name", "given", "at_start"),
    [
        ("LinearScheduler", {"alpha_f": 0.25, "t_max": "0ba"}, 0.25),
        ("CosineAnnealingScheduler", {"alpha_f": 0.25, "t_max": "0ba"}, 0.25),
        ("PolynomialScheduler", {"power": 2.0, "alpha_f": 0.25, "t_max": "0dur"}, 0.25),
        ("LinearScheduler", {"alpha_f": 0.25, "t_max": "0.05dur"}, 1.0),  # half a batch, 0 for Composer
    ],
)
def test_a_phase_of_no_length_is_over(name: str, given: dict[str, Any], at_start: float) -> None:
    ours, theirs = pair(name, given)
    state = state_of("10ba")
    assert (ours(at(state)), ours(at(state, batch=1))) == (at_start, 0.25)
    with pytest.raises(ZeroDivisionError):
        theirs(state)


@pytest.mark.parametrize("name", ["LinearWithWarmupScheduler", "CosineAnnealingWithWarmupScheduler"])
def test_a_warmup_of_no_length_is_no_reason_to_warn(name: str) -> None:
    ours, theirs = pair(name, {"t_warmup": "0ba"})
    assert ours(state_of("10ba")) == 1.0
    with pytest.warns(UserWarning, match="The warmup duration is 0"):
        assert theirs(state_of("10ba")) == 1.0


def test_a_run_without_a_length() -> None:
    """Composer asserts a length at every call; ours asks for it where a time in dur needs it."""
    state = at(state_of(None), batch=5)
    ours, theirs = pair("LinearScheduler", {"t_max": "10ba"})
    assert ours(state) == 0.5
    with pytest.raises(AssertionError):
        theirs(state)
    with pytest.raises(ValueError, match="set max_duration"):
        timesched.LinearScheduler()(state)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("StepScheduler", {"step_size": "0ba"}),
        ("StepScheduler", {"step_size": 10}),
        ("CosineAnnealingScheduler", {"t_max": "ten batches"}),
        ("CosineAnnealingScheduler", {"alpha_f": math.nan}),
        ("ConstantScheduler", {"alpha": True}),
        ("MultiStepScheduler", {"milestones": "10ba"}),
        ("ExponentialScheduler", {"gamma": -0.5}),
        ("PolynomialScheduler", {"power": -1.0}),
        ("CosineAnnealingWarmRestartsScheduler", {"t_0": "4ba", "t_mult": 0.5}),
    ],
)
def test_bad_arguments_are_refused_at_once(name: str, given: dict[str, Any]) -> None:
    """Composer takes them all, and some only fail at a call, in the middle of a run, or never."""
    getattr(composer.optim, name)(**given)
    with pytest.raises((ValueError, TypeError), match=name):
        getattr(timesched, name)(**given)
