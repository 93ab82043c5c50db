"""Our schedules and Composer's: the same names, arguments and attributes, and the same multipliers on its own State."""

from __future__ import annotations

import datetime
import inspect
import math
import warnings
from typing import Any

import composer.core.time
import composer.optim
import composer.optim.scheduler
import pytest
from composer.core import Time as ComposerTime

import timesched
from tests.parity.rows import (
    BATCHES_PER_EPOCH,
    LENGTHS,
    RATIOS,
    TABLE,
    at,
    moves_boundary,
    pair,
    scaled,
    state_of,
    timestamps,
    variants,
)

TOLERANCE = 1e-12
NAMED = pytest.mark.parametrize("name", TABLE)


def test_every_public_name_is_there() -> None:
    for module in (composer.core.time, composer.optim.scheduler):
        for name in module.__all__:
            assert getattr(timesched, name).__name__ == name
    names = {name for name in composer.optim.scheduler.__all__ if name.endswith("Scheduler")}
    assert set(TABLE) == names - {"ComposerScheduler"}


@NAMED
def test_arguments_and_defaults(name: str) -> None:
    """In the same order, by position too; a warmup has `alpha_s` as well. None as ssr: the state's own, else 1.0."""
    ours, theirs = getattr(timesched, name), getattr(composer.optim, name)
    expected = [(each.name, each.kind, each.default) for each in inspect.signature(theirs).parameters.values()]
    if "WithWarmup" in name:
        expected.append(("alpha_s", inspect.Parameter.KEYWORD_ONLY, 0.0))
    assert [(each.name, each.kind, each.default) for each in inspect.signature(ours).parameters.values()] == expected
    mine, other = (inspect.signature(each.__call__).parameters for each in (ours, theirs))
    assert list(mine) == list(other) == ["self", "state", "ssr"]
    assert (mine["ssr"].default, other["ssr"].default) == (None, 1.0)


def plain(value: Any) -> Any:
    """A value such that Composer's compares with ours: times as text, lists and tuples alike."""
    if isinstance(value, (str, timesched.Time, ComposerTime)):
        return str(timesched.Time.from_input(value))
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


@NAMED
def test_attributes(name: str) -> None:
    """Those of Composer's schedules and of the nested ones; times may be given as Composer's own."""
    for given in variants(name):
        ours, theirs = pair(name, given)
        for attribute, value in vars(theirs).items():
            mine = getattr(ours, attribute)
            if not callable(value):
                assert plain(mine) == plain(value)
                continue
            assert type(mine).__name__ == type(value).__name__
            for inner, held in vars(value).items():
                assert callable(held) or plain(getattr(mine, inner)) == plain(held), (given, attribute, inner)
        read = ComposerTime.from_timestring
        own = {key: read(value) if isinstance(value, str) else value for key, value in given.items()}
        own |= {"milestones": [read(value) for value in given["milestones"]]} if "milestones" in given else {}
        assert getattr(timesched, name)(**own) == ours


# Values


def theirs_at(schedule: Any, state: Any, *ratio: float) -> float:
    """Composer's value, without its warning about a warmup of no length."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The warmup duration is 0")
        return float(schedule(state, *ratio))


def call(schedule: Any, state: Any, ratio: float) -> float | str:
    """The value, or the kind of complaint."""
    try:
        return theirs_at(schedule, state, ratio)
    except ValueError as error:
        known = ("Cannot use warmup scheduler", "must be greater than or equal to max_duration")
        return next((kind for kind in known if kind in str(error)), str(error))


@pytest.mark.parametrize("ratio", RATIOS)
@NAMED
def test_values(name: str, ratio: float) -> None:
    """On runs measured in ep, ba, sp and tok; what one refuses, both refuse; a clock gives what the State gives."""
    compared = 0
    for unit in LENGTHS:
        state = state_of(scaled(unit, ratio))
        clock = timesched.Clock(f"{LENGTHS[unit]}{unit}", batches_per_epoch=BATCHES_PER_EPOCH, ssr=ratio)
        for given in variants(name):
            ours, theirs = pair(name, given)
            at(state)
            reason = call(theirs, state, ratio)
            if isinstance(reason, str):
                assert call(ours, state, ratio) == reason, (given, unit)
                continue
            is_compared = not moves_boundary(given, ratio)
            for i, (counts, timestamp) in enumerate(timestamps(ratio)):
                state.timestamp = timestamp
                mine = ours(state, ratio)
                if i % 5 == 0:
                    clock.timestamp = timesched.Timestamp(**counts)
                    assert ours(clock) == mine
                    assert ratio != 1.0 or ours(state) == mine
                if is_compared:
                    assert abs(mine - theirs_at(theirs, state, ratio)) <= TOLERANCE, (given, unit, counts)
                    compared += 1
    assert compared > 1000


@pytest.mark.parametrize("name", ["Constant", "Linear", "CosineAnnealing", "Polynomial"])
def test_t_max_shorter_than_the_run(name: str) -> None:
    """Ours refuses where max(t_max, ratio * t_max) is shorter than the state's max_duration."""
    for t_max, ratio, max_duration, ours_refuses, theirs_refuses in (
        ("16ba", 1.0, "16ba", False, False),
        ("15ba", 1.0, "16ba", True, True),
        ("16ba", 0.5, "8ba", False, False),
        ("8ba", 2.0, "16ba", False, False),
        ("7ba", 2.0, "16ba", True, True),
        ("0.5dur", 2.0, "16ba", True, True),  # a part of the run, which the ratio does not stretch again
        ("1ep", 1.0, "16ba", True, True),
        ("15ba", 1.0, "2ep", True, True),
        ("1ba", 1.0, "100sp", False, False),  # nothing converts, so nothing is checked
        # What Composer's Trainer calls with while it is built: the duration is not scaled yet.
        ("16ba", 0.5, "16ba", False, True),
        ("2ep", 0.5, "2ep", False, True),
    ):
        state = state_of(max_duration)
        both = pair(f"{name}WithWarmupScheduler", {"t_warmup": "0" + t_max.lstrip("0.123456789"), "t_max": t_max})
        complaint = "must be greater than or equal to max_duration"
        refuses = [call(schedule, state, ratio) == complaint for schedule in both]
        assert refuses == [ours_refuses, theirs_refuses], (t_max, ratio, max_duration)


def test_multistep_with_warmup_checks_neither_length_nor_units() -> None:
    given = {"t_warmup": "4sp", "milestones": ["2ba", "0.5dur", "3tok"], "gamma": 0.5}
    ours, theirs = pair("MultiStepWithWarmupScheduler", given)
    state = state_of("100ba")
    for counts in (
        {"sample": 2, "token": 1},
        {"sample": 4, "batch": 1, "token": 2},
        {"sample": 5, "batch": 50, "token": 2},
        {"sample": 8, "batch": 2, "token": 3},
    ):
        at(state, **counts)
        assert ours(state, 1.0) == theirs(state, 1.0)
    assert ours(state, 1.0) == 0.25


def test_tokens_that_nobody_counted() -> None:
    """Composer's schedule stays at its peak, and ours refuses, except in batch 0."""
    ours, theirs = pair("LinearScheduler", {"t_max": "100tok"})
    state = state_of("100ba")
    assert ours(state) == theirs(state) == 1.0
    at(state, batch=50, sample=200)
    assert theirs(state) == 1.0
    with pytest.raises(ValueError, match=r"at batch 50, and nobody has counted its tokens. .* get_num_tokens_in_batch"):
        ours(state)


# Where we differ on purpose (docs/coming_from/composer.md): our exact value or error, and proof that theirs is another


WARM = {"t_warmup": "4ba", "scale_warmup": True}
NO_LENGTH = {"alpha_f": 0.25, "t_max": "0ba"}
NEEDS_RATE = "Cannot use warmup scheduler"
UNKNOWN = None  # the number of batches in an epoch

# Schedule and arguments; max_duration, which is scaled already, and ratio; counts; our value, and Composer's, or the
# words of the error.
ROWS: list[tuple[str, dict[str, Any], str | None, float, dict[str, Any], Any, Any]] = [
    # it truncates: 0.29 * 100 is 28.999999999999996 in floats; batch 2.9 is reached at batch 3
    ("MultiStep", {"milestones": ["0.29dur"]}, "100ba", 1.0, {"batch": 28}, 1.0, 0.1),
    ("MultiStep", {"milestones": ["0.29dur"]}, "10ba", 1.0, {"batch": 2}, 1.0, 0.1),
    ("Linear", {"t_max": "5ba"}, "10ba", 0.5, {"batch": 1}, 0.6, 0.5),
    ("Step", {"step_size": "3ba", "gamma": 0.5}, "10ba", 0.5, {"batch": 1}, 1.0, 0.5),
    # cycles of 3, 4.5 and 6.75 batches, which begin at 0, 3 and 7.5
    ("CosineAnnealingWarmRestarts", {"t_0": "3ba", "t_mult": 1.5}, "20ba", 1.0, {"batch": 7},
     (1 + math.cos(math.pi * 4 / 4.5)) / 2, 1.0),
    # at ratio 2 its ramp is cut off half way up; at 0.5 it is up after 2 batches, and waits for batch 4
    *((f"{name}WithWarmup", WARM, "32ba", 2.0, {"batch": 4}, 0.5, 1.0)
      for name in ("Linear", "CosineAnnealing", "Constant")),
    ("PolynomialWithWarmup", {**WARM, "power": 1.0}, "8ba", 0.5, {"batch": 3}, 5 / 6, 1.0),
    ("MultiStepWithWarmup", {**WARM, "milestones": ["12ba"]}, "32ba", 2.0, {"batch": 4}, 0.5, 1.0),
    # seconds, and epochs without a length, which ours counts when they are over
    ("Linear", {"t_max": "100sec"}, "10ba", 1.0, {"total_wct": datetime.timedelta(seconds=25.9)}, 0.741, "Wall clock"),
    ("Linear", {"t_max": "4ep"}, "100ba", UNKNOWN, {"epoch": 1, "batch": 99}, 0.75, "dataloader_len is None"),
    ("LinearWithWarmup", {"t_warmup": "1ep", "t_max": "100ba"}, "100ba", UNKNOWN, {}, "batches_per_epoch", "dataload"),
    # a State has no rates of samples, so both refuse; a clock that has them converts
    ("LinearWithWarmup", {"t_warmup": "4ba", "t_max": "64sp"}, "64sp", 1.0, {"batch": 10, "sample": 40},
     f"{NEEDS_RATE} .*samples_per_batch", NEEDS_RATE),
    # a phase of no length is over; a length that is a part of a batch is none for Composer
    ("Linear", NO_LENGTH, "10ba", 1.0, {}, 0.25, "division by zero"),
    ("CosineAnnealing", NO_LENGTH, "10ba", 1.0, {}, 0.25, "division by zero"),
    ("Polynomial", {**NO_LENGTH, "power": 2.0}, "10ba", 1.0, {}, 0.25, "division by zero"),
    ("Linear", {"alpha_f": 0.25, "t_max": "0.05dur"}, "10ba", 1.0, {}, 1.0, "division by zero"),
    ("LinearWithWarmup", {"t_warmup": "0ba"}, "10ba", 1.0, {}, 1.0, "The warmup duration is 0"),
    # Composer asserts a length at every call; ours asks for it where a time in dur needs it
    ("Linear", {"t_max": "10ba"}, None, 1.0, {"batch": 5}, 0.5, ""),
    ("Linear", {}, None, 1.0, {"batch": 5}, "Set max_duration", ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "length", "ratio", "counts", "ours", "theirs"), ROWS)
def test_a_difference(name: str, given: Any, length: Any, ratio: Any, counts: Any, ours: Any, theirs: Any) -> None:
    state = at(state_of(length) if ratio is not UNKNOWN else state_of(length, UNKNOWN), **counts)
    for schedule, expected in zip(pair(f"{name}Scheduler", given), (ours, theirs)):
        if not isinstance(expected, str):
            assert schedule(state, ratio or 1.0) == pytest.approx(expected, abs=1e-15)
            continue
        with pytest.raises(
            (ValueError, RuntimeError, ArithmeticError, AssertionError, UserWarning), match=expected or None
        ):
            schedule(state, ratio or 1.0)
