"""Gathering: the tensors and hyperparameters of a step, as works. Everything is checked before anything is changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from timesched.types import ParamGroup

from ..base import sharding
from ..base.hyperparameters import all_parameters
from ..base.scalar_states import STEP
from ..base.sharding import distribution, local_shard, local_shards, make_placement
from ..base.tensor_lists import Columns, Tensors
from ..precision.options import active_states, is_widened
from ..precision.widened import make_widening
from ..state.keeper import State
from .work import Work

if TYPE_CHECKING:
    from .rule_optimizer import RuleOptimizer


def gather(optimizer: RuleOptimizer) -> list[Work]:
    """The works of a step: the parameters with a gradient, by group, device, dtype and distribution."""
    works: list[Work] = []
    parameter_numbers: dict[Tensor, int] = {}  # for stochastic rounding
    if any(group.get("stochastic_rounding") for group in optimizer.param_groups):
        parameter_numbers = {p: i for i, p in enumerate(all_parameters(optimizer.param_groups))}
    for group in optimizer.param_groups:
        active = [p for p in group["params"] if p.grad is not None]
        if torch.compiler.is_compiling():
            _check_state_fits(optimizer, active)
        _check_gradients(active, group, type(optimizer).__name__)
        algorithm = optimizer.algorithm_of(group)
        for params in _group_by_kind(active, algorithm.matrices_apart):
            works.append(_make_work(optimizer, algorithm, group, params, parameter_numbers))
    return list(map(_convert_to_plain_tensors, works))


def _group_by_kind(params: list[Tensor], matrices_apart: bool) -> list[list[Tensor]]:
    """Group parameters that can be updated together: each list has one device, dtype and distribution."""
    params_by_kind: dict[Any, list[Tensor]] = {}
    for p in params:
        kind = (p.device, p.dtype, distribution(p), matrices_apart and p.dim() >= 2)
        params_by_kind.setdefault(kind, []).append(p)
    return list(params_by_kind.values())


def _make_work(
    optimizer: RuleOptimizer, algorithm: Any, group: ParamGroup, params: Tensors, parameter_numbers: dict[Tensor, int]
) -> Work:
    """The work of some parameters of a group, with their gradients and states as they are."""
    hyper = {name: group[name] for name in algorithm.hyper}
    states = [optimizer.state[p] for p in params]
    names = algorithm.tensor_states(group, params[0])
    grads: list[Any] = [p.grad for p in params]
    columns: Columns = {"p": params, "g": grads}
    columns.update(_select_states(optimizer, group, states, active_states(names, group, params[0])))
    scalar_names = optimizer._scalar_names(algorithm, group)
    if STEP not in scalar_names and algorithm.advances_count(group) and all(STEP in state for state in states):
        scalar_names = (*scalar_names, STEP)
    scalars = _select_states(optimizer, group, states, scalar_names)
    widening = make_widening(group, columns, names, parameter_numbers) if is_widened(group, params[0]) else None
    return Work(type(algorithm), hyper=hyper, columns=columns, scalars=scalars, widening=widening)


def _select_states(optimizer: RuleOptimizer, group: ParamGroup, states: list[State], names: Sequence[str]) -> Columns:
    """The states of these names. Each is a list with one tensor for each parameter.

    Raises `ValueError` for a state that the group needs after a change of its hyperparameters.
    """
    columns: Columns = {}
    for name in names:
        if name not in states[0]:
            shown = [key for key in optimizer.algorithm_of(group).hyper if key not in ("lr", "weight_decay")]
            values = ", ".join(f"{key}={group[key]!r}" for key in shown)
            raise ValueError(
                f"{type(optimizer).__name__}: with {values}, a step needs the state {name!r}, which was not created at "
                "construction. Construct with these values, or with a tensor in place of a 0 that changes later."
            )
        columns[name] = [state[name] for state in states]
    return columns


def _check_state_fits(optimizer: RuleOptimizer, params: Tensors) -> None:
    """Raise `ValueError` for a parameter whose state does not fit it, since state cannot follow in a graph."""
    for p in params:
        if not optimizer._keeper.has_fitting_state(p, optimizer.state):
            raise ValueError(
                f"{type(optimizer).__name__}: a parameter is {p.dtype} of shape {tuple(p.shape)} on {p.device}, and "
                "its state does not fit it. In a graph, state cannot follow: take one step outside the graph, use "
                "optimizer.compile(), or call optimizer.reset_state()."
            )


def _check_gradients(params: list[Tensor], group: ParamGroup, class_name: str) -> None:
    """Raise `RuntimeError` for a gradient that cannot be used."""
    for p in params:
        g: Any = p.grad
        if g.layout is not torch.strided:
            raise RuntimeError(
                f"{class_name}: a gradient of shape {tuple(g.shape)} has the layout {g.layout}, but it must be dense. "
                "Use sparse=False in the layer, or torch.optim.SparseAdam."
            )
        has_other_dtype = g.dtype != p.dtype and not (g.dtype == torch.float32 and is_widened(group, p))
        if has_other_dtype or g.shape != p.shape:
            raise RuntimeError(
                f"{class_name}: a parameter is {p.dtype} of shape {tuple(p.shape)}, but its gradient is {g.dtype} of "
                f"shape {tuple(g.shape)}. Call zero_grad() after a cast or a resize, and do not change grad_dtype."
            )


def _convert_to_plain_tensors(work: Work) -> Work:
    """Replace tensors by those that the update needs: real views of complex ones, local parts of distributed ones."""
    params = work.columns["p"]
    placement = make_placement(params) if sharding.DTENSOR_CLASSES else None
    if placement is not None:
        grads = [local_shard(g, p) for g, p in zip(work.columns["g"], params)]
        columns: Columns = {name: local_shards(xs) for name, xs in {**work.columns, "g": grads}.items()}
        work = work._replace(columns=columns, placement=placement)
    if params[0].is_complex():
        work = work._replace(columns={name: _real_views(xs) for name, xs in work.columns.items()})
    return work


def _real_views(xs: Tensors) -> Tensors:
    return [torch.view_as_real(x.resolve_conj()) for x in xs]
