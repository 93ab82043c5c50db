"""In-place arithmetic on lists of tensors: what the update rules are written in.

A factor `c` is a Python number, a 0-dim tensor, or a list of 0-dim tensors, one for each tensor of the list. The calls
are torch's multi-tensor kernels. In a graph for the CPU they are loops instead, since inductor there keeps the results
of multi-tensor operations in memory and fuses those of single ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

Tensors: TypeAlias = list[Tensor]
Factor: TypeAlias = "float | Tensor | list[Tensor]"

STACKED = 1 << 24  # elements that are stacked together


def is_zero(factor: Factor) -> bool:
    """Whether a factor is the number 0, so that what it multiplies can be left out."""
    return isinstance(factor, (int, float)) and factor == 0


def by_shape(xs: Tensors, alone: bool = False, on_cpu: int = 0) -> list[list[int]]:
    """The indices of tensors to stack, as one operation on several tensors of one shape is one launch on a GPU.

    Tensors stay alone where `alone` says so, in graphs, and where they are not contiguous. What is stacked together is
    limited, as it takes memory and large tensors gain nothing: on the CPU to `on_cpu` elements.
    """
    found: dict[Any, list[int]] = {}
    limit = STACKED if xs and xs[0].is_cuda else on_cpu if xs and xs[0].is_cpu else 0
    if alone or torch.compiler.is_compiling():
        limit = 0
    for i, x in enumerate(xs):
        found.setdefault(x.shape if 0 < x.numel() <= limit and x.is_contiguous() else i, []).append(i)
    result = []
    for indices in found.values():
        size = max(1, limit // max(1, xs[indices[0]].numel()))
        result += [indices[at : at + size] for at in range(0, len(indices), size)]
    return result


def _each(several: Callable[..., Any], single: Callable[..., Any]) -> Callable[..., Tensors]:
    """An operation on lists, of torch's for several tensors and its like for a single one."""

    def run(xs: Tensors, *columns: Any, **options: Any) -> Tensors:
        if not (torch.compiler.is_compiling() and xs[0].device.type == "cpu"):
            return list(several(xs, *columns, **options) or ())  # nothing, where it works in place
        rows = zip(xs, *(c if isinstance(c, list) else [c] * len(xs) for c in columns))
        return [single(*row, **options) for row in rows]

    return run


mul_ = _each(torch._foreach_mul_, Tensor.mul_)  # xs *= c; c may also be a list of tensors of the same shapes
div = _each(torch._foreach_div, torch.div)
div_ = _each(torch._foreach_div_, Tensor.div_)
neg = _each(torch._foreach_neg, torch.neg)
sqrt = _each(torch._foreach_sqrt, torch.sqrt)
sqrt_ = _each(torch._foreach_sqrt_, Tensor.sqrt_)
absolute = _each(torch._foreach_abs, torch.abs)
sign = _each(torch._foreach_sign, torch.sign)
sign_ = _each(torch._foreach_sign_, Tensor.sign_)
copy_ = _each(torch._foreach_copy_, Tensor.copy_)
norms = _each(torch._foreach_norm, torch.linalg.vector_norm)  # the root of the sum of squares of each
maximum_ = _each(torch._foreach_maximum_, lambda x, y: x.copy_(torch.maximum(x, y)))
_mul = _each(torch._foreach_mul, torch.mul)
addcmul = _each(torch._foreach_addcmul, torch.addcmul)  # xs + value * ys * zs
_add = _each(torch._foreach_add, torch.add)
_add_ = _each(torch._foreach_add_, Tensor.add_)
_sub = _each(torch._foreach_sub, torch.sub)
_lerp = _each(torch._foreach_lerp, torch.lerp)
_lerp_ = _each(torch._foreach_lerp_, Tensor.lerp_)
_addcmul_ = _each(torch._foreach_addcmul_, Tensor.addcmul_)
_addcdiv_ = _each(torch._foreach_addcdiv_, Tensor.addcdiv_)


def mul(xs: Tensors, c: Factor) -> Tensors:
    """xs * c; `c` may also be a list of tensors of the same shapes."""
    if not isinstance(c, list) or c[0].dim() or not xs[0].is_cuda or torch.compiler.is_compiling():
        return _mul(xs, c)
    results = list(xs)  # torch's kernel would take one tensor after the other
    for chosen in by_shape(xs):
        factors = torch.stack([c[i] for i in chosen]).view(-1, *[1] * xs[chosen[0]].dim())
        stacked = torch.stack([xs[i] for i in chosen])
        for i, x in zip(chosen, (stacked * factors).to(stacked.dtype).unbind()):
            results[i] = x
    return results


def shift_(xs: Tensors, c: Factor) -> None:
    """xs += c."""
    _add_(xs, c, **_alpha(c))


def shift(xs: Tensors, c: Factor) -> Tensors:
    """xs + c."""
    return _add(xs, c, **_alpha(c))


def _alpha(c: Factor) -> dict[str, float]:
    """Without it, torch takes a tensor for a number and reads it."""
    return {"alpha": 1.0} if isinstance(c, Tensor) else {}


def add_(xs: Tensors, ys: Tensors, c: Factor = 1.0) -> None:
    """xs += c * ys."""
    if isinstance(c, (float, int)):
        _add_(xs, ys, alpha=c)
    else:
        _add_(xs, mul(ys, c))


def add(xs: Tensors, ys: Tensors, c: Factor = 1.0) -> Tensors:
    """xs + c * ys."""
    return _add(xs, ys, alpha=c) if isinstance(c, (float, int)) else _add(xs, mul(ys, c))


def lerp_(xs: Tensors, ys: Tensors, c: Factor) -> None:
    """xs += c * (ys - xs)."""
    if isinstance(c, (float, int)):
        _lerp_(xs, ys, c)
    else:
        add_(xs, _sub(ys, xs), c)


def lerp(xs: Tensors, ys: Tensors, c: Factor) -> Tensors:
    """xs + c * (ys - xs)."""
    return _lerp(xs, ys, c) if isinstance(c, (float, int)) else add(xs, _sub(ys, xs), c)


def addcmul_(xs: Tensors, ys: Tensors, zs: Tensors, c: Factor) -> None:
    """xs += c * ys * zs."""
    if isinstance(c, (float, int)):
        _addcmul_(xs, ys, zs, value=c)
    else:
        _addcmul_(xs, mul(ys, c), zs)


def addcdiv_(xs: Tensors, ys: Tensors, zs: Tensors, c: Factor) -> None:
    """xs += c * ys / zs."""
    if isinstance(c, (float, int)):
        _addcdiv_(xs, ys, zs, value=c)
    else:
        _addcdiv_(xs, mul(ys, c), zs)
