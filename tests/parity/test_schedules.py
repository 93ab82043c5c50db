"""Our schedules and Composer's: the same names, arguments and attributes, and the same multipliers on its own State."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import composer.core.time
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
    moments,
    moves_boundary,
    pair,
    scaled,
    state_of,
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
    """The same arguments in the same order, by position too, with the same defaults; a warmup has `alpha_s` as well.

    A call takes `(state, ssr)`; ours has None for "the state's own ratio, else 1.0".
    """
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
    """Whatever Composer's schedule holds, ours holds under the same name, nested schedules included.

    Times may be given as Composer's own.
    """
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
    """Every set of arguments, on runs measured in ep, ba, sp and tok, at every moment that matters.

    Where units do not go together, or t_max is too short for the run, both refuse for the same reason. A clock, which
    takes the unscaled length and the ratio, gives exactly what the State gives; a call without a ratio has ratio 1.
    """
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
            for i, counts in enumerate(moments(ratio)):
                at(state, **counts)
                mine = ours(state, ratio)
                if i % 5 == 0:
                    clock.timestamp = timesched.Timestamp(**counts)
                    assert ours(clock) == mine
                    assert ratio != 1.0 or ours(state) == mine
                if not moves_boundary(given, ratio):
                    assert abs(mine - theirs_at(theirs, state, ratio)) <= TOLERANCE, (given, unit, counts)
                    compared += 1
    assert compared > 1000


def test_iterations() -> None:
    """The unit that the Trainer counts only if it is told how long an iteration is."""
    state = state_of("64ba")
    for name, given, ratio in (
        ("LinearWithWarmupScheduler", {"t_warmup": "4iter", "t_max": "8iter", "alpha_i": 0.5}, 2.0),
        ("StepScheduler", {"step_size": "2iter"}, 0.5),
        ("CosineAnnealingWarmRestartsScheduler", {"t_0": "2iter", "t_mult": 2.0}, 0.5),
    ):
        ours, theirs = pair(name, given)
        for iteration in range(20):
            at(state, iteration=iteration)
            assert abs(ours(state) - theirs(state)) <= TOLERANCE
            assert abs(ours(state, ratio) - theirs(state, ratio)) <= TOLERANCE


@pytest.mark.parametrize("name", ["Constant", "Linear", "CosineAnnealing", "Polynomial"])
def test_t_max_shorter_than_the_run(name: str) -> None:
    """Ours refuses where max(t_max, ratio * t_max) is shorter than the state's max_duration."""
    for t_max, ratio, max_duration, ours_refuses, theirs_refuses in (
        ("16ba", 1.0, "16ba", False, False),
        ("15ba", 1.0, "16ba", True, True),
        ("16ba", 0.5, "8ba", False, False),
        ("14ba", 0.5, "16ba", True, True),
        ("8ba", 2.0, "16ba", False, False),
        ("7ba", 2.0, "16ba", True, True),
        ("1dur", 0.5, "16ba", False, False),
        ("0.5dur", 2.0, "16ba", True, True),  # a part of the run, which the ratio does not stretch again
        ("1ep", 1.0, "16ba", True, True),
        ("1ep", 2.0, "16ba", False, False),
        ("15ba", 1.0, "2ep", True, True),
        ("1ba", 1.0, "100sp", False, False),  # nothing converts, so nothing is checked
        # What Composer's Trainer calls with while it is built: the duration is not scaled yet.
        ("16ba", 0.5, "16ba", False, True),
        ("2ep", 0.5, "2ep", False, True),
        ("16tok", 0.5, "16tok", False, True),
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
    for counts in ({"sample": 2}, {"sample": 4, "batch": 1}, {"batch": 50}, {"sample": 8, "batch": 2, "token": 3}):
        at(state, **counts)
        assert ours(state, 1.0) == theirs(state, 1.0)
    assert ours(state, 1.0) == 0.25
