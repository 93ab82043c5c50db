"""`Work`: the tensors that a step updates together, and the numbers for them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .sharding import Placement, any_distributed, distribution, local
from .tensor_lists import Tensors

STEP = "step"  # the state that counts the steps of a parameter
Factors = dict[str, Any]


class Work(NamedTuple):
    """The tensors of one group (on one device, of one dtype), and the numbers that go with them."""

    rule: Any  # the class whose `factors` and `update` apply
    h: dict[str, Any]  # the hyperparameters
    params: Tensors
    grads: Tensors
    scalars: dict[str, Tensors]  # states that are one number for each parameter
    tensors: list[Tensors]  # states that belong to the elements; empty for one that is switched off
    placement: Placement | None = None  # where distributed parameters lie
    of_complex: bool = False  # all tensors are views of complex ones


def columns_of(work: Work) -> list[Tensors]:
    """All tensors that an update computes with: the parameters, the gradients, and each state.

    A function, since a graph of torch 2.7 knows no properties of a NamedTuple.
    """
    return [work.params, work.grads, *work.tensors]


def with_columns(work: Work, columns: list[Tensors], scalars: dict[str, Tensors], placement: Any) -> Work:
    """The work with other tensors; spelled out, since a graph of torch 2.7 knows no `_replace`."""
    return Work(work.rule, work.h, columns[0], columns[1], scalars, columns[2:], placement)


def selected(work: Work, indices: list[int]) -> Work:
    """The work for some of the parameters."""

    def pick(column: list[Any]) -> list[Any]:
        return [column[i] for i in indices] if column else []

    placement = work.placement and Placement(work.placement.mesh, work.placement.placements, pick(work.placement.full))
    scalars = {name: pick(column) for name, column in work.scalars.items()}
    return with_columns(work, [pick(column) for column in columns_of(work)], scalars, placement)


def as_plain_tensors(work: Work) -> Work:
    """With the tensors that the update computes with: real views of complex ones, local parts of distributed ones."""
    columns = columns_of(work)
    first, distributed = work.params[0], distribution(work.params[0])
    placement: Placement | None = None
    if distributed:
        columns[1] = [local(x, p) for x, p in zip(work.grads, work.params)]
        columns = [[local(x, x) for x in column] for column in columns]
        placement = Placement(*distributed, [(p.shape, p.stride()) for p in work.params])
    if first.is_complex():
        columns = [[torch.view_as_real(x) for x in column] for column in columns]
    params, grads, *tensors = columns
    return Work(work.rule, work.h, params, grads, work.scalars, tensors, placement, first.is_complex())


def grouped_by_kind(params: Tensors, by_rank: bool) -> list[Tensors]:
    """The parameters in lists that can be updated together: of one device, dtype and distribution."""
    mixed = by_rank or len({p.dtype for p in params}) > 1 or len({p.device for p in params}) > 1
    if not mixed and not any_distributed(params):
        return [params] if params else []
    found: dict[Any, Tensors] = {}
    for p in params:
        kind = (p.device, p.dtype, distribution(p), by_rank and p.dim() >= 2)
        found.setdefault(kind, []).append(p)
    return list(found.values())


def readable(work: Work) -> bool:
    """Whether everything that is a number lies on the host."""
    numbers = [x for value in work.h.values() for x in (value if isinstance(value, (tuple, list)) else (value,))]
    if not all(x.is_cpu for x in numbers if isinstance(x, Tensor)) or not work.params[0].is_cpu:
        return False
    return all(column[0].is_cpu for column in work.scalars.values())
