"""Our schedules and Composer's: the same names, arguments and attributes, and the same multipliers on its own State."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import composer.core.time
import composer.optim.scheduler
import pytest
import torch
from composer.core import Time as ComposerTime
from composer.core import Timestamp as ComposerTimestamp

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
MODULES = pytest.mark.parametrize("module", [composer.optim, timesched])


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


@pytest.mark.parametrize(("new", "old"), [(5, 3), (7, 6), (8, 3), (1, 3)])
def test_ratios_that_are_no_decimals(new: int, old: int) -> None:
    """The quotient of two lengths, which a float does not hold exactly."""
    state = state_of(f"{6 * new}ba")
    for ours, theirs in (
        pair("StepScheduler", {"step_size": f"{old}ba", "gamma": 0.5}),
        pair("MultiStepScheduler", {"milestones": [f"{old}ba", f"{4 * old}ba"], "gamma": 0.5}),
        pair("LinearWithWarmupScheduler", {"t_warmup": "2ba", "t_max": f"{6 * old}ba"}),
    ):
        for batch in range(6 * new + 1):
            at(state, batch=batch)
            assert ours(state, new / old) == pytest.approx(theirs(state, new / old), abs=1e-12), (ours, batch)


def test_one_schedule_on_a_state_that_changes() -> None:
    """Each of length, loader and ratio moved by itself, to and fro, under the same schedule and the same time."""
    ours, theirs = pair("LinearWithWarmupScheduler", {"t_warmup": "1ep", "t_max": "4ep"})
    part, whole = pair("PolynomialScheduler", {"power": 2.0, "t_max": "0.5dur"})
    state = at(state_of("16ba"), batch=5)
    for _ in range(2):
        for batches, length, ratio in ((8, 16, 1.0), (4, 16, 1.0), (4, 12, 1.0), (4, 12, 2.0), (8, 12, 2.0)):
            if state.dataloader_len != batches:
                state.set_dataloader([None] * batches, "train")
            state.max_duration = f"{length}ba"
            assert abs(ours(state, ratio) - theirs(state, ratio)) <= TOLERANCE
            assert abs(part(state, ratio) - whole(state, ratio)) <= TOLERANCE


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


# Compiled


def compiled(module: Any, schedule: Any, *ratio: float, optimizers: int = 1) -> tuple[Any, Any]:
    """A State, and a schedule compiled on it."""
    state = state_of("8ba")
    state._optimizers = [torch.optim.SGD(state.model.parameters(), lr=0.5) for _ in range(optimizers)]
    return state, module.compile_composer_scheduler(schedule, state, *ratio)


def test_compiled_on_a_composer_state() -> None:
    """Both give a LambdaLR with the same learning rates, step for step."""
    rates = []
    for module in (composer.optim, timesched):
        state, scheduler = compiled(module, timesched.CosineAnnealingWithWarmupScheduler("2ba"), 1.0)
        assert isinstance(scheduler, torch.optim.lr_scheduler.LambdaLR)
        rates.append(scheduler.get_last_lr())
        for batch in range(1, 10):
            state.timestamp = ComposerTimestamp(batch=batch)
            state.optimizers[0].step()
            scheduler.step()
            rates[-1] += scheduler.get_last_lr()
        assert (scheduler.last_epoch, scheduler.base_lrs) == (9, [0.5])
    assert rates[0] == rates[1]
    assert rates[0][:3] == [0.0, 0.25, 0.5]


@MODULES
def test_several_optimizers_are_refused(module: Any) -> None:
    with pytest.raises(NotImplementedError):
        compiled(module, timesched.LinearScheduler(), optimizers=2)


@MODULES
def test_functions_of_the_state_alone(module: Any) -> None:
    """They are schedules as long as there is no ratio."""
    assert compiled(module, lambda state: 0.25)[1].get_last_lr() == [0.125]
    with pytest.raises(ValueError, match="ratio"):
        compiled(module, lambda state: 0.5, 2.0)
