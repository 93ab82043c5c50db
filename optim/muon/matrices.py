"""What Muon does with lists of matrices: their directions, the orthogonal steps, and the moves of the parameters.

`h` are the hyperparameters and `f` the factors, as in every update (see RuleOptimizer); the names in the equations of
Muon and NorMuon are given beside each function.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..base.tensor_lists import Tensors, add, add_, copy_, decay_along_, is_zero, lerp, lerp_, mul_
from ..step.work import Factors
from .newton_schulz import nearest_orthogonal


class MatrixShape(NamedTuple):
    """How a parameter is read as matrices."""

    stack: tuple[int, ...]  # the sizes of the dimensions that count matrices; empty for one matrix
    rows: int
    columns: int


def matrix_shape(shape: torch.Size, group: Mapping[str, Any]) -> MatrixShape:
    """How a parameter of this shape is read: `flatten` says whether its last two dimensions alone are the matrix."""
    flatten = group.get("flatten")
    is_stack = len(shape) == 3 if flatten is None else not flatten
    if is_stack:
        return MatrixShape(tuple(shape[:-2]), shape[-2], shape[-1])
    return MatrixShape((), shape[0], shape[1:].numel())


def rows_of_blocks(rows: int, group: Mapping[str, Any]) -> list[int]:
    """The rows of each block of a matrix: a block is made orthogonal by itself."""
    heads = group.get("num_heads")
    if heads:
        return [rows // heads] * heads
    return list(group.get("split_sizes") or [rows])


def directions_of(h: Factors, g: Tensors, momentum_buffer: Tensors) -> Tensors:
    """The momentum, or the look-ahead from it: G of B."""
    if not h["nesterov"]:
        return momentum_buffer
    if h["adjust_lr_fn"] == "cerebras":
        return add(g, momentum_buffer, h["momentum"])
    return lerp(g, momentum_buffer, h["momentum"])


def steps_along(h: Factors, f: Factors, directions: Tensors, second_moments: Tensors) -> Tensors:
    """What `move` adds, O or U, of directions of one shape, which are whole; updates second moments, v, in place.

    `second_moments` is empty for Muon.
    """
    count, (stack, rows, columns) = len(directions), matrix_shape(directions[0].shape, h)
    matrices = _stacked(directions).reshape(count, *stack, rows, columns)
    moments = _stacked(second_moments).view(count, *stack, rows, 1) if second_moments else None
    # Blocks of one size that follow each other are made orthogonal together.
    runs = [(size, len(list(run))) for size, run in itertools.groupby(rows_of_blocks(rows, h))]
    rows_of_runs = [size * blocks for size, blocks in runs]
    parts = list(torch.split(matrices, rows_of_runs, -2))
    scales = [scale(directions[0].shape, h, size) for size, _ in runs]
    for i, (size, blocks) in enumerate(runs):
        step = nearest_orthogonal(parts[i].reshape(count, *stack, blocks, size, columns), h)
        if moments is not None:
            v = torch.split(moments, rows_of_runs, -2)[i].view(count, *stack, blocks, size, 1)
            step = _normalized_rows(step, v, f["one_minus_beta2"])
        step = step.flatten(-3, -2)
        parts[i] = step if i == 0 else step * (scales[i] / scales[0])  # as `move` scales all by that of the first block
    if len(second_moments) > 1 and moments is not None:  # a single one was updated itself, in a view
        copy_(second_moments, [new.view(old.shape) for new, old in zip(moments, second_moments)])
    found = torch.cat(parts, -2) if len(parts) > 1 else parts[0]
    return list(found.reshape(count, *directions[0].shape).unbind())


def move(h: Factors, p: Tensors, steps: Tensors, shape: torch.Size) -> None:
    """Let parameters decay, and add the steps to them: to all elements, or to those that this rank has.

    `shape` is that of each full parameter.
    """
    first_block = rows_of_blocks(matrix_shape(shape, h).rows, h)[0]
    step_size = h["lr"] * scale(shape, h, first_block)
    rate = step_size if h["adjust_lr_fn"] == "cerebras" else h["lr"]
    if h["cautious_weight_decay"]:
        decay_along_(p, 1 - rate * h["weight_decay"], steps)
    elif not is_zero(h["weight_decay"]):
        mul_(p, 1 - rate * h["weight_decay"])
    add_(p, steps, -step_size)


def scale(shape: torch.Size, h: Mapping[str, Any], rows: int) -> float:
    """The scale s of a block of `rows` rows in a parameter of this shape."""
    form, (stack, _, columns) = h["adjust_lr_fn"], matrix_shape(shape, h)
    if form == "cerebras" and not stack:
        columns = shape[1]
    if form in ("cerebras", "match_rms_adamw"):
        return 0.2 * math.sqrt(max(rows, columns))
    ratio = rows / columns if columns else 1.0
    return math.sqrt(ratio if form == "spectral_unclamped" else max(1.0, ratio))


def _stacked(xs: Tensors) -> Tensor:
    """Tensors of one shape in one; a single one as a view."""
    return torch.stack(list(xs)) if len(xs) > 1 else xs[0][None]


def _normalized_rows(o: Tensor, v: Tensor, one_minus_beta2: Any) -> Tensor:
    """U of O: the rows divided by the roots of their second moments, which are updated, and then the norm of O."""
    wide = o.to(v.dtype)
    lerp_([v], [wide.square().mean(-1, keepdim=True)], one_minus_beta2)
    u = wide / (v.sqrt() + 1e-8)
    norm_before = torch.linalg.vector_norm(wide, dim=(-2, -1), keepdim=True)
    norm_after = torch.linalg.vector_norm(u, dim=(-2, -1), keepdim=True)
    u *= norm_before / norm_after.clamp(min=1e-8)
    return u.to(o.dtype)
