"""optim.preinitialize on optimizers that are written here, and what it refuses."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import optim
from tests.optim.foreign_rows import BUFFER, assert_same, of, parameters, train


class Custom(torch.optim.Optimizer):
    """Steps as `rule(state, parameter)` says, which gets an empty state at first."""

    def __init__(self, parameters: Any, rule: Callable[[dict[str, Any], Tensor], None]) -> None:
        super().__init__(parameters, {})
        self.rule = rule

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in of(self):
            if parameter.grad is not None:
                self.rule(self.state[parameter], parameter)


def counts_from_one(state: dict[str, Any], parameter: Tensor) -> None:
    state["step"] = state["step"] + 1 if "step" in state else 1
    parameter.sub_(parameter.grad, alpha=1 / state["step"])


def shares(state: dict[str, Any], parameter: Tensor) -> None:
    if not state:
        nested = {"mean": torch.zeros_like(parameter)}
        state.update(owner=parameter, nested=nested, same=nested["mean"], anchor=parameter.clone())
    state["nested"]["mean"].add_(parameter.grad)
    parameter.sub_(state["same"]).add_(state["anchor"])


def draws(state: dict[str, Any], parameter: Tensor) -> None:
    noise = state.setdefault("noise", torch.randn_like(parameter))
    parameter.sub_(noise * parameter.grad)


def remembers(state: dict[str, Any], parameter: Tensor) -> None:
    history = state.setdefault("history", [parameter.grad.clone()])
    parameter.sub_(history[0])


def collects(state: dict[str, Any], parameter: Tensor) -> None:
    state.setdefault("history", []).append(parameter.grad.clone())
    parameter.sub_(state["history"][0])


def late_key(state: dict[str, Any], parameter: Tensor) -> None:
    state["step"] = state.get("step", 0) + 1
    if state["step"] == 5:
        state["average"] = parameter.clone()
    parameter.sub_(parameter.grad)


class Box:
    """Holds a tensor where nobody looks for it."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


def boxes(state: dict[str, Any], parameter: Tensor) -> None:
    state.setdefault("box", Box(torch.zeros_like(parameter))).value.add_(parameter.grad)
    parameter.sub_(state["box"].value)


class FirstCounts(Custom):
    """Counts steps in the state of the first parameter that has a gradient."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, counts_from_one)

    def step(self, closure: Any = None) -> None:
        first = next(parameter for parameter in of(self) if parameter.grad is not None)
        self.state[first]["steps"] = self.state[first].get("steps", 0) + 1
        super().step(closure)


class Unfinished(torch.optim.Optimizer):
    """Does not call the constructor of its base."""

    def __init__(self, parameters: Any) -> None:
        self.state = {}


def test_counters_that_start_at_one() -> None:
    optimizer = optim.preinitialize(Custom(parameters(""), counts_from_one))
    assert [state["step"] for state in optimizer.state.values()] == [0, 0, 0, 0]
    assert_same(train(Custom(parameters(""), counts_from_one)), train(optimizer))


def test_shared_and_nested_state() -> None:
    optimizer = optim.preinitialize(Custom(parameters(""), shares))
    for parameter, state in optimizer.state.items():
        assert state["owner"] is parameter
        assert state["same"] is state["nested"]["mean"]
        assert torch.equal(state["anchor"], parameter)
    assert_same(train(Custom(parameters(""), shares)), train(optimizer))


class Masked(Custom):
    """Its constructor makes a part of the state, and the first step the rest."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, averages_selected)
        self.state["total"] = {"count": 0}
        for parameter in of(self):
            if parameter.dim() == 2:  # others have nothing yet
                self.state[parameter]["mask"] = parameter.detach() > 0
                self.state[parameter]["nested"] = {"anchor": parameter.detach().clone()}


def averages_selected(state: dict[str, Any], parameter: Tensor) -> None:
    selected = parameter.grad[state["mask"]] if "mask" in state else parameter.grad
    if "exp_avg" not in state:
        state["exp_avg"] = torch.zeros_like(selected)
        state.setdefault("nested", {})["peak"] = torch.zeros_like(parameter)
    state["exp_avg"].lerp_(selected, 0.1)
    state["nested"]["peak"].copy_(torch.maximum(state["nested"]["peak"], parameter.grad.abs()))
    parameter.sub_(state["nested"]["peak"], alpha=0.1)
    parameter.view(-1)[: state["exp_avg"].numel()].sub_(state["exp_avg"].view(-1))


def test_what_a_constructor_made_is_completed() -> None:
    optimizer = Masked(parameters(""))
    made = {key: dict(value) for key, value in optimizer.state.items()}
    optim.preinitialize(optimizer)
    for parameter in of(optimizer):
        state = optimizer.state[parameter]
        assert set(state) == {"exp_avg", "nested"} | ({"mask"} if parameter.dim() == 2 else set())
        assert set(state["nested"]) == {"peak"} | ({"anchor"} if parameter.dim() == 2 else set())
        elements = int((parameter > 0).sum()) if parameter.dim() == 2 else parameter.numel()
        assert state["exp_avg"].numel() == state["exp_avg"].eq(0).sum() == (elements if elements else 0)
    assert all(optimizer.state[key][name] is value for key, values in made.items() for name, value in values.items())
    assert optimizer.state["total"] == {"count": 0}
    untouched = Masked(parameters(""))
    assert_same(train(untouched), train(optimizer))


class Sam(torch.optim.Optimizer):
    """Climbs, asks for another gradient, and descends."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:
        if closure is None:
            raise RuntimeError("a closure is needed")


class Wrapper(torch.optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.inner = torch.optim.Adam(of(self))


class Uncopyable(Custom):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, counts_from_one)
        self.pending: Iterator[int] = (number for number in range(3))


REFUSED: list[tuple[str, Callable[[list[Parameter]], torch.optim.Optimizer], str]] = [
    ("LBFGS", torch.optim.LBFGS, "closure.*history that grows"),
    (
        "SGD",
        lambda ps: torch.optim.SGD(ps, **BUFFER, dampening=0.5),
        "parameter 0 would differ after step 1.*optim.SGD",
    ),
    ("Adam", lambda ps: torch.optim.Adam(ps, capturable=True), "its step fails .*capturable"),
    ("Adam", lambda ps: torch.optim.Adam([Parameter(p.to("meta")) for p in ps]), "meta device. Give them memory"),
    ("Custom", lambda ps: Custom(ps, draws), "would differ after step 1.*Use an optimizer of `optim`"),
    ("Custom", lambda ps: Custom(ps, remembers), "state.'history'. depends on the gradients or on random numbers"),
    ("Custom", lambda ps: Custom(ps, collects), "changes in kind as it steps, from {'history': ..} to"),
    ("Custom", lambda ps: Custom(ps, late_key), "changes in kind as it steps, from .* to .*average"),
    ("Custom", lambda ps: Custom(ps, boxes), "state.'box'. is an object of type Box, whose content is unknown"),
    ("FirstCounts", FirstCounts, "changes in kind with the parameters that have a gradient, from .* to .*'steps'"),
    ("Sam", Sam, "a closure is needed"),
    ("Wrapper", Wrapper, "wraps another optimizer, in inner. Pass that one"),
    ("Uncopyable", Uncopyable, "cannot be copied .TypeError"),
]


@pytest.mark.parametrize(("name", "make", "message"), REFUSED)
def test_refused_and_left_alone(name: str, make: Callable[..., Any], message: str) -> None:
    given = parameters(name)
    optimizer = make(given)
    before, hyperparameters = copy.deepcopy(given), [dict(group) for group in optimizer.param_groups]
    with pytest.raises(ValueError, match=f"(?s)^preinitialize: optimizer {name} cannot .*{message}"):
        optim.preinitialize(optimizer)
    assert not optimizer.state
    assert [dict(group) for group in optimizer.param_groups] == hyperparameters
    assert_same(given, before)
    assert all(parameter.grad is None for parameter in given)


def test_without_param_groups() -> None:
    for function in (optim.preinitialize, optim.state_bytes):
        with pytest.raises(
            ValueError, match="Unfinished .*: it has no param_groups. Pass the optimizer that it wraps."
        ):
            function(Unfinished(parameters("")))


@pytest.mark.parametrize("target", [torch.nn.Linear(2, 2), torch.optim.Adam, None, [], "Adam"])
def test_not_an_optimizer(target: Any) -> None:
    with pytest.raises(TypeError, match="must be a torch.optim.Optimizer. Pass the optimizer itself"):
        optim.preinitialize(target)
