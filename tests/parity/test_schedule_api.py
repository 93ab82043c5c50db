"""The classes have Composer's names, arguments, defaults and attributes, and are accepted where its own are."""

from __future__ import annotations

import inspect
from typing import Any

import composer.core.time
import composer.optim.scheduler
import pytest
import torch
from composer.core import Time as ComposerTime
from composer.core import Timestamp as ComposerTimestamp

import timesched
from tests.parity.rows import NAMES, pair, variants
from tests.parity.states import state_of


def test_every_public_name_is_there() -> None:
    for module in (composer.core.time, composer.optim.scheduler):
        for name in module.__all__:
            assert getattr(timesched, name).__name__ == name


@pytest.mark.parametrize("name", NAMES)
def test_arguments_and_defaults(name: str) -> None:
    """The same arguments in the same order, by position too, with the same defaults; a warmup has `alpha_s` as well."""
    ours, theirs = getattr(timesched, name), getattr(composer.optim, name)
    expected = [(each.name, each.kind, each.default) for each in inspect.signature(theirs).parameters.values()]
    if "WithWarmup" in name:
        expected.append(("alpha_s", inspect.Parameter.KEYWORD_ONLY, 0.0))
    assert [(each.name, each.kind, each.default) for each in inspect.signature(ours).parameters.values()] == expected


@pytest.mark.parametrize("name", NAMES)
def test_call_signature(name: str) -> None:
    """`scheduler(state, ssr)`; ours has None for "the state's own ratio, else 1.0"."""
    ours, theirs = (inspect.signature(getattr(module, name).__call__) for module in (timesched, composer.optim))
    assert list(ours.parameters) == list(theirs.parameters) == ["self", "state", "ssr"]
    assert ours.parameters["ssr"].default is None
    assert theirs.parameters["ssr"].default == 1.0


def plain(value: Any) -> Any:
    """A value such that Composer's compares with ours: times as text, lists and tuples alike."""
    if isinstance(value, (str, timesched.Time)):
        return str(timesched.Time.from_input(value))
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("name", NAMES)
def test_attributes(name: str) -> None:
    """Whatever Composer's schedule holds, ours holds under the same name, nested schedules included."""
    for given in variants(name):
        ours, theirs = pair(name, given)
        for attribute, value in vars(theirs).items():
            mine = getattr(ours, attribute)
            if not callable(value):
                assert plain(mine) == plain(str(value) if isinstance(value, ComposerTime) else value)
                continue
            assert type(mine).__name__ == type(value).__name__
            for inner, held in vars(value).items():
                if not callable(held):
                    expected = plain(str(held) if isinstance(held, ComposerTime) else held)
                    assert plain(getattr(mine, inner)) == expected, (given, attribute, inner)


def test_times_are_given_as_composers_own_too() -> None:
    state = state_of("64ba")
    state.timestamp = ComposerTimestamp(batch=24)
    for name in NAMES:
        for given in variants(name):
            own = {
                key: ComposerTime.from_timestring(value) if isinstance(value, str) else value
                for key, value in given.items()
            }
            if "milestones" in given:
                own["milestones"] = [ComposerTime.from_timestring(value) for value in given["milestones"]]
            assert getattr(timesched, name)(**own) == getattr(timesched, name)(**given)
    assert timesched.LinearScheduler(t_max=ComposerTime(48, "ba"))(state) == 0.5


def test_compiled_on_a_composer_state() -> None:
    """compile_composer_scheduler of both gives a LambdaLR with the same learning rates, step for step."""
    rates = []
    for compile_function in (composer.optim.compile_composer_scheduler, timesched.compile_composer_scheduler):
        state = state_of("8ba")
        optimizer = torch.optim.SGD(state.model.parameters(), lr=0.5)
        state._optimizers = [optimizer]
        scheduler = compile_function(timesched.CosineAnnealingWithWarmupScheduler("2ba"), state, 1.0)
        assert isinstance(scheduler, torch.optim.lr_scheduler.LambdaLR)
        rates.append(scheduler.get_last_lr())
        for batch in range(1, 10):
            state.timestamp = ComposerTimestamp(batch=batch)
            optimizer.step()
            scheduler.step()
            rates[-1] += scheduler.get_last_lr()
        assert scheduler.last_epoch == 9
        assert scheduler.base_lrs == [0.5]
    assert rates[0] == rates[1]
    assert rates[0][:3] == [0.0, 0.25, 0.5]


@pytest.mark.parametrize("module", [composer.optim, timesched])
def test_several_optimizers_are_refused(module: Any) -> None:
    state = state_of("8ba")
    state._optimizers = [torch.optim.SGD(state.model.parameters(), lr=0.5) for _ in range(2)]
    with pytest.raises(NotImplementedError):
        module.compile_composer_scheduler(timesched.LinearScheduler(), state)


@pytest.mark.parametrize("module", [composer.optim, timesched])
def test_functions_of_the_state_alone(module: Any) -> None:
    """They are schedules as long as there is no ratio."""
    state = state_of("8ba")
    state._optimizers = [torch.optim.SGD(state.model.parameters(), lr=0.5)]
    assert module.compile_composer_scheduler(lambda state: 0.5, state).get_last_lr() == [0.25]
    assert module.compile_composer_scheduler(lambda state, ssr: ssr, state, 0.25).get_last_lr() == [0.125]
    with pytest.raises(ValueError, match="ratio"):
        module.compile_composer_scheduler(lambda state: 0.5, state, 2.0)
