"""Taking over a state dict: everything is checked first, then copied into the tensors that are there."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..base.hyperparameters import KNOWN, as_tags, check_group
from ..base.scalar_states import STEP
from ..base.sharding import notice_dtensor
from ..precision.options import REMAINDER, RULES, as_dtype
from .keeper import follow, form, text

if TYPE_CHECKING:
    from .optimizer import Optimizer

# How a step runs, which a state dict does not decide.
EXECUTION = frozenset(("foreach", "fused", "capturable", "differentiable", *RULES))


def load(optimizer: Optimizer, state_dict: Mapping[str, Any]) -> None:
    """See `Optimizer.load_state_dict`."""
    name = type(optimizer).__name__
    follow(optimizer)
    saved = dict(state_dict)
    for pre_hook in list(optimizer._optimizer_load_state_dict_pre_hooks.values()):
        replaced = pre_hook(optimizer, saved)
        saved = saved if replaced is None else dict(replaced)
    for key in ("state", "param_groups"):
        if key not in saved:
            raise ValueError(f"{name}: the state dict has no {key!r}; pass what an optimizer's state_dict() returned.")
    groups = _groups(optimizer, saved["param_groups"], name)
    writes = _state(optimizer, saved, groups, name)

    with torch.no_grad():  # nothing is refused from here on
        written: dict[int, Tensor] = {}
        for group, values in zip(optimizer.param_groups, groups):
            group.update({key: _put(group.get(key), value, written) for key, value in values.items()})
        for state, key, value in writes:
            state[key] = state[key].copy_(value) if isinstance(state[key], Tensor) else copy.deepcopy(value)
    for post_hook in list(optimizer._optimizer_load_state_dict_post_hooks.values()):
        post_hook(optimizer)


def _names(groups: Any) -> list[Any]:
    """The names of the parameters, in order; torch.distributed.checkpoint has them in place of the numbers."""
    pairs = chain.from_iterable(zip(group.get("params", ()), group.get("param_names", ())) for group in groups)
    return [number if isinstance(number, str) else name for number, name in pairs]


def _groups(optimizer: Optimizer, saved: Any, name: str) -> list[dict[str, Any]]:
    """The values to take over for each group."""
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
    result = []
    for i, (group, packed) in enumerate(zip(groups, saved)):
        where = f"{name}, group {i} of the state dict: "
        values = {key: value for key, value in packed.items() if key != "params" and key not in EXECUTION}
        if len(packed.get("params", ())) != len(group["params"]):
            raise ValueError(
                f"{where}it has {len(packed.get('params', ()))} parameters in 'params', this optimizer's group "
                f"{len(group['params'])}; build the optimizer with the parameters that were saved, in their order."
            )
        rule = optimizer.algorithm_of(group)
        lacking = [key for key in rule.hyper if key not in values and key not in rule.may_be_missing]
        foreign = [key for key in values if key not in group and key in KNOWN]
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
            values["tags"] = as_tags(values["tags"], where)
        result.append({key: _taken(group.get(key), value) for key, value in values.items()})
    return result


def _state(
    optimizer: Optimizer, saved: Mapping[str, Any], groups: list[dict[str, Any]], name: str
) -> list[tuple[dict[str, Any], str, Any]]:
    """What to write where."""
    ids = list(chain.from_iterable(group["params"] for group in saved["param_groups"]))
    stray = [key for key in saved["state"] if key not in set(ids)]
    if stray:
        raise ValueError(f"{name}: the state dict has state for {stray[0]!r}, which none of its groups contains.")
    owners = [(p, group, new) for group, new in zip(optimizer.param_groups, groups) for p in group["params"]]
    initial: dict[Tensor, dict[str, Any]] = {}
    writes = []
    for i, (key, (p, group, new)) in enumerate(zip(ids, owners)):
        mine, given = optimizer.state[p], dict(saved["state"].get(key) or {})
        where = f"{name}: state of parameter {i}, of shape {tuple(p.shape)}: "
        needed = optimizer.needed_states({**group, **new}, p)
        if given:
            given = optimizer.adapt_state(given, p, group)
            rest = given.pop(REMAINDER, None)  # from torch's flattened dicts an empty dict, where there was none
            if REMAINDER in mine:
                given[REMAINDER] = rest = rest if isinstance(rest, Tensor) else torch.zeros_like(p)
                if rest.dtype != p.dtype:
                    raise ValueError(
                        f"{where}remainder is {rest.dtype}, where its bits, which are no numbers, are lost: load it as "
                        f"it was saved, in {p.dtype}."
                    )
            nearest = optimizer.needed_states({**group, "stochastic_rounding": False}, p)
            if nearest is not None and STEP not in nearest:  # it serves the noise alone
                step = given.pop(STEP, 0)
                if STEP in mine:
                    given[STEP] = step
            lacking, extra = mine.keys() - given.keys(), given.keys() - mine.keys()
        else:  # torch makes no state for a parameter that never had a gradient
            if mine and not initial:
                initial = optimizer.fresh_state(
                    [{**old, **value} for old, value in zip(optimizer.param_groups, groups)]
                )
            given = initial.get(p, {})
            lacking, extra = mine.keys() - (mine if needed is None else needed), set()
        extra |= (needed or set()) - mine.keys()
        if lacking or extra:
            parts = [("it lacks", lacking), ("this optimizer keeps no", extra)]
            found = " and ".join(f"{words} {', '.join(map(repr, sorted(keys)))}" for words, keys in parts if keys)
            raise ValueError(
                f"{where}{found}{_switched(group, new)}; load it into an optimizer built as the saved one was."
            )
        fitted = {entry: _fitting(value, mine[entry], f"{where}{entry}: ") for entry, value in given.items()}
        if not 0 <= float(fitted.get(STEP, 0)) < math.inf:
            raise ValueError(f"{where}step: {fitted[STEP]} is no count of steps: it is to be 0 or more.")
        writes += [(mine, entry, value) for entry, value in fitted.items()]
    return writes


def _switched(group: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The values that are off on one side alone, for a message."""
    keys = [key for key in new if key in group and (group[key] in (None, 0)) != (new[key] in (None, 0))]
    return "".join(f" ({key}={new[key]!r} in the dict, {key}={group[key]!r} here)" for key in keys if key != "lr")


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


def _taken(mine: Any, value: Any) -> Any:
    """`value` as what `mine` is: a tensor stays one, a number a number, a list a list."""
    if isinstance(mine, (tuple, list)) and isinstance(value, (tuple, list)):
        found = list(map(_taken, mine, value)) if len(mine) == len(value) else copy.deepcopy(list(value))
        return found if isinstance(mine, list) else tuple(found)
    if isinstance(mine, Tensor):
        return torch.as_tensor(value, dtype=mine.dtype, device=mine.device).detach().reshape(mine.shape).clone()
    if isinstance(mine, (int, float)) and isinstance(value, Tensor):
        return value.item()
    if isinstance(mine, torch.dtype):
        return as_dtype(value)
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
