"""optim.preinitialize: all of torch.optim and other people's optimizers have their state before the first step, and
train bit for bit as if nobody had called it."""

from __future__ import annotations

import copy
import inspect
import io
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict import _init_optim_state
from torch.nn import Parameter
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import optim
from tests.optim.foreign_rows import (
    BUFFER,
    CASES,
    FROM_TORCH,
    OTHERS,
    TORCH,
    assert_same,
    every_case,
    made,
    of,
    parameters,
    train,
)


def keys(optimizer: torch.optim.Optimizer) -> Any:
    found = optimizer.state_dict()
    return {index: list(state) for index, state in found["state"].items()}, [set(g) for g in found["param_groups"]]


@every_case
def test_all_state_is_there(package: str, name: str, kwargs: dict[str, Any]) -> None:
    optimizer, untouched = made(package, name, kwargs), made(package, name, kwargs)
    before = copy.deepcopy(of(optimizer))
    hyperparameters = copy.deepcopy([{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups])
    generators = torch.get_rng_state(), random.getstate()
    assert optim.preinitialize(optimizer) is optimizer
    assert_same(of(optimizer), before)
    assert all(parameter.grad is None for parameter in of(optimizer))
    assert [p.requires_grad for p in of(optimizer)] == [p.requires_grad for p in before]
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert random.getstate() == generators[1]
    for group, values in zip(optimizer.param_groups, hyperparameters):
        assert_same({key: group[key] for key, value in values.items() if value is not None}, drop_none(values))
    early = keys(optimizer)
    train(untouched, missing=False)
    lazy = keys(untouched)[0]
    assert all(set(early[0][index]) == set(names) for index, names in lazy.items())
    assert len(early[0]) == (len(before) if lazy else 0)  # those that need no gradient as well: Composer's skip them
    train(optimizer)
    assert keys(optimizer) == early


def drop_none(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


@every_case
def test_training_is_the_same(package: str, name: str, kwargs: dict[str, Any]) -> None:
    missing = not (kwargs.get("fused") and name == "SGD")  # torch's own fused SGD fails on a late first gradient
    untouched, optimizer = made(package, name, kwargs), optim.preinitialize(made(package, name, kwargs))
    assert_same(train(untouched, missing=missing), train(optimizer, missing=missing))
    state = optimizer.state_dict()["state"]
    for index, values in untouched.state_dict()["state"].items():
        assert_same(values, state[index])


@every_case
def test_saved_before_the_first_step(package: str, name: str, kwargs: dict[str, Any]) -> None:
    one, other = (optim.preinitialize(made(package, name, kwargs)) for _ in range(2))
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    assert keys(one) == keys(other)
    assert_same(train(one, missing=False), train(other, missing=False))


@pytest.mark.parametrize(("name", "kwargs"), FROM_TORCH)
def test_a_checkpoint_file_before_the_first_step(name: str, kwargs: dict[str, Any]) -> None:
    saved, file = optim.preinitialize(made("torch.optim", name, kwargs)), io.BytesIO()
    torch.save(saved.state_dict(), file)
    file.seek(0)
    resumed = optim.preinitialize(made("torch.optim", name, kwargs))
    resumed.load_state_dict(torch.load(file, weights_only=True))
    untouched = made("torch.optim", name, kwargs)
    assert_same(train(untouched, missing=False), train(resumed, missing=False))


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


REAL = ("Adafactor", "Muon", "SparseAdam")  # torch's take no complex parameters
NOT_EMPTY = ("Adafactor", "Muon", "SparseAdam")  # torch's fail on empty tensors or scalars
HERE = [name for name in TORCH if hasattr(torch.optim, name)]
WITH_DTYPES = [(name, dtype) for name in HERE for dtype in (torch.float64, torch.bfloat16, torch.float16)]
WITH_DTYPES += [(name, torch.complex64) for name in HERE if name not in REAL]


@pytest.mark.parametrize(("name", "dtype"), WITH_DTYPES)
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    kwargs = BUFFER if name == "SGD" else {}
    untouched, optimizer = (made("torch.optim", name, kwargs, dtype) for _ in range(2))
    assert_same(train(untouched), train(optim.preinitialize(optimizer)))


@pytest.mark.parametrize("name", [name for name in HERE if name not in NOT_EMPTY])
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
    optimizer = optim.preinitialize(torch.optim.Adam([*parameters(""), indices]))
    assert len(optimizer.state) == 4


@pytest.mark.parametrize("package", OTHERS)
def test_packages(package: str) -> None:
    """Says which packages are missing here."""
    pytest.importorskip(package, reason=f"{package} is not installed, so its optimizers are not among the cases")
    assert {name for owner, name, _ in CASES if owner == package} == {name for name, _ in OTHERS[package]}


def test_torch_has_no_other_optimizers() -> None:
    classes = {name for name, value in vars(torch.optim).items() if inspect.isclass(value)}
    optimizers = {name for name in classes if issubclass(getattr(torch.optim, name), torch.optim.Optimizer)}
    assert optimizers - {"Optimizer"} <= TORCH.keys() | {"LBFGS"}
