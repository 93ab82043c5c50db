"""State follows its parameter: what becomes of the state of a parameter that was moved, cast, resized or replaced.

Between steps, programs change what the constructor saw: a model is moved or cast, a trainer puts other tensors into the
groups, somebody clears `optimizer.state`. `follow` notices before any kernel runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..base.sharding import distribution, notice_dtensor
from ..precision.options import REMAINDER

if TYPE_CHECKING:
    from .optimizer import Optimizer

State = dict[str, Any]

Seen = tuple[Any, dict[str, Any]]  # the kinds of a parameter and of its states, by name

# Dynamo's comparison of many tensors: in Python it takes three times as long, a quarter more for a step of small ones.
# It is private; without it, every step takes the longer way.
TensorGuards: Any = getattr(torch._C._dynamo.guards, "TensorGuards", None)


def follow(optimizer: Optimizer) -> None:
    """Let the state follow all parameters. Raises `ValueError` where it cannot, and changes nothing then.

    Where a parameter was moved or cast, its state is, with its values. Where it is new, and where its state was cleared
    or had no values, it gets what `preinitialize()` makes. State of another shape is an error.
    """
    try:
        if optimizer._guards is not None and optimizer._guards.check(*_tensors(optimizer)):
            return
    except TypeError:  # a parameter without state, another number of tensors, or something that is no tensor
        pass
    strangers = [key for key in optimizer.state if not isinstance(key, Tensor)]
    if strangers:
        raise ValueError(
            f"{type(optimizer).__name__}: optimizer.state has the key {strangers[0]!r}, and its keys are parameters: "
            f"delete optimizer.state[{strangers[0]!r}], and keep such a value in param_groups."
        )
    names: dict[Tensor, str] = {}
    groups: list[dict[str, Any]] = []
    for i, group in enumerate(optimizer.param_groups):
        changed = {p: f"parameter {j} of group {i}" for j, p in enumerate(group["params"]) if not fits(optimizer, p)}
        groups += [{**group, "params": list(changed)}] if changed else []
        names.update(changed)
    for group in groups:
        for p in group["params"]:
            notice_dtensor(p)
            optimizer.algorithm_of(group).check_parameter(p, group, f"{type(optimizer).__name__}, {names[p]}: ")
    fresh = optimizer.fresh_state(groups) if names else {}
    settle(optimizer, {p: _moved(optimizer, p, fresh[p], name) for p, name in names.items()})


def settle(optimizer: Optimizer, states: Mapping[Tensor, State]) -> None:
    """Put the states in place, and drop what belongs to no parameter any more."""
    optimizer.state.update(states)
    params = set(_params(optimizer))
    for stray in [p for p in optimizer.state if p not in params]:
        del optimizer.state[stray]
    optimizer._seen = {p: _kinds(p, state) for p, state in optimizer.state.items()}
    optimizer._guards = None
    if len(params) > len(optimizer.state):
        return  # a parameter was put in another's place: the next step gives it state
    tensors = _tensors(optimizer)
    if TensorGuards is not None and all(isinstance(x, Tensor) for x in tensors):
        sizes, strides = [list(x.shape) for x in tensors], [list(x.stride()) for x in tensors]
        optimizer._guards = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)


def reset(optimizer: Optimizer, params: Tensor | Iterable[Tensor] | None) -> None:
    """See `Optimizer.reset_state`."""
    chosen = set(_params(optimizer) if params is None else [params] if isinstance(params, Tensor) else params)
    for unknown in chosen.difference(_params(optimizer)):
        raise ValueError(
            f"{type(optimizer).__name__}: a tensor of shape {tuple(unknown.shape)} is in none of the groups; pass "
            f"parameters that are, or add it with add_param_group()."
        )
    groups = [{**g, "params": [p for p in g["params"] if p in chosen]} for g in optimizer.param_groups]
    states = optimizer.fresh_state([group for group in groups if group["params"]])
    for p, fresh in states.items():
        if fits(optimizer, p):  # in the tensors that are there, whose addresses somebody may hold
            with torch.no_grad():
                mine = optimizer.state[p]
                states[p] = {k: mine[k].copy_(x) if isinstance(x, Tensor) else x for k, x in fresh.items()}
    settle(optimizer, states)


def fits(optimizer: Optimizer, p: Tensor) -> bool:
    """Whether a parameter and its state are what they were when the state was made, or followed last."""
    return p in optimizer.state and optimizer._seen.get(p) == _kinds(p, optimizer.state[p])


def _kinds(p: Tensor, state: State) -> Seen:
    return _kind(p), {name: _kind(x) for name, x in state.items()}


def _kind(x: Any) -> Any:
    return (type(x), x.shape, x.dtype, x.device) if isinstance(x, Tensor) else None


def _params(optimizer: Optimizer) -> Iterator[Tensor]:
    return chain.from_iterable(group["params"] for group in optimizer.param_groups)


def _tensors(optimizer: Optimizer) -> list[Any]:
    """All parameters, then all their states. Raises `TypeError` where a parameter has none."""
    state, params = optimizer.state, list(_params(optimizer))
    if len(params) != len(state):
        raise TypeError("there is state of a parameter that left")
    in_order = all(map(is_, params, state))  # as nearly always; then nothing has to be looked up
    states = state.values() if in_order else map(state.get, params)
    return [*params, *chain.from_iterable(map(dict.values, states))]


def _moved(optimizer: Optimizer, p: Tensor, fresh: State, name: str) -> State:
    """A parameter's state, in tensors like those of `fresh`; that itself where there is none with values."""
    state = optimizer.state.get(p)
    if not state or any(isinstance(x, Tensor) and x.is_meta and not p.is_meta for x in state.values()):
        return fresh
    if REMAINDER in state and REMAINDER not in fresh:
        warnings.warn(
            f"{type(optimizer).__name__}: {name} is {p.dtype} now, and what its master weights had beyond bfloat16 is "
            "gone: call optimizer.float32_parameters() before such a cast, and load them after it.",
            stacklevel=2,
        )
        state = {key: x for key, x in state.items() if key != REMAINDER}
    elif REMAINDER in fresh:
        state = {REMAINDER: fresh[REMAINDER], **state}
    for key in {**fresh, **state}:
        if key not in state or key not in fresh or form(state[key]) != form(fresh[key]):
            raise ValueError(
                f"{type(optimizer).__name__}: {name} is {text(p)}, and its state {key!r} is {text(state.get(key))}, "
                f"where {text(fresh.get(key))} fits. To begin anew with this parameter, pass it to "
                "optimizer.reset_state([...])."
            )
    with torch.no_grad():
        return {key: x if _kind(x) == _kind(fresh[key]) else fresh[key].copy_(x) for key, x in state.items()}


def form(x: Any) -> Any:
    """What a cast and a move leave as it is."""
    return (x.shape, x.is_complex(), distribution(x)) if isinstance(x, Tensor) else None


def text(x: Any) -> str:
    """A tensor by what it must have in common with its parameter's, for a message."""
    if not isinstance(x, Tensor):
        return repr(x)
    layout = "" if x.layout is torch.strided else f" in the layout {x.layout}"
    placed = "" if distribution(x) is None else f" distributed as {distribution(x)}"
    return f"{x.dtype} of shape {tuple(x.shape)} on {x.device}{layout}{placed}"
