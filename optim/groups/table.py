"""The parameter groups of an optimizer as a table to read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from timesched.binding.groups import APPLIED_FACTOR
from timesched.drawing.table import Table
from timesched.types import ParamGroup

from ..base.hyperparameters import HYPERPARAMETERS, comparable_value, read_tags


def param_group_table(groups: torch.optim.Optimizer | Iterable[ParamGroup], names: int | None = None) -> str:
    """The groups of an optimizer, or a list of groups, as a table: a line for each group, and the total.

    The columns are the tags, the numbers of tensors and elements, the learning rate, the factor that it contains, and
    the weight decay. Then come all other hyperparameters that differ between groups, and the first `names` names. `-`
    means that a group has no value. For groups made with `matrices`, the names are grouped by reason. By default
    `names` is 3, and with reasons all.
    Tensors among the hyperparameters are read on the host. Raises `TypeError` for a group whose `params` are an
    iterator, such as `model.parameters()`: reading it would leave the group empty.

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
    columns = _hyperparameter_columns(rows, isinstance(groups, torch.optim.Optimizer))
    lines: list[tuple[object, ...]] = []
    count = size = 0
    for i, group in enumerate(rows):
        params = group["params"]
        if isinstance(params, Iterator):
            raise TypeError(f"Parameter group {i}: its params are an iterator, which is read only once. Pass a list.")
        params = [params] if isinstance(params, Tensor) else list(params)
        elements = sum((p[1] if isinstance(p, tuple) else p).numel() for p in params)
        tags = ", ".join(sorted(read_tags(group.get("tags"), f"Parameter group {i}: ")))
        hyperparameters = [column[i] for column in columns.values()]
        lines.append((i, tags or "-", len(params), elements, *hyperparameters, _describe_names(group, params, names)))
        count, size = count + len(params), size + elements
    lines.append(("total", "", count, size, *("" for _ in columns), ""))
    header = ("group", "tags", "tensors", "elements", *columns, "names")
    return str(Table(header, lines, texts=("group", "tags", "names")))


def _hyperparameter_columns(groups: Sequence[ParamGroup], of_optimizer: bool) -> dict[str, list[Any]]:
    """The columns of hyperparameters, by name: learning rate, weight decay, and all that differ between groups."""
    columns = {}
    for key in sorted(set().union(*groups) - {"params", "param_names", "tags", "reasons"}):
        values = [comparable_value(group[key]) if key in group else "-" for group in groups]
        different = set(values)
        if of_optimizer and key in HYPERPARAMETERS:
            different.discard("-")  # a missing hyperparameter is for a different algorithm
        if key in ("lr", APPLIED_FACTOR, "weight_decay") or len(different) > 1:
            columns[key] = values
    return columns


def _describe_names(group: ParamGroup, params: Sequence[object], limit: int | None) -> str:
    """The names of a group's parameters: at most `limit`, for each reason if the group has reasons; "-" for none."""
    names = group.get("param_names") or [p[0] for p in params if isinstance(p, tuple)]
    reasons = group.get("reasons") or [""] * len(names)
    if limit is None:
        limit = len(names) if "reasons" in group else 3
    by_reason: dict[str, list[str]] = {}
    for name, reason in zip(names, reasons):
        by_reason.setdefault(reason, []).append(name)
    described = []
    for reason, names_for_reason in by_reason.items():
        rest = f" and {len(names_for_reason) - limit} more" if len(names_for_reason) > limit else ""
        described.append((f"{reason}: " if reason else "") + ", ".join(names_for_reason[:limit]) + rest)
    return "; ".join(described) or "-"
