"""The maths of Muon for lists of matrices of one shape: directions, orthogonal steps, and the change of parameters.

`h` are the hyperparameters and `f` the factors, as in every update (see RuleOptimizer). Each docstring names the
symbols of the equations in `Muon` and `NorMuon` that the function computes.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from timesched.types import ParamGroup

from ..base.sharding import Placement, distribute_like, full_tensor, local_shard, make_dtensor, row_placement
from ..base.tensor_lists import (
    Columns,
    Tensors,
    add,
    add_,
    copy_,
    decay_cautiously_,
    is_zero,
    lerp,
    lerp_,
    mul_,
    stack_tensors,
)
from ..step.work import Factors
from .newton_schulz import orthogonalize


class MatrixShape(NamedTuple):
    """The matrices that a parameter consists of."""

    stack: tuple[int, ...]  # the sizes of the dimensions before the rows; empty for a single matrix
    rows: int
    columns: int


def matrix_shape(shape: torch.Size, group: ParamGroup) -> MatrixShape:
    """The matrices in a parameter of this shape. With `flatten`, all dimensions after the first are the columns."""
    flatten = group.get("flatten")
    is_stack = len(shape) == 3 if flatten is None else not flatten
    if is_stack:
        return MatrixShape(tuple(shape[:-2]), shape[-2], shape[-1])
    return MatrixShape((), shape[0], shape[1:].numel())


def block_rows(rows: int, group: ParamGroup) -> list[int]:
    """The number of rows of each block of a matrix. Each block is made orthogonal separately."""
    heads = group.get("num_heads")
    if heads:
        return [rows // heads] * heads
    return list(group.get("split_sizes") or [rows])


def has_full_matrices(placement: Placement, i: int, h: ParamGroup) -> bool:
    """Whether this rank's shard of the `i`-th parameter of a work consists of full matrices."""
    stack_dims = len(matrix_shape(placement.full[i].shape, h).stack)
    return all(placement.placements[j].dim < stack_dims for j in placement.splitting_mesh_dims())


def update_full(h: Factors, f: Factors, columns: Columns) -> None:
    """Update parameters of one shape whose matrices are complete on this rank."""
    directions = momentum_directions(h, columns["g"], columns["momentum_buffer"])
    steps = orthogonal_steps(h, f, directions, columns.get("variance_neuron", []))
    apply_steps(h, columns["p"], steps, columns["p"][0].shape)


def update_gathered(h: Factors, f: Factors, columns: Columns, placement: Placement, i: int) -> None:
    """Update the `i`-th parameter of a work, whose matrices are split between ranks.

    Each rank gathers the full direction and computes the full step. The columns contain this parameter only.
    """
    second_moments = columns.get("variance_neuron", [])
    direction = make_dtensor(momentum_directions(h, columns["g"], columns["momentum_buffer"])[0], placement, i)
    full_moments: list[Tensor] = []
    if second_moments:
        stack_dims = len(matrix_shape(placement.full[i].shape, h).stack)
        sharded_moments = make_dtensor(second_moments[0], row_placement(placement, stack_dims + 1), i)
        full_moments = [full_tensor(sharded_moments)]
    step = orthogonal_steps(h, f, [full_tensor(direction)], full_moments)[0]
    if second_moments:
        copy_(second_moments, [local_shard(distribute_like(full_moments[0], sharded_moments), sharded_moments)])
    sharded_step = distribute_like(step, direction)
    apply_steps(h, columns["p"], [local_shard(sharded_step, sharded_step)], placement.full[i].shape)


def momentum_directions(h: Factors, g: Tensors, momentum_buffer: Tensors) -> Tensors:
    """The directions G: the momentum B, or with Nesterov momentum the look-ahead from B."""
    if not h["nesterov"]:
        return momentum_buffer
    if h["adjust_lr_fn"] == "cerebras":
        return add(g, momentum_buffer, h["momentum"])
    return lerp(g, momentum_buffer, h["momentum"])


def orthogonal_steps(h: Factors, f: Factors, directions: Tensors, second_moments: Tensors) -> Tensors:
    """The steps O along full directions G of one shape, for `apply_steps`.

    For NorMuon they are the steps U, and the second moments v are updated in place. Muon has no second moments.
    """
    shape, count = directions[0].shape, len(directions)
    stack, rows, columns = matrix_shape(shape, h)
    matrices = stack_tensors(directions).reshape(count, *stack, rows, columns)
    moments = stack_tensors(second_moments).view(count, *stack, rows, 1) if second_moments else None
    # Consecutive blocks of one size are computed together: such a run is its size and its number of blocks.
    runs = [(size, len(list(blocks))) for size, blocks in itertools.groupby(block_rows(rows, h))]
    heights = [size * blocks for size, blocks in runs]
    moments_of_runs = [None] * len(runs) if moments is None else torch.split(moments, heights, -2)
    parts: list[Tensor] = []
    for (size, blocks), matrices_of_run, v in zip(runs, torch.split(matrices, heights, -2), moments_of_runs):
        step = orthogonalize(matrices_of_run.reshape(count, *stack, blocks, size, columns), h)
        if v is not None:
            step = _normalize_rows(step, v.view(count, *stack, blocks, size, 1), f["one_minus_beta2"])
        step = step.flatten(-3, -2)  # the blocks below each other again
        if parts:  # `apply_steps` multiplies all rows by the scale of the first block
            step = step * (learning_rate_scale(shape, h, size) / learning_rate_scale(shape, h, runs[0][0]))
        parts.append(step)
    if len(second_moments) > 1 and moments is not None:  # of a single parameter, `moments` is a view
        copy_(second_moments, [new.view(old.shape) for new, old in zip(moments, second_moments)])
    steps = torch.cat(parts, -2) if len(parts) > 1 else parts[0]
    return list(steps.reshape(count, *shape).unbind())


def apply_steps(h: Factors, p: Tensors, steps: Tensors, shape: torch.Size) -> None:
    """Apply weight decay and add the steps, to full parameters or to the shards of this rank.

    `shape` is the shape of each full parameter.
    """
    first_block = block_rows(matrix_shape(shape, h).rows, h)[0]
    step_size = h["lr"] * learning_rate_scale(shape, h, first_block)
    decay_lr = step_size if h["adjust_lr_fn"] == "cerebras" else h["lr"]
    if h["cautious_weight_decay"]:
        decay_cautiously_(p, 1 - decay_lr * h["weight_decay"], steps)
    elif not is_zero(h["weight_decay"]):
        mul_(p, 1 - decay_lr * h["weight_decay"])
    add_(p, steps, -step_size)


def learning_rate_scale(shape: torch.Size, h: ParamGroup, rows: int) -> float:
    """The factor s that multiplies the learning rate, for a block of `rows` rows in a parameter of this shape."""
    variant = h["adjust_lr_fn"]
    stack, _, columns = matrix_shape(shape, h)
    if variant == "cerebras" and not stack:
        columns = shape[1]
    if variant in ("cerebras", "match_rms_adamw"):
        return 0.2 * math.sqrt(max(rows, columns))
    ratio = rows / columns if columns else 1.0
    return math.sqrt(ratio if variant == "spectral_unclamped" else max(1.0, ratio))


def _normalize_rows(o: Tensor, v: Tensor, one_minus_beta2: Any) -> Tensor:
    """Compute the steps U from O: update v, divide each row by the root of its v, and restore the norm of O."""
    wide = o.to(v.dtype)
    lerp_([v], [wide.square().mean(-1, keepdim=True)], one_minus_beta2)
    u = wide / (v.sqrt() + 1e-8)
    norm_before = torch.linalg.vector_norm(wide, dim=(-2, -1), keepdim=True)
    norm_after = torch.linalg.vector_norm(u, dim=(-2, -1), keepdim=True)
    u *= norm_before / norm_after.clamp(min=1e-8)
    return u.to(o.dtype)
