"""optim.preinitialize: optimizers of torch in checkpoints, in other dtypes and in running training; optimizers that are
written here; and what is refused."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import _init_optim_state
from torch.nn import Parameter
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import optim
from tests.optim.foreign_rows import (
    BUFFER,
    CONFIGURED,
    FROM_TORCH,
    TORCH,
    Custom,
    assert_same,
    drawn,
    label,
    made,
    of,
    train,
)

every_case = pytest.mark.parametrize(("library", "name", "kwargs"), CONFIGURED, ids=map(label, CONFIGURED))


def keys(optimizer: torch.optim.Optimizer) -> Any:
    found = optimizer.state_dict()
    return {index: list(state) for index, state in found["state"].items()}, [set(g) for g in found["param_groups"]]


@every_case
def test_a_frozen_parameter_has_state(library: str, name: str, kwargs: dict[str, Any]) -> None:
    """As all others of its group, also where the optimizer, as Composer's, would skip it."""
    optimizer, untouched = made(library, name, kwargs), made(library, name, kwargs)
    of(optimizer)[-1].requires_grad_(False)
    early = keys(optim.preinitialize(optimizer))
    train(untouched, missing=False)
    assert early[0].keys() == keys(untouched)[0].keys()
    assert all(set(early[0][index]) == set(names) for index, names in keys(untouched)[0].items())
    train(optimizer)
    assert keys(optimizer) == early


@every_case
def test_saved_before_the_first_step(library: str, name: str, kwargs: dict[str, Any]) -> None:
    """In a file, and loaded into an optimizer that has its state or not."""
    saved, file = optim.preinitialize(made(library, name, kwargs)), io.BytesIO()
    torch.save(saved.state_dict(), file)
    file.seek(0)
    resumed = optim.preinitialize(made(library, name, kwargs))
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert keys(resumed) == keys(saved)
    assert_same(train(made(library, name, kwargs), missing=False), train(resumed, missing=False))


@pytest.mark.parametrize(("name", "kwargs"), FROM_TORCH)
def test_dcp_finds_nothing_to_do(name: str, kwargs: dict[str, Any]) -> None:
    untouched, optimizer = made("torch.optim", name, kwargs), optim.preinitialize(made("torch.optim", name, kwargs))
    before = copy.deepcopy([optimizer.state_dict(), of(optimizer)])
    _init_optim_state(optimizer)
    assert_same([optimizer.state_dict(), of(optimizer)], before)
    assert_same(train(untouched, missing=False), train(optimizer, missing=False))


def test_dcp_spoils_what_is_not_preinitialized() -> None:
    """Why all this: the dummy step leaves a counter at one, and the first update is 1.34 times too small."""
    untouched, spoilt = made("torch.optim", "Adam", {}), made("torch.optim", "Adam", {})
    _init_optim_state(spoilt)
    before = of(untouched)[0].detach().clone()
    updates = [before - train(optimizer, range(1), missing=False)[0] for optimizer in (untouched, spoilt)]
    assert (updates[0] / updates[1]).median().item() == pytest.approx(1.34, abs=0.01)


REAL = ("Adafactor", "Muon", "SparseAdam")  # torch's take no complex parameters, and fail on empty ones and scalars
HERE = [name for name in TORCH if hasattr(torch.optim, name)]
WITH_DTYPES = [(name, dtype) for name in HERE for dtype in (torch.float64, torch.bfloat16, torch.float16)]
WITH_DTYPES += [(name, torch.complex64) for name in HERE if name not in REAL]


@pytest.mark.parametrize(("name", "dtype"), WITH_DTYPES)
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    kwargs = BUFFER if name == "SGD" else {}
    untouched, optimizer = (made("torch.optim", name, kwargs, dtype) for _ in range(2))
    assert_same(train(untouched), train(optim.preinitialize(optimizer)))


@pytest.mark.parametrize("name", [name for name in HERE if name not in REAL])
def test_scalars_and_empty_tensors(name: str) -> None:
    optimizers = []
    for _ in range(2):
        given = [Parameter(torch.tensor(0.5)), Parameter(torch.ones(0)), Parameter(torch.ones(2, 0))]
        optimizers.append(getattr(torch.optim, name)(given, **(BUFFER if name == "SGD" else {})))
    assert_same(train(optimizers[0]), train(optim.preinitialize(optimizers[1])))
    assert [len(state) for state in optimizers[1].state.values()] == [len(s) for s in optimizers[0].state.values()]


@pytest.mark.parametrize("wrap", [lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda n: 1 / (n + 1)), lambda o: o])
def test_hooks_and_wrappers_stay_out(wrap: Callable[[torch.optim.Optimizer], Any]) -> None:
    called: list[str] = []
    optimizer = made("torch.optim", "Adam", {"lr": torch.tensor(0.1)})
    optimizer.register_step_pre_hook(lambda *_: called.append("pre"))
    optimizer.register_step_post_hook(lambda *_: called.append("post"))
    everywhere = [
        register_optimizer_step_pre_hook(lambda *_: called.append("global pre")),
        register_optimizer_step_post_hook(lambda *_: called.append("global post")),
    ]
    scheduler = wrap(optimizer)
    try:
        optim.preinitialize(optimizer)
        assert called == []
        train(optimizer, range(1))
        assert called == ["global pre", "pre", "post", "global post"]
    finally:
        for handle in everywhere:
            handle.remove()
    if scheduler is not optimizer:
        scheduler.step()  # warns if it has seen no step of the optimizer
        assert optimizer.param_groups[0]["lr"].item() == pytest.approx(0.05)


def test_a_run_in_progress_is_completed() -> None:
    optimizers = [made("torch.optim", "AdamW", {"amsgrad": True}) for _ in range(2)]
    for optimizer in optimizers:
        train(optimizer, range(2))
        optimizer.add_param_group({"params": [Parameter(torch.ones(2, 2))], "lr": 0.5})
    untouched, optimizer = optimizers
    before = {parameter: dict(state) for parameter, state in optimizer.state.items()}
    values = copy.deepcopy(list(before.values()))
    optim.preinitialize(optimizer)
    assert all(optimizer.state[p][key] is value for p, state in before.items() for key, value in state.items())
    assert_same([dict(optimizer.state[parameter]) for parameter in before], values)
    assert all(len(optimizer.state[parameter]) == 4 for parameter in of(optimizer))
    assert_same(train(untouched, range(2, 5)), train(optimizer, range(2, 5)))


def test_our_own_have_it_already() -> None:
    optimizer = optim.AdamW([Parameter(torch.ones(2))])
    before = dict(optimizer.state)
    assert optim.preinitialize(optimizer) is optimizer
    assert all(optimizer.state[parameter] is state for parameter, state in before.items())


def test_integer_parameters_have_no_state() -> None:
    indices = Parameter(torch.ones(3, dtype=torch.int64), requires_grad=False)
    optimizer = optim.preinitialize(torch.optim.Adam([*drawn(), indices]))
    assert len(optimizer.state) == 4


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
    optimizer = optim.preinitialize(Custom(drawn(), counts_from_one))
    assert [state["step"] for state in optimizer.state.values()] == [0, 0, 0, 0]
    assert_same(train(Custom(drawn(), counts_from_one)), train(optimizer))


def test_shared_and_nested_state() -> None:
    optimizer = optim.preinitialize(Custom(drawn(), shares))
    for parameter, state in optimizer.state.items():
        assert state["owner"] is parameter
        assert state["same"] is state["nested"]["mean"]
        assert torch.equal(state["anchor"], parameter)
    assert_same(train(Custom(drawn(), shares)), train(optimizer))


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
    optimizer = Masked(drawn())
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
    untouched = Masked(drawn())
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
    given = drawn()
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
            function(Unfinished(drawn()))


@pytest.mark.parametrize("target", [torch.nn.Linear(2, 2), torch.optim.Adam, None, [], "Adam"])
def test_not_an_optimizer(target: Any) -> None:
    with pytest.raises(TypeError, match="^preinitialize: optimizer=.*: pass an instance of torch.optim.Optimizer"):
        optim.preinitialize(target)
