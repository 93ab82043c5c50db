"""Loading a state dict: everything is read and checked first, and then written into the existing tensors.

1. `_read_groups`: the values that each group gets, in the types of the present values.
2. `_read_states`: the values that the states of each parameter get. First a saved state takes the form of the class
   (`Optimizer.adapt_state`), and has the same states of precision options as here (`Optimizer.optional_states`). A
   parameter without saved state gets its initial state. Then the names, the shapes and the values are checked.
3. `load` writes both. Nothing there raises an error.

In the names, `saved` is a thing of the state dict, `new_groups` are the groups as they will be, and `values` are about
to be written.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from timesched.types import ParamGroup, StateDict

from ..base.hyperparameters import HYPERPARAMETERS, all_parameters, check_group, read_tags
from ..base.scalar_states import STEP
from ..precision.options import REMAINDER, RULES, resolve_dtype
from .keeper import State
from .tensor_kinds import cast_invariants, describe_tensor

if TYPE_CHECKING:
    from .optimizer import Optimizer

# These keys say how a step runs. A state dict does not decide about them.
EXECUTION = frozenset(("foreach", "fused", "capturable", "differentiable", *RULES))


def load(optimizer: Optimizer, saved: StateDict) -> None:
    """Write a state dict into an optimizer. If something differs, a `ValueError` names it and nothing has changed."""
    for key in ("state", "param_groups"):
        if key not in saved:
            name = type(optimizer).__name__
            raise ValueError(f"{name}: the state dict has no {key!r}. Pass the result of an optimizer's state_dict().")
    loaded = _read_groups(optimizer, saved["param_groups"])
    new_groups = [{**group, **values} for group, values in zip(optimizer.param_groups, loaded)]
    states = _read_states(optimizer, saved, new_groups)

    with torch.no_grad():  # nothing below raises an error
        written: dict[int, Tensor] = {}
        for group, values in zip(optimizer.param_groups, loaded):
            group.update({key: _write_value(group.get(key), value, written) for key, value in values.items()})
        for state, values in states:
            for key, value in values.items():
                state[key] = state[key].copy_(value) if isinstance(state[key], Tensor) else copy.deepcopy(value)


def _read_groups(optimizer: Optimizer, saved: Any) -> list[ParamGroup]:
    """The values that each group gets."""
    name, groups = type(optimizer).__name__, optimizer.param_groups
    if len(saved) != len(groups):
        raise ValueError(
            f"{name}: the state dict has {len(saved)} parameter groups, but this optimizer has {len(groups)}. Build "
            "the optimizer with the saved groups."
        )
    names = parameter_names(groups)
    for i, (name_here, saved_name) in enumerate(zip(names, parameter_names(saved))):
        if name_here != saved_name and saved_name in names:
            raise ValueError(
                f"{name}: parameter {i} is {name_here!r} here, but {saved_name!r} in the state dict. Build the "
                "optimizer with the saved parameters in their order."
            )
    return [
        _read_group(optimizer, group, saved_group, f"{name}, group {i} of the state dict: ")
        for i, (group, saved_group) in enumerate(zip(groups, saved))
    ]


def parameter_names(groups: Any) -> list[Any]:
    """The names of the parameters, in order. torch.distributed.checkpoint puts them in place of the numbers."""
    pairs = chain.from_iterable(zip(group.get("params", ()), group.get("param_names", ())) for group in groups)
    return [number if isinstance(number, str) else name for number, name in pairs]


def _read_group(optimizer: Optimizer, group: ParamGroup, saved_group: ParamGroup, where: str) -> dict[str, Any]:
    """The values that a group gets from the group of the state dict."""
    values = {key: value for key, value in saved_group.items() if key != "params" and key not in EXECUTION}
    if len(saved_group.get("params", ())) != len(group["params"]):
        raise ValueError(
            f"{where}it has {len(saved_group.get('params', ()))} parameters in 'params', but this optimizer's group "
            f"has {len(group['params'])}. Build the optimizer with the saved parameters in their order."
        )
    _check_group_values(optimizer, group, values, where)
    if "param_names" in group:  # torch.distributed.checkpoint returns saved names with parameters in our order
        values.pop("param_names", None)
    if "tags" in values:
        values["tags"] = read_tags(values["tags"], where)
    return {key: _convert_like(group.get(key), value) for key, value in values.items()}


def _check_group_values(optimizer: Optimizer, group: ParamGroup, values: ParamGroup, where: str) -> None:
    """Raise `ValueError` if a group or its parameters cannot have these values."""
    name, algorithm = type(optimizer).__name__, optimizer.algorithm_of(group)
    lacking = [key for key in algorithm.hyper if key not in values and key not in algorithm.may_be_missing]
    unexpected = [key for key in values if key not in group and key in HYPERPARAMETERS]
    if algorithm.hyper and (lacking or unexpected):
        difference = f"lacks {_join_names(lacking)}" if lacking else f"has {_join_names(unexpected)}"
        raise ValueError(f"{where}it {difference}. Load it into the class that saved it, not {name}.")
    check_group(algorithm.hyper, values, where)
    new_group = {**group, **values}
    algorithm.check_combination(new_group, where)
    for p in group["params"]:
        algorithm.check_parameter(p, new_group, where)
    for key in algorithm.structural:
        if key in values and bool(values[key]) != bool(group[key]):
            raise ValueError(
                f"{where}{key}={values[key]!r}: this {name} was built with {key}={group[key]!r}, which decides about "
                f"its state or formula. Build it with {key}={values[key]!r}."
            )


def _read_states(optimizer: Optimizer, saved: StateDict, new_groups: list[ParamGroup]) -> list[tuple[State, State]]:
    """The state of each parameter, and the values that it gets. `new_groups`: the groups with their loaded values."""
    name, numbers = type(optimizer).__name__, all_parameters(saved["param_groups"])
    known = set(numbers)
    for number in saved["state"]:
        if number not in known:
            raise ValueError(
                f"{name}: the state dict has state for {number!r}, which is in no group. Load it as it was saved."
            )

    names = parameter_names(optimizer.param_groups)  # empty if the parameters have no names
    states: list[tuple[State, State]] = []
    for group, new_group in zip(optimizer.param_groups, new_groups):
        for p in group["params"]:
            i = len(states)
            label = f"{i}, {names[i]!r}" if names else f"{i}"
            where = f"{name}: state of parameter {label}, of shape {tuple(p.shape)}: "
            values = _read_state(optimizer, saved["state"].get(numbers[i]), p, group, new_group, where)
            states.append((optimizer.state[p], values))
    return states


def _read_state(
    optimizer: Optimizer, saved_state: State | None, p: Tensor, group: ParamGroup, new_group: ParamGroup, where: str
) -> State:
    """The values that the state of one parameter gets, checked against the state that it has."""
    state = optimizer.state[p]
    if saved_state:
        values = optimizer.adapt_state(dict(saved_state), p, group)
        _adapt_optional_states(values, state, optimizer.optional_states(group, p))
    else:  # torch makes no state for a parameter that never had a gradient
        values = optimizer.initial_states([{**new_group, "params": [p]}])[p] if state else {}
    _check_state_names(values, state, optimizer.needed_states(new_group, p), group, new_group, where)
    values = {name: _require_fit(value, state[name], f"{where}{name}: ") for name, value in values.items()}
    _check_state_values(values, state, where)
    return values


def _adapt_optional_states(saved_state: State, state: State, names: Iterable[str]) -> None:
    """Let a saved state have the same states of these names as the current state.

    Only one of the two has such a state if a precision option was switched on or off after the save.
    """
    for name in names:
        if name not in state:
            saved_state.pop(name, None)
        elif isinstance(saved_state.get(name), dict | None):  # torch's flattened dicts have a dict for no state
            saved_state[name] = torch.zeros_like(state[name])


def _check_state_names(
    values: State, state: State, needed: set[str], group: ParamGroup, new_group: ParamGroup, where: str
) -> None:
    """Raise `ValueError` if a parameter's states differ from the loaded states, or from those that new groups need."""
    lacking = state.keys() - values.keys()
    extra = (values.keys() | needed) - state.keys()
    if lacking or extra:
        parts = [("it lacks", lacking), ("this optimizer does not have", extra)]
        differences = " and ".join(f"{words} {_join_names(names)}" for words, names in parts if names)
        # a hyperparameter that is off on one side only, such as a momentum of 0
        for key in group:
            if key != "lr" and (group[key] in (None, 0)) != (new_group[key] in (None, 0)):
                differences += f" ({key}={new_group[key]!r} in the dict, {key}={group[key]!r} here)"
        raise ValueError(f"{where}{differences}. Load it into an optimizer that is built like the saved one.")


def _check_state_values(values: State, state: State, where: str) -> None:
    """Raise `ValueError` for a remainder or a count that is wrong although its shape fits."""
    if REMAINDER in values and values[REMAINDER].dtype != state[REMAINDER].dtype:
        raise ValueError(
            f"{where}remainder has dtype {values[REMAINDER].dtype}, in which its bits are lost. Load it as it was "
            f"saved, in {state[REMAINDER].dtype}."
        )
    step = values.get(STEP, 0)
    is_on_meta = isinstance(step, Tensor) and step.is_meta  # then it has no value
    if not is_on_meta and not 0 <= float(step) < math.inf:
        raise ValueError(f"{where}step={step!r}: it must be a finite number at least 0. Correct it.")


def _join_names(names: Iterable[str]) -> str:
    """The names in quotes, sorted, for a message."""
    return ", ".join(map(repr, sorted(names)))


def _require_fit(value: Any, current: object, where: str) -> Any:
    """Return `value` if it can be written into `current`; otherwise raise `ValueError`."""
    if not isinstance(current, Tensor):
        return value
    if current.dim() == 0 and isinstance(value, (int, float, Tensor)):  # the counters of older versions
        value = torch.as_tensor(value)
        value = value.reshape(()) if value.numel() == 1 else value
    differs = cast_invariants(value) != cast_invariants(current) or value.layout is not current.layout
    if differs or (value.is_meta and not current.is_meta):
        raise ValueError(
            f"{where}it is {describe_tensor(value)}, but this optimizer has {describe_tensor(current)}. Build the "
            "optimizer like the saved one. To load state that is distributed differently, use "
            "torch.distributed.checkpoint.state_dict.set_optimizer_state_dict."
        )
    return value


def _convert_like(current: object, value: object) -> Any:
    """`value` in the type of `current`: a tensor stays a tensor, a number a number, a list a list."""
    if isinstance(current, (tuple, list)) and isinstance(value, (tuple, list)):
        items = list(map(_convert_like, current, value)) if len(current) == len(value) else copy.deepcopy(list(value))
        return items if isinstance(current, list) else tuple(items)
    if isinstance(current, Tensor):
        tensor = torch.as_tensor(value, dtype=current.dtype, device=current.device)
        return tensor.detach().reshape(current.shape).clone()
    if isinstance(current, (int, float)) and isinstance(value, Tensor):
        return value.item()
    if isinstance(current, torch.dtype):
        return resolve_dtype(value)
    return copy.deepcopy(value)


def _write_value(current: object, value: Any, written: dict[int, Tensor]) -> Any:
    """Write the value into the existing tensor, and return it.

    If several groups share a tensor and were saved with different values, each group gets its own tensor.
    """
    if isinstance(current, (tuple, list)) and isinstance(value, (tuple, list)) and len(current) == len(value):
        return type(value)(_write_value(*pair, written) for pair in zip(current, value))
    if not isinstance(current, Tensor) or not torch.equal(written.setdefault(id(current), value), value):
        return value
    return current.copy_(value)
