"""Taking over a state dict: everything is checked first, then copied into the tensors that are there."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .hyperparameters import KNOWN, as_tags, check_group
from .sharding import distribution, notice_dtensor
from .state_follows import plan, settle

if TYPE_CHECKING:
    from .optimizer import Optimizer

# How torch runs a step, which its groups say and ours do not.
EXECUTION = frozenset(("foreach", "fused", "capturable", "differentiable"))


def load(optimizer: Optimizer, state_dict: Mapping[str, Any]) -> None:
    """See `Optimizer.load_state_dict`."""
    name = type(optimizer).__name__
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"{name}: state_dict={state_dict!r}: pass what an optimizer's state_dict() returned.")
    saved = dict(state_dict)
    for pre_hook in list(optimizer._optimizer_load_state_dict_pre_hooks.values()):
        replaced = pre_hook(optimizer, saved)
        saved = saved if replaced is None else dict(replaced)
    for key in ("state", "param_groups"):
        if key not in saved:
            raise ValueError(f"{name}: the state dict has no {key!r}; pass what an optimizer's state_dict() returned.")
    if not isinstance(saved["state"], Mapping) or not isinstance(saved["param_groups"], (list, tuple)):
        raise ValueError(
            f"{name}: 'state' must be a dict and 'param_groups' a list, as an optimizer's state_dict() returns."
        )
    groups = _groups(optimizer, saved["param_groups"], name)
    renewed = plan(optimizer, keep=False)
    writes = _state(optimizer, saved, groups, {**optimizer.state, **renewed}, name)

    with torch.no_grad():  # nothing is refused from here on
        settle(optimizer, renewed)
        written: dict[int, Any] = {}
        for group, values in zip(optimizer.param_groups, groups):
            for key, value in values.items():
                group[key] = _taken(group.get(key), value, written)
        for state, key, value in writes:
            if isinstance(state[key], Tensor):
                state[key].copy_(value)
            else:
                state[key] = copy.deepcopy(value)
    for post_hook in list(optimizer._optimizer_load_state_dict_post_hooks.values()):
        post_hook(optimizer)


def _names(groups: Any) -> list[Any]:
    """The names of the parameters, in order; torch.distributed.checkpoint has them in place of the numbers."""
    return [
        number if isinstance(number, str) else name
        for group in groups
        if isinstance(group, Mapping) and isinstance(group.get("param_names"), (list, tuple))
        for number, name in zip(group.get("params") or (), group["param_names"])
    ]


def _groups(optimizer: Optimizer, saved: Any, name: str) -> list[dict[str, Any]]:
    """The values to take over for each group."""
    groups = optimizer.param_groups
    if len(saved) != len(groups):
        raise ValueError(
            f"{name}: the state dict has {len(saved)} parameter groups, this optimizer {len(groups)}; build "
            "the optimizer with the groups that were saved."
        )
    mine = _names(groups)
    known = set(mine)
    for i, (here, there) in enumerate(zip(mine, _names(saved))):
        if here != there and isinstance(there, str) and there in known:
            raise ValueError(
                f"{name}: parameter {i} is {here!r} here and {there!r} in the state dict; build the optimizer with the "
                "parameters that were saved, in their order."
            )
    result = []
    for i, (group, packed) in enumerate(zip(groups, saved)):
        where = f"{name}, group {i} of the state dict: "
        if not isinstance(packed, Mapping) or not isinstance(packed.get("params"), (list, tuple)):
            raise ValueError(f"{where}it has no list 'params'; pass what an optimizer's state_dict() returned.")
        if len(packed["params"]) != len(group["params"]):
            raise ValueError(
                f"{where}it has {len(packed['params'])} parameters, this optimizer's group {len(group['params'])}; "
                "build the optimizer with the parameters that were saved, in their order."
            )
        values = {key: value for key, value in packed.items() if key != "params" and key not in EXECUTION}
        lacking = [key for key in optimizer.hyper if key not in values and key not in optimizer.may_be_missing]
        foreign = [key for key in values if key not in group and key in KNOWN]
        for verb, keys in (("lacks", lacking), ("has", foreign)):
            if keys and optimizer.hyper:
                listed = ", ".join(map(repr, sorted(keys)))
                raise ValueError(
                    f"{where}it {verb} {listed}, so it is no state dict of {name}; load it into the class it is of."
                )
        check_group(optimizer.hyper, values, where)
        optimizer.check_combination({**group, **values}, where)
        for key in optimizer.structural:
            if key in values and bool(values[key]) != bool(group[key]):
                raise ValueError(
                    f"{where}{key}={values[key]!r}, but this {name} was built with {key}={group[key]!r}, which decides "
                    f"about its state or formula; build it with {key}={values[key]!r}."
                )
        if "param_names" in group:  # torch.distributed.checkpoint leaves the saved ones beside parameters in our order
            values.pop("param_names", None)
        if "tags" in values:
            values["tags"] = as_tags(values["tags"], where)
        for key, value in values.items():
            _check_taken(f"{where}{key}", group.get(key), value)
        result.append(values)
    return result


def _state(
    optimizer: Optimizer,
    saved: Mapping[str, Any],
    groups: list[dict[str, Any]],
    state: Mapping[Tensor, dict[str, Any]],
    name: str,
) -> list[tuple[dict[str, Any], str, Any]]:
    """What to write where."""
    ids = list(chain.from_iterable(group["params"] for group in saved["param_groups"]))
    owners = [(p, group, new) for group, new in zip(optimizer.param_groups, groups) for p in group["params"]]
    stray = [key for key in saved["state"] if key not in set(ids)]
    if stray:
        raise ValueError(f"{name}: the state dict has state for {stray[0]!r}, which none of its groups contains.")
    initial: dict[Tensor, dict[str, Any]] = {}
    writes = []
    for i, (key, (p, group, new)) in enumerate(zip(ids, owners)):
        mine = state[p]
        given = saved["state"].get(key)
        if given is not None and not isinstance(given, Mapping):
            raise ValueError(f"{name}: the state of parameter {i} is {given!r}; it must be a dict of names and values.")
        where = f"{name}: state of parameter {i}, of shape {tuple(p.shape)}: "
        values = {**group, **new}
        needed = optimizer.needed_states(values, p)
        if given:
            given = optimizer.adapt_state(dict(given), p, group)
            lacking, extra = set(mine) - set(given), set(given) - set(mine)
        else:  # torch makes no state for a parameter that never had a gradient
            if mine and not initial:
                merged = [{**old, **value} for old, value in zip(optimizer.param_groups, groups)]
                initial = optimizer.fresh_state(merged)
            given = initial.get(p, {})
            lacking, extra = set(mine) - (set(mine) if needed is None else needed), set()
        extra |= (needed or set()) - set(mine)
        if lacking or extra:
            parts = [("it lacks", lacking), ("this optimizer keeps no", extra)]
            text = " and ".join(f"{words} {', '.join(map(repr, sorted(keys)))}" for words, keys in parts if keys)
            raise ValueError(
                f"{where}{text}{_switched(group, new)}; load it into an optimizer built as the saved one was."
            )
        for entry, value in given.items():
            writes.append((mine, entry, _fitting(value, mine[entry], f"{where}{entry}: ")))
    return writes


def _switched(group: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The values that are off on one side alone, for a message."""
    keys = [key for key in new if key in group and (group[key] in (None, 0)) != (new[key] in (None, 0))]
    return "".join(f" ({key}={new[key]!r} in the dict, {key}={group[key]!r} here)" for key in keys if key != "lr")


def _fitting(value: Any, mine: Any, where: str) -> Any:
    """`value`, if it can be written into `mine`."""
    if not isinstance(mine, Tensor):
        return value
    if not isinstance(value, Tensor):
        if isinstance(value, (int, float)) and mine.dim() == 0:  # the counters of older versions
            return torch.tensor(float(value), device="cpu")
        raise ValueError(
            f"{where}{type(value).__name__} is no tensor; this optimizer keeps a tensor of shape {tuple(mine.shape)}."
        )
    if mine.dim() == 0 and value.numel() == 1 and distribution(value) is None:
        value = value.reshape(())
    if value.shape != mine.shape:
        raise ValueError(f"{where}it has the shape {tuple(value.shape)}, this optimizer's {tuple(mine.shape)}.")
    count = mine.dim() == 0  # older versions kept ints
    same_kind = value.is_complex() == mine.is_complex() and (value.is_floating_point() or value.is_complex() or count)
    if not same_kind or value.is_quantized or value.dtype is torch.bool:
        raise ValueError(f"{where}it is of {value.dtype}, this optimizer's of {mine.dtype}.")
    if value.layout is not mine.layout or (value.is_meta and not mine.is_meta):
        raise ValueError(f"{where}it is {value.layout} on {value.device}, and only dense values can be loaded.")
    notice_dtensor(value)
    split, split_here = (distribution(x) for x in (value, mine))
    if split != split_here:
        raise ValueError(
            f"{where}it is distributed as {split}, this optimizer's as {split_here}; use "
            "torch.distributed.checkpoint.state_dict.set_optimizer_state_dict, which distributes it."
        )
    return value


def _check_taken(where: str, mine: Any, value: Any) -> None:
    """Refuse what `_taken` could not write."""
    if isinstance(value, Tensor) and value.is_meta:
        raise ValueError(f"{where}: its tensor is on the meta device, so it has no value; save and load with values.")
    if isinstance(mine, (tuple, list)) and isinstance(value, (tuple, list)) and len(mine) == len(value):
        for pair in zip(mine, value):
            _check_taken(where, *pair)
    elif isinstance(mine, Tensor):
        fits = value.numel() == mine.numel() if isinstance(value, Tensor) else isinstance(value, (int, float))
        if not fits:
            raise ValueError(f"{where}={value!r}: this optimizer has a tensor of shape {tuple(mine.shape)} there.")


def _taken(mine: Any, value: Any, written: dict[int, Any]) -> Any:
    """`value` as what `mine` is: a tensor stays that tensor, a number a number.

    A tensor that several groups share becomes one for each, if they were saved with different values.
    """
    if isinstance(mine, Tensor):
        number = value.reshape(mine.shape) if isinstance(value, Tensor) else torch.full_like(mine, value)
        if id(mine) in written and not torch.equal(written[id(mine)], number.to(mine)):
            mine = mine.detach().clone()
        mine.copy_(number)
        written[id(mine)] = mine.detach().clone()
        return mine
    if isinstance(mine, (tuple, list)) and isinstance(value, (tuple, list)) and len(mine) == len(value):
        return type(mine)(_taken(*pair, written) for pair in zip(mine, value))
    if isinstance(value, Tensor):
        return value.item() if isinstance(mine, (int, float)) and value.numel() == 1 else value.detach().clone()
    return copy.deepcopy(value)
