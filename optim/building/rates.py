"""Learning rates as `configure_lr_scheduler` takes them: a number, a dict or a list; and factors for the groups."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

from ..lr_scheduler import ChainedLR, ConstantLR, SequentialLR
from .plans import Plan, closed_forms, milestones, planned, planned_parts
from .registry import Known, find


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
