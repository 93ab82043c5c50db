"""Parameter groups by rules over names and layers: tags, hyperparameters, weight decay, learning-rate factors."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from .building.selectors import (
    FACTOR,
    Claim,
    Parameters,
    Selector,
    checked_selectors,
    claims_of_factors,
    claims_of_rules,
    is_spared,
    matched,
    merged,
    of_model,
    of_pairs,
    plain,
)
from .building.undoing import living_targets
from .core.hyperparameters import RATE, as_tags

_SWITCHES = ("yes", "no", "on", "off", "true", "false")  # texts in YAML 1.2, the last two if in quotes


def configure_param_groups(
    model: nn.Module | Iterable[tuple[str, Tensor]],
    rules: Iterable[Mapping[str, Any]] = (),
    *,
    weight_decay: float | Tensor | None = None,
    no_decay: bool | Selector | Iterable[Selector] = True,
    adjust_learning_rate: Mapping[Any, float] | None = None,
    decay_tag: str | None = None,
    frozen: bool = True,
    names: bool = True,
) -> list[dict[str, Any]]:
    """The parameters of a model as groups that any torch optimizer takes: one for each combination of tags and values.

    Every parameter is in exactly one group. Groups come in the order of their first parameter in the model, and so do
    the parameters in them: all ranks and all runs have the same. A group without tags has no key `tags`.

    Globs are those of `fnmatch`, over the whole name, case-sensitive; `*` also matches dots. They look at every name
    under which the model reaches a parameter (tied weights, shared modules), with and without what
    DistributedDataParallel, FSDP and torch.compile put into it; one has to match. However many names shared modules
    make, the work grows with the modules and the lengths of the globs only. A layer type is a module class or its name,
    and selects what modules of that type, or of a subclass, own themselves.

    Args:
        model: the model, or its `named_parameters()`; these know nothing of layers, so they need `no_decay=False`.
        rules: dicts with `params`, a glob or a list of them; `tags`, a tag or a list, added to those of other rules;
            and any hyperparameters of these parameters. No two rules with `exclusive: True` may share a parameter.
        weight_decay: for parameters that decay; None leaves it to the optimizer. A rule with a value of its own wins.
        no_decay: True gives `weight_decay` 0 to biases and to what norm layers own: torch's, and classes called like
            them (`LlamaRMSNorm`). Globs and layer types add to these. False: no split. A tied parameter decays where
            any of its owners would let it.
        adjust_learning_rate: a dict from globs or layer types to factors, put into the groups under this name, as
            floats. Only a `ScalePerParamLR` or `ScalePerParamWD` makes use of them.
        decay_tag: a tag for all groups whose weight decay is not 0, for a weight-decay schedule to go by.
        frozen: False leaves out parameters that do not require a gradient. By default they are kept, as torch keeps
            them, and can be unfrozen later; the optimizers of this package make state for them.
        names: give parameters as `(name, tensor)`: the optimizer then has `param_names`, as `split_groups` and
            `param_group_table` need them. False for an optimizer that takes tensors alone.

    Raises:
        ValueError: a glob or layer type matches nothing, two exclusive rules match one parameter, a hyperparameter
            gets two values for one parameter, a number is out of range, or there are no parameters.
        TypeError: an argument has another type.

    >>> model = torch.nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16)
    >>> rules = [{"params": "*bias", "tags": "bias"}, {"params": "linear*", "tags": ["mlp"], "lr": 0.01}]
    >>> for group in configure_param_groups(model, rules, weight_decay=0.1):
    ...     print(len(group["params"]), {key: value for key, value in group.items() if key != "params"})
    2 {'weight_decay': 0.1}
    4 {'tags': ['bias'], 'weight_decay': 0.0}
    2 {'tags': ['mlp'], 'lr': 0.01, 'weight_decay': 0.1}
    2 {'tags': ['bias', 'mlp'], 'lr': 0.01, 'weight_decay': 0.0}
    2 {'weight_decay': 0.0}
    """
    for what, switch in (("frozen", frozen), ("names", names)):
        if not isinstance(switch, bool):
            raise TypeError(f"{what}={switch!r} is of type {type(switch).__name__}: it is True or False.")
    if isinstance(no_decay, str) and no_decay.lower() in _SWITCHES:
        raise TypeError(f"no_decay={no_decay!r} is a text: write true or false, without quotes.")
    claims = claims_of_rules(rules)
    claims += claims_of_factors({} if adjust_learning_rate is None else adjust_learning_rate)
    if weight_decay is not None:
        RATE.check("weight_decay", weight_decay)
    if not isinstance(no_decay, bool):
        for selector in checked_selectors(no_decay, "no_decay"):
            claims.append(Claim(f"no_decay ({selector!r})", (selector,), settings={"weight_decay": 0.0}, layers=True))
    if no_decay is not False and not isinstance(model, nn.Module):
        raise ValueError(f"no_decay={no_decay!r} needs to know the norm layers: pass the model, or no_decay=False.")
    more = as_tags(decay_tag, "decay_tag: ")
    parameters = of_model(model) if isinstance(model, nn.Module) else of_pairs(model)
    hits = matched(parameters, claims)
    spared: dict[tuple[type[nn.Module], str], bool] = {}
    plans: dict[tuple[bool, tuple[int, ...]], dict[str, Any]] = {}
    groups: dict[Any, dict[str, Any]] = {}
    for tensor, name, owners, chosen in zip(parameters.tensors, parameters.names, parameters.owners, hits):
        if not (frozen or tensor.requires_grad):
            continue
        for owner in owners:
            if owner not in spared:
                spared[owner] = is_spared(*owner)
        decays = no_decay is False or not all(spared[owner] for owner in owners)
        if (decays, chosen) not in plans:
            tags, settings = merged([claims[i] for i in chosen], name)
            if weight_decay is not None or not decays:
                settings.setdefault("weight_decay", weight_decay if decays else 0.0)
            if plain(settings.get("weight_decay")) != 0:
                tags |= more
            key = (tags, tuple((each, plain(settings[each])) for each in sorted(settings)))
            if key not in groups:
                labels = {"tags": sorted(tags)} if tags else {}
                groups[key] = {"params": [], **labels, **{each: _copied(settings[each]) for each in sorted(settings)}}
            plans[decays, chosen] = groups[key]
        plans[decays, chosen]["params"].append((name, tensor) if names else tensor)
    if not groups:
        only = "" if frozen or not hits else " that require a gradient, and frozen=False leaves out the others"
        raise ValueError(f"model={type(model).__name__} has no parameters{only}: pass a model that has some.")
    return list(groups.values())


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
    if any(len(parts) > 1 for parts in split) and living_targets(optimizer):
        raise ValueError(
            "Schedulers drive this optimizer, and go by the numbers of its groups: split the groups before they are "
            "made, or call unbind() on them and make them again."
        )
    result = []
    for group, parts in zip(groups, split):
        lists = {key: list(group[key]) for key in ("params", "param_names") if key in group}
        rest = {key: value for key, value in group.items() if key not in lists}
        for number, (factor, indices) in enumerate(parts.items()):
            part = {key: _copied(value) for key, value in rest.items()} if number else group
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


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)


def param_group_table(groups: torch.optim.Optimizer | Iterable[Mapping[str, Any]], names: int = 3) -> str:
    """The groups of an optimizer, or a list of groups, as a table in plain ASCII: a line for each, and the total.

    It tells the tags, the numbers of tensors and elements, the learning rate and weight decay, all other
    hyperparameters that are not the same in all groups, and the first `names` names; `-` is for what a group lacks.
    Tensors among the hyperparameters are read on the host.

    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.LayerNorm(9))
    >>> print(param_group_table(configure_param_groups(model, [{"params": "0.*", "tags": "in"}], weight_decay=0.1)))
    group  tags  tensors  elements  weight_decay  names
    0      in          1        36           0.1  0.weight
    1      in          1         9             0  0.bias
    2      -           2        18             0  1.weight, 1.bias
    total              4        63
    """
    rows = list(groups.param_groups if isinstance(groups, torch.optim.Optimizer) else groups)
    keys = sorted({key for group in rows for key in group} - {"params", "param_names", "tags"})
    values = {key: [_shown(group[key]) if key in group else "-" for group in rows] for key in keys}
    alike = {key for key in keys if len({plain(group[key]) if key in group else "-" for group in rows}) == 1}
    kept = [key for key in keys if key in ("lr", "weight_decay") or key not in alike]
    lines = [["group", "tags", "tensors", "elements", *kept, "names"]]
    count = size = 0
    for i, group in enumerate(rows):
        given = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
        known = group.get("param_names") or [p[0] for p in given if isinstance(p, tuple)]
        listed = ", ".join(known[:names]) + (f" and {len(known) - names} more" if len(known) > names else "")
        elements = sum((p[1] if isinstance(p, tuple) else p).numel() for p in given)
        tags = ", ".join(sorted(as_tags(group.get("tags"), f"Parameter group {i}: ")))
        lines.append(
            [str(i), tags or "-", str(len(given)), str(elements), *(values[key][i] for key in kept), listed or "-"]
        )
        count, size = count + len(given), size + elements
    lines.append(["total", "", str(count), str(size), *("" for _ in kept), ""])
    lines = [[cell.encode("ascii", "backslashreplace").decode() for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines)]
    to_left = (0, 1, len(widths) - 1)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in to_left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    )


def _shown(value: Any) -> str:
    value = plain(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))})"
    return f"{value:g}" if isinstance(value, float) else str(value)
