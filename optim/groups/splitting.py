"""Learning-rate factors for an optimizer that is there: its groups are split, so that each has one factor."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import nn

from timesched.binding import bound_to

from .parameters import Named, named
from .rules import FACTOR, Claim, claims_of_factors, comparable, copied, matched, merged


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
    parameters = _parameters(groups, model)
    chosen = {id(each.tensor): (hits, each.name) for each, hits in zip(parameters, matched(parameters, claims))}
    split = []
    for i, group in enumerate(groups):
        old = group.get(FACTOR, group.get("adjust_val"))
        here = [] if old is None else [Claim(f"parameter group {i}", (), settings={FACTOR: old})]
        parts: dict[Any, list[int]] = {}
        for j, tensor in enumerate(group["params"]):
            hits, name = chosen[id(tensor)]
            parts.setdefault(merged([*here, *hits], name)[1].get(FACTOR), []).append(j)
        torchs = hasattr(optimizer.step, "_wrapped_by_lr_sched")  # by a scheduler of torch, for good
        if len(parts) > 1 and (torchs or bound_to(optimizer)):
            ours = "split them before schedulers are made, or call unbind() on these and make them again"
            again = "make the optimizer again, split it, and then make torch's schedulers, which have no unbind()"
            raise ValueError(
                f"Parameter group {i} is to be split, but schedulers go by the numbers of the groups: "
                f"{again if torchs else ours}."
            )
        split.append(parts)
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


def _parameters(groups: list[dict[str, Any]], model: nn.Module | None) -> list[Named]:
    """The parameters of the model, or those that the groups hold with their names."""
    if model is None:
        for i, group in enumerate(groups):
            if len(group.get("param_names", ())) != len(group["params"]):
                raise ValueError(
                    f"Parameter group {i} has no param_names for {FACTOR} to match: build the optimizer from "
                    f"configure_param_groups(model) or model.named_parameters()."
                )
        return named(chain.from_iterable(zip(group["param_names"], group["params"]) for group in groups))
    if not isinstance(model, nn.Module):
        raise TypeError(f"model={model!r:.80}: pass the torch.nn.Module whose parameters the optimizer has.")
    parameters = named(model)
    known = {id(each.tensor) for each in parameters}
    for i, group in enumerate(groups):
        if not known.issuperset(map(id, group["params"])):
            raise ValueError(f"Parameter group {i} has a parameter that is not of this model: pass the model it is of.")
    return parameters


def give_factors(optimizer: torch.optim.Optimizer, factors: Mapping[Any, float], model: Any) -> None:
    """Put factors into the groups; or check that they are there, where it is not known which parameters are meant."""
    groups = optimizer.param_groups
    given = {key: claim.settings[FACTOR] for key, claim in zip(factors, claims_of_factors(factors))}
    unnamed = not all("param_names" in group for group in groups)
    layers = [key for key in given if unnamed or isinstance(key, type) or key.isidentifier()] if model is None else []
    there = {comparable(group.get(FACTOR, group.get("adjust_val"))) for group in groups} - {None}
    if layers and not {given[key] for key in layers} <= there <= set(given.values()):
        raise ValueError(
            f"adjust_learning_rate={dict(factors)!r:.80}: the parameter groups have "
            f"{', '.join(map(str, there)) or 'no factors'}: pass model=, or build the optimizer from "
            f"configure_param_groups(model, adjust_learning_rate=...)."
        )
    if len(layers) < len(given):
        split_groups(optimizer, {key: factor for key, factor in given.items() if key not in layers}, model)
