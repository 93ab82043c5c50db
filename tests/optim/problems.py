"""Helpers of the optimizer tests: parameters and gradients of every kind, construction from a row, comparison."""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import optim
from tests.optim.equations import Reference
from tests.optim.rows import Row
from tests.optim.signatures import MATRICES

Snapshot = dict[tuple[Any, ...], Any]

# No gradient at some steps (counted from 1), late for the first time, and never.
MISSING: dict[int, Iterable[int]] = {1: (1, 2, 7), 2: (1, 2, 3, 4), 3: range(1, 1000)}


def parameters(name: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Parameter]:
    """Parameters of every kind that the optimizer takes: Muon gets matrices, the others all shapes and layouts."""
    generator, wide = torch.Generator().manual_seed(seed), torch.complex128 if dtype.is_complex else torch.float64

    def new(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=wide).to(dtype)

    if name in MATRICES:
        tensors = [new(4, 3), new(3, 7), new(5, 5), new(2, 6), new(3, 4).t(), new(6, 5)[::2], new(6, 1), new(1, 4)]
    else:
        tensors = [new(4, 3), new(5), new(), new(2, 2), new(2, 3, 2, 2), new(3, 4).t(), new(7)[::2]]
        tensors += [new(2, 3, 2, 2).contiguous(memory_format=torch.channels_last), new(0, 3), new(1)]
    return [Parameter(t) for t in tensors]


def give_gradients(
    params: Sequence[Tensor], step: int, *, zeros: bool = True, missing: Mapping[int, Iterable[int]] = MISSING
) -> None:
    """The gradients of a step, counted from 1: random by the step alone, some exactly zero, some not contiguous."""
    generator = torch.Generator().manual_seed(1000 + step)
    for i, p in enumerate(params):
        wide = torch.complex128 if p.is_complex() else torch.float64
        values = torch.randn(p.shape, generator=generator, dtype=wide)
        if zeros:
            values = values * (torch.rand(p.shape, generator=generator) > 0.2)
        if p.ndim == 2 and i % 4 == 0:
            values = values.t().contiguous().t()
        p.grad = None if step in missing.get(i, ()) else values.to(p.dtype)


def groups_of(row: Row, params: Sequence[Tensor], *, plain: bool = False) -> list[Any]:
    """The first argument of the constructor: parameters, or groups of them. `plain`: tensors as floats."""
    if row.groups == ({},):
        return list(params)
    n = len(row.groups)
    return [{"params": list(params[i::n]), **values(group, plain)} for i, group in enumerate(row.groups)]


def values(kwargs: Mapping[str, Any], plain: bool = False) -> dict[str, Any]:
    """A copy of some hyperparameters, so that no test writes into the table; `plain`: tensors as floats."""

    def value(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(value, x))
        return float(x) if plain and isinstance(x, Tensor) else copy.deepcopy(x)

    return {key: value(x) for key, x in kwargs.items()}


def ours(row: Row, params: Sequence[Tensor], **extra: Any) -> optim.Optimizer:
    return getattr(optim, row.name)(groups_of(row, params), **values(row.kwargs), **extra)


def theirs(row: Row, params: Sequence[Tensor], **extra: Any) -> torch.optim.Optimizer:
    """The reference for a row: torch's optimizer with floats for all hyperparameters, or the equations."""
    arguments = values(row.arguments, plain=True)
    groups = groups_of(row, params, plain=True)
    if not is_in_torch(row):
        return Reference(getattr(optim, row.name), groups, arguments)
    kind: Any = getattr(torch.optim, str(row.in_torch))
    known = inspect.signature(kind).parameters
    arguments = {key: 5 if key == "ns_steps" and x is None else x for key, x in arguments.items() if key in known}
    if row.in_torch == "Muon" and arguments["eps"] == 0:  # with which torch makes a gradient of zeros NaN
        del arguments["eps"]
    optimizer: torch.optim.Optimizer = kind(groups, **arguments, **extra)
    if row.name == "Adagrad":  # torch reads the initial value from the constructor, whatever the group says
        for group in optimizer.param_groups:
            for p in group["params"]:
                value = group["initial_accumulator_value"]
                optimizer.state[p]["sum"].fill_(complex(value, value) if p.is_complex() else value)
    return optimizer


def is_in_torch(row: Row) -> bool:
    """Whether this torch has an optimizer with the row's formula: Muon came with 2.9."""
    return row.in_torch is not None and hasattr(torch.optim, row.in_torch)


def run(optimizer: torch.optim.Optimizer, params: Sequence[Tensor], first: int, last: int) -> None:
    for step in range(first, last + 1):
        give_gradients(params, step)
        optimizer.step()


def trained(row: Row, steps: int = 2) -> optim.Optimizer:
    """An optimizer after its first steps."""
    optimizer = ours(row, parameters(row.name))
    run(optimizer, flat(optimizer), 1, steps)
    return optimizer


def flat(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def snapshot(optimizer: torch.optim.Optimizer) -> Snapshot:
    """Copies of the parameters, the state and the groups: equal snapshots mean that nothing was changed."""
    taken: Snapshot = {}
    for i, p in enumerate(flat(optimizer)):
        taken["param", i] = p.detach().clone()
        taken["grad", i] = None if p.grad is None else p.grad.clone()
        for key, value in optimizer.state.get(p, {}).items():
            taken["state", i, key] = copy.deepcopy(value)
    for i, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            taken["group", i, key] = [id(p) for p in value] if key == "params" else copy.deepcopy(value)
    return taken


def differences(mine: Snapshot, other: Snapshot) -> list[tuple[Any, ...]]:
    """The keys at which two snapshots differ by a bit, a dtype or a type."""
    return [key for key in mine.keys() | other.keys() if not same(mine.get(key, ...), other.get(key, ...))]


def same(mine: Any, other: Any) -> bool:
    if isinstance(mine, Tensor) and isinstance(other, Tensor):
        alike = mine.dtype == other.dtype and mine.shape == other.shape
        return alike and bool(((mine == other) | ((mine != mine) & (other != other))).all())
    if isinstance(mine, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(mine) == len(other) and all(map(same, mine, other))
    if isinstance(mine, dict) and isinstance(other, dict):
        return mine.keys() == other.keys() and all(same(mine[key], other[key]) for key in mine)
    return type(mine) is type(other) and mine == other


def assert_close(mine: Tensor, other: Tensor, bound: float, label: Any = "") -> None:
    """|mine - other| <= bound * max(1, |other|) in every element; NaN and infinities in the same places."""
    assert mine.shape == other.shape, (label, mine.shape, other.shape)
    wide = torch.complex128 if other.is_complex() else torch.float64
    mine, other = mine.detach().to(wide), other.detach().to(wide)
    if other.is_complex():
        mine, other = torch.view_as_real(mine), torch.view_as_real(other)
    equal = (mine == other) | (mine.isnan() & other.isnan())
    error = (mine - other).abs() / other.abs().clamp(min=1)
    assert bool((equal | (error <= bound)).all()), f"{label}: off by {error[~equal].max():.3g}, allowed {bound}"


def assert_states_close(
    mine: torch.optim.Optimizer, other: torch.optim.Optimizer, bound: float, *, empty: bool = True
) -> None:
    """Parameters, and state of the same name. Where ours has state that theirs lacks, there was no gradient yet."""
    for i, (p, q) in enumerate(zip(flat(mine), flat(other))):
        assert_close(p, q, bound, ("parameter", i))
        for key, value in other.state.get(q, {}).items():
            if p.numel() or empty:
                there = torch.as_tensor(mine.state[p][key])
                assert_close(there, torch.as_tensor(value), bound, (key, "of parameter", i))


def assert_same_steps(row: Row, mine: torch.optim.Optimizer, other: torch.optim.Optimizer) -> None:
    """The parameters and state agree with those that `theirs` computes, as closely as float64 allows."""
    # The mean over nothing is NaN, which the reference of Adafactor keeps as the state of an empty matrix.
    assert_states_close(mine, other, 1e-12, empty=row.name != "Adafactor")


def assert_same_training(
    untouched: torch.optim.Optimizer, early: torch.optim.Optimizer, first: int = 1, *, simple: bool = False
) -> None:
    """Bit for bit, though `early` has all its state before, and `untouched` has none yet. No key is added to `early`.

    `simple`: all parameters have gradients from the first step on, with the strides of their parameters.
    """
    keys = {p: set(state) for p, state in early.state.items()}
    for step in range(first, first + 5):
        for optimizer in (untouched, early):
            give_gradients(flat(optimizer), step, missing={} if simple else MISSING)
            for p in flat(optimizer) if simple else ():
                p.grad = torch.empty_like(p).copy_(p.grad).detach()
            optimizer.step()
    assert {p: set(state) for p, state in early.state.items()} == keys
    never = {i for i, p in enumerate(flat(untouched)) if p.grad is None}
    for key in differences(snapshot(early), snapshot(untouched)):
        assert key[2:] == ("params",) or (key[0] == "state" and key[1] in never), key


def held_bytes(optimizer: torch.optim.Optimizer) -> int:
    """The bytes of all tensors in the state."""
    return sum(x.nbytes for x in tree_leaves(list(optimizer.state.values())) if isinstance(x, Tensor))


class PeakBytes(TorchDispatchMode):
    """Counts the most bytes that results of operations hold at once, in addition to the bytes of other tensors."""

    def __init__(self, *other_tensors):
        super().__init__()
        self.references, self.most = [], 0
        self.other_storages = dict.fromkeys((x.untyped_storage().data_ptr() for x in other_tensors), 0)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        self.references = [ref for ref in self.references if ref() is not None]
        self.references += [weakref.ref(x) for x in tree_leaves(results) if isinstance(x, torch.Tensor)]
        storages = [x.untyped_storage() for ref in self.references if (x := ref()) is not None]
        held = {storage.data_ptr(): storage.nbytes() for storage in storages} | self.other_storages
        self.most = max(self.most, sum(held.values()))
        return results
