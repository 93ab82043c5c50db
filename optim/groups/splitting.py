"""Learning-rate factors for an optimizer that is there: its groups are split, so that each has one factor."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import nn

from .parameters import Parameters, named_like, of_model, of_pairs
from .rules import FACTOR, Claim, claims_of_factors, comparable, copied, matched, merged
from .writers import is_scheduled


def split_groups(
    optimizer: torch.optim.Optimizer, adjust_learning_rate: Mapping[Any, float], model: nn.Module | None = None
) -> None:
    """Split the groups of an optimizer in place, so that each has one factor `adjust_learning_rate`.

    The parts of a group follow each other in the order of their first parameters; the first is the dict that was there,
    and the others have copies of its values. The state of the parameters stays. A parameter that no key matches keeps
    the factor of its group, if it has one. Split before schedulers are made and checkpoints are loaded, since both go
    by the number of groups.

    Args:
        optimizer: one that has the names of its parameters (`param_names`), being made from
            `configure_param_groups(model)` or `model.named_parameters()`; or any optimizer, with `model`.
        adjust_learning_rate: a dict from globs over the names, or with `model` also layer types, to factors; what they
            are is said at `configure_param_groups`.
        model: the model whose parameters, or some of them, the optimizer has.

    Raises:
        ValueError: the names are unknown, a key matches nothing, a parameter gets two factors, a factor is negative or
            not finite, or a group is to be split and the optimizer has schedulers; nothing has been changed then.
        TypeError: an argument has another type.

    >>> model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9))
    >>> optimizer = torch.optim.AdamW(model.named_parameters(), lr=0.1)
    >>> split_groups(optimizer, {"1.*": 0.5})
    >>> [(group["param_names"], group.get("adjust_learning_rate")) for group in optimizer.param_groups]
    [(['0.weight'], None), (['1.weight', '1.bias'], 0.5)]
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer={optimizer!r:.80}: pass an instance of torch.optim.Optimizer.")
    claims = claims_of_factors(adjust_learning_rate)
    groups = optimizer.param_groups
    listed = listed_of(groups, model)
    hits = matched(listed, claims)
    place = {id(tensor): i for i, tensor in enumerate(listed.tensors)}
    split = []
    for i, group in enumerate(groups):
        old = group.get(FACTOR, group.get("adjust_val"))
        here = [] if old is None else [Claim(f"parameter group {i}", (), settings={FACTOR: old})]
        factors: dict[tuple[int, ...], Any] = {}
        parts: dict[Any, list[int]] = {}
        for j, tensor in enumerate(group["params"]):
            at = place[id(tensor)]
            chosen = hits[at]
            if chosen not in factors:
                factors[chosen] = merged([*here, *(claims[k] for k in chosen)], listed.names[at])[1].get(FACTOR)
            parts.setdefault(factors[chosen], []).append(j)
        scheduled = [key for key in group if key.startswith("initial_")]
        if len(parts) > 1 and scheduled:
            raise ValueError(
                f"Parameter group {i} has {scheduled[0]!r}, as a scheduler leaves it: split the groups of an optimizer "
                f"before its schedulers are made."
            )
        split.append(parts)
    if any(len(parts) > 1 for parts in split) and is_scheduled(optimizer):
        raise ValueError(
            "Schedulers drive this optimizer, and go by the numbers of its groups: split the groups before they are "
            "made, or call unbind() on them and make them again."
        )
    result = []
    for group, parts in zip(groups, split):
        lists = {key: list(group[key]) for key in ("params", "param_names") if key in group}
        rest = {key: value for key, value in group.items() if key not in lists}
        for number, (factor, indices) in enumerate(parts.items()):
            part = {key: copied(value) for key, value in rest.items()} if number else group
            part.update({key: [values[j] for j in indices] for key, values in lists.items()})
            if factor is not None:
                part[FACTOR] = factor
            result.append(part)
        if not parts:  # a group without parameters
            result.append(group)
    groups[:] = result


def listed_of(groups: list[dict[str, Any]], model: nn.Module | None = None) -> Parameters:
    """The parameters of the model, or those that the groups hold with their names."""
    if model is None:
        for i, group in enumerate(groups):
            if len(group.get("param_names", ())) != len(group["params"]):
                raise ValueError(
                    f"Parameter group {i} has no param_names for {FACTOR} to match: build the optimizer from "
                    f"configure_param_groups(model) or model.named_parameters()."
                )
        return of_pairs(chain.from_iterable(zip(group["param_names"], group["params"]) for group in groups))
    if not isinstance(model, nn.Module):
        raise TypeError(f"model={model!r:.80}: pass the torch.nn.Module whose parameters the optimizer has.")
    listed = of_model(model)
    known = set(map(id, listed.tensors))
    for i, group in enumerate(groups):
        if not known.issuperset(map(id, group["params"])):
            raise ValueError(f"Parameter group {i} has a parameter that is not of this model: pass the model it is of.")
    return listed


def give_factors(optimizer: torch.optim.Optimizer, factors: Mapping[Any, float], model: Any) -> None:
    """Put factors into the groups; or see that they are there, where nobody knows which parameters are meant."""
    groups = optimizer.param_groups
    if model is not None:
        split_groups(optimizer, factors, model)
        return
    claims = claims_of_factors(factors)
    given = {key: claim.settings[FACTOR] for key, claim in zip(factors, claims)}
    there = {comparable(group.get(FACTOR, group.get("adjust_val"))) for group in groups} - {None}
    names = listed_of(groups) if all("param_names" in group for group in groups) else None
    layers = {key: factor for key, factor in given.items() if names is None or _is_layer(key, names)}
    if layers and not set(layers.values()) <= there <= set(given.values()):
        here = ", ".join(map(str, there)) or "no factors"
        fix = "pass model=, or build the optimizer from configure_param_groups(model, adjust_learning_rate=...)."
        if names is None:
            raise ValueError(
                f"adjust_learning_rate={dict(factors)!r:.80}: the parameter groups have {here}, and no param_names to "
                f"put these in by: {fix}"
            )
        try:
            matched(names, claims)
        except ValueError as error:
            raise ValueError(f"{error} The groups have {here}: {fix}") from None
    if names is not None:
        split_groups(optimizer, {key: factor for key, factor in given.items() if key not in layers})


def _is_layer(key: Any, names: Parameters) -> bool:
    """Whether a key that is no parameter's name may be a layer type."""
    return isinstance(key, type) or (key.isidentifier() and not named_like(key, names))
