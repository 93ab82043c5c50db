"""Learning rates as `configure_lr_scheduler` takes them: a number, a dict or a list; and factors for the groups."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch

from ..lr_scheduler import ChainedLR, ConstantLR, SequentialLR
from ..param_groups import split_groups
from .plans import Plan, closed_forms, milestones, planned, planned_parts
from .registry import Known, find
from .selectors import FACTOR, claims_of_factors, plain


def give_factors(optimizer: torch.optim.Optimizer, factors: Mapping[Any, float], model: Any) -> None:
    """Put factors into the groups; or see that they are there, where nobody knows which parameters are meant."""
    groups = optimizer.param_groups
    if model is not None or all("param_names" in group for group in groups):
        split_groups(optimizer, factors, model)
        return
    claims_of_factors(factors)  # which checks them
    there = {plain(group.get(FACTOR, group.get("adjust_val"))) for group in groups} - {None}
    if there != {plain(factor) for factor in factors.values()}:
        raise ValueError(
            f"adjust_learning_rate={dict(factors)!r:.80}: the parameter groups have "
            f"{', '.join(map(str, there)) or 'no factors'}, and no param_names to put these in by: pass model=, or "
            f"build the optimizer from configure_param_groups(model, adjust_learning_rate=...)."
        )


def planned_rate(given: Any, path: str) -> Plan:
    """The plan of a learning rate: of a number, a dict, or a list of dicts."""
    known = closed_forms("lr")
    kind = "lr scheduler"
    if isinstance(given, Real) and not isinstance(given, bool):
        return Plan(path, ConstantLR, {"learning_rate": float(given)})
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
    """The entry with `LR` at the end of its scheduler's name, where that makes it one."""
    if "scheduler" not in entry and not all(isinstance(value, Mapping) for value in entry.values()):
        raise ValueError(f"{path} has no 'scheduler' among its keys {', '.join(map(repr, entry))}: give its name.")
    name = entry.get("scheduler")
    names = {each.lower() for each in known}
    if isinstance(name, str) and name.lower() not in names and name.lower() + "lr" in names:
        return {**entry, "scheduler": name + "LR"}
    return dict(entry)
