"""`Work`: the tensors that a step updates together, and the numbers for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from ..base.sharding import Placement
from ..base.tensor_lists import Columns, Tensors, select
from ..precision.widened import Widening

Factors = dict[str, Any]
RoundAsState = Callable[[object], Any]  # rounds a number as the scalar states of a work are rounded


class Work(NamedTuple):
    """The tensors of one group (on one device, of one dtype), and the numbers that go with them.

    The tensors are in named columns, with one tensor for each parameter: "p" are the parameters, "g" the gradients, and
    each state has a column of its name. A state that is switched off has no column.
    """

    algorithm: Any  # the class whose `factors` and `update` apply
    # The hyperparameters by name. After `gather` they are as in the group. `_convert_for_factors` in execution.py then
    # makes each a number or a tensor in double precision. (`update` gets a third form, from `_convert_for_lists`.)
    hyper: dict[str, Any]
    columns: Columns
    scalars: Columns  # the states that are one number for each parameter
    placement: Placement | None = None  # the placement of distributed parameters
    widening: Widening | None = None  # how bfloat16 is stepped in float32; None if nothing is

    def select(self, indices: list[int]) -> Work:
        """The work for some of the parameters."""
        columns: Columns = {name: select(xs, indices) for name, xs in self.columns.items()}
        scalars: Columns = {name: select(xs, indices) for name, xs in self.scalars.items()}
        work = self._replace(columns=columns, scalars=scalars)
        if self.placement:
            work = work._replace(placement=self.placement._replace(full=select(self.placement.full, indices)))
        if self.widening and self.widening.places:
            work = work._replace(widening=self.widening._replace(places=select(self.widening.places, indices)))
        return work


def split_by_layout(work: Work) -> list[tuple[Work, bool]]:
    """Split the work into up to two parts: contiguous tensors (True), and other tensors.

    If an update is elementwise, the order of the dimensions does not matter. The tensors then use the order of the
    parameter's memory.
    """
    if all(map(_is_contiguous, work.columns.values())):
        return [(work, True)]
    if work.algorithm.elementwise:
        work = _permute_to_memory_order(work)
    indices: dict[bool, list[int]] = {True: [], False: []}
    for i in range(len(work.columns["p"])):
        indices[_is_contiguous([column[i] for column in work.columns.values()])].append(i)
    return [(work.select(part), contiguous) for contiguous, part in indices.items() if part]


def _is_contiguous(xs: Tensors) -> bool:
    return all(map(Tensor.is_contiguous, xs))


def _permute_to_memory_order(work: Work) -> Work:
    """Replace tensors by views whose dimensions are in the order of the parameter's memory."""
    orders = [sorted(range(p.dim()), key=p.stride, reverse=True) for p in work.columns["p"]]
    work = work._replace(columns={name: _permute(xs, orders) for name, xs in work.columns.items()})
    if work.widening is not None:
        places = [place._replace(dims=select(place.dims, order)) for place, order in zip(work.widening.places, orders)]
        work = work._replace(widening=work.widening._replace(places=places))
    return work


def _permute(xs: Tensors, orders: list[list[int]]) -> Tensors:
    return [x.permute(order) for x, order in zip(xs, orders)]
