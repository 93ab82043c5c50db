"""`Work`: the tensors that a step updates together, and the numbers for them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..base.sharding import Placement, any_distributed, distribution, local
from ..base.tensor_lists import Tensors
from ..precision.widened import Low

STEP = "step"  # the state that counts the steps of a parameter
Factors = dict[str, Any]


class Work(NamedTuple):
    """The tensors of one group (on one device, of one dtype), and the numbers that go with them."""

    optimizer_class: Any  # whose `factors` and `update` apply
    h: dict[str, Any]  # the hyperparameters
    params: Tensors
    grads: Tensors
    scalars: dict[str, Tensors]  # states that are one number for each parameter
    tensors: list[Tensors]  # states that belong to the elements; empty for one that is switched off
    placement: Placement | None = None  # where distributed parameters lie
    low: Low | None = None  # how bfloat16 parameters are stepped in float32

    def columns(self) -> list[Tensors]:
        """All tensors that an update computes with: the parameters, the gradients, and each state.

        A method, since the graphs of torch 2.9 know no properties of a NamedTuple.
        """
        return [self.params, self.grads, *self.tensors]

    def with_columns(self, columns: list[Tensors]) -> Work:
        """The work with other tensors."""
        return self._replace(params=columns[0], grads=columns[1], tensors=columns[2:])

    def advance(self) -> None:
        """Add 1 to the counts of steps."""
        if STEP in self.scalars:
            torch._foreach_add_(self.scalars[STEP], 1)

    def selected(self, indices: list[int]) -> Work:
        """The work for some of the parameters."""

        def pick(column: Any) -> Any:
            return [column[i] for i in indices] if column else []

        placement = self.placement and self.placement._replace(full=pick(self.placement.full))
        scalars = {name: pick(column) for name, column in self.scalars.items()}
        low = self.low and self.low._replace(places=pick(self.low.places))
        return self.with_columns(list(map(pick, self.columns())))._replace(
            scalars=scalars, placement=placement, low=low
        )


def as_plain_tensors(work: Work) -> Work:
    """With the tensors that the update computes with: real views of complex ones, local parts of distributed ones."""
    columns = work.columns()
    distributed = distribution(work.params[0])
    if distributed:
        columns[1] = [local(x, p) for x, p in zip(work.grads, work.params)]
        columns = [[local(x, x) for x in column] for column in columns]
        work = work._replace(placement=Placement(*distributed, [(p.shape, p.stride()) for p in work.params]))
    if work.params[0].is_complex():
        columns = [[torch.view_as_real(x.resolve_conj()) for x in column] for column in columns]
    return work.with_columns(columns)


def grouped_by_kind(params: list[Tensor], by_rank: bool) -> list[list[Tensor]]:
    """The parameters in lists that can be updated together: of one device, dtype and distribution."""
    mixed = by_rank or len({p.dtype for p in params}) > 1 or len({p.device for p in params}) > 1
    if not mixed and not any_distributed(params):
        return [params] if params else []
    found: dict[Any, list[Tensor]] = {}
    for p in params:
        kind = (p.device, p.dtype, distribution(p), by_rank and p.dim() >= 2)
        found.setdefault(kind, []).append(p)
    return list(found.values())
