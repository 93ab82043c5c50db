"""Our schedules and Composer's give the same multipliers, on Composer's own State."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import timesched
from tests.parity.rows import NAMES, PLAIN, WARM, moves_boundary, pair, variants
from tests.parity.states import BATCHES_PER_EPOCH, LENGTHS, RATIOS, at, moments, scaled, state_of, timestamps

TOLERANCE = 1e-12


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
        text = str(error)
        known = ("Cannot use warmup scheduler", "must be greater than or equal to max_duration")
        return next((kind for kind in known if kind in text), text)


def test_the_table_is_complete() -> None:
    import composer.optim.scheduler as module

    classes = {name for name in module.__all__ if name.endswith("Scheduler") and name != "ComposerScheduler"}
    assert set(NAMES) == classes
    assert len(classes) == 13
    assert all(sum(own == name for own, _ in PLAIN + WARM) >= 2 for name in NAMES)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("name", NAMES)
def test_values(name: str, ratio: float) -> None:
    """Every set of arguments, on runs measured in ep, ba, sp and tok, at every moment that matters.

    Where units do not go together, or t_max is too short for the run, both refuse for the same reason.
    """
    compared = 0
    for unit in LENGTHS:
        state = state_of(scaled(unit, ratio))
        for given in variants(name):
            ours, theirs = pair(name, given)
            reason = call(theirs, state, ratio)
            if isinstance(reason, str):
                assert call(ours, state, ratio) == reason, (given, unit)
                continue
            if moves_boundary(given, ratio):
                continue
            for timestamp in timestamps(ratio):
                state.timestamp = timestamp
                expected = theirs_at(theirs, state, ratio)
                assert abs(ours(state, ratio) - expected) <= TOLERANCE, (given, unit, timestamp)
                compared += 1
            state.timestamp = type(timestamp)()
    assert compared > 1000


@pytest.mark.parametrize(("new", "old"), [(5, 3), (4, 3), (7, 6), (5, 6), (8, 3), (1, 3)])
def test_ratios_that_are_no_decimals(new: int, old: int) -> None:
    """The quotient of two lengths, which a float does not hold exactly."""
    given = {
        "StepScheduler": {"step_size": f"{old}ba", "gamma": 0.5},
        "MultiStepScheduler": {"milestones": [f"{old}ba", f"{4 * old}ba"], "gamma": 0.5},
        "LinearWithWarmupScheduler": {"t_warmup": "2ba", "t_max": f"{6 * old}ba"},
    }
    state = state_of(f"{6 * new}ba")
    for name, arguments in given.items():
        ours, theirs = pair(name, arguments)
        for batch in range(6 * new + 1):
            at(state, batch=batch)
            assert ours(state, new / old) == pytest.approx(theirs(state, new / old), abs=1e-12), (name, batch)


@pytest.mark.parametrize("name", NAMES)
def test_values_without_a_ratio(name: str) -> None:
    """Called with the state alone, as `scheduler(state)`."""
    for unit in LENGTHS:
        state = state_of(scaled(unit, 1.0))
        for given in variants(name):
            ours, theirs = pair(name, given)
            if isinstance(call(theirs, state, 1.0), str):
                continue
            for counts in list(moments(1.0))[::7]:
                at(state, **counts)
                assert abs(ours(state) - theirs_at(theirs, state)) <= TOLERANCE, (given, unit, counts)
            at(state)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("name", NAMES)
def test_a_clock_gives_exactly_what_composers_state_gives(name: str, ratio: float) -> None:
    """The clock takes the unscaled length and the ratio, the State holds the scaled length."""
    for unit in LENGTHS:
        state = state_of(scaled(unit, ratio))
        clock = timesched.Clock(f"{LENGTHS[unit]}{unit}", batches_per_epoch=BATCHES_PER_EPOCH, ssr=ratio)
        for given in variants(name):
            ours, theirs = pair(name, given)
            if isinstance(call(theirs, state, ratio), str):
                continue
            for counts in list(moments(ratio))[::5]:
                at(state, **counts)
                clock.timestamp = timesched.Timestamp(**counts)
                assert ours(clock) == ours(state, ratio), (given, unit, counts)
            at(state)


def test_one_schedule_on_a_state_that_changes() -> None:
    """Each of length, loader and ratio moved by itself, to and fro, under the same schedule and the same time."""
    ours, theirs = pair("LinearWithWarmupScheduler", {"t_warmup": "1ep", "t_max": "4ep"})
    part, whole = pair("PolynomialScheduler", {"power": 2.0, "t_max": "0.5dur"})
    state = at(state_of("16ba"), batch=5)
    for _ in range(2):
        for batches, length, ratio in ((8, 16, 1.0), (4, 16, 1.0), (4, 12, 1.0), (4, 12, 2.0), (8, 12, 2.0)):
            if state.dataloader_len != batches:
                state.set_dataloader([None] * batches, "train")
            if state.max_duration != f"{length}ba":
                state.max_duration = f"{length}ba"
            assert abs(ours(state, ratio) - theirs(state, ratio)) <= TOLERANCE
            assert abs(part(state, ratio) - whole(state, ratio)) <= TOLERANCE


def test_iterations() -> None:
    """The unit that the Trainer counts only if it is told how long an iteration is."""
    state = state_of("64ba")
    given = {"t_warmup": "4iter", "t_max": "8iter", "alpha_i": 0.5}
    for ours, theirs in (
        pair("LinearWithWarmupScheduler", given),
        pair("StepScheduler", {"step_size": "2iter"}),
        pair("CosineAnnealingWarmRestartsScheduler", {"t_0": "2iter", "t_mult": 2.0}),
    ):
        for iteration in range(20):
            at(state, iteration=iteration)
            for ratio in (0.5, 1.0) if "Linear" not in type(ours).__name__ else (1.0, 2.0):
                assert abs(ours(state, ratio) - theirs(state, ratio)) <= TOLERANCE


@pytest.mark.parametrize("name", ["Constant", "Linear", "CosineAnnealing", "Polynomial"])
@pytest.mark.parametrize(
    ("t_max", "ratio", "max_duration", "ours_refuses", "theirs_refuses"),
    [
        ("16ba", 1.0, "16ba", False, False),
        ("15ba", 1.0, "16ba", True, True),
        ("16ba", 0.5, "8ba", False, False),
        ("14ba", 0.5, "16ba", True, True),
        ("8ba", 2.0, "16ba", False, False),
        ("7ba", 2.0, "16ba", True, True),
        ("1dur", 0.5, "16ba", False, False),
        ("0.5dur", 1.0, "16ba", True, True),
        ("0.5dur", 2.0, "16ba", True, True),  # a part of the run, which the ratio does not stretch again
        ("2ep", 1.0, "16ba", False, False),
        ("1ep", 1.0, "16ba", True, True),
        ("1ep", 2.0, "16ba", False, False),
        ("16ba", 1.0, "2ep", False, False),
        ("15ba", 1.0, "2ep", True, True),
        ("1ba", 1.0, "100sp", False, False),  # nothing converts, so nothing is checked
        ("1sp", 0.5, "100ba", False, False),
        # What Composer's Trainer calls with while it is built: the duration is not scaled yet.
        ("16ba", 0.5, "16ba", False, True),
        ("2ep", 0.5, "2ep", False, True),
        ("16sp", 0.5, "16sp", False, True),
        ("16tok", 0.5, "16tok", False, True),
    ],
)
def test_t_max_shorter_than_the_run(
    name: str, t_max: str, ratio: float, max_duration: str, ours_refuses: bool, theirs_refuses: bool
) -> None:
    """Ours refuses where max(t_max, ratio * t_max) is shorter than the state's max_duration."""
    state = state_of(max_duration)
    short = {"t_warmup": "0" + t_max.lstrip("0.123456789"), "t_max": t_max}
    ours, theirs = pair(f"{name}WithWarmupScheduler", short)
    for schedule, refuses in ((ours, ours_refuses), (theirs, theirs_refuses)):
        complaint = "must be greater than or equal to max_duration"
        assert (call(schedule, state, ratio) == complaint) is refuses


def test_multistep_with_warmup_checks_neither_length_nor_units() -> None:
    given = {"t_warmup": "4sp", "milestones": ["2ba", "0.5dur", "3tok"], "gamma": 0.5}
    ours, theirs = pair("MultiStepWithWarmupScheduler", given)
    state = state_of("100ba")
    for counts in ({"sample": 2}, {"sample": 4, "batch": 1}, {"sample": 8, "batch": 2, "token": 3}, {"batch": 50}):
        at(state, **counts)
        assert ours(state, 1.0) == theirs(state, 1.0)
    assert ours(at(state, sample=8, batch=2, token=3), 1.0) == 0.25
