"""Learning rates as `configure_lr_scheduler` takes them: a number, a dict or a list; and factors for the groups."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch

from ..lr_scheduler import ChainedLR, ConstantLR, SequentialLR
from ..param_groups import listed_of, split_groups
from .plans import Plan, closed_forms, milestones, planned, planned_parts
from .registry import Known, find
from .selectors import FACTOR, Parameters, claims_of_factors, matched, named_like, plain


def give_factors(optimizer: torch.optim.Optimizer, factors: Mapping[Any, float], model: Any) -> None:
    """Put factors into the groups; or see that they are there, where nobody knows which parameters are meant."""
    groups = optimizer.param_groups
    if model is not None:
        split_groups(optimizer, factors, model)
        return
    claims = claims_of_factors(factors)
    given = {key: claim.settings[FACTOR] for key, claim in zip(factors, claims)}
    there = {plain(group.get(FACTOR, group.get("adjust_val"))) for group in groups} - {None}
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


def planned_rate(given: Any, path: str) -> Plan:
    """The plan of a learning rate: of a number, a dict, or a list of dicts."""
    known = closed_forms("lr")
    kind = "lr scheduler"
    if isinstance(given, Real) and not isinstance(given, bool):
        return Plan(path, ConstantLR, {"learning_rate": given})
    if isinstance(given, Mapping):
        return planned(_full(given, path, known), path, known, kind)
    if not isinstance(given, (list, tuple)):
        raise TypeError(f"{path}={given!r:.80}: pass a number, a dict with 'scheduler', or a list of such dicts.")
    if not given:
        raise ValueError(f"{path} is an empty list: pass at least one dict with 'scheduler'.")
    entries, mains = [], []
    for i, entry in enumerate(given):
        if not isinstance(entry, Mapping):
            raise TypeError(f"{path}[{i}]={entry!r:.80}: pass a dict with 'scheduler'.")
        mains += [(i, entry["main_scheduler"])] if "main_scheduler" in entry else []
        own = {name: value for name, value in entry.items() if name != "main_scheduler"}
        entries.append(_full(own, f"{path}[{i}]", known))
    main: Any = SequentialLR
    for i, name in mains:
        named_main = {each: known[each] for each in ("SequentialLR", "ChainedLR", "ChainedScheduler")}
        place = f"{path}[{i}].main_scheduler"
        cls = find(_full({"scheduler": name}, place, named_main)["scheduler"], named_main, place, "main scheduler")
        main = ChainedLR if ChainedLR in (cls, main) else cls
    counted = main is SequentialLR
    parts = planned_parts(entries, path, known, kind, None, counted)
    return Plan(path, main, {"schedulers": parts, **({"milestones": milestones(parts, path, None)} if counted else {})})


def _full(entry: Mapping[str, Any], path: str, known: Known) -> dict[str, Any]:
    """The entry with `LR` at the end of its scheduler's name, and of those of its parts, where that makes it one."""
    if "scheduler" not in entry and not all(isinstance(value, Mapping) for value in entry.values()):
        raise ValueError(f"{path} has no 'scheduler' among its keys {', '.join(map(repr, entry))}: give its name.")
    names = {each.lower() for each in known}

    def whole(name: Any) -> Any:
        short = isinstance(name, str) and name.lower() not in names and name.lower() + "lr" in names
        return name + "LR" if short else name

    def full(entry: Any) -> Any:
        if not isinstance(entry, Mapping):
            return whole(entry)
        if "scheduler" in entry:
            return {**parts(entry), "scheduler": whole(entry["scheduler"])}
        return {whole(name): parts(given) if isinstance(given, Mapping) else given for name, given in entry.items()}

    def parts(given: Mapping[str, Any]) -> dict[str, Any]:
        made = dict(given)
        if isinstance(given.get("schedulers"), (list, tuple)):
            made["schedulers"] = [full(each) for each in given["schedulers"]]
        if isinstance(given.get("scheduler"), Mapping):
            made["scheduler"] = full(given["scheduler"])
        return made

    return full(entry)  # type: ignore[no-any-return]  # a dict from a mapping
