"""State follows its parameter: what becomes of the state of a parameter that was moved, cast, resized or replaced.

Between steps, programs change what the constructor saw: a model is moved or cast, embeddings are resized, a trainer
puts other tensors into the groups, somebody clears `optimizer.state`. `follow` notices before any kernel runs. `plan`
says what the state of each such parameter has to be, or refuses, and changes nothing; `settle` carries the plan out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch._C._dynamo import guards as dynamo_guards

from .sharding import distribution, local, notice_dtensor
from .work import STEP

if TYPE_CHECKING:
    from .optimizer import Optimizer

State = dict[str, Any]

# Dynamo's comparison of many tensors, five times as fast as in Python. It is private: without it, every step takes the
# longer way.
TensorGuards: Any = getattr(dynamo_guards, "TensorGuards", None)


class Kind(NamedTuple):
    """What a tensor has to have in common with the one that its state was made for."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    distribution: tuple[Any, Any] | None


class Seen(NamedTuple):
    """A parameter and its state as they were when they fitted last."""

    parameter: Kind
    state: dict[str, Kind | None]  # None for what is not a tensor


def follow(optimizer: Optimizer) -> None:
    """Let the state follow all parameters. Raises `ValueError` where it cannot, and changes nothing then."""
    try:
        if optimizer._guards is not None and optimizer._guards.check(*_tensors(optimizer)):
            return
    except TypeError:  # another number of tensors, or something that is not a tensor
        pass
    settle(optimizer, plan(optimizer))
    optimizer._guards = _guards(_tensors(optimizer))


def plan(optimizer: Optimizer, keep: bool = True) -> dict[Tensor, State]:
    """The state for each parameter whose state does not fit it.

    Where a parameter was moved or cast: its state, moved and cast. Where it is new, where its state was cleared, and
    where it was resized before its first step: what `preinitialize()` makes. Without `keep`, as before a load, always
    the latter. Raises `ValueError` where values cannot be kept.
    """
    for key in optimizer.state:
        if not isinstance(key, Tensor):
            raise ValueError(
                f"{type(optimizer).__name__}: optimizer.state has the key {key!r}, and its keys are parameters: delete "
                f"optimizer.state[{key!r}], and keep such a value in param_groups."
            )
    changed: dict[Tensor, str] = {}
    groups = []
    for i, group in enumerate(optimizer.param_groups):
        params, names = group["params"], group.get("param_names", ())
        if len(names) != len(params):  # none, or parameters were added or removed without their names
            names = [f"parameter {j}" for j in range(len(params))]
        here = {p: f"{name} of group {i}" for p, name in zip(params, names) if not _fits(optimizer, p)}
        if here:
            groups.append({**group, "params": list(here)})
            changed.update(here)
    if not changed:
        return {}
    for p, name in changed.items():
        notice_dtensor(p)
        optimizer.check_parameter(p, f"{type(optimizer).__name__}, {name}: ")
    fresh = optimizer.fresh_state(groups)
    return {p: _carried(optimizer, p, fresh[p], name) if keep else fresh[p] for p, name in changed.items()}


def settle(optimizer: Optimizer, planned: Mapping[Tensor, State]) -> None:
    """Put the planned state in place, and drop what belongs to no parameter any more."""
    optimizer.state.update(planned)
    for p, state in planned.items():
        optimizer._seen[p] = seen(p, state)
    params = set(_params(optimizer))
    for p in [p for p in optimizer.state if isinstance(p, Tensor) and p not in params]:
        del optimizer.state[p]
    for p in optimizer._seen.keys() - params:
        del optimizer._seen[p]


def reset(optimizer: Optimizer, params: Tensor | Iterable[Tensor] | None) -> None:
    """See `Optimizer.reset_state`."""
    chosen = set(_params(optimizer) if params is None else [params] if isinstance(params, Tensor) else params)
    for unknown in chosen.difference(_params(optimizer)):
        raise ValueError(
            f"{type(optimizer).__name__}: a tensor of shape {tuple(unknown.shape)} is in none of the groups; pass "
            f"parameters that are, or add it with add_param_group()."
        )
    groups = [{**g, "params": [p for p in g["params"] if p in chosen]} for g in optimizer.param_groups]
    fresh = optimizer.fresh_state([group for group in groups if group["params"]])
    with torch.no_grad():
        for p, state in fresh.items():
            if _fits(optimizer, p):
                for key, x in state.items():
                    _overwrite(optimizer.state[p], key, x)
    settle(optimizer, {p: state for p, state in fresh.items() if not _fits(optimizer, p)})


def _overwrite(state: State, key: str, x: Any) -> None:
    if isinstance(x, Tensor):
        state[key].copy_(x)
    else:
        state[key] = x


def seen(p: Tensor, state: State) -> Seen:
    return Seen(_kind(p), {name: _kind(x) if isinstance(x, Tensor) else None for name, x in state.items()})


def complete(optimizer: Optimizer) -> bool:
    """Whether exactly the parameters of the groups have state, and it was made for their shapes."""
    if {p for p in optimizer.state if isinstance(p, Tensor)} != set(_params(optimizer)):
        return False
    return all(p.shape == before.parameter.shape for p, before in optimizer._seen.items())


def _params(optimizer: Optimizer) -> Iterator[Tensor]:
    return chain.from_iterable(group["params"] for group in optimizer.param_groups)


def _kind(x: Any) -> Kind:
    return Kind(x.shape, x.dtype, x.device, distribution(x))


def _tensors(optimizer: Optimizer) -> list[Any]:
    """All parameters, then all their states. Raises `TypeError` where a parameter has none."""
    state = optimizer.state
    params = list(_params(optimizer))
    if len(params) != len(state):
        raise TypeError("there is state of a parameter that left")
    in_order = all(map(is_, params, state))  # as nearly always; then nothing has to be looked up
    states = state.values() if in_order else map(state.get, params)
    return [*params, *chain.from_iterable(map(dict.values, states))]


def _guards(tensors: Iterable[Any]) -> Any:
    if TensorGuards is None or not all(isinstance(x, Tensor) for x in tensors):
        return None
    sizes, strides = [list(x.shape) for x in tensors], [list(x.stride()) for x in tensors]
    return TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)


def _fits(optimizer: Optimizer, p: Tensor) -> bool:
    before, state = optimizer._seen.get(p), optimizer.state.get(p)
    if before is None or state is None or _kind(p) != before.parameter:
        return False
    return all(
        name in state and (kind is None or (isinstance(state[name], Tensor) and _kind(state[name]) == kind))
        for name, kind in before.state.items()
    )


def _carried(optimizer: Optimizer, p: Tensor, fresh: State, name: str) -> State:
    """The values of a parameter's state, in tensors like those of `fresh`; or `fresh` itself."""
    state, before = optimizer.state.get(p), optimizer._seen.get(p)
    if not state:
        return fresh
    where = f"{type(optimizer).__name__}: {name}"
    cure = "To begin anew with this parameter, pass it to optimizer.reset_state([...])."
    needed = fresh if before is None else before.state
    lacking = [
        key
        for key in needed
        if key not in state or (isinstance(fresh.get(key), Tensor) and not isinstance(state[key], Tensor))
    ]
    if lacking:
        raise ValueError(f"{where} lacks the state {', '.join(map(repr, sorted(lacking)))} as a tensor. {cure}")
    pairs = {key: (state[key], x) for key, x in fresh.items() if isinstance(x, Tensor) and key in state}
    misfits = [f"its state {key!r} is {_text(old)}" for key, (old, new) in pairs.items() if not _castable(old, new)]
    if before is not None and before.parameter.shape != p.shape:
        misfits += [f"it has no state {key!r}" for key in fresh.keys() - state.keys()]
        where += f" was {_text(before.parameter)} and"
    if not misfits:
        with torch.no_grad():
            return {key: _moved(*pairs[key]) if key in pairs else old for key, old in state.items()}
    if not _has_stepped(state):
        return fresh
    raise ValueError(
        f"{where} is now {_text(p)}, but {misfits[0]}, and it has taken steps. Resize a parameter before its first "
        f"step, or load a state dict that fits it. {cure}"
    )


def _castable(old: Any, new: Tensor) -> bool:
    """Whether the values of `old` can be kept in a tensor like `new`."""
    if not isinstance(old, Tensor) or (old.is_meta and not new.is_meta):
        return False
    return (old.shape, old.is_complex(), distribution(old)) == (new.shape, new.is_complex(), distribution(new))


def _moved(old: Tensor, new: Tensor) -> Tensor:
    return old if (old.dtype, old.device) == (new.dtype, new.device) else new.copy_(old)


def _has_stepped(state: State) -> bool:
    """Whether a parameter has taken a step: by its count, else by a state that is not zero any more."""
    values = [state[STEP]] if STEP in state else state.values()
    tensors = [local(x, x) if isinstance(x, Tensor) else torch.as_tensor(x) for x in values]
    return any(bool(x.any()) for x in tensors if not x.is_meta)


def _text(x: Any) -> str:
    placed = "" if distribution(x) is None else f" distributed as {distribution(x)}"
    return f"{x.dtype} of shape {tuple(x.shape)} on {x.device}{placed}"
