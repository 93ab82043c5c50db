"""In-place arithmetic on lists of tensors by torch's multi-tensor kernels. The update rules are written in it.

A factor `c` is a Python number, a 0-dim tensor, or a list of 0-dim tensors, one for each tensor of the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

Tensors: TypeAlias = "list[Tensor] | tuple[Tensor, ...]"
Columns: TypeAlias = "dict[str, Tensors]"  # each column has one tensor for each parameter: see RuleOptimizer
Factor: TypeAlias = "float | Tensor | Tensors"


class Piece(NamedTuple):
    """Tensors that are updated together: all elements of some parameters, or some elements of one."""

    columns: Columns
    indices: Sequence[int]  # of these parameters among all parameters of a step
    start: int = 0  # the index of the first element

    def write_back(self) -> None:
        """Do nothing: the tensors themselves were updated. (`WidenedPiece` has copies, which it writes back.)"""


STACK_LIMIT = 1 << 24  # elements that are stacked together on a GPU

mul_ = torch._foreach_mul_  # xs *= c; c may also be a list of tensors of the same shapes, as in div_
div_ = torch._foreach_div_
div = torch._foreach_div
neg = torch._foreach_neg
sqrt = torch._foreach_sqrt
sqrt_ = torch._foreach_sqrt_
absolute = torch._foreach_abs
sign = torch._foreach_sign
sign_ = torch._foreach_sign_
copy_ = torch._foreach_copy_  # xs = ys
norms = torch._foreach_norm  # the root of the sum of squares of each
maximum_ = torch._foreach_maximum_
addcmul = torch._foreach_addcmul  # xs + value * ys * zs


def select(xs: Sequence[Any], indices: Iterable[int]) -> list[Any]:
    """The elements of a list at some indices."""
    return [xs[i] for i in indices]


def stack_tensors(xs: Tensors) -> Tensor:
    """Stack tensors of one shape. A single tensor becomes a view."""
    return torch.stack(list(xs)) if len(xs) > 1 else xs[0][None]


def is_zero(factor: Factor) -> bool:
    """Whether a factor is the number 0, so that its product can be left out."""
    return isinstance(factor, (int, float)) and factor == 0


def indices_by_shape(xs: Tensors, alone: bool = False, on_cpu: int = 0) -> list[list[int]]:
    """The indices of tensors to stack, since one operation on several tensors of one shape is one launch on a GPU.

    Tensors stay alone with `alone=True`, in graphs, and where they are not contiguous. A stack has at most `on_cpu`
    elements on the CPU and `STACK_LIMIT` on a GPU, since stacks take memory and large tensors gain nothing.
    """
    groups: dict[Any, list[int]] = {}
    limit = STACK_LIMIT if xs and xs[0].is_cuda else on_cpu if xs and xs[0].is_cpu else 0
    if alone or torch.compiler.is_compiling():
        limit = 0
    for i, x in enumerate(xs):
        groups.setdefault(x.shape if 0 < x.numel() <= limit and x.is_contiguous() else i, []).append(i)
    result = []
    for indices in groups.values():
        size = max(1, limit // max(1, xs[indices[0]].numel()))
        result += [indices[start : start + size] for start in range(0, len(indices), size)]
    return result


def indices_by_size(sizes: Iterable[int], limit: int) -> list[list[int]]:
    """The indices of sizes, in order, in lists that add up to at most `limit`. A larger size is in a list by itself."""
    lists: list[list[int]] = []
    filled = limit + 1  # so that the first size starts a list
    for i, size in enumerate(sizes):
        if filled + size > limit:
            lists.append([])
            filled = 0
        lists[-1].append(i)
        filled += size
    return lists


def mul(xs: Tensors, c: Factor) -> Tensors:
    """xs * c; `c` may also be a list of tensors of the same shapes."""
    if not isinstance(c, list) or c[0].dim() or not xs[0].is_cuda or torch.compiler.is_compiling():
        return torch._foreach_mul(xs, c)
    results = list(xs)  # torch's kernel would process one tensor after the other
    for indices in indices_by_shape(xs):
        factors = torch.stack([c[i] for i in indices]).view(-1, *[1] * xs[indices[0]].dim())
        stacked = torch.stack([xs[i] for i in indices])
        for i, x in zip(indices, (stacked * factors).to(stacked.dtype).unbind()):
            results[i] = x
    return results


def shift_(xs: Tensors, c: Factor) -> None:
    """xs += c."""
    # Without `alpha`, torch treats a tensor as a number and reads it.
    torch._foreach_add_(xs, c, alpha=1.0) if isinstance(c, Tensor) else torch._foreach_add_(xs, c)


def shift(xs: Tensors, c: Factor) -> Tensors:
    """xs + c."""
    return torch._foreach_add(xs, c, alpha=1.0) if isinstance(c, Tensor) else torch._foreach_add(xs, c)


def add_(xs: Tensors, ys: Tensors, c: Factor = 1.0) -> None:
    """xs += c * ys."""
    if isinstance(c, (float, int)):
        torch._foreach_add_(xs, ys, alpha=c)
    else:
        torch._foreach_add_(xs, mul(ys, c))


def add(xs: Tensors, ys: Tensors, c: Factor = 1.0) -> Tensors:
    """xs + c * ys."""
    if isinstance(c, (float, int)):
        return torch._foreach_add(xs, ys, alpha=c)
    return torch._foreach_add(xs, mul(ys, c))


def lerp_(xs: Tensors, ys: Tensors, c: Factor) -> None:
    """xs += c * (ys - xs)."""
    if isinstance(c, (float, int)):
        torch._foreach_lerp_(xs, ys, c)
    else:
        add_(xs, torch._foreach_sub(ys, xs), c)


def lerp(xs: Tensors, ys: Tensors, c: Factor) -> Tensors:
    """xs + c * (ys - xs)."""
    if isinstance(c, (float, int)):
        return torch._foreach_lerp(xs, ys, c)
    return add(xs, torch._foreach_sub(ys, xs), c)


def decay_cautiously_(xs: Tensors, factor: Factor, updates: Tensors) -> None:
    """xs *= factor, for elements that the update does not move away from 0: update * x >= 0 (2510.12402)."""
    # The product of a sign and x is not rounded to 0. It is a list, since Dynamo reads a tuple as a number below.
    agree = list(sign(updates))
    mul_(agree, xs)
    sign_(agree)
    shift_(agree, 1.0)
    torch._foreach_clamp_max_(agree, 1.0)  # 1 where they agree, else 0
    torch._foreach_lerp_(xs, mul(xs, factor), agree)


def addcmul_(xs: Tensors, ys: Tensors, zs: Tensors, c: Factor) -> None:
    """xs += c * ys * zs."""
    if isinstance(c, (float, int)):
        torch._foreach_addcmul_(xs, ys, zs, value=c)
    else:
        torch._foreach_addcmul_(xs, mul(ys, c), zs)


def addcdiv_(xs: Tensors, ys: Tensors, zs: Tensors, c: Factor) -> None:
    """xs += c * ys / zs."""
    if isinstance(c, (float, int)):
        torch._foreach_addcdiv_(xs, ys, zs, value=c)
    else:
        torch._foreach_addcdiv_(xs, mul(ys, c), zs)
