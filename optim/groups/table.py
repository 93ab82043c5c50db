"""The parameter groups of an optimizer as a table to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ..base.hyperparameters import HYPERPARAMETERS, as_tags
from .rules import comparable


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
    keys = sorted({key for group in rows for key in group} - {"params", "param_names", "tags", "reasons"})
    values = {key: [comparable(group[key]) if key in group else "-" for group in rows] for key in keys}
    several = {key: set(values[key]) for key in keys}
    if isinstance(groups, torch.optim.Optimizer):  # what a group lacks is for another algorithm
        several = {key: found - {"-"} if key in HYPERPARAMETERS else found for key, found in several.items()}
    kept = [key for key in keys if key in ("lr", "weight_decay") or len(several[key]) > 1]
    lines = [["group", "tags", "tensors", "elements", *kept, "names"]]
    count = size = 0
    for i, group in enumerate(rows):
        given = list(group["params"])
        known = group.get("param_names") or [p[0] for p in given if isinstance(p, tuple)]
        reasons = group.get("reasons") or [""] * len(known)
        most = (len(known) if "reasons" in group else 3) if names is None else names
        found = {reason: [name for name, other in zip(known, reasons) if other == reason] for reason in reasons}
        listed = "; ".join(f"{reason}: " * bool(reason) + _listed(which, most) for reason, which in found.items())
        elements = sum((p[1] if isinstance(p, tuple) else p).numel() for p in given)
        tags = ", ".join(sorted(as_tags(group.get("tags"), f"Parameter group {i}: ")))
        shown = (_shown(values[key][i]) for key in kept)
        lines.append([str(i), tags or "-", str(len(given)), str(elements), *shown, listed or "-"])
        count, size = count + len(given), size + elements
    lines.append(["total", "", str(count), str(size), *("" for _ in kept), ""])
    columns = []
    for number, column in enumerate(zip(*lines)):
        width = max(map(len, column))
        to_left = number in (0, 1, len(lines[0]) - 1)
        columns.append([cell.ljust(width) if to_left else cell.rjust(width) for cell in column])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns))


def _listed(known: list[str], most: int) -> str:
    return ", ".join(known[:most]) + (f" and {len(known) - most} more" if len(known) > most else "")


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))})"
    return f"{value:g}" if isinstance(value, float) else str(value)
