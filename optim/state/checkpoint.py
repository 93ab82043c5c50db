"""Loading a state dict: everything is checked first, and then written into the tensors that are there."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from ..base.hyperparameters import HYPERPARAMETERS, check_group, read_tags
from ..base.scalar_states import STEP
from ..base.sharding import notice_dtensor
from ..precision.options import REMAINDER, RULES, resolve_dtype
from .keeper import HasState, State, form, text

# How a step runs, which a state dict does not decide.
EXECUTION = frozenset(("foreach", "fused", "capturable", "differentiable", *RULES))


def load(optimizer: HasState, saved: Mapping[str, Any]) -> None:
    """Write a state dict into an optimizer; a `ValueError` says what differs, and then nothing has been changed."""
    name = type(optimizer).__name__
    for key in ("state", "param_groups"):
        if key not in saved:
            raise ValueError(f"{name}: the state dict has no {key!r}; pass what an optimizer's state_dict() returned.")
    loaded = _checked_groups(optimizer, saved["param_groups"], name)
    states = _checked_states(optimizer, saved, loaded, name)

    with torch.no_grad():  # nothing is refused from here on
        written: dict[int, Tensor] = {}
        for group, values in zip(optimizer.param_groups, loaded):
            group.update({key: _put(group.get(key), value, written) for key, value in values.items()})
        for state, values in states:
            for key, value in values.items():
                state[key] = state[key].copy_(value) if isinstance(state[key], Tensor) else copy.deepcopy(value)


def _checked_groups(optimizer: HasState, saved: Any, name: str) -> list[dict[str, Any]]:
    """The values that each group gets."""
    groups = optimizer.param_groups
    if len(saved) != len(groups):
        raise ValueError(
            f"{name}: the state dict has {len(saved)} parameter groups, this optimizer {len(groups)}; build "
            "the optimizer with the groups that were saved."
        )
    mine = _names(groups)
    for i, (here, there) in enumerate(zip(mine, _names(saved))):
        if here != there and there in mine:
            raise ValueError(
                f"{name}: parameter {i} is {here!r} here and {there!r} in the state dict; build the optimizer with the "
                "parameters that were saved, in their order."
            )
    return [
        _checked_group(optimizer, group, packed, f"{name}, group {i} of the state dict: ")
        for i, (group, packed) in enumerate(zip(groups, saved))
    ]


def _names(groups: Any) -> list[Any]:
    """The names of the parameters, in order; torch.distributed.checkpoint has them in place of the numbers."""
    pairs = chain.from_iterable(zip(group.get("params", ()), group.get("param_names", ())) for group in groups)
    return [number if isinstance(number, str) else name for number, name in pairs]


def _checked_group(
    optimizer: HasState, group: Mapping[str, Any], packed: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """The values that a group gets from that of the state dict."""
    name = type(optimizer).__name__
    values = {key: value for key, value in packed.items() if key != "params" and key not in EXECUTION}
    if len(packed.get("params", ())) != len(group["params"]):
        raise ValueError(
            f"{where}it has {len(packed.get('params', ()))} parameters in 'params', this optimizer's group "
            f"{len(group['params'])}; build the optimizer with the parameters that were saved, in their order."
        )
    rule = optimizer.algorithm_of(group)
    lacking = [key for key in rule.hyper if key not in values and key not in rule.may_be_missing]
    foreign = [key for key in values if key not in group and key in HYPERPARAMETERS]
    for verb, keys in (("lacks", lacking), ("has", foreign)):
        if keys and rule.hyper:
            raise ValueError(
                f"{where}it {verb} {', '.join(map(repr, sorted(keys)))}, so it is no state dict of {name}; load it "
                "into the class it is of."
            )
    check_group(rule.hyper, values, where)
    rule.check_combination({**group, **values}, where)
    for p in group["params"]:
        rule.check_parameter(p, {**group, **values}, where)
    for key in rule.structural:
        if key in values and bool(values[key]) != bool(group[key]):
            raise ValueError(
                f"{where}{key}={values[key]!r}, but this {name} was built with {key}={group[key]!r}, which decides "
                f"about its state or formula; build it with {key}={values[key]!r}."
            )
    if "param_names" in group:  # torch.distributed.checkpoint leaves the saved ones beside parameters in our order
        values.pop("param_names", None)
    if "tags" in values:
        values["tags"] = read_tags(values["tags"], where)
    return {key: _like(group.get(key), value) for key, value in values.items()}


def _checked_states(
    optimizer: HasState, saved: Mapping[str, Any], loaded: list[dict[str, Any]], name: str
) -> list[tuple[State, State]]:
    """The state of each parameter, and the values that it gets. `loaded`: the values that the groups get."""
    numbers = list(chain.from_iterable(group["params"] for group in saved["param_groups"]))
    known = set(numbers)
    for number in saved["state"]:
        if number not in known:
            raise ValueError(f"{name}: the state dict has state for {number!r}, which none of its groups contains.")

    @functools.cache
    def fresh_states() -> dict[Tensor, State]:  # of all parameters, if one of them needs it
        return optimizer.fresh_state([{**group, **new} for group, new in zip(optimizer.param_groups, loaded)])

    states: list[tuple[State, State]] = []
    for group, new in zip(optimizer.param_groups, loaded):
        for p in group["params"]:
            i = len(states)
            where = f"{name}: state of parameter {i}, of shape {tuple(p.shape)}: "
            mine, given = optimizer.state[p], dict(saved["state"].get(numbers[i]) or {})
            if given:
                given = _adapted_state(optimizer, given, p, group, where)
            elif mine:  # torch makes no state for a parameter that never had a gradient
                given = fresh_states()[p]
            needed = optimizer.needed_states({**group, **new}, p)  # None: an optimizer of somebody's own
            _check_names(mine, given, needed, group=group, new=new, where=where)
            values = {entry: _fitting(value, mine[entry], f"{where}{entry}: ") for entry, value in given.items()}
            if not 0 <= float(values.get(STEP, 0)) < math.inf:
                raise ValueError(f"{where}step: {values[STEP]} is no count of steps: it is to be 0 or more.")
            states.append((mine, values))
    return states


def _adapted_state(optimizer: HasState, given: State, p: Tensor, group: Mapping[str, Any], where: str) -> State:
    """The state that is given for a parameter, in this class's form and with what its precision options add to it."""
    mine, given = optimizer.state[p], optimizer.adapt_state(given, p, group)
    remainder = given.pop(REMAINDER, None)  # from torch's flattened dicts an empty dict, where there was none
    if REMAINDER in mine:
        remainder = remainder if isinstance(remainder, Tensor) else torch.zeros_like(p)
        if remainder.dtype != p.dtype:
            raise ValueError(
                f"{where}remainder is {remainder.dtype}, where its bits, which are no numbers, are lost: load it as "
                f"it was saved, in {p.dtype}."
            )
        given[REMAINDER] = remainder
    to_nearest = optimizer.needed_states({**group, "stochastic_rounding": False}, p)
    if to_nearest is not None and STEP not in to_nearest:  # the count of steps serves stochastic rounding alone
        step = given.pop(STEP, 0)
        if STEP in mine:
            given[STEP] = step
    return given


def _check_names(
    mine: State, given: State, needed: set[str] | None, group: Mapping[str, Any], new: Mapping[str, Any], where: str
) -> None:
    """Raise `ValueError` if the names of a parameter's states differ, also from those that the new values need."""
    lacking = mine.keys() - given.keys()
    extra = (given.keys() | (needed or set())) - mine.keys()
    if lacking or extra:
        parts = [("it lacks", lacking), ("this optimizer keeps no", extra)]
        found = " and ".join(f"{words} {', '.join(map(repr, sorted(keys)))}" for words, keys in parts if keys)
        # what is off on one side alone, such as a momentum of 0
        for key in new:
            if key in group and key != "lr" and (group[key] in (None, 0)) != (new[key] in (None, 0)):
                found += f" ({key}={new[key]!r} in the dict, {key}={group[key]!r} here)"
        raise ValueError(f"{where}{found}; load it into an optimizer built as the saved one was.")


def _fitting(value: Any, mine: Any, where: str) -> Any:
    """`value`, if it can be written into `mine`."""
    if not isinstance(mine, Tensor):
        return value
    if mine.dim() == 0 and isinstance(value, (int, float, Tensor)):  # the counters of older versions
        value = torch.as_tensor(value)
        value = value.reshape(()) if value.numel() == 1 else value
    notice_dtensor(value)
    if form(value) != form(mine) or value.layout is not mine.layout or (value.is_meta and not mine.is_meta):
        raise ValueError(
            f"{where}it is {text(value)}, this optimizer's {text(mine)}. (What is distributed otherwise is loaded with "
            "torch.distributed.checkpoint.state_dict.set_optimizer_state_dict.)"
        )
    return value


def _like(mine: Any, value: Any) -> Any:
    """`value` as what `mine` is: a tensor stays one, a number a number, a list a list."""
    if isinstance(mine, (tuple, list)) and isinstance(value, (tuple, list)):
        found = list(map(_like, mine, value)) if len(mine) == len(value) else copy.deepcopy(list(value))
        return found if isinstance(mine, list) else tuple(found)
    if isinstance(mine, Tensor):
        return torch.as_tensor(value, dtype=mine.dtype, device=mine.device).detach().reshape(mine.shape).clone()
    if isinstance(mine, (int, float)) and isinstance(value, Tensor):
        return value.item()
    if isinstance(mine, torch.dtype):
        return resolve_dtype(value)
    return copy.deepcopy(value)


def _put(mine: Any, value: Any, written: dict[int, Tensor]) -> Any:
    """The value, in the tensor that is there.

    A tensor that several groups share becomes one for each, if they were saved with different values.
    """
    if isinstance(mine, (tuple, list)) and isinstance(value, (tuple, list)) and len(mine) == len(value):
        return type(value)(_put(*pair, written) for pair in zip(mine, value))
    if not isinstance(mine, Tensor) or not torch.equal(written.setdefault(id(mine), value), value):
        return value
    return mine.copy_(value)
