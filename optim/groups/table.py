"""The parameter groups of an optimizer as a table to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ..base.hyperparameters import HYPERPARAMETERS, read_tags
from .rules import comparable_value


def param_group_table(groups: torch.optim.Optimizer | Iterable[Mapping[str, Any]], names: int | None = None) -> str:
    """The groups of an optimizer, or a list of groups, as a table: a line for each, and the total.

    It tells the tags, the numbers of tensors and elements, the learning rate and weight decay, all other
    hyperparameters that are not the same in all groups, and the first `names` names; `-` is for what a group lacks. Of
    groups made with `matrices` it tells the names for each reason to be there. By default `names` is 3, with reasons
    all. Tensors among the hyperparameters are read on the host.

    >>> from optim import configure_param_groups
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.LayerNorm(9))
    >>> print(
    ...     param_group_table(
    ...         configure_param_groups(
    ...             model, [{"params": "0.*", "tags": "in"}], weight_decay=0.1
    ...         )
    ...     )
    ... )
    group  tags  tensors  elements  weight_decay  names
    0      in          1        36           0.1  0.weight
    1      in          1         9             0  0.bias
    2      -           2        18             0  1.weight, 1.bias
    total              4        63
    """
    rows = list(groups.param_groups if isinstance(groups, torch.optim.Optimizer) else groups)
    shown = _hyperparameters(rows, isinstance(groups, torch.optim.Optimizer))
    lines = [["group", "tags", "tensors", "elements", *shown, "names"]]
    count = size = 0
    for i, group in enumerate(rows):
        given = list(group["params"])
        elements = sum((p[1] if isinstance(p, tuple) else p).numel() for p in given)
        tags = ", ".join(sorted(read_tags(group.get("tags"), f"Parameter group {i}: ")))
        hyperparameters = [column[i] for column in shown.values()]
        listed = _names_of(group, given, names)
        lines.append([str(i), tags or "-", str(len(given)), str(elements), *hyperparameters, listed or "-"])
        count, size = count + len(given), size + elements
    lines.append(["total", "", str(count), str(size), *("" for _ in shown), ""])
    return _aligned(lines)


def _hyperparameters(groups: Sequence[Mapping[str, Any]], of_optimizer: bool) -> dict[str, list[str]]:
    """The columns of hyperparameters, by name: learning rate and weight decay, and what differs among the groups."""
    shown = {}
    for key in sorted(set().union(*groups) - {"params", "param_names", "tags", "reasons"}):
        values = [comparable_value(group[key]) if key in group else "-" for group in groups]
        different = set(values)
        if of_optimizer and key in HYPERPARAMETERS:
            different.discard("-")  # what a group lacks is for another algorithm
        if key in ("lr", "weight_decay") or len(different) > 1:
            shown[key] = list(map(_shown, values))
    return shown


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """The lines of a table, in columns: texts, which are the first two and the last, to the left."""
    columns = []
    for i, column in enumerate(zip(*lines)):
        width = max(map(len, column))
        to_left = i in (0, 1, len(lines[0]) - 1)
        columns.append([cell.ljust(width) if to_left else cell.rjust(width) for cell in column])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns))


def _names_of(group: Mapping[str, Any], params: Sequence[Any], most: int | None) -> str:
    """The names of a group's parameters, at most so many; those for each reason to be in it, if it tells reasons."""
    names = group.get("param_names") or [p[0] for p in params if isinstance(p, tuple)]
    reasons = group.get("reasons") or [""] * len(names)
    if most is None:
        most = len(names) if "reasons" in group else 3
    by_reason: dict[str, list[str]] = {reason: [] for reason in reasons}
    for name, reason in zip(names, reasons):
        by_reason[reason].append(name)
    listed = []
    for reason, those in by_reason.items():
        more = f" and {len(those) - most} more" if len(those) > most else ""
        listed.append((f"{reason}: " if reason else "") + ", ".join(those[:most]) + more)
    return "; ".join(listed)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))})"
    return f"{value:g}" if isinstance(value, float) else str(value)
