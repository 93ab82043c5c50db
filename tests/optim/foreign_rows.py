"""Other people's optimizers, as data: all of torch.optim, and of the packages that are installed; how to run them."""

from __future__ import annotations

import importlib
import inspect
from collections import deque
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

LR, BUFFER = {"lr": 0.1}, {"lr": 0.1, "momentum": 0.9}
FOREACH = ({"foreach": False}, {"foreach": True})
L2 = {"weight_decay": 0.1}

TORCH: dict[str, list[dict[str, Any]]] = {
    "ASGD": [{}, {"t0": 1, "lambd": 0.1}, *FOREACH, {"maximize": True, **L2}],
    "Adadelta": [{}, {"rho": 0.5, **L2}, *FOREACH, {"maximize": True}],
    "Adafactor": [{}, {"lr": 0.1, **L2}, {"maximize": True, "d": 2.0}],
    "Adagrad": [{}, {"initial_accumulator_value": 0.1, "lr_decay": 0.1}, *FOREACH, {"fused": True}],
    "Adam": [{}, {"amsgrad": True}, *FOREACH, {"fused": True}, {"fused": True, "amsgrad": True, "maximize": True}],
    "AdamW": [{}, {"amsgrad": True, "lr": 0.1}, *FOREACH, {"fused": True}, {"maximize": True, "foreach": True}],
    "Adamax": [{}, L2, *FOREACH, {"maximize": True}],
    "Muon": [{}, {"nesterov": False}, {"momentum": 0.5, "adjust_lr_fn": "match_rms_adamw"}],
    "NAdam": [{}, {"momentum_decay": 0.1, **L2}, *FOREACH, {"decoupled_weight_decay": True, **L2}],
    "RAdam": [{}, {"betas": (0.5, 0.6)}, *FOREACH, {"decoupled_weight_decay": True, **L2}],
    "RMSprop": [{}, {"centered": True}, {"momentum": 0.9}, {"centered": True, "momentum": 0.9, "foreach": True}, L2],
    "Rprop": [{}, {"lr": 0.5, "etas": (0.1, 1.1)}, *FOREACH, {"maximize": True}],
    "SGD": [
        *(LR, BUFFER, {**BUFFER, "nesterov": True}, {**BUFFER, "maximize": True, **L2}),
        *({**BUFFER, "foreach": True}, {**BUFFER, "fused": True}, {**BUFFER, "fused": True, "nesterov": True}),
    ],
    "SparseAdam": [{}, {"betas": (0.5, 0.6)}, {"maximize": True}],
}

OTHERS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "pytorch_optimizer": [
        *(
            ("AdaBelief", {}),
            ("AdEMAMix", {}),
            ("AdamP", {}),
            ("CAME", {}),
            ("Lamb", {}),
            ("Lion", {}),
            ("Prodigy", {}),
        ),
        *(("Ranger", {}), ("ScheduleFreeAdamW", {}), ("SM3", {}), ("StableAdamW", {}), ("Tiger", {}), ("Yogi", {})),
    ],
    "optimi": [("AdamW", {}), ("Lion", {}), ("RAdam", {}), ("SGD", BUFFER), ("StableAdamW", {})],
    "schedulefree": [("AdamWScheduleFree", {}), ("RAdamScheduleFree", {}), ("SGDScheduleFree", {})],
    "torch_optimizer": [
        *(("AdaBelief", {}), ("AdaBound", {}), ("AdamP", {}), ("AggMo", {}), ("DiffGrad", {}), ("Lamb", {})),
        *(("MADGRAD", {}), ("NovoGrad", {}), ("QHAdam", {}), ("SGDW", BUFFER), ("Shampoo", {}), ("Yogi", {})),
    ],
    "composer.optim": [("DecoupledAdamW", {}), ("DecoupledAdamW", {"amsgrad": True}), ("DecoupledSGDW", BUFFER)],
}

FROM_TORCH = [(name, kwargs) for name, rows in TORCH.items() if hasattr(torch.optim, name) for kwargs in rows]
CASES = [("torch.optim", name, kwargs) for name, kwargs in FROM_TORCH] + [
    (package, name, kwargs)
    for package, rows in OTHERS.items()
    for name, kwargs in rows
    if find_spec(package.split(".")[0])
]
LABELS = [f"{package}.{name}-{','.join(f'{k}={v}' for k, v in kwargs.items())}" for package, name, kwargs in CASES]

every_case = pytest.mark.parametrize(("package", "name", "kwargs"), CASES, ids=LABELS)


def parameters(name: str, dtype: torch.dtype = torch.float32) -> list[Parameter]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(4, 3), (3, 3), (2, 5)] if name == "Muon" else [(4, 3), (5,), (2, 3, 2), (3, 3)]
    tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    return [Parameter(tensor, requires_grad=index != len(tensors) - 1) for index, tensor in enumerate(tensors)]


def made(package: str, name: str, kwargs: dict[str, Any], dtype: torch.dtype = torch.float32) -> torch.optim.Optimizer:
    module = importlib.import_module(package)
    kind = getattr(module, name)
    needs_lr = inspect.signature(kind).parameters["lr"].default is inspect.Parameter.empty
    return kind(parameters(name, dtype), **(LR if needs_lr else {}) | kwargs)


def of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def train(optimizer: torch.optim.Optimizer, steps: range = range(5), missing: bool = True) -> list[Tensor]:
    """Steps on gradients of their own; the first parameter gets none in two of them, the second none at first."""
    if callable(mode := getattr(optimizer, "train", None)):
        mode()
    for step in steps:
        generator = torch.Generator().manual_seed(100 + step)
        for index, parameter in enumerate(of(optimizer)):
            grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype) * 10.0 ** (step - 2)
            absent = missing and (step in (2, 3) if index == 0 else step < 2 if index == 1 else False)
            sparse = isinstance(optimizer, torch.optim.SparseAdam)
            parameter.grad = None if absent else grad.to_sparse(1) if sparse else grad
        with torch.random.fork_rng():
            torch.manual_seed(step)  # for the optimizers that draw random numbers
            optimizer.step()
    return of(optimizer)


def assert_same(one: Any, other: Any) -> None:
    """Alike to the last bit, in the tree of dicts and lists."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple | deque):
        assert len(one) == len(other)
        for a, b in zip(one, other):
            assert_same(a, b)
    elif isinstance(one, Tensor):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        one, other = (torch.view_as_real(x) if x.is_complex() else x for x in (one.detach(), other.detach()))
        assert torch.equal(
            *(x.reshape(-1).view(torch.uint8) for x in (one, other))
        )  # nan is like nan, -0.0 not like 0.0
    else:
        assert one == other
