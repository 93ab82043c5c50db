"""What Muon does with lists of matrices: their directions, the orthogonal steps, and the moves of the parameters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..base.tensor_lists import Tensors, add, add_, decay_along_, is_zero, lerp, lerp_, mul_
from ..step.work import Factors
from .newton_schulz import orthogonal


def matrix(shape: torch.Size, group: Mapping[str, Any]) -> tuple[tuple[int, ...], int, int]:
    """The sizes of a stack of matrices, their rows, and their columns."""
    flatten = group.get("flatten")
    if len(shape) == 3 if flatten is None else not flatten:
        return tuple(shape[:-2]), shape[-2], shape[-1]
    return (), shape[0], shape[1:].numel()


def blocks_of(rows: int, group: Mapping[str, Any]) -> list[int]:
    """The rows of each block of a matrix."""
    heads = group.get("num_heads")
    return [rows // heads] * heads if heads else list(group.get("split_sizes") or [rows])


def directions(h: Factors, g: Tensors, buffer: Tensors) -> Tensors:
    """The momentum, or the look-ahead from it."""
    if not h["nesterov"]:
        return buffer
    return (add if h["adjust_lr_fn"] == "cerebras" else lerp)(g, buffer, h["momentum"])


def steps(h: Factors, f: Factors, whole: Tensors, moments: Tensors) -> Tensors:
    """The orthogonal matrices next to tensors of one shape, as `move` takes them; updates second moments in place."""
    together = torch.stack(list(whole)) if len(whole) > 1 else whole[0][None]
    stack, rows, columns = matrix(whole[0].shape, h)
    runs = [(size, len(list(alike))) for size, alike in itertools.groupby(blocks_of(rows, h))]
    sizes = [size * count for size, count in runs]
    cut = list(torch.split(together.reshape(len(whole), *stack, rows, columns), sizes, -2))
    scales = [scale(whole[0].shape, h, size) for size, _ in runs]
    seconds: Any = None
    if moments:  # a single one is a view
        seconds = (torch.stack(list(moments)) if len(moments) > 1 else moments[0]).view(len(whole), *stack, rows, 1)
    for i, (size, count) in enumerate(runs):
        blocks = (len(whole), *stack, count, size)
        found = orthogonal(cut[i].reshape(*blocks, columns), h)
        if seconds is not None:
            found = _even(found, torch.split(seconds, sizes, -2)[i].view(*blocks, 1), f["one_minus_beta2"])
        cut[i] = found.flatten(-3, -2) if i == 0 else found.flatten(-3, -2) * (scales[i] / scales[0])
    if len(moments) > 1:
        torch._foreach_copy_(moments, [x.view(y.shape) for x, y in zip(seconds, moments)])
    return list((torch.cat(cut, -2) if len(cut) > 1 else cut[0]).reshape(together.shape).unbind())


def move(h: Factors, p: Tensors, steps: Tensors, shape: torch.Size) -> None:
    """Let parameters of one shape decay, and add the steps to them: to all elements, or to those of this rank."""
    step_size = h["lr"] * scale(shape, h, blocks_of(matrix(shape, h)[1], h)[0])
    rate = step_size if h["adjust_lr_fn"] == "cerebras" else h["lr"]
    if h["cautious_weight_decay"]:
        decay_along_(p, 1 - rate * h["weight_decay"], steps)
    elif not is_zero(h["weight_decay"]):
        mul_(p, 1 - rate * h["weight_decay"])
    add_(p, steps, -step_size)


def scale(shape: torch.Size, h: Mapping[str, Any], rows: int) -> float:
    """Of blocks of so many rows."""
    form, (stack, _, columns) = h["adjust_lr_fn"], matrix(shape, h)
    if form == "cerebras" and not stack:
        columns = shape[1]
    if form in ("cerebras", "match_rms_adamw"):
        return 0.2 * math.sqrt(max(rows, columns))
    ratio = rows / columns if columns else 1.0
    return math.sqrt(ratio if form == "spectral_unclamped" else max(1.0, ratio))


def _even(x: Tensor, moments: Tensor, one_minus_beta: Any) -> Tensor:
    """Matrices of the same norm whose rows are divided by the roots of their second moments, which are updated."""
    wide = x.to(moments.dtype)
    lerp_([moments], [wide.square().mean(-1, keepdim=True)], one_minus_beta)
    even = wide / (moments.sqrt() + 1e-8)
    norms = [torch.linalg.vector_norm(each, dim=(-2, -1), keepdim=True) for each in (wide, even)]
    even *= norms[0] / norms[1].clamp(min=1e-8)
    return even.to(x.dtype)
