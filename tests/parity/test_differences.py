"""Where we differ from Composer on purpose: our exact value or error, and proof that Composer's is another.

docs/differences.md says why; that ours are right is for tests/laws.
"""

from __future__ import annotations

import datetime
import math
from typing import Any

import composer.optim
import pytest

import timesched
from tests.parity.rows import at, pair, state_of

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
    ("Linear", {"t_max": "100sec"}, "10ba", 1.0, {"total_wct": datetime.timedelta(seconds=25.9)}, 0.75, "Wall clock"),
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
    ("Linear", {}, None, 1.0, {"batch": 5}, "set max_duration", ""),
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
