"""`Work`: the tensors that a step updates together, and the numbers for them. All modules of a step pass it on.

Its hyperparameters have three forms, one after the other:

    ===============  ================================  ==============================================
    form             where it is                       a hyperparameter is
    ===============  ================================  ==============================================
    as in the group  `hyper` of a gathered work        a number, or any tensor of one element
    for factors      `hyper` of a work after           a number, or a 0-dim tensor in double precision
                     `convert_for_factors`
    for lists        the argument `h` of the rule's    a number, a 0-dim tensor in the dtype of the
                     `update`: `convert_for_lists`     update, or a list with one for each parameter
    ===============  ================================  ==============================================

`choose_routes`, `step_on_tensors` and `start_step` convert for factors. Everything after them gets such a work.

A hyperparameter may also be a tuple of these (`betas`), a switch, a text, a dtype or None. A prepared step has only
numbers, switches and None, which have the same form everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..base.sharding import Placement
from ..base.tensor_lists import Columns, select
from ..precision.widened import Widening

Factors = dict[str, Any]
RoundAsState = Callable[[object], Any]  # rounds a number as the scalar states of a work are rounded
NUMBERS = frozenset((float, int, bool, tuple, type(None)))  # the types of hyperparameters and factors that are numbers


class Work(NamedTuple):
    """The tensors of one group (on one device, of one dtype), and the numbers that go with them.

    The tensors are in named columns, with one tensor for each parameter: "p" are the parameters, "g" the gradients, and
    each state has a column of its name. A state that is switched off has no column.
    """

    algorithm: Any  # the class whose `factors` and `update` apply
    hyper: Factors  # the hyperparameters by name: as in the group, or for factors after `convert_for_factors`
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


def convert_for_factors(work: Work, read_on_host: bool) -> Work:
    """Convert the hyperparameters to the form for factors: numbers, or 0-dim tensors in double precision on the device.

    With `read_on_host`, tensors on the CPU become numbers.
    """
    device = work.columns["p"][0].device
    return work._replace(hyper={name: _number_or_tensor(x, device, read_on_host) for name, x in work.hyper.items()})


def _number_or_tensor(value: Any, device: torch.device, read_on_host: bool) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(_number_or_tensor(x, device, read_on_host) for x in value)
    if isinstance(value, Tensor):
        return value.item() if read_on_host and value.is_cpu else value.reshape(()).to(device, double_dtype(device))
    return value if value is None or isinstance(value, (float, int, str, torch.dtype)) else float(value)


def double_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def convert_for_lists(work: Work, factors: Factors) -> tuple[Factors, Factors]:
    """Hyperparameters and factors in the form for lists: a number, a 0-dim tensor, or a list of these.

    Tensors get the dtype of the update. A tensor with an element for each parameter becomes a list. If a factor has the
    name of a hyperparameter, the hyperparameter is left out.
    """
    both = {**work.hyper, **factors}
    if NUMBERS.issuperset(map(type, both.values())):
        return work.hyper, factors
    tensors = {name: x for name, x in both.items() if isinstance(x, Tensor)}
    if tensors:
        dtype = torch.float64 if work.columns["p"][0].dtype == torch.float64 else torch.float32
        cast = [x.to(dtype) for x in tensors.values()]
        if torch.compiler.is_compiling():
            # Inductor keeps one array. Without the array, every element would compute the factors again.
            parts = torch.split(torch.cat([x.reshape(-1) for x in cast]), [x.numel() for x in cast])
            cast = [part.view(x.shape) for part, x in zip(parts, cast)]
        both.update((name, x if x.dim() == 0 else list(x.unbind())) for name, x in zip(tensors, cast))
    return {name: both[name] for name in work.hyper if name not in factors}, {name: both[name] for name in factors}
